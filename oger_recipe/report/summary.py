"""Writes summary.json, the curves and the printed result of a run from its records so far."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oger_recipe.base.files import atomic_write, read_jsonl, to_json
from oger_recipe.evaluation.tables import comparison

Record = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """The summary and the curves of one attempt at a run; they may be written at any time.

    ``seconds``: of the parts before the start; ``started``: when the attempt began.
    """

    run_dir: Path
    seconds: dict[str, float]
    started: float

    def summary(self, *, finished: bool = False) -> Record:
        """Sum up the run so far. ``finished``: the attempt came to its end."""
        events = read_jsonl(self.run_dir / "events.jsonl")
        of_attempt = [event for event in events if event["time"] >= self.started]
        evaluated = kept_evaluations(events)
        before = [event for event in evaluated if event["when"] == "before"]
        after = [event for event in evaluated if event["when"] == "after" and event["time"] >= self.started]
        ready = [event for event in events if event["event"] == "ready"]
        steps = self._steps()
        return {
            **{moment: _scores(found[-1]) for moment, found in (("before", before), ("after", after)) if found},
            "evaluations": [{"step": event["step"]} | _scores(event) for event in evaluated],
            "steps": steps[-1]["step"] if steps else 0,
            "planned_steps": ready[-1]["steps"] if ready else None,
            "resumed_at": ready[-1]["resumed_at"] if ready else 0,
            "finished": finished,
            "seconds": self.seconds | phase_seconds(of_attempt, self.started),
            "data": json.loads((self.run_dir / "data" / "counts.json").read_text()),
        }

    def _steps(self) -> list[Record]:
        return last_attempts(read_jsonl(self.run_dir / "metrics.jsonl"))

    def write(self, *, finished: bool = False) -> Record:
        """Write summary.json and curves/*.png; return the summary."""
        from oger_recipe.report.curves import draw_curves  # imports matplotlib

        summary = self.summary(finished=finished)
        with atomic_write(self.run_dir / "summary.json") as partial:
            partial.write_text(to_json(summary, indent=2))
        draw_curves(self._steps(), summary["evaluations"], self.run_dir / "curves")
        return summary

    def finish(self, say: Callable[[str], None], *, finished: bool) -> None:
        """Write the report of an attempt, however it ended, and say its result."""
        try:
            say(result(self.write(finished=finished), self.run_dir))
        except Exception as error:  # a trained model is not to be lost to a picture, nor a failure's reason hidden
            say(f"note: summary and curves of {self.run_dir} could not be written: {type(error).__name__}: {error}")


def _scores(event: Record) -> Record:
    return {key: value for key, value in event.items() if "_at_" in key or key in ("n_problems", "benchmarks")}


def last_attempts(steps: list[Record]) -> list[Record]:
    """Return the steps that led to the present policy: a resumed run repeats those after its checkpoint."""
    kept: list[Record] = []
    for record in steps:
        add_step(kept, record)
    return kept


def add_step(steps: list[Record], record: Record) -> None:
    """Append a step, in place of those that a resumed run repeats."""
    while steps and steps[-1]["step"] >= record["step"]:
        steps.pop()
    steps.append(record)


def kept_evaluations(events: list[Record]) -> list[Record]:
    """Return the last evaluation of every step, by step; a resumed run forgets those after its checkpoint."""
    by_step: dict[int, Record] = {}
    for event in events:
        if event["event"] == "ready":
            by_step = {step: each for step, each in by_step.items() if step <= event["resumed_at"]}
        elif event["event"] == "evaluated":
            by_step[event["step"]] = event
    return [by_step[step] for step in sorted(by_step)]


def phase_seconds(events: list[Record], started: float) -> dict[str, float]:
    """Return the seconds from one milestone of an attempt to the next, for those that it reached."""
    at = {e["event"] + (f" {e['when']}" if "when" in e else ""): e["time"] for e in events}
    at["started"] = started
    spans = {
        "evaluate_before": ("evaluating before", "evaluated before"),
        "training": ("training", "trained"),
        "evaluate_after": ("evaluating after", "evaluated after"),
        "until_ready": ("started", "ready"),
    }
    seconds = {name: at[end] - at[begin] for name, (begin, end) in spans.items() if begin in at and end in at}
    return seconds | {"total": time.time() - started}


def result(summary: Record, run_dir: Path) -> str:
    """Write the lines for a run's end."""
    moments = {f"{when} training": summary[when] for when in ("before", "after") if when in summary}
    lines = []
    if any(scores.get("benchmarks") for scores in moments.values()):
        lines.append(comparison({moment: scores.get("benchmarks", {}) for moment, scores in moments.items()}))
        problems = max(scores["n_problems"] for scores in moments.values())
        lines.append(f"{problems} held-out problems; brackets hold 95 % intervals over the problems")
    seconds, planned = summary["seconds"], summary["planned_steps"]
    resumed = f", the last {summary['steps'] - summary['resumed_at']} of them" if summary["resumed_at"] else ""
    training = f"{resumed} in {clock(seconds['training'])}" if "training" in seconds else ""
    of_planned = "" if summary["steps"] == planned or planned is None else f" of {planned}"
    lines.append(f"{summary['steps']}{of_planned} steps{training}; {clock(seconds['total'])} in total")
    curves = " (curves/*.png, summary.json, metrics.jsonl, ...)" if summary["steps"] else ""
    lines.append(f"run folder: {run_dir}{curves}")
    return "\n".join(lines)


def clock(seconds: float) -> str:
    """Write seconds as 0:41, 1:02:03, 2 d 3:04:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    text = f"{hour}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
    return f"{days} d {text}" if days else text
