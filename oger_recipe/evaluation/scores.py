"""What the sources of a reward say of responses, as a table: level, spread, and what their values go with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from oger_recipe.evaluation.tables import aligned


@dataclass(frozen=True)
class Column:
    """The values of a source by response, nan where it has none; failed: responses that it should have scored and did
    not; seconds: time it took for all of them, nan where not known."""

    values: Sequence[float]
    failed: int = 0
    seconds: float = math.nan


def score_table(columns: Mapping[str, Column], rule: Sequence[float], lengths: Sequence[int]) -> str:
    """Write a row for each column, by name. rule: the verifier's reward of each response; lengths: in characters."""
    header = ["", "answers", "mean", "std", "r(rule)", "r(length)", "failed", "answers/s"]
    lines = [header, *(_line(name, column, rule, lengths) for name, column in columns.items())]
    return aligned(lines)


def _line(name: str, column: Column, rule: Sequence[float], lengths: Sequence[int]) -> list[str]:
    known = [value for value in column.values if math.isfinite(value)]
    mean = float(np.mean(known)) if known else math.nan
    std = float(np.std(known, ddof=1)) if len(known) > 1 else math.nan
    numbers = [mean, std, correlation(column.values, rule), correlation(column.values, lengths)]
    speed = len(known) / column.seconds if column.seconds > 0 else math.nan
    return [name, str(len(known)), *map(_three, numbers), str(column.failed), _per_second(speed)]


def _three(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.3f}"


def _per_second(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.1f}" if number < 100 else f"{number:.0f}"


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Pearson's r = sum (x - mean x)(y - mean y) / sqrt(sum (x - mean x)^2 sum (y - mean y)^2) of the pairs
    that are finite; nan for fewer than two, and where x or y is constant."""
    pairs = np.array([pair for pair in zip(x, y, strict=True) if math.isfinite(pair[0]) and math.isfinite(pair[1])])
    if len(pairs) < 2 or any(np.ptp(pairs, axis=0) <= 1e-9 * np.abs(pairs).max(axis=0)):
        return math.nan
    return float(np.corrcoef(pairs, rowvar=False)[0, 1])


def ranks(values: Sequence[float]) -> list[float]:
    """Rank values from 1, the smallest; equal values share the mean of their ranks."""
    _, which, count = np.unique(np.array(values), return_inverse=True, return_counts=True)
    return list((np.cumsum(count) - (count - 1) / 2)[which]) if len(values) else []


def auc(labels: Sequence[float], values: Sequence[float]) -> float:
    """Return how often a value with label 1 is greater than one with label 0, equal ones counting half; nan where one
    of the labels is missing."""
    ones = [rank for rank, label in zip(ranks(values), labels, strict=True) if label == 1]
    pairs = len(ones) * (len(labels) - len(ones))
    return float((sum(ones) - len(ones) * (len(ones) + 1) / 2) / pairs) if pairs else math.nan
