"""Values of several sources on one scale: within their group, over a run so far, or over a batch.

    z_i = (x_i - mean(x)) / (std(x) + eps)

The std is the unbiased one, over n - 1, and eps 1e-6, as in group_advantage.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6


def group_normalized(values: Tensor, counted: Tensor, *, eps: float = EPS) -> Tensor:
    """Compare the counted values of each group: z_i = (x_i - mean(x)) / (std(x) + eps) over them, 0 elsewhere.

    values and counted (bool) are [groups, n]; so is the result, in float32 or better. Equal values, and a single one,
    give exactly 0. Values that are not counted are not read.
    """
    exact = torch.where(counted, values.double(), 0.0)
    count = counted.sum(dim=1, keepdim=True)
    centred = torch.where(counted, exact - exact.sum(dim=1, keepdim=True) / count.clamp(min=1), 0.0)
    std = (centred.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    return (centred / (std + eps)).to(torch.promote_types(values.dtype, torch.float32))


def batch_normalized(values: Tensor, *, eps: float = EPS) -> Tensor:
    """Compare all values of a batch with each other: z_i = (x_i - mean(x)) / (std(x) + eps); any shape."""
    row = values.reshape(1, -1)
    return group_normalized(row, torch.ones_like(row, dtype=torch.bool), eps=eps).view_as(values)


@dataclass(frozen=True)
class Running:
    """Count, mean and sum of squared distances from the mean of all values so far (Welford's recurrence, for a batch
    of values at a time), and the lowest and the highest of them."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    lowest: float | None = None
    highest: float | None = None

    def joined_by(self, values: Tensor) -> Running:
        """Add values [m], in any order.

        With m values of mean b and sum of squared distances q, and d = b - mean:

            mean' = mean + d * m / (count + m)
            squares' = squares + q + d^2 * count * m / (count + m)
        """
        if not len(values):
            return self
        exact, m = values.double(), len(values)
        mean = exact.sum() / m
        count, distance = self.count + m, mean.item() - self.mean
        squares = (exact - mean).square().sum().item()
        return Running(
            count,
            self.mean + distance * m / count,
            self.squares + squares + distance * distance * self.count * m / count,
            exact.min().item() if self.lowest is None else min(self.lowest, exact.min().item()),
            exact.max().item() if self.highest is None else max(self.highest, exact.max().item()),
        )

    def normalized(self, values: Tensor, *, eps: float = EPS) -> Tensor:
        """Compare values of any shape with all so far: z = (x - mean) / (std + eps), with std 0 of a single value."""
        std = (self.squares / max(self.count - 1, 1)) ** 0.5
        normalized = (values.double() - self.mean) / (std + eps)
        return normalized.to(torch.promote_types(values.dtype, torch.float32))
