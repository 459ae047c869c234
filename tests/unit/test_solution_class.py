"""The class of a solution: examples by hand, and all expressions of a few numbers against two other definitions.

One substitutes random numbers for the given ones: expressions without 0 and 1 are one solution exactly where they are
one function. The other applies the rules, one at a time and anywhere, until nothing new is reached.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest

from oger_recipe.grading.verifiers.arithmetic import solution_class

Tree = Any  # a number, or (operation, tree, tree)


def _class(text: str) -> str:
    return solution_class(ast.parse(text, mode="eval").body)


SAME = {
    "commuted": ["2*3+1+4", "4+3*2+1", "1+4+2*3"],
    "associated": ["(2+3)+4", "2+(3+4)"],
    "minus in brackets": ["9-(4-3)", "9-4+3", "9+(3-4)", "3-(4-9)"],
    "division in brackets": ["8/(4/2)", "8*2/4", "8*(2/4)", "2/(4/8)"],
    "both": ["8/(4/2)-(5-3)", "3-5+2/4*8"],
    "zero": ["7+3", "7+0+3", "7+(3-0)", "0+3+7", "7-(0-3)"],
    "one": ["7*3+2", "7*1*3+2", "7/1*3+2", "1*(7*3+2)", "7*3+2/1", "7/(1/3)+2"],
    "zero and one": ["7*3", "7*(3+0)*1", "7*3/(1-0)"],
    "a sum times one": ["(7+3)*1+2", "7+3+2", "(7+1*3)+2"],
    "signs of factors": ["(3-2)*(7-5)", "(2-3)*(5-7)", "(7-5)*(3-2)"],
    "a sign before a product": ["9-(5-3)*2", "9+(3-5)*2", "9+2*(3-5)"],
    "a sign before a quotient": ["9-(5-3)/2", "9+(3-5)/2"],
    "equal numbers": ["(5-5)*2+4", "4-(5-5)*2", "4+2*(5-5)"],
}
DIFFERENT = [
    "6*(3-2)", "6/(3-2)", "6/3*2", "6*3/2", "6*3-2", "6-3*2", "3*2-6", "6/3-2", "2-6/3",
    "4+5-5", "4*5/5", "4", "4+4", "4*4", "1+1", "1", "0", "4*0", "4/(1+1)", "4/2", "2/4", "-4", "4-2", "2-4",
    "(2+3)*4", "2+3*4", "2*4+3*4", "24+5", "2+45",
]  # fmt: skip


@pytest.mark.parametrize("texts", SAME.values(), ids=SAME.keys())
def test_one_solution_written_differently_is_one_class(texts: list[str]) -> None:
    assert len({_class(text) for text in texts}) == 1


def test_different_solutions_are_different_classes() -> None:
    assert len({_class(text) for text in DIFFERENT}) == len(DIFFERENT)


def test_other_operations_are_classes_by_their_text() -> None:
    assert _class("2**3+1") == _class("1+2**3") != _class("3**2+1")
    assert _class("7//2*1") == _class("7//2") != _class("7/2")
    assert _class("-(2-3)") == _class("3-2") and _class("+2") == _class("2")


def _trees(numbers: Sequence[Hashable]) -> Iterator[Tree]:
    """Yield all expressions that use each number once, in this order."""
    if len(numbers) == 1:
        yield numbers[0]
    for cut in range(1, len(numbers)):
        for left, right in itertools.product(_trees(numbers[:cut]), _trees(numbers[cut:])):
            yield from ((operation, left, right) for operation in "+-*/")


def _of_any_order(numbers: Sequence[Hashable]) -> Iterator[Tree]:
    for order in set(itertools.permutations(numbers)):
        yield from _trees(order)


def _text(tree: Tree) -> str:
    return f"({_text(tree[1])}{tree[0]}{_text(tree[2])})" if isinstance(tree, tuple) else str(tree)


def _value(tree: Tree, values: Sequence[Fraction]) -> Fraction:
    """Evaluate a tree of positions."""
    if not isinstance(tree, tuple):
        return values[tree]
    left, right = _value(tree[1], values), _value(tree[2], values)
    return {"+": left + right, "-": left - right, "*": left * right, "/": left / right if right else Fraction(0)}[
        tree[0]
    ]


def _number(tree: Tree, numbers: Sequence[int]) -> Tree:
    """Put numbers in the places of positions."""
    return (tree[0], *(_number(each, numbers) for each in tree[1:])) if isinstance(tree, tuple) else numbers[tree]


def _assert_one_to_one(pairs: Iterator[tuple[str, Hashable]]) -> int:
    """Return how many classes there are, which both definitions agree on."""
    by_class, by_other = defaultdict(set), defaultdict(set)
    for text, other in pairs:
        by_class[text].add(other)
        by_other[other].add(text)
    assert all(len(others) == 1 for others in by_class.values()), "different ones have one class"
    assert all(len(texts) == 1 for texts in by_other.values()), "one solution has several classes"
    return len(by_class)


# Of 1 to 4 different numbers there are 1, 6, 68 and 1170 (A140606 of the OEIS).
@pytest.mark.parametrize(
    ("numbers", "classes"), [([2, 3], 6), ([2, 3, 5], 68), ([5, 5, 3], 40), ([4, 4, 4], 18), ([2, 3, 5, 7], 1170)]
)
def test_expressions_are_one_solution_where_they_are_one_function(numbers: list[int], classes: int) -> None:
    draw = random.Random(len(numbers))
    values = [Fraction(draw.randrange(10**6, 10**7), draw.randrange(10**6, 10**7)) for _ in numbers]
    orders = [
        [values[position] for position in order]
        for order in itertools.permutations(range(len(numbers)))
        if [numbers[position] for position in order] == numbers  # equal numbers may change places
    ]

    def pairs() -> Iterator[tuple[str, Hashable]]:
        for tree in _of_any_order(range(len(numbers))):
            yield _class(_text(_number(tree, numbers))), min(_value(tree, order) for order in orders)

    assert _assert_one_to_one(pairs()) == classes


def _neighbours(tree: Tree) -> Iterator[Tree]:
    """Yield what one rule, applied once anywhere, makes of a tree."""
    if not isinstance(tree, tuple):
        return
    operation, left, right = tree
    yield from ((operation, other, right) for other in _neighbours(left))
    yield from ((operation, left, other) for other in _neighbours(right))
    yield from _rules(operation, left, right)


def _rules(operation: str, left: Tree, right: Tree) -> Iterator[Tree]:
    yield from _of_operation("+", "-", 0, (operation, left, right))
    yield from _of_operation("*", "/", 1, (operation, left, right))
    if operation in "+-" and isinstance(right, tuple) and right[0] in "*/":  # w + (x - y) * z = w - (y - x) * z
        yield from (("-" if operation == "+" else "+", left, each) for each in _turned(right))
    if operation in "*/":  # (x - y) * (z - w) = (y - x) * (w - z)
        for each in _turned((operation, left, right), at=1):
            yield from _turned(each, at=2)
        match left, right:
            case ("-", 0, y), z:
                yield ("-", 0, (operation, y, z))
            case z, ("-", 0, y):
                yield ("-", 0, (operation, z, y))


def _of_operation(plus: str, minus: str, neutral: int, tree: Tree) -> Iterator[Tree]:
    """Apply the rules of sums, or of products, where minus is a division."""
    operation, left, right = tree
    if operation in (plus, minus) and right == neutral:
        yield left
    if operation == plus:
        yield (plus, right, left)
    match tree:
        case outer, (inner, x, y), z if (outer, inner) == (plus, plus):
            yield (plus, x, (plus, y, z))
        case outer, (inner, x, y), z if (outer, inner) == (plus, minus):
            yield (minus, (plus, x, z), y)
        case outer, (inner, x, y), z if (outer, inner) == (minus, plus):
            yield (plus, x, (minus, y, z))
    match tree:
        case outer, x, (inner, y, z) if outer == minus and inner in (plus, minus):
            yield (plus if inner == minus else minus, (minus, x, y), z)


def _turned(tree: Tree, at: int | None = None) -> Iterator[Tree]:
    """Turn the difference that is a factor of a product round: the left one (1), the right one (2) or either. 0 is its
    own opposite."""
    for side in (1, 2) if at is None else (at,):
        match tree[side]:
            case ("-", x, y):
                yield tree[:side] + (("-", y, x),) + tree[side + 1 :]
            case 0:
                yield tree


@pytest.mark.parametrize("numbers", [[0, 3], [1, 3], [0, 1], [1, 1, 3], [0, 0, 3], [0, 1, 3], [1, 3, 4], [5, 5, 2]])
def test_expressions_are_one_solution_where_the_rules_lead_from_one_to_the_other(numbers: list[int]) -> None:
    parents: dict[Tree, Tree] = {}

    def root(tree: Tree) -> Tree:
        while (parent := parents.get(tree, tree)) != tree:
            tree = parent
        return tree

    without = {
        tuple(sorted([each for each in numbers if each > 1] + [*few]))
        for size in range(len(numbers) + 1)
        for few in itertools.combinations([each for each in numbers if each <= 1], size)
    }
    trees = [tree for few in without if few for tree in _of_any_order(few)]
    for tree in trees:
        for other in _neighbours(tree):
            parents[root(tree)] = root(other)
    whole = [tree for tree in trees if len(_text(tree)) - 4 * (len(numbers) - 1) == 1]
    _assert_one_to_one((_class(_text(tree)), root(tree)) for tree in whole)


def test_a_class_that_is_read_again_is_itself() -> None:
    for tree in itertools.islice(_of_any_order([0, 1, 5, 5]), 0, None, 7):
        assert _class(_class(_text(tree))) == _class(_text(tree))
