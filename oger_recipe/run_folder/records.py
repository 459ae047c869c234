"""What the controller writes into the run folder while it runs."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oger_recipe.base.files import append_json, read_jsonl, to_json

STOP_ASKED = ".oger-stop"  # file in a run's folder: empty, or when the run is asked to end, as one of the next two
AFTER_STEP, AT_ONCE = "after the step", "at once"

BEGAN, ENDED = "began", "ended"  # events of an attempt: its first one, and its last one where the run did not finish
ALARM, ALARM_CLEARED = "alarm", "alarm_cleared"
STOPPED_BY_ALARM = "stopped_by_alarm"  # event of a run that ends for an alarm: started again, it would train on
SAID = ("note", ALARM, ALARM_CLEARED)  # events that are said on the console, and are no milestones
RESTARTING = "restarting"  # event between two attempts, where a supervisor starts the next one


def event(run_dir: Path, name: str, /, **facts: Any) -> None:
    """Append an event to events.jsonl, which the command line follows to show progress."""
    append_json(run_dir / "events.jsonl", {"time": time.time(), "event": name} | facts)


def progress(run_dir: Path, *, in_step: bool = True) -> str:
    """Say how far the run has come, by its events. ``in_step``: in a step, or between two."""
    events: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        events = read_jsonl(run_dir / "events.jsonl")
    totals = [event["steps"] for event in events if event.get("event") == "ready"]
    steps = [event["step"] for event in events if event.get("event") == "step"]
    total, last = (totals[-1] if totals else None), (steps[-1] if steps else 0)
    if not in_step:
        return f"after step {last} of {total}" if last else "before the first step"
    if total is None:
        return f"at step {last + 1}" if last else "before the first step"
    return f"after step {last} of {total}" if last >= total else f"at step {last + 1} of {total}"


def ask_to_stop(run_dir: Path, when: str) -> None:
    """Ask the run to end AFTER_STEP or AT_ONCE; an empty text: not to.

    By a file: the controller may be on another node, and a file that is there is read anew through NFS's caches.
    """
    (run_dir / STOP_ASKED).write_text(when)


def stop_asked(run_dir: Path) -> str:
    """Return when the run is asked to end; an empty text: it is not."""
    try:
        return (run_dir / STOP_ASKED).read_text()
    except OSError:
        return ""


def write_engine(run_dir: Path, facts: dict[str, Any]) -> None:
    """Add to environment.json, which the command line has begun, what only a running engine knows."""
    path = run_dir / "environment.json"
    path.write_text(to_json(json.loads(path.read_text()) | {"engine": facts}, indent=2))


class Phases:
    """The phases of a run in events.jsonl: every change, and progress at most every few seconds."""

    _SECONDS = 2.0

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self.phase, self._said = run_dir, "", -math.inf

    def at(self, phase: str, **facts: Any) -> None:
        """Record a phase; ``facts``: ``step``, and ``done`` and ``of`` where it can be counted."""
        now = time.monotonic()
        if phase != self.phase or now - self._said >= self._SECONDS:
            self.phase, self._said = phase, now
            event(self._run_dir, "phase", phase=phase, **facts)


def writes_samples(step: int, every: int) -> bool:
    """Say whether a step's samples are written: the first one's, and those of every so many steps."""
    return step == 1 or step % every == 0


def write_samples(run_dir: Path, step: int, samples: Iterable[dict[str, Any]]) -> None:
    """Write samples/step_<step>.jsonl."""
    _write(run_dir / "samples" / f"step_{step:05d}.jsonl", samples)


def write_skipped(run_dir: Path, step: int, rows: Iterable[dict[str, Any]]) -> Path:
    """Write skipped/step_<step>.jsonl: the rows of a step in which an update was skipped; return its path."""
    path = run_dir / "skipped" / f"step_{step:05d}.jsonl"
    path.parent.mkdir(exist_ok=True)
    _write(path, rows)
    return path


def write_evaluation(run_dir: Path, step: int, answers: Iterable[dict[str, Any]], result: dict[str, Any]) -> None:
    """Write eval/step_<step>.jsonl (every answer with its verdict), .json (all metrics) and .md (their table)."""
    from oger_recipe.evaluation.tables import markdown_table  # imports numpy: the supervisor of restarts stays small

    path = run_dir / "eval" / f"step_{step:05d}.jsonl"
    _write(path, answers)
    path.with_suffix(".json").write_text(to_json(result, indent=2))
    path.with_suffix(".md").write_text(markdown_table(result))


def read_evaluation(run_dir: Path, step: int) -> dict[str, Any] | None:
    """Return the metrics of a step's evaluation, as `write_evaluation` got them; None where there are none."""
    try:
        result: dict[str, Any] = json.loads((run_dir / "eval" / f"step_{step:05d}.json").read_text())
    except (OSError, ValueError):  # removed, or of a full disk
        return None
    return result


def _write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.unlink(missing_ok=True)  # of a run that was resumed before this step
    for record in records:
        append_json(path, record)
