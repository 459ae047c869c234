"""Rule verifiers by task name. A new one is a function ``(response, answer) -> Verdict`` and one line in VERIFIERS.

A task that is not registered here can be an import path, ``package.module:function``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from oger_recipe.rewards.verdict import UnreadableAnswer, Verdict

__all__ = ["VERIFIERS", "UnreadableAnswer", "Verdict", "verify"]


Verifier = Callable[..., Verdict]


def _imported_when_called(module: str, function: str) -> Verifier:
    """Verifiers import `Verdict` from here and some need heavy libraries, so a task loads only what it uses."""

    def verifier(response: str, answer: str, **options: Any) -> Verdict:
        verdict: Verdict = getattr(importlib.import_module(module), function)(response, answer, **options)
        return verdict

    return verifier


VERIFIERS: dict[str, Verifier] = {
    "math": _imported_when_called("oger_recipe.rewards.verifiers.math_answer", "verify_math"),
    "gsm8k": _imported_when_called("oger_recipe.rewards.verifiers.gsm8k", "verify_gsm8k"),
    "countdown": _imported_when_called("oger_recipe.rewards.verifiers.countdown", "verify_countdown"),
    "choice": _imported_when_called("oger_recipe.rewards.verifiers.choice", "verify_choice"),
    "json": _imported_when_called("oger_recipe.rewards.verifiers.json_answer", "verify_json"),
}

# Verifiers whose time and memory are bounded by the length of the text: they need no worker process around them.
BOUNDED = frozenset({"gsm8k", "countdown", "choice", "json"})


def verify(task: str, response: str, answer: str, **options: Any) -> Verdict:
    """Grade the response text of one rollout or teacher against the reference answer of its row.

    task: a name in VERIFIERS or an import path; options: keyword arguments of that verifier.
    The user's own verifiers get of ``prompt`` and ``row`` (the row's other columns) what their signatures name.
    Raises ValueError for a task without verifier, and whatever the verifier raises for an answer it cannot read.
    """
    verifier = resolve(task)
    if task not in VERIFIERS:
        options = {name: value for name, value in options.items() if name not in _CONTEXT or _takes(verifier, name)}
    return verifier(response, answer, **options)


_CONTEXT = ("prompt", "row")


def _takes(verifier: Verifier, name: str) -> bool:
    parameters = inspect.signature(verifier).parameters.values()
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


def resolve(task: str) -> Verifier:
    """The verifier of a task. Raises ValueError when there is none, or its import path leads nowhere."""
    if task in VERIFIERS:
        return VERIFIERS[task]
    module, separator, function = task.partition(":")
    if not separator:
        nearest = difflib.get_close_matches(task, VERIFIERS, n=1, cutoff=0.0)[0]
        raise ValueError(f"no verifier for task {task!r}; known: {', '.join(VERIFIERS)}; nearest: {nearest!r}")
    try:
        verifier = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        places = ", ".join([*_looked_in, "the installed packages"])
        raise ValueError(f"task {task!r} is no verifier: {error} (looked in {places})") from error
    except Exception as error:  # whatever the user's module does when it is imported
        kind = "" if isinstance(error, ImportError | AttributeError | ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"task {task!r} is no verifier: {kind}{error}") from error
    _require_two_texts(task, verifier)
    return verifier  # type: ignore[no-any-return]


def look_in(folders: Iterable[str]) -> None:
    """Modules of the user's verifiers are found in these folders too, after all others."""
    _looked_in[:] = folders
    sys.path.extend(folder for folder in _looked_in if folder not in sys.path)


_looked_in: list[str] = []


def _require_two_texts(task: str, verifier: Any) -> None:
    if not callable(verifier):
        raise ValueError(f"task {task!r} is no verifier: it is a {type(verifier).__name__}, not a function")
    try:
        inspect.signature(verifier).bind("", "", **{name: None for name in _CONTEXT if _takes(verifier, name)})
    except TypeError as error:
        raise ValueError(
            f"task {task!r} is no verifier: it cannot be called with (response, answer): {error}"
        ) from None
    except ValueError:  # a function without a signature, as some of C have none
        pass
