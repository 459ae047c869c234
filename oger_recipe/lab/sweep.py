"""Draws held-out curves of runs that differ in one setting: ``python -m oger_recipe.lab.sweep FOLDER NAME``."""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from matplotlib.axes import Axes

from oger_recipe.base.files import to_json
from oger_recipe.evaluation.tables import main_metrics
from oger_recipe.report.panels import COLOURS, band, dress, from_zero, label_ends, save, sheet, steps_from_zero

Points = list[tuple[int, float, list[float]]]  # step, score, its interval


def curves(summary: dict[str, Any]) -> dict[str, tuple[str, Points]]:
    """Return for each benchmark the name of its first metric (avg_at_<n>) and its scores by step.

    Raises ValueError for a run without evaluation.
    """
    points: dict[str, Points] = {}
    metrics: dict[str, str] = {}
    for evaluation in sorted(summary["evaluations"], key=lambda evaluation: evaluation["step"]):
        for name, scores in evaluation["benchmarks"].items():
            metric = metrics.setdefault(name, main_metrics(scores.get("n"))[0])
            if metric in scores:
                points.setdefault(name, []).append((evaluation["step"], scores[metric], scores[f"{metric}_interval"]))
    if not points:
        raise ValueError("the run was not evaluated: set eval.dataset and eval.steps")
    return {name: (metrics[name], of_benchmark) for name, of_benchmark in points.items()}


def draw(folder: Path, setting: str) -> list[dict[str, Any]]:
    """Write sweep.png, a panel for each benchmark, and sweep.json.

    Return one record for each finished run and benchmark, in the order of the setting's values, which name the folders
    of the runs.
    """
    records: list[dict[str, Any]] = []
    runs = {unquote(path.parent.name): path for path in folder.glob("*/summary.json")}
    for value in sorted(runs, key=_number_or_text):
        summary = json.loads(runs[value].read_text())
        if not summary.get("finished"):
            continue
        for benchmark, (metric, points) in curves(summary).items():
            records.append(
                {"value": value, "benchmark": benchmark, "metric": metric}
                | {"points": [(step, score) for step, score, _ in points]}
                | {"intervals": [interval for *_, interval in points]}
            )
    benchmarks = list(dict.fromkeys(record["benchmark"] for record in records))
    if benchmarks:
        figure, axes = sheet(len(benchmarks))
        for name, panel in zip(benchmarks, axes, strict=True):
            _draw_benchmark(panel, name, [record for record in records if record["benchmark"] == name])
        note = f"label: {setting} and the last score; bands: 95 % intervals over the problems"
        save(figure, folder / "sweep.png", note=note)
    (folder / "sweep.json").write_text(to_json(records, indent=2))
    return records


def _draw_benchmark(panel: Axes, name: str, records: list[dict[str, Any]]) -> None:
    ends = []
    for number, record in enumerate(records):
        colour, marker = COLOURS[number % len(COLOURS)], "os^DvP*X"[number % 8]
        at, scores = zip(*record["points"], strict=True)
        panel.plot(at, scores, marker=marker, markersize=4, color=colour, linewidth=1.4)
        low, high = zip(*record["intervals"], strict=True)
        band(panel, at, low, high, colour)
        ends.append((at[-1], scores[-1], f"{record['value']}: {scores[-1]:.2f}", colour))
    from_zero(panel, least=0.25)
    dress(panel, f"held-out {name}, {records[0]['metric'].replace('_at_', '@')}")
    steps_from_zero(panel, max(step for step, *_ in ends), right=max(len(text) for _, _, text, _ in ends))
    label_ends(panel, ends, "right")


def _number_or_text(name: str) -> tuple[int, float, str]:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


def main() -> None:
    folder, setting = Path(sys.argv[1]), sys.argv[2]
    for record in draw(folder, setting):
        first, last = record["points"][0], record["points"][-1]
        name = f"{setting} {record['value']:>8}  {record['benchmark']} {record['metric']}"
        print(f"{name} {first[1]:.3f} -> {last[1]:.3f} (step {last[0]})")
    print(f"figure: {folder / 'sweep.png'}")


if __name__ == "__main__":
    main()
