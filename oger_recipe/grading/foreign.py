"""Reward functions written for TRL or verl, which work here as they are: they are known by their arguments' names.

    TRL   f(prompts, completions, **columns)                                  a number or None for each of some rows
    verl  compute_score(data_source, solution_str, ground_truth, extra_info)  a number or a dict with "score" for a row

Both are called with keyword arguments: those that the signature names, or all where it takes all.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oger_recipe.grading.verdict import plain_number

if TYPE_CHECKING:
    from oger_recipe.rewards.sources import Group


@dataclass(frozen=True)
class Call:
    """One call of a function: the rows of its group that it is about, and its keyword arguments."""

    rows: Sequence[int]
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """How another trainer calls a reward function.

    marks: arguments, one of which tells that a function is of this form; given: those that it gets here; withheld:
    those that it gets there alone -> what to do about it; columns: it gets the columns of the data as well; calls:
    makes those for a group's rows; read: returns values (None: not applicable) and components of an answer.
    """

    trainer: str
    marks: frozenset[str]
    given: frozenset[str]
    withheld: Mapping[str, str]
    columns: bool
    calls: Callable[[Group, Sequence[int]], list[Call]]
    read: Callable[[Any], tuple[Sequence[float | None], Mapping[str, float]]]

    def required_columns(self, function: Callable[..., Any]) -> list[str]:
        """Return the data's columns without which the function cannot be called."""
        return [name for name in _required(function) if name not in self.given] if self.columns else []

    def problems(self, function: Callable[..., Any]) -> Iterator[str]:
        """Yield a sentence for each argument, columns aside, that it needs and nobody has here."""
        for name in _required(function):
            if name in self.withheld:
                why = self.withheld[name]
                yield f"it needs {name!r}, which {self.trainer} hands over and this recipe does not: {why}"
            elif name not in self.given and not self.columns:
                yield (
                    f"it needs {name!r}, which is none of {self.trainer}'s {', '.join(sorted(self.given))}: give it a "
                    "default, or write a function around it"
                )


def _trl_calls(group: Group, rows: Sequence[int]) -> list[Call]:
    columns = {**group.row, "uid": group.uid, "task": group.task, "answer": group.answer}
    chat = bool(group.messages)
    texts = [group.responses[row] for row in rows]
    arguments = {name: [copy.deepcopy(value) for _ in rows] for name, value in columns.items()}
    arguments["prompts"] = [copy.deepcopy(group.messages) if chat else group.question for _ in rows]
    arguments["completions"] = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    return [Call(rows, arguments)] if rows else []


def verl_arguments(response: str, answer: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what verl's reward managers hand over; ``row``: the data's further columns."""
    return {
        "data_source": row.get("data_source", row.get("datasource")),
        "solution_str": response,
        "ground_truth": answer,
        "extra_info": copy.deepcopy(row.get("extra_info")) or {},
    }


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


_TOKENS = "responses are texts here; the kind length counts tokens"
_STATE = "leave it out, or give it a default"
FORMS = (
    Form(
        "TRL",
        marks=frozenset({"completions", "completion_ids", "completions_ids"}),
        given=frozenset({"prompts", "completions"}),
        withheld={"completion_ids": _TOKENS, "completions_ids": _TOKENS}
        | {name: _STATE for name in ("trainer_state", "log_extra", "log_metric", "environments")},
        columns=True,
        calls=_trl_calls,
        read=lambda answer: (answer, {}),
    ),
    Form(
        "verl",
        marks=frozenset({"solution_str"}),
        given=frozenset(verl_arguments("", "", {})),
        withheld={},
        columns=False,
        calls=_verl_calls,
        read=_verl_read,
    ),
)


def form_of(function: Any) -> Form | None:
    """Return the trainer's form that a function has; None: neither."""
    names = {each.name for each in _parameters(function)}
    return next((form for form in FORMS if names & form.marks), None)


def is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the function's signature names, or all where it takes all."""
    parameters = _parameters(function)
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return dict(arguments)
    names = {each.name for each in parameters}
    return {name: value for name, value in arguments.items() if name in names}


def answers_of(function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
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


def _required(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [each.name for each in _parameters(function) if each.default is each.empty and each.kind not in kinds]


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters; none without a signature, as in C."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
