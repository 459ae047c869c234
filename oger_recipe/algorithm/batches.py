"""Rows of a batch: in which order they are cut, and which of their tokens are a teacher's. All masks are [B, A].

The A positions span prompt and response, shifted by one; action_mask is set on those of the response.
"""

from itertools import islice

import torch
from torch import Tensor


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
