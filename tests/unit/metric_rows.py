"""Which of the metrics that a run wrote have no row in the table of metrics."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oger_recipe.base.files import read_jsonl
from oger_recipe.report.metric_table import lookup

COMPONENT = "reward/{source}/{component}"


def names_in(run_dir: Path) -> set[str]:
    """All metrics that a run has written, evaluations' as trackers get them."""
    return {name for step in read_jsonl(run_dir / "metrics.jsonl") for name in step} | {
        f"eval_{benchmark}_{name}" for benchmark, name in _of_evaluations(run_dir)
    }


def without_row(run_dir: Path, names: set[str] | None = None) -> set[str]:
    """Of these names, by default all that the run has written, return those without a row.

    The row of components is for what a source says of rows: its numbers about a step have rows of their own.
    """
    found = {name: lookup(name) for name in (names_in(run_dir) if names is None else names)}
    rows: list[dict[str, Any]] = [row for path in (run_dir / "samples").glob("*.jsonl") for row in read_jsonl(path)]
    said = {f"reward/{name}" for row in rows for name in row.get("sources", {})}
    return {name for name, row in found.items() if row is None or (row.name == COMPONENT and name not in said)}


def _of_evaluations(run_dir: Path) -> Iterator[tuple[str, str]]:
    for path in (run_dir / "eval").glob("step_*.json"):
        result = json.loads(path.read_text())
        for benchmark, metrics in (result["benchmarks"] | {"average": result["average"]}).items():
            yield from ((benchmark, name) for name, value in metrics.items() if isinstance(value, int | float))
