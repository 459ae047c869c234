"""How far the rollouts of a prompt are from its teachers, and the bonus that this distance earns.

OGER (arXiv 2604.18530), for rollouts i = 1..n and teachers j = 1..M of one prompt, with unit-norm embeddings e(.):

    s_ij  = <e(rollout_i), e(teacher_j)>
    sim_i = mean_j s_ij
    B_i   = (1 - sim_i) * exp(-H_i) * R_i

H_i is the policy's entropy in nats at the end of rollout i and R_i its verifiable reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_RATIO_GAMMA = 0.1
_SAME = 1e-4  # nearer unit vectors differ by rounding

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


def _minmax(measure: Tensor, counted: Tensor) -> Tensor:
    low = torch.where(counted, measure, torch.inf).amin(dim=-1, keepdim=True)
    high = torch.where(counted, measure, -torch.inf).amax(dim=-1, keepdim=True)
    differs = high > low
    return torch.where(differs, (measure - low) / torch.where(differs, high - low, 1.0), measure)


def _rank(measure: Tensor, counted: Tensor) -> Tensor:
    mine, other = measure.unsqueeze(-1), measure.unsqueeze(-2)
    beaten = ((mine > other).double() + 0.5 * (mine == other).double()) * counted.unsqueeze(-2)
    others = counted.sum(dim=-1, keepdim=True) - 1
    # Every row equals itself: that half is taken off.
    return torch.where(others > 0, (beaten.sum(dim=-1) - 0.5) / others.clamp(min=1), 1.0)


# Each takes the measure [..., n] and a bool mask of the rows that count (the last dimension is a group) and gives the
# shaped measure of these rows; what it gives for the others is not used.
SHAPINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda measure, counted: measure,
    "group_minmax": _minmax,
    "group_rank": _rank,
    "ratio": lambda measure, counted: measure / (measure.abs() + _RATIO_GAMMA),
}

# Progress over the schedule's steps, 0 to 1, to the share of the way from the first weight to the last.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 0.0,
    "linear": lambda progress: progress,
    "cosine": lambda progress: (1 - math.cos(math.pi * progress)) / 2,
}


def mean_similarity(rollouts: Tensor, teachers: Tensor, reduce: str = "mean") -> Tensor:
    """Measure the cosine similarity of every rollout to its prompt's teachers, reduced over the teachers.

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


def centred(rollouts: Tensor, teachers: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract the mean of a group's rollouts [n, d] from them and from its teachers [M, d], and make unit rows again.

    What all rollouts of a prompt share no longer makes them similar to its teachers: cosines then lie around 0. A row
    that equals the mean, as all do in a group of one text, has no direction and becomes zeros: its cosines are 0. A
    row with nan stays nan and is in no mean.
    """
    known = rollouts.isfinite().all(dim=1, keepdim=True)
    # In double precision the mean of equal rows is that row to the last bit.
    mean = torch.where(known, rollouts, 0.0).double().sum(dim=0) / known.sum().clamp(min=1)
    return _from_mean(rollouts, mean), _from_mean(teachers, mean)


def _from_mean(rows: Tensor, mean: Tensor) -> Tensor:
    away = rows - mean
    length = away.norm(dim=1, keepdim=True)
    return torch.where(length <= _SAME, 0.0, away / length).to(rows.dtype)


def shape_measure(measure: Tensor, earns: Tensor, *, shaping: str) -> Tensor:
    """Reshape the rewarded measure [..., n] (the last dimension is a group) of the rows in the bool mask `earns`.

    none:         as it is
    ratio:        x / (|x| + 0.1); of a negative x, a cosine maybe, without a pole
    group_minmax: (x - min) / (max - min) among the group's earning rows; as it is if they are equal or only one
    group_rank:   share of the group's other earning rows that have less, equals counting half; 1 if it is the only one

    Rows that do not earn and nan stay as they are and touch no other row.
    Raises ValueError for a shaping outside SHAPINGS and for differing shapes.
    """
    if shaping not in SHAPINGS:
        raise ValueError(f"shaping={shaping!r} is unknown; valid values: {', '.join(SHAPINGS)}")
    if earns.shape != measure.shape:
        raise ValueError(f"measure and earns must have one shape, not {list(measure.shape)} and {list(earns.shape)}")
    counted = earns & ~measure.isnan()
    return torch.where(counted, SHAPINGS[shaping](measure, counted).to(measure.dtype), measure)


def spread_within_groups(values: Tensor, counted: Tensor) -> float:
    """Average over groups the standard deviation (over n - 1) of a group's counted values; 0 without any.

    values and counted (bool) are [groups, n]; groups with fewer than two counted values have no spread and are left
    out. Advantages compare rows of one group: a difference between groups does not count for them.
    """
    spreads = [row[mask].double().std() for row, mask in zip(values, counted, strict=True) if mask.sum() > 1]
    return torch.stack(spreads).mean().item() if spreads else 0.0


def scheduled_weight(step: int, *, start: float, end: float, steps: int, schedule: str, warmup: int = 0) -> float:
    """Return a weight at `step` (from 1): `start` first, `end` from step `steps` on; constant: `start`.

    linear and cosine (half a wave) move in between; a schedule of one step has `start` at it and `end` afterwards.
    With a warm-up the weight grows linearly from 0 to `start`, at step `warmup`, which is the schedule's first.
    Raises ValueError for a schedule outside SCHEDULES.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r} is unknown; valid values: {', '.join(SCHEDULES)}")
    if step < warmup:
        return start * step / warmup
    step -= max(warmup - 1, 0)
    share = SCHEDULES[schedule](min(max((step - 1) / max(steps - 1, 1), 0.0), 1.0))
    return start * (1 - share) + end * share


def exploration_bonus(
    similarity: Tensor,
    entropy: Tensor,
    reward: Tensor,
    *,
    weight: str = "exp_neg_entropy",
    reverse: bool = True,
    shaping: str = "none",
    fails: Tensor | None = None,
) -> Tensor:
    """Compute the exploration bonus B = D * w * R of every rollout (OGER, arXiv 2604.18530).

    similarity, entropy (nats) and reward have one shape, usually [n]; so has the result. D is 1 - similarity, or the
    similarity itself unless `reverse`, mapped by shape_measure (whose groups are the last dimension); w is the
    ENTROPY_WEIGHTS entry named by `weight`. Rows in the bool mask `fails` are wrong rollouts that earn all the same:
    the opposite measure (closeness to the teachers under `reverse`), unshaped, times w, with R taken as 1.
    A rollout without reward, or without teachers (similarity nan), earns exactly 0 whatever its other inputs are. A
    nan entropy of a rewarded rollout is not hidden: its bonus is nan.
    Raises ValueError for differing shapes, an unknown weight or an unknown shaping.
    """
    if weight not in ENTROPY_WEIGHTS:
        raise ValueError(f"weight={weight!r} is unknown; valid values: {', '.join(ENTROPY_WEIGHTS)}")
    if fails is None:
        fails = torch.zeros_like(reward, dtype=torch.bool)
    if not similarity.shape == entropy.shape == reward.shape == fails.shape:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (similarity, entropy, reward, fails))
        raise ValueError(f"similarity, entropy, reward and fails must have one shape, not {shapes}")
    measure, opposite = (1 - similarity, similarity) if reverse else (similarity, 1 - similarity)
    earns = (reward != 0) & ~fails
    earned = torch.where(fails, opposite, shape_measure(measure, earns, shaping=shaping))
    bonus = earned * ENTROPY_WEIGHTS[weight](entropy) * torch.where(fails, torch.ones_like(reward), reward)
    return torch.where((earns | fails) & ~similarity.isnan(), bonus, torch.zeros_like(bonus))


# How rare a right rollout is among those of its group, by exact classes.


@dataclass(frozen=True)
class Uniqueness:
    """of: c (rows of its class), m (right rows) and n (the policy's rows of the group), and a power, to a value;
    least: what it is at its lowest, and for a right row that may not earn."""

    of: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    least: float = 0.0


# share: 0 for the only class there is. inverse: Uniqueness-Aware RL (arXiv 2601.08763) weighs advantages so; power 1/2
# is the bonus of outcome-based UCB (arXiv 2509.06941), counted in the group. distinct: DARLING's factor (arXiv
# 2509.02534), with classes of an exact verifier in place of a trained classifier's.
UNIQUENESS: dict[str, Uniqueness] = {
    "share": Uniqueness(lambda c, m, n, power: 1 - c / m),
    "inverse": Uniqueness(lambda c, m, n, power: c**-power),
    "distinct": Uniqueness(lambda c, m, n, power: ((n - c) / (n - 1).clamp(min=1)).clamp(min=0.1), least=0.1),
}


def uniqueness(classes: Tensor, earns: Tensor, own: Tensor, *, form: str, power: float = 1.0) -> Tensor:
    """Compute how rare each row's class is, by a form of UNIQUENESS; tensors are [..., n], a group in the last.

    classes: a number of each row's class; earns (bool): right rows that count and are paid; own (bool): the policy's
    rows. Others get the form's least and touch no other row.
    Raises ValueError for an unknown form.
    """
    if form not in UNIQUENESS:
        raise ValueError(f"form={form!r} is unknown; valid values: {', '.join(UNIQUENESS)}")
    alike = (classes.unsqueeze(-1) == classes.unsqueeze(-2)) & earns.unsqueeze(-2)
    sizes, right, rows = (mask.sum(dim=-1).float() for mask in (alike, earns, own))
    values = UNIQUENESS[form].of(sizes.clamp(min=1), right.clamp(min=1).unsqueeze(-1), rows.unsqueeze(-1), power)
    return torch.where(earns, values, UNIQUENESS[form].least)


def unlikeliness(log_probs: Tensor, reward: Tensor, ranked: Tensor, earns: Tensor) -> Tensor:
    """Compute -R * rank / n of every row; with R and a weight beta it makes R (1 - beta rank / n) (arXiv 2506.02355).

    Tensors are [..., n], a group in the last dimension. rank: how many of the n rows in the mask `ranked` are less
    likely, equals counting half, so that the least likely one has 0; a row outside the mask `earns` ranks last.
    """
    mine, other = log_probs.unsqueeze(-1), log_probs.unsqueeze(-2)
    less_likely = ((other < mine).double() + 0.5 * (other == mine).double()) * ranked.unsqueeze(-2)
    n = ranked.sum(dim=-1, keepdim=True).clamp(min=1)
    # Every row equals itself: that half is taken off.
    rank = torch.where(earns, less_likely.sum(dim=-1) - 0.5, n - 1)
    return (-reward * rank / n).float()


# From a cosine to a reward: little up to `low`, 1 from `high` on, and growing ever faster in between.


_BASE = 1e4


def similarity_reward(cosine: Tensor, *, low: float = 0.65, high: float = 0.85, floor: float = 0.1) -> Tensor:
    """Map cosines of any shape to rewards of that shape; nan stays nan.

        v = floor                                                      up to low
        v = floor + (1 - floor) * (1e4^(cosine - low) - 1) / rise      between
        v = 1                                                          from high on

    rise is 1e4^(high - low) - 1 in two digits. With the defaults it is 5.3, and v is VeRL-with-RMs' curve, (1e4^cosine
    / 3981.07 - 0.1) * 1.69811 + 0.1, whose 3981.07 is 1e4^low / floor, and whose 1.69811 is (1 - floor) / (floor *
    5.3). Without the rounding rise would be 5.3096; so v comes to 1.0016 just below high.
    """
    rise = float(f"{_BASE ** (high - low) - 1:.2g}")
    between = floor + (1 - floor) * (_BASE ** (cosine - low) - 1) / rise
    return torch.where(cosine <= low, floor, torch.where(cosine >= high, 1.0, between))
