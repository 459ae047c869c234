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
    counted = _counted(rewards, baseline_mask)
    if baseline_mask is not None:
        return _split_advantage(rewards, counted, use_std, eps)
    n = rewards.shape[1]
    # In float32 the mean of n equal rewards may miss them by one rounding, which dividing by eps would blow up.
    exact = rewards.double()
    centred = exact - exact.sum(dim=1, keepdim=True) / n
    if use_std and n > 1:
        centred = centred / (centred.square().sum(dim=1, keepdim=True).div(n - 1).sqrt() + eps)
    return centred.to(torch.promote_types(rewards.dtype, torch.float32))


def _split_advantage(rewards: Tensor, baseline: Tensor, use_std: bool, eps: float) -> Tensor:
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


def max_rl_advantage(rewards: Tensor, *, baseline_mask: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Compute MaxRL's advantages A_i = (r_i - mean(r)) / mean(r) (arXiv 2602.02710).

    rewards is [groups, n]; so is the result, in float32 or better. Of rewards 1 and 0 the mean is the solve rate: with
    c right rows these have n / c - 1, and the others -1. The expected policy gradient is then that of the log of the
    probability p to be right, -sum over k of (1 - p)^k / k, up to k = n - 1. (Its n-th term would push down all rows
    of a group without a right one; the authors' code leaves that out as well.) The mean is of the rewards as they are
    trained, which are taken to be 0 or more; then no advantage is below -1. Where the mean is at most eps, all are 0.

    baseline_mask (bool [groups, n]): the mean is of the rows set in it, and applies to every row. So where none of
    these earns anything, the others have 0 as well, whatever they earn.
    Raises ValueError unless rewards has two dimensions and baseline_mask, if given, its shape.
    """
    counted = _counted(rewards, baseline_mask)
    exact = rewards.double()
    mean = torch.where(counted, exact, 0.0).sum(dim=1, keepdim=True) / counted.sum(dim=1, keepdim=True).clamp(min=1)
    result = torch.where(mean > eps, (exact - mean) / mean, 0.0)
    return result.to(torch.promote_types(rewards.dtype, torch.float32))


def pass_at_k_advantage(right: Tensor, baseline_mask: Tensor | None, k: int) -> Tensor:
    """Compute the advantages of pass@k training in closed form (arXiv 2508.10751, analytical derivation).

    right is bool [groups, n]; the result is float32 [groups, n]. Of the C(n, k) ways to draw k rows of a group, the
    share rho holds one of its c right rows, and earns 1. A draw has the advantage (earned - rho) / sigma, with sigma =
    sqrt(rho (1 - rho)) the std over all draws, and a row the mean of those of the draws that it is in:

        rho = 1 - C(n-c, k) / C(n, k)
        right: (1 - rho) / sigma            wrong: (1 - rho - C(n-c-1, k-1) / C(n-1, k-1)) / sigma

    They sum to 0, so a wrong row has -c / (n - c) times what a right one has, and no binomial is computed. With k = 1
    this is group_norm with the std over n. All are 0 where every draw earns the same: in a group without a right row,
    in one with more than n - k of them, and so for k = n; and where there are fewer rows than k.

    baseline_mask (bool [groups, n]): draws are from the rows set in it; the others have what a row like them has.
    Raises ValueError unless right has two dimensions and baseline_mask, if given, its shape, and for k below 1.
    """
    counted = _counted(right, baseline_mask)
    if k < 1:
        raise ValueError(f"k must be 1 or more, not {k}")
    n = counted.sum(dim=1, keepdim=True).double()
    c = (counted & right).sum(dim=1, keepdim=True).double()
    # C(n-c, k) / C(n, k) is the product of 1 - c / (n - j) over j < k, of which one is 0 for c > n - k.
    left = (n - torch.arange(k, device=right.device)).clamp(min=1)
    fails = (1 - c / left).prod(dim=1, keepdim=True)
    teaches = (fails > 0) & (fails < 1)
    of_right = torch.where(teaches, (fails / (1 - fails)).sqrt(), 0.0)
    of_wrong = torch.where(teaches, -of_right * c / (n - c), 0.0)
    return torch.where(right, of_right, of_wrong).float()


def _counted(values: Tensor, baseline_mask: Tensor | None) -> Tensor:
    """Mark the rows that set the baseline, all without a mask. Raises ValueError for shapes that do not fit."""
    if values.ndim != 2:
        raise ValueError(f"rewards must be [groups, n], not {list(values.shape)}")
    if baseline_mask is None:
        return torch.ones_like(values, dtype=torch.bool)
    if baseline_mask.shape != values.shape:
        raise ValueError(f"baseline_mask must be {list(values.shape)}, not {list(baseline_mask.shape)}")
    return baseline_mask


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
