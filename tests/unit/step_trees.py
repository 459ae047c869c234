"""Random responses in steps of reasoning, and what plain Python says of them: loops over formulas, without tensors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

Rows = list[list[float]]

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


# ---- formulas


def plain_step_gae(rewards: Rows, values: Rows, rows: list[Tree], gamma: float, lam: float, after: list[float]) -> Any:
    """sum over l of (gamma lam)^l delta_(s+l), term by term."""
    advantages, returns = [[0.0] * len(row) for row in rewards], [[0.0] * len(row) for row in rewards]
    for i, row in enumerate(rows):
        count = len(row.steps)
        v = [*values[i][:count], after[i]]
        delta = [rewards[i][s] + gamma * v[s + 1] - v[s] for s in range(count)]
        for s in range(count):
            advantages[i][s] = sum((gamma * lam) ** (k - s) * delta[k] for k in range(s, count))
            returns[i][s] = advantages[i][s] + v[s]
    return advantages, returns


def plain_token_gae(
    rewards: Rows, values: Rows, rows: list[Tree], gamma: float, lam: float, after: list[float]
) -> Any:
    advantages, returns = [[0.0] * len(row) for row in values], [[0.0] * len(row) for row in values]
    for i, row in enumerate(rows):
        places = [place for step in row.steps for place in step]
        ends = {step[-1]: s for s, step in enumerate(row.steps)}
        v = [*(values[i][place] for place in places), after[i]]
        discount = [gamma if place in ends else 1.0 for place in places]
        paid = [rewards[i][ends[place]] if place in ends else 0.0 for place in places]
        delta = [paid[t] + discount[t] * v[t + 1] - v[t] for t in range(len(places))]
        for t, place in enumerate(places):
            factors = [math.prod(discount[t:k]) * lam ** (k - t) for k in range(t, len(places))]
            advantages[i][place] = sum(f * delta[k] for k, f in enumerate(factors, start=t))
            returns[i][place] = advantages[i][place] + v[t]
    return advantages, returns


def plain_process_grpo(rewards: list[list[float]]) -> list[list[float]]:
    """Of one group."""
    every = [reward for row in rewards for reward in row]
    middle, spread = mean(every), stdev(every) if len(every) > 1 else 0.0
    z = [[(reward - middle) / (spread + 1e-6) for reward in row] for row in rewards]
    return [[sum(row[step:]) for step in range(len(row))] for row in z]


def plain_process_rloo(rewards: list[list[float]], tokens: list[list[int]], outcome: list[float]) -> list[list[float]]:
    """Of one group; the baseline goes over the others' tokens one by one."""
    process = [[*row[:-1], row[-1] - own] if row else [] for row, own in zip(rewards, outcome, strict=True)]
    earned = [[sum(row[step:]) for step in range(len(row))] for row in process]
    paid = [own if row else 0.0 for row, own in zip(rewards, outcome, strict=True)]
    result = []
    for i, row in enumerate(earned):
        others = [k for k in range(len(rewards)) if k != i]
        of_tokens = [earned[k][step] for k in others for step, count in enumerate(tokens[k]) for _ in range(count)]
        against = (mean(of_tokens) if of_tokens else 0.0), (mean(paid[k] for k in others) if others else 0.0)
        result.append([value - against[0] + paid[i] - against[1] for value in row])
    return result
