"""summary.json and the learning curves of a finished run."""

import json
import time
from pathlib import Path
from typing import Any

from oger_recipe.files import read_jsonl

CURVES = {
    "solve_rate": (
        "solve rate: rollouts in training (lines), held-out problems (marks)",
        ["rollout/solve_rate", "rollout/solve_none", "rollout/solve_all"],
    ),
    "rewards": ("reward of the rollouts", ["rollout/reward", "oger/bonus", "oger/bonus_of_correct"]),
    "exploration": ("exploration", ["oger/divergence", "oger/entropy", "oger/entropy_weight"]),
}


def write_summary(run_dir: Path, seconds: dict[str, float], started: float) -> None:
    """Writes summary.json and curves/*.png from what the run recorded, and prints the result."""
    events, steps = read_jsonl(run_dir / "events.jsonl"), last_attempts(read_jsonl(run_dir / "metrics.jsonl"))
    evaluated = [e for e in events if e["event"] == "evaluated"]
    by_step = {e["step"]: {"step": e["step"]} | _figures(e) for e in evaluated}
    evaluations = [by_step[step] for step in sorted(by_step)]
    summary = {e["when"]: _figures(e) for e in evaluated if e["when"] != "during"} | {
        "evaluations": evaluations,
        "steps": steps[-1]["step"] if steps else 0,
        "seconds": seconds | phase_seconds([e for e in events if e["time"] >= started], started),
        "data": json.loads((run_dir / "data" / "counts.json").read_text()),
    }
    (run_dir / "summary.json").write_text(json.dumps(summary, indent=2))
    draw_curves(steps, evaluations, run_dir / "curves")
    shown = {key: value for key, value in summary.items() if key not in ("data", "evaluations")}
    print(f"run folder: {run_dir}\n{json.dumps(shown)}", flush=True)


def _figures(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if "_at_" in key or key == "n_problems"}


def last_attempts(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record a step: a resumed run repeats the steps after its checkpoint."""
    by_step = {record["step"]: record for record in steps}
    return [by_step[step] for step in sorted(by_step)]


def phase_seconds(events: list[dict[str, Any]], started: float) -> dict[str, float]:
    """Seconds from one milestone of the run to the next."""
    at = {e["event"] + (f" {e['when']}" if "when" in e else ""): e["time"] for e in events}
    spans = {
        "evaluate_before": ("evaluating before", "evaluated before"),
        "training": ("training", "trained"),
        "evaluate_after": ("evaluating after", "evaluated after"),
    }
    seconds = {name: at[end] - at[begin] for name, (begin, end) in spans.items() if begin in at and end in at}
    return seconds | {"until_ready": at["ready"] - started, "total": time.time() - started}


def draw_curves(steps: list[dict[str, Any]], evaluations: list[dict[str, Any]], folder: Path) -> None:
    """One PNG per entry of CURVES; the evaluations are marked on the first."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(exist_ok=True)
    for name, (title, keys) in CURVES.items():
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        for key in keys:
            axes.plot([s["step"] for s in steps], [s[key] for s in steps], label=key)
        if name == "solve_rate" and evaluations:
            _mark_evaluations(axes, evaluations)
        axes.set(xlabel="step", title=title, ylim=(0, None))
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
        figure.savefig(folder / f"{name}.png", dpi=120)
        plt.close(figure)


def _mark_evaluations(axes: Any, evaluations: list[dict[str, Any]]) -> None:
    """A line of marks for each metric on held-out problems; the first and the last carry their value."""
    at = [evaluation["step"] for evaluation in evaluations]
    for key in (key for key in evaluations[0] if "_at_" in key):
        values = [evaluation[key] for evaluation in evaluations]
        marker = {"avg": "o", "pass": "^"}.get(key.partition("_")[0], "s")
        axes.plot(at, values, marker=marker, color="black", linestyle=":", linewidth=0.8, zorder=3)
        for position, align in ((0, "left"), (-1, "right")):
            axes.annotate(
                f"held-out {key} {values[position]:.2f}",
                (at[position], values[position]),
                xytext=(4, 4),
                textcoords="offset points",
                ha=align,
                fontsize=8,
            )
