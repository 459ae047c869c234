"""Kind process: a process reward model (PRM), which scores every step of reasoning of a response.

A scorer is a way to ask a model for that: how the texts are written, what the place is asked, and how its replies
become a probability for each step. Below it all are alike: scale, credit, and one number for the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from oger_recipe.algorithm.steps import aggregate_steps, min_form_rewards
from oger_recipe.rewards.models.asking import Judged, ask_about, score_rows, shares
from oger_recipe.rewards.models.keys import ProcessKeys
from oger_recipe.rewards.models.place import Reply
from oger_recipe.rewards.models.places import place_of
from oger_recipe.rewards.models.plugin import Failed
from oger_recipe.rewards.models.step_text import StepWriter, load_tokenizer
from oger_recipe.rewards.sources import Group, Scores

if TYPE_CHECKING:
    from oger_recipe.rewards.compose import SourceSpec, Surroundings


class StepScorer(Protocol):
    """A model that scores steps."""

    def ask(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[Reply]:
        """Ask about the steps of each response to its prompt, all at once. A reply has the probability that a step is
        good for each of them, in `Reply.steps`, or an error."""


class TaggedSteps:
    """Scorers step_tag and token_head: a text with a tag behind each step, and what the model says at the tags."""

    def __init__(self, spec: SourceSpec, surroundings: Surroundings) -> None:
        assert isinstance(spec.keys, ProcessKeys)
        self._keys, self._place = spec.keys, place_of(spec.keys, surroundings)
        self._writer: StepWriter | None = None

    def ask(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[Reply]:
        if self._writer is None:
            self._writer = StepWriter(self._keys, load_tokenizer(self._keys))
        texts = [self._writer.write(prompt, each) for prompt, each in zip(prompts, steps, strict=True)]
        return ask_about(self._place, texts, self._place.classify_steps)


SCORER_OF: Mapping[str, Callable[[SourceSpec, Surroundings], StepScorer]] = {
    "step_tag": TaggedSteps,
    "token_head": TaggedSteps,
}


@dataclass(frozen=True)
class ProcessSource:
    """What a scorer says of the rows' steps, as rewards of steps and as one value a row."""

    keys: ProcessKeys
    scorer: StepScorer

    @property
    def overlaps(self) -> bool:
        return self.keys.runs_on == "server"

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        return score_rows(groups, wanted, self.keys.prompt_column, self._ask, _steps_of)

    def _ask(self, prompts: list[str], steps: list[Any]) -> tuple[list[Judged], dict[str, float]]:
        replies = [
            _of_all_steps(reply, len(each)) for reply, each in zip(self.scorer.ask(prompts, steps), steps, strict=True)
        ]
        there = [reply for reply in replies if reply.error is None]
        scores, mask = padded([reply.steps for reply in there])
        if self.keys.scale == "difference":
            scores = torch.where(mask, 2 * scores - 1, 0.0)
        rewards = min_form_rewards(scores, mask, self.keys.temperature) if self.keys.credit == "min" else scores
        values = aggregate_steps(scores, mask, self.keys.aggregate)
        found = (
            Judged(value, reply=reply, steps=tuple(row[: len(reply.steps)]))
            for reply, value, row in zip(there, values.tolist(), rewards.tolist(), strict=True)
        )
        judged = [next(found) if reply.error is None else Judged(error=reply.error) for reply in replies]
        return judged, {"cached": shares(judged)["cached"], **step_metrics(scores, mask)}


def _steps_of(group: Group, row: int) -> list[str] | Failed:
    steps = group.steps[row] if row < len(group.steps) else []
    return list(steps) or Failed("the row has no steps of reasoning")


def _of_all_steps(reply: Reply, count: int) -> Reply:
    if reply.error is not None or len(reply.steps) == count:
        return reply
    return replace(reply, error=f"{len(reply.steps)} scores came for {count} steps of reasoning")


def padded(rows: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
    """Make tensors [rows, S] of rows' numbers, 0 behind them, and of where there is one (bool)."""
    longest = max(map(len, rows), default=0)
    numbers, mask = torch.zeros(len(rows), longest), torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, each in enumerate(rows):
        numbers[row, : len(each)], mask[row, : len(each)] = torch.tensor(each), True
    return numbers, mask


def step_metrics(scores: Tensor, mask: Tensor) -> dict[str, float]:
    """Return what a step's rows have in common: steps, their mean count in a row; step_mean and step_min, the mean
    over all steps and that of the rows' lowest; last_is_lowest, the share of rows that end with their lowest step."""
    if not mask.any():
        return {}
    lowest = torch.where(mask, scores, torch.inf).amin(dim=1)
    last = scores.gather(1, mask.sum(dim=1, keepdim=True) - 1).squeeze(1)
    return {
        "steps": mask.sum(dim=1).float().mean().item(),
        "step_mean": scores[mask].mean().item(),
        "step_min": lowest.mean().item(),
        "last_is_lowest": (last == lowest).float().mean().item(),
    }


def process_source(spec: SourceSpec, surroundings: Surroundings) -> ProcessSource:
    """The source of an entry."""
    assert isinstance(spec.keys, ProcessKeys)
    return ProcessSource(spec.keys, SCORER_OF[spec.keys.written.scorer](spec, surroundings))
