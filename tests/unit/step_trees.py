"""Random responses in steps of reasoning, and what plain Python says of them: loops over formulas, without tensors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GARBAGE = (math.nan, math.inf, -math.inf, 1e30)


@dataclass(frozen=True)
class Tree:
    """A row: the places (in 0..A-1) of the tokens of each of its steps."""

    steps: list[list[int]]


def trees(seed: int, rows: int = 6, *, gaps: bool = True) -> list[Tree]:
    """Rows of 0 to 5 steps of 1 to 4 tokens; with gaps, places without a token lie before, between and behind them."""
    draw = random.Random(seed)
    found = [Tree(_row(draw, draw.randrange(6), gaps)) for _ in range(rows - 2)]
    return [*found, Tree([]), Tree(_row(draw, 1, gaps))]


def _row(draw: random.Random, steps: int, gaps: bool) -> list[list[int]]:
    place, row = 0, []
    for _ in range(steps):
        tokens = []
        for _ in range(draw.randint(1, 4)):
            place += draw.choice((0, 0, 1, 3)) if gaps else 0
            tokens.append(place)
            place += 1
        row.append(tokens)
    return row


def index_of(rows: Sequence[Tree], *, more: int = 0) -> Tensor:
    """The step of each place, from 0; ``more`` places are added at the end."""
    length = max((place + 1 for row in rows for step in row.steps for place in step), default=0) + more
    index = torch.full((len(rows), length), -1)
    for number, row in enumerate(rows):
        for step, places in enumerate(row.steps):
            index[number, places] = step
    return index


def mask_of(rows: Sequence[Tree], *, more: int = 0) -> Tensor:
    longest = max(len(row.steps) for row in rows) + more
    return torch.tensor([[step < len(row.steps) for step in range(longest)] for row in rows], dtype=torch.bool)


def filled(mask: Tensor, seed: int) -> Tensor:
    """Random numbers where the mask is set, and what must not be read elsewhere; float64."""
    draw = random.Random(seed)
    return torch.tensor(
        [[draw.uniform(-2, 2) if inside else draw.choice(GARBAGE) for inside in row] for row in mask.tolist()],
        dtype=torch.float64,
    ).reshape(mask.shape)


def numeric_gradient(of: Callable[[list[list[float]]], float], at: list[list[float]]) -> list[list[float]]:
    """Central differences; 0 where ``at`` is no number."""
    gradient = [[0.0] * len(row) for row in at]
    for i, row in enumerate(at):
        for j, value in enumerate(row):
            if not math.isfinite(value) or abs(value) > 1e3:
                continue
            ends = []
            for change in (1e-6, -1e-6):
                moved = [list(each) for each in at]
                moved[i][j] = value + change
                ends.append(of(moved))
            gradient[i][j] = (ends[0] - ends[1]) / 2e-6
    return gradient
