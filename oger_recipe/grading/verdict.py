"""What grading says of one response: a `Verdict`, and a `Graded` around it that also tells of failures.

The last functions read what code of others gives for several rows or steps at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from oger_recipe.base.ranges import reward_fault

_NAMED = frozenset({"reward", "score", "reason", "extracted", "pred", "components", "solution"})


class UnreadableAnswer(ValueError):
    """Raised by a verifier where the reference answer is at fault, whatever the response. The row is refused then."""


class NoVerdict(ValueError):
    """Raised for a return value that cannot be read as a verdict; the message says why."""


@dataclass(frozen=True)
class Verdict:
    """What a verifier says about one response.

    reward: what the policy is trained on; score: 1 for right, else 0, whatever the reward's shaping; reason: one line
    for people; components: named parts of the verdict, the same names for every response of a task; extracted: the
    answer that was found in the response, in a form in which equal answers are equal texts (for majority votes);
    steps: rewards of the response's steps in their order, none for a verifier that judges the whole; solution: the
    class of a right response, a text that is equal for one solution written differently (None: wrong, or the verifier
    knows no classes).
    """

    reward: float
    score: float
    reason: str
    components: dict[str, float] = field(default_factory=dict)
    extracted: str | None = None
    steps: tuple[float, ...] = ()
    solution: str | None = None


@dataclass(frozen=True)
class Graded:
    """A verdict, or a failure to reach one: then reward and score are 0, and ``error`` says why.

    unreadable: the reference answer is at fault; the task's verifier has said so by UnreadableAnswer.
    """

    verdict: Verdict
    error: str | None = None
    timed_out: bool = False
    seconds: float = 0.0
    unreadable: bool = False

    @classmethod
    def failed(cls, error: str, **facts: Any) -> Graded:
        return cls(Verdict(0.0, 0.0, f"not graded: {error}"), error, **facts)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Graded:
        """Read what dataclasses.asdict has made. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(**{**document, "verdict": as_verdict(document["verdict"])})


def verdict_fields(graded: Graded) -> dict[str, Any]:
    """Return the part of a record that grading gives. An answer whose grader failed counts as wrong."""
    verdict = graded.verdict
    return {
        "score": verdict.score,
        "reward": verdict.reward,
        "format": verdict.components.get("format", 0.0),
        **verdict_columns(graded),
        "graded": graded.error is None,
    }


def verdict_columns(graded: Graded) -> dict[str, Any]:
    """Return the verdict's columns beside reward and score, for records of answers and samples."""
    verdict = graded.verdict
    columns = {"extracted": verdict.extracted, "reason": verdict.reason, "components": verdict.components}
    steps = {"steps": list(verdict.steps)} if verdict.steps else {}
    return columns | steps | ({} if verdict.solution is None else {"solution": verdict.solution})


def as_verdict(returned: Any) -> Verdict:
    """Read a verifier's return value as a verdict.

    A `Verdict` stands for itself. A number is the reward. A dict has "reward", or as verl's only "score", which then
    is the reward; it may have "score", "reason", "extracted" (or verl's "pred"), "components", "steps" (a list of
    numbers) and "solution". Its other entries are components where they are numbers, and left out where they are not.
    A pair of a number and a dict is that dict with the number as its reward.

    A score is 0 or 1; where none is given it is 1 for a reward of 1 or more. Numbers are int, float, bool and what
    gives one by .item(), as NumPy's and PyTorch's do, and are finite. What was extracted, and the solution, is a
    text or None; of a number the text is taken. A wrong response has no solution. Raises NoVerdict, with what is
    wrong, for everything else.
    """
    fields = _fields(returned)
    steps = fields.pop("steps") if is_list(fields.get("steps")) else ()
    if isinstance(fields.get("steps"), Mapping | Set):
        raise NoVerdict(f"steps is of type {type(fields['steps']).__name__}, not a list of numbers")
    reward = _number("reward", fields["reward"])
    score, solution = _score(fields.get("score"), reward), _text_of("solution", fields.get("solution"))
    return Verdict(
        reward=reward,
        score=score,
        reason=str(fields.get("reason") or ""),
        components=_components(fields),
        extracted=_text_of("extracted", fields.get("extracted", fields.get("pred"))),
        steps=tuple(_number(f"step {number}", value) for number, value in enumerate(steps)),
        solution=solution if score else None,
    )


def _fields(returned: Any) -> dict[Any, Any]:
    """Turn the return value into a dict with "reward"."""
    if isinstance(returned, Verdict):
        return dict(vars(returned))
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
        if "reward" in returned[1]:
            raise NoVerdict("the verifier returned two rewards: one before its dict and one in it")
        return {**returned[1], "reward": returned[0]}
    if not isinstance(returned, Mapping):
        if plain_number(returned) is None:
            raise NoVerdict(
                f"the verifier returned a value of type {type(returned).__name__}; allowed are a Verdict, a number, "
                'a dict with "reward", and a pair of a number and a dict'
            )
        return {"reward": returned}
    fields = dict(returned)
    if "reward" not in fields:
        if "score" not in fields:
            raise NoVerdict('the dict that the verifier returned has neither "reward" nor "score"')
        fields["reward"] = fields.pop("score")
    return fields


def _components(fields: Mapping[Any, Any]) -> dict[str, float]:
    others = {name: value for name, value in fields.items() if name not in _NAMED and plain_number(value) is not None}
    named = fields.get("components")
    if not isinstance(named, Mapping | None):
        raise NoVerdict(f"components is of type {type(named).__name__}, not a dict")
    return {str(name): _number(f"component {name}", value) for name, value in (others | dict(named or {})).items()}


def plain_number(value: Any) -> int | float | None:
    """Return the Python number that a value is, or None."""
    if not isinstance(value, int | float) and hasattr(value, "item"):
        try:
            value = value.item()
        except (TypeError, ValueError, RuntimeError):  # several elements
            return None
    return value if isinstance(value, int | float) else None


def _number(name: str, value: Any) -> float:
    number = plain_number(value)
    if number is None:
        raise NoVerdict(f"{name} is of type {type(value).__name__}, not one number")
    try:
        number = float(number)
    except OverflowError:
        raise NoVerdict(f"{name} is too large a number") from None
    if not math.isfinite(number):
        raise NoVerdict(f"{name} is {number}, not a finite number")
    if fault := reward_fault(number):
        raise NoVerdict(f"{name} is {number:g}, which is {fault}")
    return number


def _score(given: Any, reward: float) -> float:
    if given is None:
        return float(reward >= 1)
    score = _number("score", given)
    if score not in (0.0, 1.0):
        raise NoVerdict(f"score {score:g}: a score is 0 or 1; put partial credit into reward")
    return score


def _text_of(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise NoVerdict(f"{name} is of type {type(value).__name__}, not a text")


def is_list(values: Any) -> bool:
    """Say whether these are values in an order: a list, tuple, array, tensor, series or generator.

    Anything else goes over characters, keys or names of columns, or in an order of its own, and these would be taken
    for the values of rows.
    """
    if isinstance(values, str | bytes | bytearray | Mapping | Set) or getattr(values, "ndim", 1) == 0:
        return False
    return hasattr(values, "__iter__") and (not hasattr(values, "keys") or hasattr(values, "tolist"))
