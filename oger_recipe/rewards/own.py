"""Sources of the user's: a function or a class in a file of his, ``module:name`` as its kind.

A function gets one Group at a time and returns one number for each of its rows, or a pair of these and of components
``{name: one number for each row}``.
"""

from __future__ import annotations

import importlib
import inspect
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oger_recipe.rewards.sources import Group, Scores, components_of


@dataclass(frozen=True)
class Own:
    """A function of the user's. What goes wrong with a group is that group's own error."""

    function: Callable[[Group], Any]

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        values: list[list[float]] = []
        components: list[list[dict[str, float]]] = []
        errors: dict[tuple[int, int], str] = {}
        for number, group in enumerate(groups):
            size = len(group.responses)
            try:
                scored, parts = _checked(self.function(group), size)
            except Exception as error:
                scored, parts = [0.0] * size, {}
                errors |= {(number, row): reason(error) for row in range(size)}
            values.append(scored)
            components.append([{name: part[row] for name, part in parts.items()} for row in range(size)])
        return Scores(torch.tensor(values), components_of(components), errors)


def _checked(answer: Any, size: int) -> tuple[list[float], dict[str, list[float]]]:
    """Read the values and components of a group of `size`. Raises ValueError or TypeError for anything else."""
    values, parts = answer if isinstance(answer, tuple) else (answer, {})
    return _numbers(values, size, "it"), {
        str(name): _numbers(part, size, f"its component {name!r}") for name, part in parts.items()
    }


def _numbers(values: Any, size: int, what: str) -> list[float]:
    numbers = [float(value) for value in values]
    if len(numbers) != size:
        raise ValueError(f"{what} has {len(numbers)} values for {size} responses")
    if bad := [number for number in numbers if not math.isfinite(number)]:
        raise ValueError(f"{what} has the value {bad[0]}, which is not finite")
    return numbers


def reason(error: Exception) -> str:
    """Say what was raised and where, but for what is raised here."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    at = "" if place.filename == __file__ else f" ({place.filename}:{place.lineno})"
    return f"{type(error).__name__}: {error}{at}"


def own_function(path: str) -> Callable[[Group], Any]:
    """Import the function at ``module:function``. Raises ValueError where there is none that takes one group."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module does when it is imported
        raise ValueError(f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ValueError(f"{path!r} is of type {type(function).__name__}, no function")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ValueError(f"{path!r} cannot be called with one group: {error}") from None
    except ValueError:  # a function without a signature, as some of C have none
        pass
    return function  # type: ignore[no-any-return]
