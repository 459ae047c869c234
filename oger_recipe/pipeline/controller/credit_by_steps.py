"""Advantages of experiences whose rewards are paid by steps of reasoning.

What changes the reward of a whole response joins its last step: length penalties, and what the clip range takes off
there. The KL penalty of a step's tokens is taken off the step's reward; where groups are compared, it is taken off
afterwards, from the advantages of this step and all before it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from torch import Tensor

from oger_recipe.algorithm.credit import STEP_ESTIMATORS
from oger_recipe.algorithm.step_credit import StepRewards, whitening
from oger_recipe.algorithm.step_tensors import first_tokens, from_here_on, last_steps, of_steps, over_tokens


def credit_by_steps(
    experiences: Sequence[Experience],
    paid: StepRewards,
    left_out: Tensor,
    args: Any,
    *,
    kl_coefficient: float,
    baseline: Tensor | None,
) -> None:
    """Give the experiences of a training step advantages and returns [B, A], by OpenRLHF's settings ``args``.

    An experience says with ``index`` which rows of ``paid`` it has, and with ``rewards`` what these are worth by now.
    Rows ``left_out`` (bool [N]) are not trained, and do not count where advantages are whitened; ``kl_coefficient``:
    of the KL in the reward; ``baseline``: the rows to be held against, as StepEstimator has it.
    Raises RuntimeError where a row has other steps in its tokens than in its text.
    """
    how, settings, size = STEP_ESTIMATORS[args.algo.advantage.estimator], args.algo.advantage, paid.mask.shape[1]
    mask, steps = paid.mask.flatten(0, 1), paid.mask.shape[2]
    _require_equal_steps(experiences, mask)
    worth = _as_worth_by_now(experiences, paid, args.reward.clip_range)
    rewards = worth.rewards.flatten(0, 1)
    kl = kl_coefficient * _by_steps(experiences, steps, lambda each: each.kl)
    compared = torch.zeros_like(rewards)
    if how.in_group is not None:
        tokens = _tokens_of_steps(experiences, steps).view(paid.mask.shape)
        compared = how.in_group(worth, tokens, baseline).flatten(0, 1) - from_here_on(kl, mask)
    for experience in experiences:
        at, index = experience.index, _index_of(experience)
        if how.with_values is not None:
            given = rewards[at] - kl[at], mask[at], experience.values.float(), index
            experience.advantages, experience.returns = how.with_values(*given, settings.gamma, settings.lambd)
        else:
            experience.advantages = over_tokens(compared[at], index)
            experience.returns = experience.advantages.clone()
        experience.info["return"] = (rewards - kl)[at].sum(dim=1)
        if size > 1:  # as OpenRLHF has it
            experience.info["group_reward_std"] = worth.total.std(dim=1).repeat_interleave(size)[at]
        experience.kl = None
    if how.whitened is not None:
        _whiten(experiences, left_out, over_steps=how.whitened == "steps", divide=not settings.no_std_norm)


def _index_of(experience: Experience) -> Tensor:
    """Return the step of each token, from 0, [B, A]; -1 where there is none."""
    index: Tensor = experience.step_index.long() - 1
    return index


def _by_steps(experiences: Sequence[Experience], steps: int, values: Callable[[Experience], Tensor]) -> Tensor:
    """Sum ``values`` [B, A] of the experiences over each step's tokens, [N, steps] in the order of the flat list."""
    by_row = torch.zeros(sum(len(experience.index) for experience in experiences), steps)
    for experience in experiences:
        by_row[experience.index] = of_steps(values(experience).float(), _index_of(experience), steps)
    return by_row


def advantages_of_steps(experiences: Sequence[Experience], steps: int) -> Tensor:
    """Average the advantages over each step's tokens, [N, steps] in the order of the flat list."""
    sums = _by_steps(experiences, steps, lambda each: each.advantages)
    return sums / _tokens_of_steps(experiences, steps).clamp(min=1)


def _tokens_of_steps(experiences: Sequence[Experience], steps: int) -> Tensor:
    """Count the tokens of each step, [N, steps] in the order of the flat list."""
    return _by_steps(experiences, steps, lambda each: torch.ones_like(each.step_index))


def _require_equal_steps(experiences: Sequence[Experience], mask: Tensor) -> None:
    """Raise RuntimeError where a row's tokens and text differ in steps: a reward without tokens would be lost."""
    for experience in experiences:
        in_tokens = experience.step_index.amax(dim=1).long()
        in_texts = mask[experience.index].sum(dim=1)
        for row, *counts in zip(experience.index, in_tokens.tolist(), in_texts.tolist(), strict=True):
            if counts[0] != counts[1]:
                raise RuntimeError(
                    f"row {row} of the step has {counts[0]} steps in its tokens, {counts[1]} in its text"
                )


def _as_worth_by_now(
    experiences: Sequence[Experience], paid: StepRewards, clip_range: tuple[float, float] | None
) -> StepRewards:
    """Return what rows are paid after penalties and clipping; both change what is for the whole response."""
    last, worth = last_steps(paid.mask), torch.empty(paid.of_response.numel())
    for experience in experiences:
        worth[experience.index] = experience.rewards.float()
    now = paid.rewards + last * (worth.view_as(paid.of_response) - paid.total).unsqueeze(2)
    if clip_range:
        now = now.clamp(*clip_range)
    return StepRewards(now, paid.mask, paid.of_response + (last * (now - paid.rewards)).sum(dim=2))


def _whiten(experiences: Sequence[Experience], left_out: Tensor, *, over_steps: bool, divide: bool) -> None:
    counted = []
    for experience in experiences:
        index = _index_of(experience)
        mask = first_tokens(index) if over_steps else index >= 0
        counted.append(experience.advantages[mask & ~left_out[experience.index].unsqueeze(1)])
    mean, scale = whitening(torch.cat(counted), divide=divide)
    for experience in experiences:
        whitened = (experience.advantages - mean) * scale
        experience.advantages = torch.where(experience.step_index > 0, whitened, 0.0)
