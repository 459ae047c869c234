"""Rule verifiers by task name. A new one is a function ``(response, answer) -> Verdict`` and one line in VERIFIERS."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What a verifier says about one response.

    reward: what the policy is trained on; score: 1 for right, else 0, whatever the reward's shaping; reason: one line
    for people; components: named parts of the verdict, the same names for every response of a task.
    """

    reward: float
    score: float
    reason: str
    components: dict[str, float]


Verifier = Callable[[str, str], Verdict]


def _imported_when_called(module: str, function: str) -> Verifier:
    """Verifiers import `Verdict` from here and some need heavy libraries, so a task loads only what it uses."""

    def verifier(response: str, answer: str) -> Verdict:
        verdict: Verdict = getattr(importlib.import_module(module), function)(response, answer)
        return verdict

    return verifier


VERIFIERS: dict[str, Verifier] = {
    "countdown": _imported_when_called("oger_recipe.rewards.countdown", "verify_countdown"),
}


def verify(task: str, response: str, answer: str) -> Verdict:
    """Grade the response text of one rollout or teacher against the reference answer of its row.

    Raises ValueError for a task without verifier, and whatever the verifier raises for an answer it cannot read.
    """
    if task not in VERIFIERS:
        nearest = difflib.get_close_matches(task, VERIFIERS, n=1, cutoff=0.0)[0]
        raise ValueError(f"no verifier for task {task!r}; known: {', '.join(VERIFIERS)}; nearest: {nearest!r}")
    return VERIFIERS[task](response, answer)
