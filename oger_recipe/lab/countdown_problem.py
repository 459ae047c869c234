"""Countdown's problems and the trees of their solutions.

A tree is an integer or ``(operator, left, right)`` with the operators ``+ - * /``; all values in it are positive
integers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

OPERATORS = "+-*/"
Expression: TypeAlias = "int | tuple[str, Expression, Expression]"
Step: TypeAlias = tuple[int, str, int, int]


@dataclass(frozen=True)
class Problem:
    """Numbers in the order shown to the policy, the target, and the tree by which the generator reached it."""

    numbers: tuple[int, ...]
    target: int
    expression: Expression

    @property
    def uid(self) -> str:
        """A name made of the numbers, whatever their order, and the target."""
        return f"countdown-{'-'.join(map(str, sorted(self.numbers)))}-{self.target}"


def combine(operator: str, left: int, right: int) -> int | None:
    """Return the value of one step on positive integers, or None where it is not a positive integer."""
    if operator == "+":
        return left + right
    if operator == "*":
        return left * right
    if operator == "-":
        return left - right if left > right else None
    return left // right if left % right == 0 else None


def value_of(expression: Expression) -> int:
    """Return the value of a tree. Raises ValueError where some step has no positive integer value."""
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    value = combine(operator, value_of(left), value_of(right))
    if value is None:
        raise ValueError(f"{render(expression)} has a step that is not a positive integer")
    return value


def render(expression: Expression) -> str:
    """Write a tree: every inner operation in brackets, the outermost without, no spaces."""
    if isinstance(expression, int):
        return str(expression)
    operator, left, right = expression
    return f"{_operand(left)}{operator}{_operand(right)}"


def _operand(expression: Expression) -> str:
    return str(expression) if isinstance(expression, int) else f"({render(expression)})"


def steps(expression: Expression) -> list[Step]:
    """List the operations of a tree as (left, operator, right, result), innermost first."""
    if isinstance(expression, int):
        return []
    operator, left, right = expression
    return [*steps(left), *steps(right), (value_of(left), operator, value_of(right), value_of(expression))]


def random_expression(
    numbers: Sequence[int], operators: str, rng: random.Random, limit: int
) -> tuple[Expression, int] | None:
    """Combine all numbers in random order with random operators.

    Return (tree, value), every value in it a positive integer <= limit, or None where the draw ran into a dead end.
    """
    pool: list[tuple[Expression, int]] = [(number, number) for number in numbers]
    while len(pool) > 1:
        left = pool.pop(int(rng.random() * len(pool)))
        right = pool.pop(int(rng.random() * len(pool)))
        joined = _join(left, right, operators, rng, limit)
        if joined is None:
            return None
        pool.append(joined)
    return pool[0]


def _join(
    left: tuple[Expression, int], right: tuple[Expression, int], operators: str, rng: random.Random, limit: int
) -> tuple[Expression, int] | None:
    for operator in rng.sample(operators, len(operators)):
        value = combine(operator, left[1], right[1])
        if value is not None and value <= limit:
            return (operator, left[0], right[0]), value
    return None
