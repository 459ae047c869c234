"""Exact labels of Countdown's steps of reasoning, by arithmetic.

A step is what a comma ends (STEPS): in the teachers' styles one statement each, "8*12=96" or "96=8*12", and at the end
the answer. A step is good if it is *progress*:

- what it states is true, and made of what the attempt has: numbers and results that it has not used yet, or, from
  behind, a goal that is still open;
- the target can still be reached from there with all that is left, in positive integers;
- and the response has never been as near: an attempt that begins anew earns what goes beyond the attempts before it.

So no response has more good statements than its solution has, however often it repeats itself, splits what it says or
starts again: a sum of exact labels cannot be driven up by writing more. A dead end is true and yet no progress. The
step with the answer is good if the answer is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

from oger_recipe.base.cutting import StepRule
from oger_recipe.grading.verifiers.countdown import verify_countdown
from oger_recipe.lab.countdown_problem import OPERATORS, combine

STEPS = StepRule(delimiters=(", ",))

_AGAIN = re.compile(r"\b(start|try)\b")  # words with which an attempt begins
_EQUATION = re.compile(r"[\d+\-*/().=]*=[\d+\-*/().=]*")  # all that is glued to an equals sign
_AROUND = re.compile(r"\s*([-+*/=])\s*")  # spaces around a sign
_OPERATION = r"(?P<a>\d{1,9})(?P<operator>[-+*/])(?P<b>\d{1,9})"
_FORWARD = re.compile(rf"{_OPERATION}=(?P<made>\d{{1,9}})\.?")
_BACKWARD = re.compile(rf"(?P<made>\d{{1,9}})={_OPERATION}\.?")

Values = tuple[int, ...]  # sorted
_Attempt = tuple[Values, Values]  # what is left to combine, and the goals that it has to make


def step_labels(steps: Sequence[str], numbers: Sequence[int], target: int) -> list[int]:
    """Label each step of a response (joined they are its text): 1 if it is good, else 0."""
    begun: _Attempt = (tuple(sorted(numbers)), (target,))
    attempt, fewest = begun, _missing(begun)
    answered = max((number for number, step in enumerate(steps) if "</answer>" in step), default=None)
    labels = []
    for number, step in enumerate(steps):
        if number == answered:
            labels.append(int(_is_right("".join(steps), numbers, target)))
            continue
        if _AGAIN.search(step):
            attempt = begun
        equations = _EQUATION.findall(_AROUND.sub(r"\1", step))
        is_good = bool(equations)
        for equation in equations:
            after = _stated(attempt, equation)
            is_good = is_good and after is not None and _missing(after) < fewest and reaches(*after)
            attempt = attempt if after is None else after
        if is_good:
            fewest = _missing(attempt)
        labels.append(int(is_good))
    return labels


@lru_cache(maxsize=200_000)
def reaches(values: Values, goals: Values) -> bool:
    """Say whether combining all of the values makes just the goals; both sorted."""
    if len(values) <= len(goals):
        return values == goals
    return any(reaches(fewer, goals) for fewer in _combined(values))


@lru_cache(maxsize=200_000)
def _combined(values: Values) -> frozenset[Values]:
    """Return all that one statement can make of values."""
    return frozenset(
        _sorted(rest, made)
        for pair in set(combinations(values, 2))
        if (rest := _without(values, pair)) is not None
        for operator in OPERATORS
        for a, b in (pair, pair[::-1])
        if (made := combine(operator, a, b)) is not None
    )


def _missing(attempt: _Attempt) -> int:
    """Return how many statements an attempt still needs."""
    return len(attempt[0]) - len(attempt[1])


def _stated(attempt: _Attempt, equation: str) -> _Attempt | None:
    """Return the attempt after an equation; None where it is false, no statement, or uses what the attempt has not."""
    left, goals = attempt
    forward = _FORWARD.fullmatch(equation)
    found = forward or _BACKWARD.fullmatch(equation)
    if found is None or 0 in (a := int(found["a"]), b := int(found["b"])):
        return None
    made = int(found["made"])
    if combine(found["operator"], a, b) != made:
        return None
    rest = _without(left, (a, b)) if forward else _without(goals, (made,))
    if rest is None:
        return None
    return (_sorted(rest, made), goals) if forward else (left, _sorted(rest, a, b))


def _without(values: Values, taken: Sequence[int]) -> Values | None:
    """Return the values without those taken; None where some are missing."""
    rest = list(values)
    for value in taken:
        if value not in rest:
            return None
        rest.remove(value)
    return tuple(rest)


def _sorted(values: Values, *more: int) -> Values:
    return tuple(sorted((*values, *more)))


def _is_right(response: str, numbers: Sequence[int], target: int) -> bool:
    answer = json.dumps({"numbers": list(numbers), "target": target})
    return verify_countdown(response, answer).score == 1.0
