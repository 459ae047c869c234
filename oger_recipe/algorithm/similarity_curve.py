"""From a cosine to a reward: little up to `low`, 1 from `high` on, and growing ever faster in between."""

from __future__ import annotations

import torch
from torch import Tensor

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
