"""How the rollouts' numbers spread, step by step, and what sources say of steps of reasoning, by their position."""

import math
from array import array
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from oger_recipe.report.run_state import is_number

Row = dict[str, Any]

_BINS = 30
_MOST_COLUMNS = 200  # of a chart; above it neighbouring steps share one


@dataclass(frozen=True)
class _Spread:
    """``value``: of a row, None where it does not count; ``rows``: which ones do, as a reader is told."""

    rows: str
    value: Callable[[Row], float | None]


def _of_rollout(row: Row, name: str) -> float | None:
    return None if "source" in row else row.get(name)


def _bonus(row: Row) -> float | None:
    return _of_rollout(row, "bonus") if (row.get("score") or 0) > 0 else None


_SPREADS = {
    "similarity": _Spread("all rollouts", lambda row: _of_rollout(row, "similarity")),
    "divergence": _Spread("all rollouts", lambda row: _of_rollout(row, "divergence")),
    "bonus": _Spread("right rollouts that were trained on", _bonus),
    "advantage": _Spread("rows that were trained on, teachers' included", lambda row: row.get("advantage")),
    "response_length": _Spread("all rollouts, in tokens", lambda row: _of_rollout(row, "response_length")),
}


class Numbers:
    """Collects the numbers of the rows that it is shown, step by step."""

    def __init__(self) -> None:
        self._values: dict[str, dict[int, array[float]]] = {name: {} for name in _SPREADS}
        self._said: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # rows, sum, squares

    def take(self, step: int, row: Row) -> None:
        for name, spread in _SPREADS.items():
            value = spread.value(row)
            if is_number(value):
                self._values[name].setdefault(step, array("d")).append(value)
        for position, each in enumerate(row.get("steps_of_reasoning") or (), start=1):
            for source, value in (each.get("sources") or {}).items():
                if is_number(value):
                    sums = self._said[source, position]
                    sums[:] = sums[0] + 1, sums[1] + value, sums[2] + value * value

    def distributions(self) -> list[Row]:
        """Return a histogram for each step, over the same bins; of many steps neighbours share one. Numbers that are 0
        throughout, as the bonus of a method without one, are left out."""
        known = ((name, by_step) for name, by_step in self._values.items() if any(map(any, by_step.values())))
        return [self._distribution(name, by_step) for name, by_step in known]

    def _distribution(self, name: str, by_step: dict[int, "array[float]"]) -> Row:
        steps = sorted(by_step)
        low = min(min(values) for values in by_step.values())
        high = max(max(values) for values in by_step.values())
        edges = np.histogram_bin_edges([low, high], _BINS if high > low else 1)
        width = math.ceil(len(steps) / _MOST_COLUMNS)
        windows = [steps[start : start + width] for start in range(0, len(steps), width)]
        counts = [
            np.sum([np.histogram(by_step[step], edges)[0] for step in window], axis=0).tolist() for window in windows
        ]
        last = [window[-1] for window in windows]
        return {"name": name, "rows": _SPREADS[name].rows, "edges": edges.tolist(), "steps": last, "counts": counts}

    def steps_of_reasoning(self) -> list[Row] | None:
        """Return mean and standard deviation of what each source said, by the step's position in its response."""
        found = []
        for (source, position), (rows, total, squares) in sorted(self._said.items()):
            mean = total / rows
            deviation = math.sqrt(max(squares - rows * mean * mean, 0.0) / (rows - 1)) if rows > 1 else None
            found.append({"source": source, "position": position, "mean": mean, "sd": deviation, "rows": int(rows)})
        return found or None
