"""Reward functions written for TRL or verl, which work here as they are: they are known by their arguments' names.

    TRL   f(prompts, completions, **columns)                                  a number or None for each of some rows
    verl  compute_score(data_source, solution_str, ground_truth, extra_info)  a number or a dict with "score" for a row

Both are called with keyword arguments: those that the signature names, or all where it takes all.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Form:
    """How another trainer calls a reward function.

    marks: arguments, one of which tells that a function is of this form; given: those that it gets here; withheld:
    those that it gets there alone -> what to do about it; columns: it gets the columns of the data as well.
    """

    trainer: str
    marks: frozenset[str]
    given: frozenset[str]
    withheld: Mapping[str, str]
    columns: bool

    def required_columns(self, function: Callable[..., Any]) -> list[str]:
        """Return the data's columns without which the function cannot be called."""
        return [name for name in _required(function) if name not in self.given] if self.columns else []

    def problems(self, function: Callable[..., Any]) -> Iterator[str]:
        """Yield a sentence for each argument, columns aside, that it needs and nobody has here."""
        for name in _required(function):
            if name in self.withheld:
                why = self.withheld[name]
                yield f"it needs {name!r}, which {self.trainer} passes and this recipe does not: {why}"
            elif name not in self.given and not self.columns:
                yield (
                    f"it needs {name!r}, which {self.trainer} does not pass ({', '.join(sorted(self.given))}): "
                    "give it a default, or wrap the function"
                )


def verl_arguments(response: str, answer: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what verl's reward managers hand over; ``row``: the data's further columns."""
    return {
        "data_source": row.get("data_source", row.get("datasource")),
        "solution_str": response,
        "ground_truth": answer,
        "extra_info": copy.deepcopy(row.get("extra_info")) or {},
    }


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
    ),
    Form(
        "verl",
        marks=frozenset({"solution_str"}),
        given=frozenset(verl_arguments("", "", {})),
        withheld={},
        columns=False,
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


def _required(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [each.name for each in _parameters(function) if each.default is each.empty and each.kind not in kinds]


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters; none without a signature, as in C."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
