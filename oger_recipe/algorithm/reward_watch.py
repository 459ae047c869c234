"""What a source of reward follows besides the answer: its length, its form; where it contradicts the rule; and when
the reward parts from held-out accuracy.

A group's rewards are compared with one another, so all is taken within groups: that hard prompts have long answers
says nothing. Tensors are [groups, n]; nan marks a row that does not count. What a step gives are sums, which are added
over several steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 100  # rows, or pairs of rows, below which a share or a correlation is chance (standard error 0.1)
_ROUNDING = 1e-9  # of the largest value; differences below it are none


def comoments(x: Tensor, y: Tensor) -> Tensor:
    """Sum squares and products of x and y, [groups, n], about their groups' means: [4] float64, rows, Sxx, Syy, Sxy.

        Sxy = sum_g sum_i (x_gi - mean_g(x)) (y_gi - mean_g(y))

    Rows where x or y is nan are left out, and so are groups with fewer than two rows left.
    """
    known = ~(x.isnan() | y.isnan())
    known = known & (known.sum(dim=1, keepdim=True) > 1)
    dx, dy = _about_means(x, known), _about_means(y, known)
    return torch.stack([known.sum().double(), (dx * dx).sum(), (dy * dy).sum(), (dx * dy).sum()])


def _about_means(values: Tensor, known: Tensor) -> Tensor:
    values = values.double().where(known, 0.0)
    means = values.sum(dim=1, keepdim=True) / known.sum(dim=1, keepdim=True).clamp(min=1)
    about = (values - means).where(known, 0.0)
    return about.where(about.abs() > _ROUNDING * values.abs().max(), 0.0) if values.numel() else about


def correlation(sums: Tensor) -> float:
    """Compute Pearson's r of `comoments` [4], Sxy / sqrt(Sxx Syy).

    nan where x or y is constant, and of fewer than LEAST rows.
    """
    rows, xx, yy, xy = sums.tolist()
    if rows < LEAST or not (xx > 0 and yy > 0):
        return math.nan
    return max(-1.0, min(xy / math.sqrt(xx * yy), 1.0))


def pair_orders(values: Tensor, rule: Tensor) -> Tensor:
    """Count the pairs of rows in a group that values and rule order, [2]: all, and those that they order differently.

    Both are [groups, n]. A pair that is equal for either, or of which one row is nan, does not count.
    """
    both = _signs(values) * _signs(rule)
    return torch.stack([(both.abs() == 1).sum(), (both == -1).sum()]).double() / 2  # a pair was counted twice


def _signs(values: Tensor) -> Tensor:
    """Return [groups, n, n]: the sign of each row's value less each other's; nan where one is."""
    return (values.unsqueeze(2) - values.unsqueeze(1)).sign()


def disagreement(counts: Tensor) -> float:
    """Return the share of `pair_orders` [2] in different order: (1 - gamma) / 2 of Goodman and Kruskal's gamma.

    0: the rule's order, 0.5: none of it; nan of fewer than LEAST pairs.
    """
    pairs, against = counts.tolist()
    return against / pairs if pairs >= LEAST else math.nan


@dataclass(frozen=True)
class Drift:
    """From the best evaluation to the newest: how far accuracy fell, and by how much the trained reward rose."""

    since: int  # step
    fall: float
    rise: float


def drift(rewards: Mapping[int, float], accuracy: Mapping[int, float], window: int) -> Drift | None:
    """Compare the newest of the evaluations, step -> accuracy, with the best one before.

        fall = accuracy(best) - accuracy(newest)        rise = level(newest) - level(best)

    level(s): the mean of ``rewards``, step -> mean reward, over the last `window` steps up to s; before training it
    is the first step's. None where there are no two evaluations, or no reward is known at one of them.
    """
    if len(accuracy) < 2:
        return None
    newest = max(accuracy)
    best = max((step for step in accuracy if step != newest), key=lambda step: (accuracy[step], step))
    then, now = (_level(rewards, max(step, 1), window) for step in (best, newest))
    return None if then is None or now is None else Drift(best, accuracy[best] - accuracy[newest], now - then)


@dataclass(frozen=True)
class Growth:
    """From the best window of steps to the newest: how far the share that is solved fell, and the factor of a size."""

    since: int  # the last step of the best window
    fall: float
    factor: float


def growth(sizes: Mapping[int, float], solved: Mapping[int, float], window: int) -> Growth | None:
    """Compare the last `window` steps with the window before them in which most was solved.

        fall = mean(solved, then) - mean(solved, now)        factor = mean(sizes, now) / mean(sizes, then)

    sizes, solved: step -> the step's mean. Windows do not overlap, counted back from the newest; None where there are
    not two of which every step is known.
    """
    newest = max(solved, default=0)
    ends = [
        end
        for end in range(newest, 0, -window)
        if all(step in solved and step in sizes for step in range(end - window + 1, end + 1))
    ]
    if len(ends) < 2 or ends[0] != newest:
        return None
    levels = {end: _level(solved, end, window) or 0.0 for end in ends}
    best = max(ends[1:], key=lambda end: (levels[end], end))
    then, now = _level(sizes, best, window), _level(sizes, newest, window)
    return Growth(best, levels[best] - levels[newest], now / then) if then and now else None


def _level(rewards: Mapping[int, float], step: int, window: int) -> float | None:
    known = [rewards[each] for each in range(max(step - window, 0) + 1, step + 1) if each in rewards]
    return sum(known) / len(known) if known else None
