"""Advantages over the hybrid group: rollouts and teachers of one prompt are compared with each other."""

from collections.abc import Callable

import torch
from torch import Tensor

# is_teacher (bool [groups, n]) to the baseline_mask of group_advantage.
BASELINES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "group": lambda is_teacher: None,
    "rollouts": lambda is_teacher: ~is_teacher,
}


def group_advantage(
    rewards: Tensor, *, use_std: bool, eps: float = 1e-6, baseline_mask: Tensor | None = None
) -> Tensor:
    """Compute group-relative advantages A_i = r_i - mean(r), divided by std(r) + eps when `use_std`.

    rewards is [groups, n]; so is the result, in float32 or better. The division is GRPO's (arXiv 2402.03300), its
    absence Dr.GRPO's (arXiv 2503.20783); the std is the unbiased one, over n - 1. A group of equal rewards, and so any
    group of one (n = 1), has nothing to be compared with: its advantages are exactly 0.

    baseline_mask (bool [groups, n]): mean and std are of the rows set in it, and are applied to every row (LUFFY's
    grpo_split, where these are the rollouts). A single such row has no spread: its group's mean is taken as 0 and its
    std as 1; a std of 0 counts as 1. Without any such row all advantages are 0.
    Raises ValueError unless rewards has two dimensions and baseline_mask, if given, its shape.
    """
    if rewards.ndim != 2:
        raise ValueError(f"rewards must be [groups, n], not {list(rewards.shape)}")
    if baseline_mask is not None:
        return _split_advantage(rewards, baseline_mask, use_std, eps)
    n = rewards.shape[1]
    # In float32 the mean of n equal rewards may miss them by one rounding, which dividing by eps would blow up.
    exact = rewards.double()
    centred = exact - exact.sum(dim=1, keepdim=True) / n
    if use_std and n > 1:
        centred = centred / (centred.square().sum(dim=1, keepdim=True).div(n - 1).sqrt() + eps)
    return centred.to(torch.promote_types(rewards.dtype, torch.float32))


def _split_advantage(rewards: Tensor, baseline: Tensor, use_std: bool, eps: float) -> Tensor:
    if baseline.shape != rewards.shape:
        raise ValueError(f"baseline_mask must be {list(rewards.shape)}, not {list(baseline.shape)}")
    exact, count = rewards.double(), baseline.sum(dim=1, keepdim=True)
    inside = torch.where(baseline, exact, 0.0)
    mean = inside.sum(dim=1, keepdim=True) / count.clamp(min=1)
    squares = torch.where(baseline, (exact - mean).square(), 0.0).sum(dim=1, keepdim=True)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    # Equal rewards may miss their own mean by a rounding: not a spread.
    std = torch.where((count < 2) | (std < 1e-12), 1.0, std + eps)
    centred = exact - torch.where(count == 1, 0.0, mean)
    result = torch.where(count == 0, 0.0, centred / std if use_std else centred)
    return result.to(torch.promote_types(rewards.dtype, torch.float32))


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
