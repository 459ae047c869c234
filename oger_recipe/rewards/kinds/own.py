"""Sources of the user's own: a function or a class in a file, ``module:name`` as its kind.

A function gets one Group at a time and returns one number for each of its rows, or a pair of these and of components
``{name: one number for each row}``.

A function that TRL or verl calls works as it is (grading/foreign.py). It is asked about the rows whose gate is open;
an async one while other sources are asked.

A class is made with the further keys of its entry as keyword arguments. Its ``score(groups, wanted)`` gets all groups
of a step and returns Scores, as every Source, which may have rewards for steps of reasoning. Where it has ``open()``
and ``close()``, these are called before and after it at every step, so that what it loads need not stay in memory
while the policy is trained.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.imports import at_path
from oger_recipe.base.ranges import reward_fault
from oger_recipe.base.secrets import redacted
from oger_recipe.grading.foreign import Form, accepted, form_of, is_async, verl_arguments
from oger_recipe.grading.verdict import is_list, plain_number
from oger_recipe.rewards.keys import read_number, unknown
from oger_recipe.rewards.sources import ANSWER, Group, Scores, Source, components_of, reason, unfit_values
from oger_recipe.rewards.spec import Keys, SourceSpec, Surroundings, further_keys


@dataclass(frozen=True, kw_only=True)
class OwnKeys(Keys):
    """An import path as the kind, and the further keys of its entry, keyword arguments of a class of the user's."""

    is_own: ClassVar[bool] = True
    reads_log_probs: ClassVar[bool] = True  # it may

    path: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        further = further_keys(entry)
        return cls(path=entry["kind"], given={name: read_number(value) for name, value in further.items()})

    @classmethod
    def unknown_keys(cls, entry: Mapping[str, Any]) -> Iterator[str]:
        yield from ()

    @classmethod
    def problems(cls, entry: Mapping[str, Any]) -> Iterator[str]:
        try:
            imported(entry["kind"])
        except ValueError as error:
            yield f"kind {error}"
        else:
            yield from keyword_problems(entry["kind"], further_keys(entry))

    def columns(self) -> Iterator[tuple[str, str, str]]:
        yield from ()

    def arguments(self) -> list[str]:
        found = imported(self.path)
        form = None if inspect.isclass(found) else form_of(found)
        return [] if form is None else form.required_columns(found)

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Source:
        """Make the source of the import path. Raises RecipeError for a class that cannot be made."""
        found = imported(self.path)
        if not inspect.isclass(found):
            form = form_of(found)
            return OwnFunction(found) if form is None else ForeignFunction(found, form)
        try:
            return OwnClass(found(**self.given))
        except Exception as error:
            raise RecipeError(
                f"the reward source {spec.name!r} cannot be made by {self.path}: {reason(error)}"
            ) from error


@dataclass(frozen=True)
class OwnFunction:
    """A function of the user's, which is asked about groups with a wanted row. What goes wrong with a group is that
    group's own error."""

    function: Callable[[Group], Any]

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        values: list[list[float]] = []
        components: list[list[dict[str, float]]] = []
        errors: dict[tuple[int, int], str] = {}
        for number, group in enumerate(groups):
            size = len(group.responses)
            if not wanted[number].any():
                values.append([math.nan] * size)
                components.append([{}] * size)
                continue
            try:
                scored, parts = _checked(self.function(group), size)
            except Exception as error:
                scored, parts = [math.nan] * size, {}
                errors |= {(number, row): reason(error) for row in range(size)}  # any answer may be at fault
            values.append(scored)
            components.append([{name: part[row] for name, part in parts.items()} for row in range(size)])
        return Scores(torch.tensor(values), components_of(components), errors, causes=dict.fromkeys(errors, ANSWER))


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
                numbers = _numbers(values_or_0, len(call.rows), "it")
                for name, part in parts.items():
                    _numbers([part], 1, f"its component {name!r}")
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


@dataclass(frozen=True)
class OwnClass:
    """An object of the user's class. A value that cannot be a reward is its row's error."""

    source: Any

    @property
    def overlaps(self) -> bool:
        return bool(getattr(self.source, "overlaps", False))

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        with contextlib.ExitStack() as after:
            if hasattr(self.source, "close"):
                after.callback(self.source.close)
            if hasattr(self.source, "open"):
                self.source.open()
            scores = self.source.score(groups, wanted)
        if not isinstance(scores, Scores):
            raise TypeError(f"its score() returned {type(scores).__name__}, not Scores")
        values = _shaped(scores.values, wanted, "its values")
        errors, causes = {place: redacted(str(why)) for place, why in scores.errors.items()}, dict(scores.causes)
        heard = wanted if scores.silent is None else wanted & ~scores.silent
        for place, why in unfit_values(values, heard):
            if place not in errors:
                errors[place], causes[place] = why, ANSWER
        components = {
            str(name): _shaped(part, wanted, f"its component {name!r}").float()
            for name, part in scores.components.items()
        }
        steps = None if scores.steps is None else _steps_shaped(scores.steps, wanted)
        values = values.float()
        return replace(scores, values=values, components=components, errors=errors, steps=steps, causes=causes)


def _shaped(values: Any, wanted: Tensor, what: str) -> Tensor:
    tensor = torch.as_tensor(values, dtype=torch.float64, device="cpu")
    if tensor.shape != wanted.shape:
        raise ValueError(f"{what} are {list(tensor.shape)}, not [groups, rows] = {list(wanted.shape)}")
    return tensor


def _steps_shaped(steps: Any, wanted: Tensor) -> Tensor:
    tensor = torch.as_tensor(steps, dtype=torch.float32, device="cpu")
    if tensor.ndim != 3 or tensor.shape[:2] != wanted.shape:
        raise ValueError(
            f"its steps are {list(tensor.shape)}, not [groups, rows, steps] with {list(wanted.shape)} rows"
        )
    return tensor


def _checked(answer: Any, size: int) -> tuple[list[float], dict[str, list[float]]]:
    """Read the values and components of `size` rows. Raises ValueError or TypeError for anything else."""
    is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)
    values, parts = answer if is_pair else (answer, {})
    return _numbers(values, size, "it"), {
        str(name): _numbers(part, size, f"its component {name!r}") for name, part in parts.items()
    }


def _numbers(values: Any, size: int, what: str) -> list[float]:
    """Read so many rewards. Raises ValueError or TypeError for anything else."""
    if not is_list(values):
        raise TypeError(f"{what} is of type {type(values).__name__}, no list with a number for each response")
    numbers = [float(value) for value in values]
    if len(numbers) != size:
        raise ValueError(f"{what} has {len(numbers)} values for {size} responses")
    for number in numbers:
        if fault := reward_fault(number):
            raise ValueError(f"{what} has the value {number:g}, which is {fault}")
    return numbers


def imported(path: str) -> Any:
    """Import the source at ``module:name``. Raises ValueError where there is nothing that can be one."""
    try:
        found = at_path(path)
    except ValueError as error:
        raise ValueError(f"{path!r} {error}") from error
    if inspect.isclass(found):
        if not callable(getattr(found, "score", None)):
            raise ValueError(f"{path!r} is a class without a method score(groups, wanted)")
        return found
    if not callable(found):
        raise ValueError(f"{path!r} is of type {type(found).__name__}, not a function or a class")
    if (form := form_of(found)) is not None:
        for each in form.problems(found):
            raise ValueError(f"{path!r} is a function for {form.trainer}: {each}")
    elif (problem := _does_not_take(found, None)) is not None:
        raise ValueError(
            f"{path!r} cannot be called with one group: {problem} (a function of TRL's has an argument completions, "
            "one of verl's solution_str)"
        )
    elif is_async(found):
        raise ValueError(f"{path!r} is async: let it run its own event loop")
    return found


def keyword_problems(path: str, keywords: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each reason why what is at a valid import path does not take these keywords."""
    found = imported(path)
    if not inspect.isclass(found):
        yield from (f"key {name!r} is unknown: a function of your own has none" for name in keywords)
        return
    for name, value in keywords.items():
        if isinstance(number := read_number(value), float) and not math.isfinite(number):
            yield f"{name} {value!r}: it must be a finite number"
    known = _keywords_of(found)
    if known is not None:
        strange = [name for name in keywords if name not in known]
        yield from (unknown("key", name, known) for name in strange)
        keywords = {name: value for name, value in keywords.items() if name not in strange}
    if (problem := _does_not_take(found, **keywords)) is not None:
        yield f"kind {path!r} cannot be made with these keys: {problem}"


def _keywords_of(found: type) -> list[str] | None:
    """Return a class's keyword arguments; None where it takes all, or does not say."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return [each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _does_not_take(found: Callable[..., Any], *arguments: Any, **keywords: Any) -> str | None:
    """Say why something cannot be called with these arguments, where its signature tells."""
    try:
        inspect.signature(found).bind(*arguments, **keywords)
    except TypeError as error:
        return str(error)
    except ValueError:  # without a signature, as some of C are
        pass
    return None
