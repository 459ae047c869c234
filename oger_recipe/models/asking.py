"""What sources that ask a model share: which rows are asked about, the question, and the step's scores and metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from oger_recipe.rewards.place import Likelihoods, Place, Reply, Sampling
from oger_recipe.rewards.sources import OVERFLOW, Group, Scores

_T = TypeVar("_T")
_PROMPT = "rm_prompt"  # the column that is read where an entry names none


@dataclass(frozen=True)
class Judged:
    """What a kind makes of a model's reply about one row: a value, or an error.

    unparsed: the judge replied, without a verdict in it; steps: rewards of the steps of reasoning in what was judged;
    cause: that of the error, and OVERFLOW also where some of what was judged was left out; criteria: verdicts on those
    of a rubric, None where there is none.
    """

    value: float = float("nan")
    error: str | None = None
    reply: Reply | None = None
    unparsed: bool = False
    steps: tuple[float, ...] = ()
    cause: str | None = None
    criteria: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def failed(cls, reply: Reply) -> Judged:
        """Make what comes of a reply with an error."""
        return cls(error=reply.error, cause=reply.cause)


class RewardModel(Protocol):
    """A judge, or a head."""

    def judge(self, prompts: Sequence[str], responses: Sequence[Any]) -> list[Judged]:
        """Ask about each response to its prompt; all are asked at once."""


Metrics = Mapping[str, float]  # of a step
# (prompts, what is judged) -> (what came of each, metrics)
Ask = Callable[[list[str], list[Any]], tuple[Sequence[Judged], Metrics]]


@dataclass(frozen=True)
class ModelSource:
    """A source that asks a model once a step, about all wanted rows.

    judged_of: what is judged of a row, or a Reply with an error, where there is nothing to ask about.
    """

    prompt_column: str | None
    overlaps: bool
    ask: Ask
    judged_of: Callable[[Group, int], Any] = lambda group, row: group.responses[row]

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        started = time.monotonic()
        places = [(group, row) for group, row in wanted.nonzero().tolist()]
        questions = [self._question(groups[group], row) for group, row in places]
        there = [question for question in questions if not isinstance(question, Reply)]
        prompts, asked = [prompt for prompt, _ in there], [what for _, what in there]
        found, metrics = self.ask(prompts, asked) if there else ([], {})
        given = iter(found)
        judged = {
            place: Judged.failed(question) if isinstance(question, Reply) else next(given)
            for place, question in zip(places, questions, strict=True)
        }
        values = torch.full(wanted.shape, torch.nan)
        for place, each in judged.items():
            values[place] = each.value
        causes = {place: each.cause for place, each in judged.items() if each.cause is not None}
        overflow = sum(cause == OVERFLOW for cause in causes.values()) / max(len(places), 1)
        return Scores(
            values,
            errors={place: each.error for place, each in judged.items() if each.error is not None},
            metrics={**metrics, "overflow": overflow, "seconds": time.monotonic() - started},
            steps=_of_steps({place: each.steps for place, each in judged.items()}, wanted),
            causes=causes,
            criteria={place: each.criteria for place, each in judged.items() if each.criteria},
        )

    def _question(self, group: Group, row: int) -> tuple[str, Any] | Reply:
        judged, column = self.judged_of(group, row), self.prompt_column
        if isinstance(judged, Reply):
            return judged
        is_problem = column is None and _PROMPT not in group.row
        prompt = group.question if is_problem else group.row.get(column or _PROMPT)
        if not isinstance(prompt, str):
            return Reply(error=f"the row's column {column or _PROMPT} holds no text, but a {type(prompt).__name__}")
        return prompt, judged


def _of_steps(steps: Mapping[tuple[int, int], Sequence[float]], wanted: Tensor) -> Tensor | None:
    """Make a tensor [groups, n, S] of rows' rewards of steps; None where no row has any."""
    longest = max(map(len, steps.values()), default=0)
    if not longest:
        return None
    made = torch.full((*wanted.shape, longest), torch.nan)
    for place, rewards in steps.items():
        made[place][: len(rewards)] = torch.tensor(rewards)
    return made


def ask_place(place: Place, texts: Sequence[str | Reply], sampling: Sampling | None) -> list[Reply]:
    """Ask a place what it writes to each text, or without sampling for the head's number; see `ask_about`."""
    return ask_about(
        place, texts, place.classify if sampling is None else lambda there: place.generate(there, sampling)
    )


def ask_about(
    place: Place | Likelihoods, texts: Sequence[_T | Reply], ask: Callable[[list[_T]], list[Reply]]
) -> list[Reply]:
    """Open a place, `ask` about the texts, and close it. A Reply in place of a text stays as it is.

    Raises RuntimeError where replies are missing.
    """
    there = [text for text in texts if not isinstance(text, Reply)]
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
    return [text if isinstance(text, Reply) else next(given) for text in texts]


def shares(judged: Sequence[Judged]) -> dict[str, float]:
    """Return the shares of replies that came without asking again, and that were cut at their longest."""
    replies = [each.reply for each in judged if each.reply is not None]
    count = max(len(replies), 1)
    return {
        "cached": sum(reply.cached for reply in replies) / count,
        "cut": sum(reply.cut for reply in replies) / count,
    }
