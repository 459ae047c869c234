"""Rows of a batch: in which order they are cut, and which of their tokens are a teacher's. All masks are [B, A].

The A positions span prompt and response, shifted by one; action_mask is set on those of the response.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor
from torch.utils.data import Sampler

from oger_recipe.algorithm.step_tensors import first_tokens, of_steps, over_tokens


def longest_first(lengths: list[int]) -> list[int]:
    """Return positions by falling length, equal ones in their order: what needs most memory comes first."""
    return sorted(range(len(lengths)), key=lambda position: -lengths[position])


def cut_for_ranks(lengths: list[int], size: int, ranks: int) -> list[list[int]]:
    """Cut positions of like length into micro-batches of at most `size`: the first rank's, then the second's, ...

    Every rank gets long and short ones, and as many of each size as the others: it waits for them in every collective.
    `ranks` divides the number of positions.
    """
    rows, share = iter(longest_first(lengths)), len(lengths) // ranks
    of_ranks: list[list[list[int]]] = [[] for _ in range(ranks)]
    for part in torch.arange(share).tensor_split(-(-share // size)):
        for of_rank in of_ranks:
            of_rank.append(list(islice(rows, len(part))))
    return sum(of_ranks, [])


def off_policy_mask(action_mask: Tensor, off_policy_tokens: Tensor) -> Tensor:
    """Mark the first `off_policy_tokens` [B] response tokens of each row (bool [B, A])."""
    position = action_mask.long().cumsum(dim=-1)
    return action_mask.bool() & (position <= off_policy_tokens.unsqueeze(-1))


def of_first_token(values: Tensor, action_mask: Tensor) -> Tensor:
    """Take from values [B, A] that of each row's first response token: [B]; action_mask is [B, A]."""
    return values.gather(1, action_mask.long().argmax(dim=1, keepdim=True)).squeeze(1)


# How the rows of a training step are cut into micro-batches.


class LengthSortedBatches(Sampler[list[int]]):
    """Micro-batches of random optimizer steps, sorted by length within each step.

    An optimizer step's gradient does not depend on how its rows are cut (its loss is normalised over all of them), so
    that only padding is saved. Rows that do not fill a micro-batch are left out, as OpenRLHF does.
    """

    def __init__(self, lengths: list[int], batch_size: int, accumulated: int) -> None:
        self.lengths, self.batch_size, self.accumulated = lengths, batch_size, accumulated

    def __len__(self) -> int:
        return len(self.lengths) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        rows = torch.randperm(len(self.lengths))[: len(self) * self.batch_size].tolist()
        of_step = self.batch_size * self.accumulated
        for start in range(0, len(rows), of_step):
            step = rows[start : start + of_step]
            ranked = [step[position] for position in longest_first([self.lengths[row] for row in step])]
            for first in range(0, len(step), self.batch_size):
                yield ranked[first : first + self.batch_size]


# What the policy loss counts: tokens, or the steps of reasoning that rollouts are made of.


RATIO_LEVELS = ("token", "step")


def unit_mask(action_mask: Tensor, off_policy_mask: Tensor, step_index: Tensor) -> Tensor:
    """Mark the tokens that enter the loss, bool [B, A]: teacher tokens, and each step's first rollout token."""
    step = _rollouts_steps(action_mask, off_policy_mask, step_index)
    return action_mask.bool() & ((step < 0) | first_tokens(step))


def step_log_probs(log_probs: Tensor, action_mask: Tensor, off_policy_mask: Tensor, step_index: Tensor) -> Tensor:
    """Sum log-probabilities [B, A] over each rollout's step, at all of its tokens; others stay. In float32 or
    better."""
    step = _rollouts_steps(action_mask, off_policy_mask, step_index)
    exact = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
    sums = of_steps(exact, step, step.shape[1])  # a row has no more steps than tokens
    return torch.where(step < 0, exact, over_tokens(sums, step))


def _rollouts_steps(action_mask: Tensor, off_policy_mask: Tensor, step_index: Tensor) -> Tensor:
    """Return the step from 0 of each rollout token [B, A], -1 where there is none."""
    return torch.where(action_mask.bool() & ~off_policy_mask.bool(), step_index, 0).long() - 1
