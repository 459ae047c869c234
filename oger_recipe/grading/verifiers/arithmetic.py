"""When two arithmetic expressions are one solution: a normal form of sums and products.

Two expressions have one form exactly if these rules, applied anywhere and in both directions, turn one into the other:

    a + b = b + a,  (a + b) + c = a + (b + c)         the same for products
    a - (b - c) = a - b + c,  a / (b / c) = a * c / b
    (a - b) * c = -((b - a) * c)                      the sign of a factor belongs to its product; 0 = -0
    a + 0 = a - 0 = a,  a * 1 = a / 1 = a             for the written numbers 0 and 1

Numbers are their values: of two equal ones it does not matter which stands where. Only written numbers are neutral:
6 * (3 - 2) and 6 / (3 - 2) are different solutions, as are 4 + 5 - 5 and 4 * 5 / 5. Nothing is computed or cancelled,
and nothing is distributed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, TypeAlias

# A sum is its terms, sorted: (sign, factors). Factors are sorted, too: (1 or -1 for a divisor, number or inner sum).
# 0 is the empty sum, 1 the term without factors.
Factors: TypeAlias = "tuple[tuple[int, str | Sum], ...]"
Sum: TypeAlias = "tuple[tuple[int, Factors], ...]"


def solution_class(tree: ast.expr) -> str:
    """Write the normal form of an expression of numbers, + - * / and signs; any other operation is its own text."""
    return _text(_sum(tree))


def _sum(node: ast.expr) -> Sum:
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right):
            terms = _sum(right)
            return _sorted(_sum(left) + (terms if isinstance(sign, ast.Add) else _negated(terms)))
        case ast.BinOp(left, ast.Mult() | ast.Div() as sign, right):
            return _product(_sum(left), _sum(right), 1 if isinstance(sign, ast.Mult) else -1)
        case ast.UnaryOp(ast.UAdd() | ast.USub() as sign, inner):
            return _sum(inner) if isinstance(sign, ast.UAdd) else _negated(_sum(inner))
        case ast.Constant(0):
            return ()
        case ast.Constant(1):
            return ((1, ()),)
        case ast.Constant(number):
            return ((1, ((1, str(number)),)),)
    return ((1, ((1, f"({ast.unparse(node)})"),)),)


def _product(left: Sum, right: Sum, power: int) -> Sum:
    """Multiply, or divide where the power is -1."""
    (sign, factors), (other, more) = _as_term(left), _as_term(right)
    factors = _sorted(factors + tuple((power * exponent, base) for exponent, base in more))
    if len(factors) == 1 and factors[0][0] == 1 and not isinstance(factors[0][1], str):  # all others were ones
        return factors[0][1] if sign * other > 0 else _negated(factors[0][1])
    return ((sign * other if _has_sign(factors) else 1, factors),)


def _as_term(terms: Sum) -> tuple[int, Factors]:
    """Read a factor as a sign and factors; of a sum and its opposite, that with fewer minus signs is the factor."""
    if len(terms) == 1:
        return terms[0]
    first = min(terms, _negated(terms), key=lambda each: (-sum(sign for sign, _ in each), repr(each)))
    return (1 if first == terms else -1), ((1, first),)


def _negated(terms: Sum) -> Sum:
    return _sorted((-sign if _has_sign(factors) else 1, factors) for sign, factors in terms)


def _has_sign(factors: Factors) -> bool:
    """Say whether a product differs from its opposite: no factor is a sum such as 5 - 5, which is its own."""
    return all(isinstance(base, str) or base != _negated(base) for _, base in factors)


def _sorted(parts: Iterable[tuple[int, Any]]) -> tuple[Any, ...]:
    return tuple(sorted(parts, key=lambda part: (len(repr(part[1])), repr(part[1]), part[0])))


def _text(terms: Sum) -> str:
    """Write a form so that different forms are different texts, and a form that is read again stays itself."""
    signs = {1: "+", -1: "-"}
    plus_first = sorted(terms, key=lambda term: -term[0])
    return "".join(signs[sign] + _product_text(factors) for sign, factors in plus_first).removeprefix("+") or "0"


def _product_text(factors: Factors) -> str:
    parts = {power: [_factor_text(base) for each, base in factors if each == power] for power in (1, -1)}
    return "/".join(["*".join(parts[1]) or "1", *parts[-1]])


def _factor_text(base: str | Sum) -> str:
    return base if isinstance(base, str) else f"({_text(base)})"
