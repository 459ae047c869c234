"""Advantages over the hybrid group: rollouts and teachers of one prompt are compared with each other."""

import torch
from torch import Tensor


def group_advantage(rewards: Tensor, *, use_std: bool, eps: float = 1e-6) -> Tensor:
    """Group-relative advantages A_i = r_i - mean(r), divided by std(r) + eps when `use_std`.

    rewards is [groups, n]; so is the result, in float32 or better. The division is GRPO's (arXiv 2402.03300), its
    absence Dr.GRPO's (arXiv 2503.20783); the std is the unbiased one, over n - 1. A group of equal rewards, and so any
    group of one (n = 1), has nothing to be compared with: its advantages are exactly 0.
    Raises ValueError unless rewards has two dimensions.
    """
    if rewards.ndim != 2:
        raise ValueError(f"rewards must be [groups, n], not {list(rewards.shape)}")
    n = rewards.shape[1]
    # In float32 the mean of n equal rewards may miss them by one rounding, which dividing by eps would blow up.
    exact = rewards.double()
    centred = exact - exact.sum(dim=1, keepdim=True) / n
    if use_std and n > 1:
        centred = centred / (centred.square().sum(dim=1, keepdim=True).div(n - 1).sqrt() + eps)
    return centred.to(torch.promote_types(rewards.dtype, torch.float32))


def keep_teacher_nonnegative(advantages: Tensor, teacher_mask: Tensor, all_correct: Tensor) -> Tensor:
    """Zero the negative advantages of teachers in groups whose rollouts are all correct.

    There the exploration bonus lifts the group's mean above the teacher's reward, and the policy would be pushed away
    from a correct solution. advantages is [groups, n], teacher_mask bool [groups, n], all_correct bool [groups]; the
    result is a new [groups, n] in which everything else is unchanged.
    Raises ValueError for other shapes.
    """
    if advantages.ndim != 2 or teacher_mask.shape != advantages.shape or all_correct.shape != advantages.shape[:1]:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (advantages, teacher_mask, all_correct))
        raise ValueError(f"expected [groups, n], [groups, n] and [groups], not {shapes}")
    pushed_away = teacher_mask & all_correct.unsqueeze(1) & (advantages < 0)
    return torch.where(pushed_away, torch.zeros_like(advantages), advantages)
