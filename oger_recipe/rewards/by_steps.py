"""What the sources of a run pay for each step of reasoning: the left fold of compose.py, with a reward for each step.

A source that speaks of steps (Scores.steps) pays each of them; what any other source says is for the whole response
and is paid with its last step. A factor (combine: mul) multiplies all steps. Added up over its steps, a row's rewards
are what the sources give it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from oger_recipe.algorithm.step_tensors import last_steps
from oger_recipe.rewards.sources import Group, Scores


@dataclass(frozen=True)
class StepRewards:
    """The rewards of a batch's steps of reasoning.

    rewards, mask: [groups, n, S], 0 and not set where a row has no such step; of_response [groups, n]: the part of the
    last step's reward that is for the whole response.
    """

    rewards: Tensor
    mask: Tensor
    of_response: Tensor

    @property
    def total(self) -> Tensor:
        """[groups, n]."""
        return self.rewards.sum(dim=2)

    def with_responses(self, of_response: Tensor, where: Tensor) -> StepRewards:
        """Replace a row's rewards by that of its whole response [groups, n] where set (bool [groups, n])."""
        alone = torch.where(last_steps(self.mask), of_response.unsqueeze(2), 0.0)
        return StepRewards(
            torch.where(where.unsqueeze(2), alone, self.rewards),
            self.mask,
            torch.where(where, of_response, self.of_response),
        )


@dataclass(frozen=True)
class Term:
    """A source's weighted values [groups, n] or weighted rewards of steps [groups, n, S]; counts (bool [groups, n]):
    rows where it is not passed by; multiplies: it is a factor of the total so far, in place of a summand."""

    values: Tensor
    counts: Tensor
    multiplies: bool = False


def step_mask(groups: Sequence[Group]) -> Tensor:
    """Return which steps exist, bool [groups, n, S]; S is the most that a row has."""
    counts = torch.tensor([[len(steps) for steps in group.steps] for group in groups])
    return torch.arange(int(counts.max()) if counts.numel() else 0) < counts.unsqueeze(2)


def step_errors(scores: Scores, mask: Tensor, wanted: Tensor) -> dict[tuple[int, int], str]:
    """Return (group, row) -> why, for wanted rows (bool [groups, n]) where a source rewards a step beyond the mask
    (bool [groups, n, S])."""
    if scores.steps is None:
        return {}
    said = _fitted(scores.steps.isfinite(), max(mask.shape[2], scores.steps.shape[2]), False)
    beyond = said & ~_fitted(mask, said.shape[2], False)
    return {
        (group, row): f"it gave a reward to step {int(beyond[group, row].nonzero()[0]) + 1} of a response with "
        f"{int(mask[group, row].sum())}"
        for group, row in (beyond.any(dim=2) & wanted).nonzero().tolist()
    }


def with_steps_of(scores: Scores, values: Mapping[tuple[int, int], float], mask: Tensor) -> Scores:
    """Spread values of (group, row) evenly over the row's steps; a source without steps stays so."""
    if scores.steps is None or not values:
        return scores
    steps = _fitted(scores.steps, max(mask.shape[2], scores.steps.shape[2]), torch.nan).clone()
    exists = _fitted(mask, steps.shape[2], False)
    for place, value in values.items():
        steps[place] = torch.where(exists[place], value / exists[place].sum().clamp(min=1), torch.nan)
    return replace(scores, steps=steps)


def weighted_steps(steps: Tensor, weight: float, has_value: Tensor, mask: Tensor) -> Tensor:
    """Return weight * steps [groups, n, S], 0 where a step has no reward or its row no value (bool [groups, n])."""
    fitted = _fitted(steps, mask.shape[2], torch.nan)
    return weight * torch.where(mask & has_value.unsqueeze(2) & fitted.isfinite(), fitted, 0.0)


def compose_steps(terms: Sequence[Term], mask: Tensor) -> StepRewards:
    """Fold terms from the left, as compose does, over the steps of the mask (bool [groups, n, S])."""
    last = last_steps(mask)
    rewards, of_response = torch.zeros(mask.shape), torch.zeros(mask.shape[:2])
    begun = torch.zeros(mask.shape[:2], dtype=torch.bool)
    for term in terms:
        pays_steps = term.values.ndim == 3
        whole = torch.zeros_like(of_response) if pays_steps else term.values
        paid = term.values if pays_steps else torch.where(last, whole.unsqueeze(2), 0.0)
        is_factor = begun & term.multiplies
        joined = torch.where(is_factor.unsqueeze(2), rewards * whole.unsqueeze(2), rewards + paid)
        rewards = torch.where(term.counts.unsqueeze(2), joined, rewards)
        joined = torch.where(is_factor, of_response * whole, of_response + whole)
        of_response = torch.where(term.counts, joined, of_response)
        begun = begun | term.counts
    return StepRewards(rewards, mask, of_response)


def step_lines(
    texts: Sequence[str], said: Mapping[str, Sequence[float]], given: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Return a record for each step of a row: its text, what it was `given` (by name), and as "sources" the finite
    numbers that sources said of it, if any."""
    lines: list[dict[str, Any]] = []
    for place, text in enumerate(texts):
        known = {name: values[place] for name, values in said.items() if place < len(values)}
        sources = {name: value for name, value in known.items() if math.isfinite(value)}
        got = {name: values[place] for name, values in given.items()}
        lines.append({"text": text} | got | ({"sources": sources} if sources else {}))
    return lines


def _fitted(values: Tensor, steps: int, fill: float) -> Tensor:
    """Cut or pad values [groups, n, S] to so many steps."""
    values = values[..., :steps]
    missing = values.new_full((*values.shape[:-1], steps - values.shape[-1]), fill)
    return torch.cat([values, missing], dim=-1)
