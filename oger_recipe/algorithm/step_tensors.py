"""Steps of reasoning in tensors: from the tokens of steps to steps and back, and the first and last of them.

Tensors of steps are [B, S], with a bool mask of those that a row has, its first ones; those of tokens are [B, A], and
step_index (int) says which step, from 0, each token belongs to: -1 where there is no token. What lies outside of steps
and tokens is not read, nan and inf included, and gets no gradient.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def real(tensor: Tensor) -> torch.dtype:
    """Return the tensor's dtype, or float32 where that is more exact."""
    return torch.promote_types(tensor.dtype, torch.float32)


def read_index(step_index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index as int64, and a bool mask of its tokens. Raise ValueError for other than integers from -1
    on."""
    if step_index.dtype == torch.bool or step_index.is_floating_point():
        raise ValueError(f"step_index must be of integers, not {step_index.dtype}")
    index = step_index.long()
    if (index < -1).any():
        raise ValueError(f"step_index has {index.min().item()}: steps count from 0, and -1 means no token")
    return index, index >= 0


def count_steps(index: Tensor) -> int:
    """Count the steps of the row that has most; index is [B, A]."""
    return int(index.max()) + 1 if index.numel() else 0


def of_steps(values: Tensor, step_index: Tensor, steps: int) -> Tensor:
    """Sum values [B, A] over the tokens of each of so many steps: [B, steps].

    step_index [B, A] counts from 0, -1 where there is no token.
    """
    inside = torch.where(step_index >= 0, values, 0)
    return inside.new_zeros(len(values), steps + 1).scatter_add(1, step_index.long() + 1, inside)[:, 1:]


def over_tokens(values: Tensor, step_index: Tensor) -> Tensor:
    """Put values [B, S] on the tokens of their steps, [B, A]; 0 where there is none."""
    return pad(values, (1, 0)).gather(1, step_index.long() + 1)


def last_steps(mask: Tensor) -> Tensor:
    """Mark the last step of each row; mask (bool [..., S]) has a row's steps first."""
    return mask & ~pad(mask[..., 1:], (0, 1))


def first_tokens(step_index: Tensor) -> Tensor:
    """Mark the first token of each step (bool [B, A]); step_index counts from 0, -1 where there is no token."""
    places = torch.arange(step_index.shape[1], device=step_index.device)
    first = first_places(step_index, step_index.shape[1])  # a row has no more steps than tokens
    return (step_index >= 0) & (over_tokens(first, step_index) == places)


def first_places(step_index: Tensor, steps: int) -> Tensor:
    """Find the place of the first token of each of so many steps, [B, steps]; A, behind the last place: there is
    none."""
    places = torch.arange(step_index.shape[1], device=step_index.device).expand(step_index.shape)
    behind = places.new_full((len(step_index), steps + 1), step_index.shape[1])
    return behind.scatter_reduce(1, step_index.long() + 1, places, "amin")[:, 1:]


def from_here_on(values: Tensor, mask: Tensor) -> Tensor:
    """Sum values [..., S] of this and all later steps, 0 outside of the mask (bool [..., S])."""
    inside = torch.where(mask, values, 0.0)
    return torch.where(mask, inside.flip(-1).cumsum(-1).flip(-1), 0.0)
