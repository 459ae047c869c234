"""What the sources of a run pay for each step of reasoning: the left fold of compose.py, with a reward for each step.

A source that speaks of steps (Scores.steps) pays each of them; what any other source says is for the whole response
and is paid with its last step. A factor (combine: mul) multiplies all steps. Added up over its steps, a row's rewards
are what the sources give it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from oger_recipe.algorithm.step_credit import StepRewards
from oger_recipe.algorithm.step_tensors import last_steps
from oger_recipe.rewards.sources import Group, Scores


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


def compose_steps(
    terms: Sequence[Tensor], counts: Sequence[Tensor], combine: Sequence[str], mask: Tensor
) -> StepRewards:
    """Fold terms from the left, as compose does, over the steps of the mask (bool [groups, n, S]).

    A term is a source's weighted values [groups, n], or its weighted rewards of steps [groups, n, S]; one to multiply
    with is the former.
    """
    last = last_steps(mask)
    rewards, of_response = torch.zeros(mask.shape), torch.zeros(mask.shape[:2])
    begun = torch.zeros(mask.shape[:2], dtype=torch.bool)
    for term, counted, how in zip(terms, counts, combine, strict=True):
        pays_steps = term.ndim == 3
        whole = torch.zeros_like(of_response) if pays_steps else term
        paid = term if pays_steps else torch.where(last, whole.unsqueeze(2), 0.0)
        is_factor = begun & (how == "mul")
        joined = torch.where(is_factor.unsqueeze(2), rewards * whole.unsqueeze(2), rewards + paid)
        rewards = torch.where(counted.unsqueeze(2), joined, rewards)
        joined = torch.where(is_factor, of_response * whole, of_response + whole)
        of_response = torch.where(counted, joined, of_response)
        begun = begun | counted
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
