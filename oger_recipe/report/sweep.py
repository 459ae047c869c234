"""Held-out curves of runs that differ in one setting: ``python -m oger_recipe.report.sweep FOLDER NAME``."""

import json
import sys
from pathlib import Path
from typing import Any

METRIC = "avg_at_"


def curve(summary: dict[str, Any]) -> tuple[str, list[tuple[int, float]]]:
    """The name of the metric (avg_at_<n>) and its values by step. Raises ValueError for a run without evaluation."""
    points = {evaluation["step"]: evaluation for evaluation in summary["evaluations"]}
    names = [key for key in next(iter(points.values()), {}) if key.startswith(METRIC)]
    if not names:
        raise ValueError("the run was not evaluated: set eval.dataset and eval.steps")
    return names[0], [(step, points[step][names[0]]) for step in sorted(points)]


def draw(folder: Path, setting: str) -> list[dict[str, Any]]:
    """Writes sweep.png and sweep.json; returns one record for each run, in the order of the setting's values."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    records, metric = [], METRIC
    for path in sorted(folder.glob("*/summary.json"), key=lambda path: _number_or_text(path.parent.name)):
        metric, points = curve(json.loads(path.read_text()))
        axes.plot([step for step, _ in points], [value for _, value in points], marker="o", label=path.parent.name)
        records.append({"value": path.parent.name, "metric": metric, "points": points})
    axes.set(xlabel="step", ylabel=f"held-out {metric.replace('_at_', '@')}", title=setting)
    axes.legend(title=setting.rpartition(".")[2], fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(folder / "sweep.png", dpi=120)
    plt.close(figure)
    (folder / "sweep.json").write_text(json.dumps(records, indent=2))
    return records


def _number_or_text(name: str) -> tuple[int, float, str]:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


def main() -> None:
    folder, setting = Path(sys.argv[1]), sys.argv[2]
    for record in draw(folder, setting):
        first, last = record["points"][0], record["points"][-1]
        print(f"{setting} {record['value']:>8}  {record['metric']} {first[1]:.3f} -> {last[1]:.3f} (step {last[0]})")
    print(f"figure: {folder / 'sweep.png'}")


if __name__ == "__main__":
    main()
