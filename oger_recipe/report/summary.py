"""summary.json and the learning curves of a finished run."""

import json
import time
from pathlib import Path
from typing import Any

CURVES = {
    "solve_rate": (
        "solve rate: rollouts in training (lines), held-out problems (marks)",
        ["rollout/solve_rate", "rollout/solve_none", "rollout/solve_all"],
    ),
    "rewards": ("reward of the rollouts", ["rollout/reward", "oger/bonus", "oger/bonus_of_correct"]),
    "exploration": ("exploration", ["oger/divergence", "oger/entropy", "oger/entropy_weight"]),
}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file; none where it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_summary(run_dir: Path, seconds: dict[str, float], started: float) -> None:
    """Writes summary.json and curves/*.png from what the run recorded, and prints the result."""
    events, steps = read_lines(run_dir / "events.jsonl"), last_attempts(read_lines(run_dir / "metrics.jsonl"))
    evaluations = {
        e["when"]: {key: value for key, value in e.items() if "_at_" in key or key == "n_problems"}
        for e in events
        if e["event"] == "evaluated"
    }
    summary = evaluations | {
        "steps": steps[-1]["step"] if steps else 0,
        "seconds": seconds | phase_seconds([e for e in events if e["time"] >= started], started),
        "data": json.loads((run_dir / "data" / "counts.json").read_text()),
    }
    (run_dir / "summary.json").write_text(json.dumps(summary, indent=2))
    draw_curves(steps, evaluations, run_dir / "curves")
    print(f"run folder: {run_dir}\n{json.dumps({k: summary[k] for k in summary if k != 'data'})}", flush=True)


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


def draw_curves(steps: list[dict[str, Any]], evaluations: dict[str, dict[str, float]], folder: Path) -> None:
    """One PNG per entry of CURVES; the evaluations are marked on the first."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(exist_ok=True)
    for name, (title, keys) in CURVES.items():
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        for key in keys:
            axes.plot([s["step"] for s in steps], [s[key] for s in steps], label=key)
        if name == "solve_rate" and steps:
            _mark_evaluations(axes, evaluations, {"before": 0, "after": steps[-1]["step"]})
        axes.set(xlabel="step", title=title, ylim=(0, None))
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
        figure.savefig(folder / f"{name}.png", dpi=120)
        plt.close(figure)


def _mark_evaluations(axes: Any, evaluations: dict[str, dict[str, float]], at: dict[str, int]) -> None:
    for when, step in at.items():
        for key, value in evaluations.get(when, {}).items():
            if key == "n_problems":
                continue
            axes.scatter([step], [value], marker="o" if key.startswith("avg") else "^", color="black", zorder=3)
            axes.annotate(
                f"held-out {key} {value:.2f}",
                (step, value),
                xytext=(4, 4),
                textcoords="offset points",
                ha="left" if when == "before" else "right",
                fontsize=8,
            )
