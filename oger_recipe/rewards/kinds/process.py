"""Kind process: a process reward model (PRM), which scores every step of reasoning of a response.

A scorer is a way to ask a model for that: how the texts are written, what the place is asked, and how its replies
become a probability for each step. Below it all are alike: scale, credit, and one number for the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from oger_recipe.algorithm.steps import CREDITS, aggregate_steps
from oger_recipe.models.asking import Judged, Metrics, ModelSource, ask_about, shares
from oger_recipe.models.keys import ProcessKeys, StepKeys
from oger_recipe.models.places import place_of
from oger_recipe.models.step_text import StepWriter
from oger_recipe.models.tokens import load_tokenizer, window_of
from oger_recipe.rewards.place import Place, Reply, StepPrompt
from oger_recipe.rewards.sources import ANSWER, OVERFLOW, Group, Scores, Source
from oger_recipe.rewards.spec import SourceSpec, Surroundings


@dataclass(frozen=True, kw_only=True)
class TaggedKeys(ProcessKeys):
    """Kind process with a scorer that is a PRM, step_tag or token_head."""

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Source:
        scorer = TaggedSteps(self, place_of(self, surroundings))
        return ProcessSource(self, scorer, self.prompt_column, worst=worst_probability(spec))


class StepScorer(Protocol):
    """A model that scores steps."""

    def ask(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[Judged]:
        """Ask about the steps of each response to its prompt, all at once. Return in `steps` a score for each step,
        mostly the probability that it is good, or an error; `value` is not read."""


class TaggedSteps:
    """Scorers step_tag and token_head: a text with a tag behind each step, and what the model says at the tags."""

    def __init__(self, keys: ProcessKeys, place: Place) -> None:
        self._keys, self._place = keys, place
        self._writer: StepWriter | None = None
        self._window = window_of(keys) if keys.on_overflow == "truncate" else None

    def ask(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[Judged]:
        if self._writer is None:
            self._writer = StepWriter(self._keys, load_tokenizer(self._keys))
        says = ["".join(each).strip() for each in steps]
        texts = [
            self._cut(self._writer.write(prompt, each))
            for prompt, each, text in zip(prompts, steps, says, strict=True)
            if text
        ]
        replies = zip(ask_about(self._place, texts, self._place.classify_steps), texts, strict=True)
        return [
            _judged(*next(replies), len(each)) if text else Judged(steps=(0.0,) * len(each))  # nothing said, none good
            for each, text in zip(steps, says, strict=True)
        ]

    def _cut(self, text: StepPrompt | Reply) -> StepPrompt | Reply:
        """Cut off what is behind the model's window: the score of a step depends on nothing that comes later."""
        if self._window is None or isinstance(text, Reply) or len(text.tokens) <= self._window:
            return text
        ends = tuple(end for end in text.ends if end < self._window)
        return StepPrompt(text.tokens[: self._window], ends) if ends else text


def _judged(reply: Reply, text: StepPrompt | Reply, count: int) -> Judged:
    if reply.error is not None or isinstance(text, Reply):
        return Judged.failed(reply)
    return Judged(reply=reply, steps=reply.steps, cause=OVERFLOW if len(text.ends) < count else None)


@dataclass(frozen=True)
class ProcessSource:
    """What a scorer says of the rows' steps, as rewards of steps and as one value a row; ``metrics`` of what came."""

    keys: StepKeys
    scorer: StepScorer
    prompt_column: str | None = None
    metrics: Callable[[Sequence[Judged]], dict[str, float]] = lambda judged: {"cached": shares(judged)["cached"]}
    worst: float | None = 0.0  # probability of each step that a response kept from being scored; None: nobody knows

    @property
    def overlaps(self) -> bool:
        return self.keys.is_served

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        return ModelSource(self.prompt_column, self.overlaps, self._ask, _steps_of).score(groups, wanted)

    def _ask(self, prompts: list[str], steps: list[Any]) -> tuple[list[Judged], Metrics]:
        judged = [
            self._of_all_steps(each, len(cut))
            for each, cut in zip(self.scorer.ask(prompts, steps), steps, strict=True)
        ]
        scores, mask = padded_scores([each.steps for each in judged if each.steps])
        scores, rewards = credited(
            scores, mask, scale=self.keys.scale, credit=self.keys.credit, temperature=self.keys.temperature
        )
        values = aggregate_steps(scores, mask, self.keys.aggregate)
        found = iter(zip(values.tolist(), rewards.tolist(), mask.sum(dim=1).tolist(), strict=True))
        read = torch.tensor([each.error is None for each in judged if each.steps], dtype=torch.bool)
        metrics = self.metrics(judged) | score_metrics(scores[read], mask[read])
        return [_rewarded(each, *next(found)) if each.steps else each for each in judged], metrics

    def _of_all_steps(self, judged: Judged, count: int) -> Judged:
        """Give the worst score to steps that a response kept from being scored: all, or those behind the window."""
        if judged.error is None and judged.cause is None and len(judged.steps) != count:
            text = f"{len(judged.steps)} scores came for {count} steps of reasoning"
            judged = replace(judged, steps=(), error=text, cause=ANSWER)
        if judged.cause is None or self.worst is None:
            return judged
        return replace(judged, steps=judged.steps + (self.worst,) * (count - len(judged.steps)))


def credited(
    probabilities: Tensor, mask: Tensor, *, scale: str, credit: str, temperature: float
) -> tuple[Tensor, Tensor]:
    """Turn probabilities that steps are good into their scores and rewards, as the keys of kind process say.

    All are [B, S]; outside of the mask (bool) they mean nothing.
    """
    scores = 2 * probabilities - 1 if scale == "difference" else probabilities
    return scores, CREDITS[credit](scores, mask, temperature)


def _rewarded(judged: Judged, value: float, rewards: Sequence[float], count: int) -> Judged:
    return replace(judged, value=value, steps=tuple(rewards[:count]))


def _steps_of(group: Group, row: int) -> list[str] | Reply:
    if row >= len(group.steps):
        return Reply(error="the row's steps of reasoning are not known")
    return list(group.steps[row]) or Reply(error="the row has no steps of reasoning", cause=ANSWER)


def padded_scores(rows: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
    """Pad rows' numbers with 0 to a tensor [rows, S]; return it and its mask (bool)."""
    longest = max(map(len, rows), default=0)
    numbers, mask = torch.zeros(len(rows), longest), torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, each in enumerate(rows):
        numbers[row, : len(each)], mask[row, : len(each)] = torch.tensor(each), True
    return numbers, mask


def score_metrics(scores: Tensor, mask: Tensor) -> dict[str, float]:
    """Return metrics of scores [B, S] in a mask (bool): steps, their mean count in a row; step_mean and step_min, the
    means over all steps and over rows' lowest; last_is_lowest, the share of rows that end with their lowest step."""
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


def worst_probability(spec: SourceSpec) -> float | None:
    """Return the probability of a step that earns least: 1 with a weight below 0, else 0; None if not known."""
    return None if spec.keys.bounds is None else float(spec.weight < 0)
