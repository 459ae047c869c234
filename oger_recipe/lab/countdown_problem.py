"""Countdown's problems and the trees of their solutions.

A tree is an integer or ``(operator, left, right)`` with the operators ``+ - * /``; all values in it are positive
integers.
"""

from __future__ import annotations

import json
import operator as arithmetic
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from oger_recipe.grading.verifiers import verify

OPERATORS = "+-*/"
MOST_NUMBERS = 5  # of a problem whose solutions are listed: a tenth of a second; with six, many
_OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "+": arithmetic.add,
    "-": arithmetic.sub,
    "*": arithmetic.mul,
    "/": arithmetic.truediv,
}
_BOTH_WAYS = (("+", False), ("*", False), ("-", False), ("-", True), ("/", False), ("/", True))
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


def solutions(numbers: Sequence[int], target: int) -> dict[str, list[Expression]]:
    """List all ways to reach the target with each number once, by the class of one solution (arithmetic.py).

    As the verifier grades: with all four operators, and any fraction or number below zero on the way. Of two ways that
    differ by the order of two operands of + or * only one is listed.
    """
    answer = json.dumps({"numbers": list(numbers), "target": target})
    ways: defaultdict[str, list[Expression]] = defaultdict(list)
    for tree, value in _trees(tuple(sorted(numbers))):
        if abs(value - target) < 1e-6:  # the verifier computes exactly
            solution = verify("countdown", f"<answer>{render(tree)}</answer>", answer).solution
            if solution is not None:
                ways[solution].append(tree)
    return dict(ways)


def _trees(numbers: tuple[int, ...]) -> Iterator[tuple[Expression, float]]:
    """Yield all trees over the numbers with their values, in floating point: exact ones take ten times as long."""
    if len(numbers) == 1:
        yield numbers[0], float(numbers[0])
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for chosen in range(1, 2 ** (len(numbers) - 1)):  # the last number is always on the right: each cut once
        left = tuple(number for place, number in enumerate(numbers) if chosen >> place & 1)
        right = tuple(number for place, number in enumerate(numbers) if not chosen >> place & 1)
        if {(left, right), (right, left)} & seen:  # equal numbers
            continue
        seen.add((left, right))
        others = list(_trees(right))
        for one, its_value in _trees(left):
            for other, other_value in others:
                for operator, turned in _BOTH_WAYS:
                    a, b = (other_value, its_value) if turned else (its_value, other_value)
                    if operator != "/" or b != 0:
                        tree = (operator, other, one) if turned else (operator, one, other)
                        yield tree, _OPERATIONS[operator](a, b)
