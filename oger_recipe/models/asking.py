"""What sources that ask a model share: which rows are asked about, the question, and the step's scores and metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from oger_recipe.models.plugin import Failed
from oger_recipe.rewards.place import Likelihoods, Place, Reply, Sampling
from oger_recipe.rewards.sources import OVERFLOW, Group, Scores

_T = TypeVar("_T")
_PROMPT = "rm_prompt"  # the column that is read where an entry names none


@dataclass(frozen=True)
class Judged:
    """What came of one question: a value, or an error; unparsed: the judge replied, without a verdict in it; steps:
    rewards of the steps of reasoning in what was judged; cause: OVERFLOW or ANSWER of sources.py where what was judged
    may have brought the error about, and OVERFLOW also where some of it was left out; criteria: verdicts on
    those of a rubric, None where there is none."""

    value: float = float("nan")
    error: str | None = None
    reply: Reply | None = None
    unparsed: bool = False
    steps: tuple[float, ...] = ()
    cause: str | None = None
    criteria: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def failed(cls, reply: Reply) -> Judged:
        """Make the outcome of a question that got no reply."""
        return cls(error=reply.error, cause=reply.cause)


class RewardModel(Protocol):
    """A judge, or a head."""

    def judge(self, prompts: Sequence[str], responses: Sequence[Any]) -> list[Judged]:
        """Ask about each response to its prompt; all are asked at once."""


Metrics = Mapping[str, float]  # of a step
# (prompts, what is judged) -> (what came of each, metrics)
Ask = Callable[[list[str], list[Any]], tuple[Sequence[Judged], Metrics]]


def score_rows(
    groups: Sequence[Group],
    wanted: Tensor,
    column: str | None,
    ask: Ask,
    judged_of: Callable[[Group, int], Any] = lambda group, row: group.responses[row],
) -> Scores:
    """Ask once about wanted rows (bool [groups, n]); `judged_of` returns what is judged, or Failed. Others are nan."""
    started = time.monotonic()
    places = [(group, row) for group, row in wanted.nonzero().tolist()]
    questions = [_question(groups[group], column, judged_of(groups[group], row)) for group, row in places]
    there = [question for question in questions if not isinstance(question, Failed)]
    found, metrics = ask([prompt for prompt, _ in there], [judged for _, judged in there]) if there else ([], {})
    replies = iter(found)
    values, errors, steps = torch.full(wanted.shape, torch.nan), {}, {}
    causes, criteria = {}, {}
    for place, question in zip(places, questions, strict=True):
        each = Judged.failed(no_reply(question)) if isinstance(question, Failed) else next(replies)
        values[place], steps[place] = each.value, each.steps
        if each.error is not None:
            errors[place] = each.error
        if each.cause is not None:
            causes[place] = each.cause
        if each.criteria:
            criteria[place] = each.criteria
    overflow = sum(cause == OVERFLOW for cause in causes.values()) / max(len(places), 1)
    metrics = {**metrics, "overflow": overflow, "seconds": time.monotonic() - started}
    of_steps = _of_steps(steps, wanted)
    return Scores(values, errors=errors, metrics=metrics, steps=of_steps, causes=causes, criteria=criteria)


def _of_steps(steps: Mapping[tuple[int, int], Sequence[float]], wanted: Tensor) -> Tensor | None:
    """Make a tensor [groups, n, S] of rows' rewards of steps; None where no row has any."""
    longest = max(map(len, steps.values()), default=0)
    if not longest:
        return None
    made = torch.full((*wanted.shape, longest), torch.nan)
    for place, rewards in steps.items():
        made[place][: len(rewards)] = torch.tensor(rewards)
    return made


def _question(group: Group, column: str | None, judged: Any) -> tuple[str, Any] | Failed:
    if isinstance(judged, Failed):
        return judged
    name = column or _PROMPT
    prompt = group.question if column is None and _PROMPT not in group.row else group.row.get(name)
    if not isinstance(prompt, str):
        return Failed(f"the row's column {name} holds no text, but a {type(prompt).__name__}")
    return prompt, judged


@dataclass(frozen=True)
class ModelSource:
    """What a judge or a head says of each row, and ``metrics`` of a step's answers."""

    prompt_column: str | None
    model: RewardModel
    metrics: Callable[[Sequence[Judged]], Metrics]
    overlaps: bool

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        return score_rows(groups, wanted, self.prompt_column, self._ask)

    def _ask(self, prompts: list[str], responses: list[str]) -> tuple[list[Judged], Metrics]:
        judged = self.model.judge(prompts, responses)
        return judged, self.metrics(judged)


def ask_place(place: Place, texts: Sequence[str | Failed], sampling: Sampling | None) -> list[Reply]:
    """Ask a place about texts that have not Failed: what it writes, or without sampling the head's number."""
    return ask_about(
        place, texts, place.classify if sampling is None else lambda there: place.generate(there, sampling)
    )


def ask_about(
    place: Place | Likelihoods, texts: Sequence[_T | Failed], ask: Callable[[list[_T]], list[Reply]]
) -> list[Reply]:
    """Open a place, `ask` about the texts that have not Failed, and close it.

    Raises RuntimeError where replies are missing.
    """
    there = [text for text in texts if not isinstance(text, Failed)]
    replies: list[Reply] = []
    if there:
        place.open()
        try:
            replies = ask(there)
        finally:
            place.close()
    if len(replies) != len(there):
        raise RuntimeError(f"{len(replies)} replies came to {len(there)} prompts")
    given = iter(replies)
    return [no_reply(text) if isinstance(text, Failed) else next(given) for text in texts]


def no_reply(failed: Failed) -> Reply:
    return Reply(error=failed.reason, cause=failed.cause)


def shares(judged: Sequence[Judged]) -> dict[str, float]:
    """Return the shares of replies that came without asking again, and that were cut at their longest."""
    replies = [each.reply for each in judged if each.reply is not None]
    count = max(len(replies), 1)
    return {
        "cached": sum(reply.cached for reply in replies) / count,
        "cut": sum(reply.cut for reply in replies) / count,
    }
