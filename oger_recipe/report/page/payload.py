"""What the page shows of a run but its samples, read from its folder."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oger_recipe.base.files import read_jsonl, read_record
from oger_recipe.evaluation.metrics import powers_up_to
from oger_recipe.report.page.problems import answers_path
from oger_recipe.report.page.recipe import changed
from oger_recipe.report.run_state import RunLog, RunState, is_number, read_settings, state_of
from oger_recipe.report.summary import kept_evaluations, last_attempts
from oger_recipe.run_folder.own_files import COMMAND

Record = dict[str, Any]

MOST_POINTS = 2000  # of a curve in all runs: as wide as a screen; 100 curves of so many take 0.6 MB of the page
LEAST_POINTS = 200  # of a curve in each of very many runs
MOST_NOTES = 1000
# Metrics of a step that are facts to warn of, as the lines of the console do, and what they count.
_WARNED_OF = {
    "rollout/reward_error": "rollouts were not graded",
    "skipped_updates": "updates were skipped: a loss or a gradient was not finite",
}


def of_run(run_dir: Path, name: str, runs: int = 1) -> Record:
    """Return what the page shows of the run at once. name: what the page calls it; runs: how many the page has."""
    log = RunLog(run_dir)
    log.update()
    state = state_of(log)
    steps = last_attempts(read_jsonl(run_dir / "metrics.jsonl"))
    evaluations = [_evaluation(event) for event in kept_evaluations(log.milestones)]
    text, settings = read_settings(run_dir)
    return {
        "name": name,
        "folder": str(run_dir.resolve()),
        "state": _state(state),
        "recipe": {"name": state.recipe, "changed": changed(settings), "text": text},
        "command": _text(run_dir / COMMAND),
        "environment": read_record(run_dir / "environment.json"),
        "attempts": [asdict(each) for each in state.attempts],
        "seconds": read_record(run_dir / "summary.json").get("seconds", {}),
        "data": read_record(run_dir / "data" / "counts.json"),
        "sources": log.sources,
        **_curves(steps, max(MOST_POINTS // runs, LEAST_POINTS)),
        "evaluations": evaluations,
        "pass_at_k": _pass_at_k(run_dir, evaluations),
        "notes": _notes(state, steps),
        "alarms": [asdict(each) for each in state.alarms],
    }


def _state(state: RunState) -> Record:
    names = ("state", "why", "resume_from", "step", "planned_steps", "seconds")
    return {name: getattr(state, name) for name in names}


def _evaluation(event: Record) -> Record:
    """Return an evaluation's scores by benchmark; an earlier version had one benchmark without a name."""
    scores = {key: value for key, value in event.items() if "_at_" in key}
    benchmarks = event.get("benchmarks") or {"held-out": {"problems": event.get("n_problems")} | scores}
    return {"when": event["when"], "step": event["step"], "benchmarks": benchmarks}


def ends(evaluations: Sequence[Record]) -> list[Record]:
    """Return the first and the last evaluation; one alone is both."""
    return [evaluations[0], evaluations[-1]] if len(evaluations) > 1 else list(evaluations)


def _pass_at_k(run_dir: Path, evaluations: Sequence[Record]) -> Record:
    """Return by benchmark the curve of pass@k with its intervals, of the first and the last evaluation."""
    curves: Record = {}
    for evaluation in ends(evaluations):
        document = read_record(answers_path(run_dir, evaluation["step"]).with_suffix(".json"))
        for benchmark, metrics in document.get("benchmarks", {}).items():
            ks = [k for k in powers_up_to(metrics["n"]) if f"pass_at_{k}" in metrics]
            if not ks:
                continue
            low, high = zip(*(metrics[f"pass_at_{k}_interval"] for k in ks), strict=True)
            curve = {"k": ks, "value": [metrics[f"pass_at_{k}"] for k in ks], "low": low, "high": high}
            curves.setdefault(benchmark, []).append({"step": evaluation["step"], "when": evaluation["when"]} | curve)
    return curves


def _curves(steps: Sequence[Record], most: int) -> Record:
    """Turn the steps' metrics into columns. Above ``most`` steps a point is the mean of several, at the last one."""
    width = math.ceil(len(steps) / most) or 1
    windows = [steps[start : start + width] for start in range(0, len(steps), width)]
    names = dict.fromkeys(name for record in steps for name in record if name != "step")
    return {
        "steps": [window[-1]["step"] for window in windows],
        "steps_per_point": width,
        "metrics": {name: [_mean(window, name) for window in windows] for name in names},
    }


def _mean(window: Sequence[Record], name: str) -> float | None:
    known = [value for record in window if is_number(value := record.get(name))]
    return rounded(sum(known) / len(known)) if known else None


def _notes(state: RunState, steps: Sequence[Record]) -> list[Record]:
    """List the run's notes and warnings by step, with those that its metrics are."""
    notes = [*(asdict(note) for note in state.notes), *_of_metrics(steps)]
    notes.sort(key=lambda note: note["step"])
    if len(notes) <= MOST_NOTES:
        return notes
    first, last = notes[: MOST_NOTES // 2], notes[-MOST_NOTES // 2 :]
    gap = {"step": last[0]["step"], "time": None, "text": f"({len(notes) - MOST_NOTES:,} notes are left out here)"}
    return [*first, gap, *last]


def _of_metrics(steps: Sequence[Record]) -> Iterator[Record]:
    for record in steps:
        for metric, text in _WARNED_OF.items():
            if record.get(metric):
                counted = f"WARNING: step {record['step']}: {record[metric]:.0f} {text} ({metric})"
                yield {"step": record["step"], "time": None, "text": counted}


def rounded(value: Any) -> Any:
    """Round the numbers in a document to 5 significant digits, which is all that a page shows, and halves its size."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
