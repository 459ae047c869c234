"""Rule verifiers by task name. A new one is a function ``(response, answer) -> Verdict`` and one line in VERIFIERS.

A task that is not registered here can be an import path, ``package.module:name`` of a function or a TaskSpec. It is
code, and tasks come with data: none is imported that the user has not named (`allow`).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oger_recipe.base.errors import shown
from oger_recipe.base.secrets import redacted
from oger_recipe.grading.foreign import accepted, form_of, is_async, verl_arguments
from oger_recipe.grading.verdict import UnreadableAnswer, Verdict

__all__ = ["VERIFIERS", "TaskSpec", "UnreadableAnswer", "Verdict", "verify"]

Verifier = Callable[..., Any]  # (response, answer, **options) -> what as_verdict reads


@dataclass(frozen=True)
class TaskSpec:
    """How a task is graded, alike in training, for teachers, in `oger eval`, `oger data` and `oger serve-reward`.

    options: keyword arguments of ``verify`` that settings give ("rule": "math_rule" is oger.math_rule); places:
    keyword arguments with which it looks first where a prompt asks for the answer (one of rules.PLACES); bounded: its
    time and memory are bounded by the length of the text, so that it needs no process around it and has no limits;
    names_solutions: right verdicts name the class of their solution (None: nobody knows). For those that need a
    process: warm_up, called once before processes are forked, to import and to fill caches (what it raises is of no
    matter); time_limit_s and memory_limit_mb of one answer (None: what the run sets for all tasks).
    """

    verify: Verifier
    options: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bounded: bool = False
    names_solutions: bool | None = None
    warm_up: Callable[[], object] | None = None
    time_limit_s: float | None = None
    memory_limit_mb: int | None = None

    def __post_init__(self) -> None:
        for name in ("time_limit_s", "memory_limit_mb"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < float("inf"):
                raise ValueError(f"{name} is {limit}: it must be above 0 and finite, or None")


def _lazy(path: str) -> Verifier:
    """Return a function of this package that is imported when called: a task loads only what it needs."""
    module, _, name = path.partition(":")

    def imported(*args: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(*args, **options)

    return imported


VERIFIERS: dict[str, TaskSpec] = {
    "math": TaskSpec(
        _lazy("math_answer:verify_math"),
        options={"rule": "math_rule", "extract": "math_extract"},
        places={
            "boxed": {"extract": ["boxed", "answer_tag", "anywhere"]},
            "answer_tag": {"extract": ["answer_tag", "boxed", "anywhere"]},
        },
        names_solutions=False,
        warm_up=_lazy("math_answer:warm_up"),
    ),
    "gsm8k": TaskSpec(
        _lazy("gsm8k:verify_gsm8k"),
        options={"answer_format": "gsm8k_answer_format", "strict_oat": "gsm8k_strict_oat"},
        places={"boxed": {"answer_format": "boxed"}, "answer_tag": {"answer_format": "answer_tag"}},
        bounded=True,
        names_solutions=False,
    ),
    "countdown": TaskSpec(
        _lazy("countdown:verify_countdown"),
        options={"strict_oat": "countdown_strict_oat"},
        places={"boxed": {"answer_in": "boxed"}},
        bounded=True,
        names_solutions=True,
    ),
    "choice": TaskSpec(_lazy("choice:verify_choice"), bounded=True, names_solutions=False),
    "json": TaskSpec(_lazy("json_answer:verify_json"), bounded=True, names_solutions=False),
}


def verify(task: str, response: str, answer: str, **options: Any) -> Verdict:
    """Grade the response text of one rollout or teacher against the reference answer of its row.

    task: a name in VERIFIERS or an import path; options: keyword arguments of that verifier.
    The user's own verifiers get of ``prompt`` and ``row`` (the row's other columns) what their signatures name; one
    that verl calls gets verl's arguments.
    Raises ValueError for a task without verifier, UnreadableAnswer for a reference answer that its verifier cannot
    read, and whatever else the verifier raises.
    """
    verifier = resolve(task).verify
    if task not in VERIFIERS:
        if form_of(verifier) is not None:  # verl's
            row = options.get("row") or {}
            return verifier(**accepted(verifier, options | verl_arguments(response, answer, row)))  # type: ignore[no-any-return]
        options = {name: value for name, value in options.items() if name not in _CONTEXT or _takes(verifier, name)}
    verdict: Verdict = verifier(response, answer, **options)
    return verdict


_CONTEXT = ("prompt", "row")


def _takes(verifier: Verifier, name: str) -> bool:
    parameters = inspect.signature(verifier).parameters.values()
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


def allow(paths: Iterable[str]) -> None:
    """Set the import paths that tasks may be, in this process: those that the user names."""
    _allowed[:] = paths


def not_allowed(task: str) -> str | None:
    """Say what to do about a task that is an import path which nobody has allowed."""
    if ":" not in task or task in _allowed:
        return None
    return (
        f"task {shown(task)} is code, and data alone do not make it run: read it, then set --oger.allow_task "
        f"{shown(task)}"
    )


_allowed: list[str] = []


def resolve(task: str) -> TaskSpec:
    """Return how a task is graded. Raises ValueError without a verifier, or if its import path leads nowhere or is not
    allowed."""
    if task in VERIFIERS:
        return VERIFIERS[task]
    if (reason := not_allowed(task)) is not None:
        raise ValueError(reason)
    module, separator, name = task.partition(":")
    if not separator:
        nearest = difflib.get_close_matches(task, VERIFIERS, n=1, cutoff=0.0)[0]
        raise ValueError(f"no verifier for task {task!r}; known: {', '.join(VERIFIERS)}; nearest: {nearest!r}")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        places = ", ".join([*_looked_in, "the installed packages"])
        raise ValueError(f"task {task!r} is not a verifier: {redacted(str(error))} (looked in {places})") from error
    except Exception as error:  # whatever the user's module does when it is imported
        kind = "" if isinstance(error, ImportError | AttributeError | ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"task {task!r} is not a verifier: {kind}{redacted(str(error))}") from error
    spec = found if isinstance(found, TaskSpec) else TaskSpec(found)
    _require_two_texts(task, spec.verify)
    return spec


def resolved(task: str) -> TaskSpec | None:
    """Return how a task is graded, or None: then every answer of it says why."""
    try:
        return resolve(task)
    except ValueError:
        return None


def look_in(folders: Iterable[str]) -> None:
    """Add folders in which modules of the user's verifiers are found, after all others."""
    _looked_in[:] = folders
    sys.path.extend(folder for folder in _looked_in if folder not in sys.path)


def looked_in() -> list[str]:
    """Return these folders."""
    return list(_looked_in)


_looked_in: list[str] = []


def _require_two_texts(task: str, verifier: Any) -> None:
    if not callable(verifier):
        raise ValueError(
            f"task {task!r} is not a verifier: it is a {type(verifier).__name__}, not a function or a TaskSpec"
        )
    if is_async(verifier):
        raise ValueError(
            f"task {task!r} is not a verifier: it is async; wrap it in a function that runs its event loop"
        )
    if (form := form_of(verifier)) is not None:
        if form.columns:
            raise ValueError(
                f"task {task!r} is not a verifier: it is a function for {form.trainer} and takes several "
                f"completions at once; list it in oger.reward.sources: {{name: mine, kind: {task!r}}}"
            )
        for problem in form.problems(verifier):
            raise ValueError(f"task {task!r} is not a verifier: it is a function for {form.trainer}, and {problem}")
        return
    try:
        inspect.signature(verifier).bind("", "", **{name: None for name in _CONTEXT if _takes(verifier, name)})
    except TypeError as error:
        raise ValueError(
            f"task {task!r} is not a verifier: it cannot be called with (response, answer): {error}"
        ) from None
    except ValueError:  # a function without a signature, as some of C have none
        pass
