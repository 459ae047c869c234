"""Functions of the user's that TRL or verl calls, asked as these do (grading/foreign.py says which they are)."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oger_recipe.grading.foreign import Form, accepted, is_async, verl_arguments
from oger_recipe.grading.verdict import is_list, plain_number
from oger_recipe.rewards.sources import ANSWER, Group, Scores, components_of, reason


@dataclass(frozen=True)
class Call:
    """One call of a function: the rows of its group that it is about, and its keyword arguments."""

    rows: Sequence[int]
    arguments: Mapping[str, Any]


def _trl_calls(group: Group, rows: Sequence[int]) -> list[Call]:
    columns = {**group.row, "uid": group.uid, "task": group.task, "answer": group.answer}
    chat = bool(group.messages)
    texts = [group.responses[row] for row in rows]
    arguments = {name: [copy.deepcopy(value) for _ in rows] for name, value in columns.items()}
    arguments["prompts"] = [copy.deepcopy(group.messages) if chat else group.question for _ in rows]
    arguments["completions"] = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    return [Call(rows, arguments)] if rows else []


def _verl_calls(group: Group, rows: Sequence[int]) -> list[Call]:
    return [Call([row], verl_arguments(group.responses[row], group.answer, group.row)) for row in rows]


def _verl_read(answer: Any) -> tuple[Sequence[float | None], Mapping[str, float]]:
    """Read the score, and as components the other numbers alone."""
    if not isinstance(answer, Mapping):
        return [_number(answer)], {}
    if "score" not in answer:
        raise ValueError('it returned a dict without "score"')
    others = {str(name): plain_number(value) for name, value in answer.items() if name != "score"}
    return [_number(answer["score"])], {name: float(value) for name, value in others.items() if value is not None}


def _number(value: Any) -> float:
    number = plain_number(value)
    if number is None:
        raise TypeError(f'it returned {type(value).__name__}, neither a number nor a dict with a number as "score"')
    return float(number)


# Trainer -> the calls about a group's rows, and what is read in an answer: values (None: not applicable), components.
_BY_TRAINER: dict[
    str,
    tuple[
        Callable[[Group, Sequence[int]], list[Call]],
        Callable[[Any], tuple[Sequence[float | None], Mapping[str, float]]],
    ],
] = {"TRL": (_trl_calls, lambda answer: (answer, {})), "verl": (_verl_calls, _verl_read)}


@dataclass(frozen=True)
class ForeignFunction:
    """A function of the user's that another trainer calls. What goes wrong with a call is its rows' own error."""

    function: Callable[..., Any]
    form: Form

    @property
    def overlaps(self) -> bool:
        return is_async(self.function)

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        calls_of, read = _BY_TRAINER[self.form.trainer]
        calls = [
            (number, call)
            for number, group in enumerate(groups)
            for call in calls_of(group, wanted[number].nonzero().flatten().tolist())
        ]
        answers = _answers(self.function, [call for _, call in calls])
        values, silent = torch.full(wanted.shape, math.nan), torch.zeros_like(wanted)
        components: list[list[dict[str, float]]] = [[{} for _ in group.responses] for group in groups]
        errors: dict[tuple[int, int], str] = {}
        for (number, call), answer in zip(calls, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                found, parts = read(answer)
                said = [value is not None for value in found] if is_list(found) else []
                values_or_0 = [0 if value is None else value for value in found] if said else found
                numbers = numbers_of(values_or_0, len(call.rows), "it")
                for name, part in parts.items():
                    numbers_of([part], 1, f"its component {name!r}")
            except Exception as error:
                errors |= {(number, row): reason(error) for row in call.rows}  # any answer may be at fault
                continue
            for row, value, is_said in zip(call.rows, numbers, said, strict=True):
                values[number, row], silent[number, row] = value if is_said else math.nan, not is_said
                components[number][row] = dict(parts)
        causes = dict.fromkeys(errors, ANSWER)
        return Scores(values, components_of(components), errors, causes=causes, silent=silent)


def _answers(function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
    """Call the function, one call after the other; await an async one for all calls together.

    What a call raises stands in place of its answer.
    """
    if is_async(function):
        return asyncio.run(_awaited(function, calls))
    return [_tried(function, call) for call in calls]


async def _awaited(function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
    answers = (function(**accepted(function, call.arguments)) for call in calls)
    return await asyncio.gather(*answers, return_exceptions=True)


def _tried(function: Callable[..., Any], call: Call) -> Any:
    try:
        return function(**accepted(function, call.arguments))
    except Exception as error:  # whatever the user's function raises
        return error


def numbers_of(values: Any, size: int, what: str) -> list[float]:
    """Read so many finite numbers. Raises ValueError or TypeError for anything else."""
    if not is_list(values):
        raise TypeError(f"{what} is of type {type(values).__name__}, no list with a number for each response")
    numbers = [float(value) for value in values]
    if len(numbers) != size:
        raise ValueError(f"{what} has {len(numbers)} values for {size} responses")
    if bad := [number for number in numbers if not math.isfinite(number)]:
        raise ValueError(f"{what} has the value {bad[0]}, which is not finite")
    return numbers
