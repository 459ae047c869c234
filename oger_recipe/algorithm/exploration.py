"""How far the rollouts of a prompt are from its teachers, and the bonus that this distance earns.

OGER (arXiv 2604.18530), for rollouts i = 1..n and teachers j = 1..M of one prompt, with unit-norm embeddings e(.):

    s_ij  = <e(rollout_i), e(teacher_j)>
    sim_i = mean_j s_ij
    B_i   = (1 - sim_i) * exp(-H_i) * R_i

H_i is the policy's entropy in nats at the end of rollout i and R_i its verifiable reward.
"""

from collections.abc import Callable

import torch
from torch import Tensor

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda similarities: similarities.mean(dim=1),
    "max": lambda similarities: similarities.amax(dim=1),
    "min": lambda similarities: similarities.amin(dim=1),
}

ENTROPY_WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp_neg_entropy": lambda entropy: torch.exp(-entropy),
    "neg_entropy": lambda entropy: -entropy,
    "entropy": lambda entropy: entropy,
    "none": torch.ones_like,
}


def mean_similarity(rollouts: Tensor, teachers: Tensor, reduce: str = "mean") -> Tensor:
    """Cosine similarity of every rollout to the teachers of its prompt, reduced over the teachers.

    rollouts is [n, d], teachers is [M, d], rows of norm one; the result is [n], in float32 or better.
    Without teachers (M = 0) no similarity is defined and every entry is nan.
    Raises ValueError for other shapes or a `reduce` outside REDUCTIONS.
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce={reduce!r} is unknown; valid values: {', '.join(REDUCTIONS)}")
    if rollouts.ndim != 2 or teachers.ndim != 2 or rollouts.shape[1] != teachers.shape[1]:
        shapes = f"{list(rollouts.shape)} and {list(teachers.shape)}"
        raise ValueError(f"rollouts and teachers must be [n, d] and [M, d] with the same d, not {shapes}")
    dtype = torch.promote_types(torch.promote_types(rollouts.dtype, teachers.dtype), torch.float32)
    if len(teachers) == 0:
        return rollouts.new_full((len(rollouts),), float("nan"), dtype=dtype)
    # Not a matrix product: its kernels may round equal rows differently, and equal texts have to tie exactly.
    similarities = (rollouts.to(dtype).unsqueeze(1) * teachers.to(dtype).unsqueeze(0)).sum(dim=-1)
    return REDUCTIONS[reduce](similarities)


def exploration_bonus(
    similarity: Tensor, entropy: Tensor, reward: Tensor, *, weight: str = "exp_neg_entropy", reverse: bool = True
) -> Tensor:
    """The exploration bonus B = D * w * R of every rollout (OGER, arXiv 2604.18530).

    similarity, entropy (nats) and reward have one shape, usually [n]; so has the result. D is 1 - similarity, or the
    similarity itself unless `reverse`; w is the ENTROPY_WEIGHTS entry named by `weight`.
    A rollout without reward, or without teachers (similarity nan), earns exactly 0 whatever its other inputs are.
    A nan entropy of a rewarded rollout is not hidden: its bonus is nan.
    Raises ValueError for differing shapes or an unknown weight.
    """
    if weight not in ENTROPY_WEIGHTS:
        raise ValueError(f"weight={weight!r} is unknown; valid values: {', '.join(ENTROPY_WEIGHTS)}")
    if not similarity.shape == entropy.shape == reward.shape:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (similarity, entropy, reward))
        raise ValueError(f"similarity, entropy and reward must have one shape, not {shapes}")
    divergence = 1 - similarity if reverse else similarity
    bonus = divergence * ENTROPY_WEIGHTS[weight](entropy) * reward
    earns_nothing = similarity.isnan() | (reward == 0)
    return torch.where(earns_nothing, torch.zeros_like(bonus), bonus)
