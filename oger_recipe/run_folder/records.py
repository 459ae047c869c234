"""What the controller writes into the run folder while it runs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oger_recipe.base.files import append_json, to_json
from oger_recipe.evaluation.tables import markdown_table

STOP_ASKED = ".oger-stop"  # file in a run's folder, while the run is asked to end after the step that it is at

BEGAN, ENDED = "began", "ended"  # events of an attempt: its first one, and its last one where the run did not finish


def event(run_dir: Path, name: str, **facts: Any) -> None:
    """Append an event to events.jsonl, which the command line follows to show progress."""
    append_json(run_dir / "events.jsonl", {"time": time.time(), "event": name} | facts)


def write_engine(run_dir: Path, facts: dict[str, Any]) -> None:
    """Add to environment.json, which the command line has begun, what only a running engine knows."""
    path = run_dir / "environment.json"
    path.write_text(to_json(json.loads(path.read_text()) | {"engine": facts}, indent=2))


class Phases:
    """The phases of a run in events.jsonl: every change, and progress at most every few seconds."""

    _SECONDS = 2.0

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._phase, self._said = run_dir, "", -math.inf

    def at(self, phase: str, **facts: Any) -> None:
        """Record a phase; ``facts``: ``step``, and ``done`` and ``of`` where it can be counted."""
        now = time.monotonic()
        if phase != self._phase or now - self._said >= self._SECONDS:
            self._phase, self._said = phase, now
            event(self._run_dir, "phase", phase=phase, **facts)


def writes_samples(step: int, every: int) -> bool:
    """Say whether a step's samples are written: the first one's, and those of every so many steps."""
    return step == 1 or step % every == 0


def write_samples(run_dir: Path, step: int, samples: Iterable[dict[str, Any]]) -> None:
    """Write samples/step_<step>.jsonl."""
    _write(run_dir / "samples" / f"step_{step:05d}.jsonl", samples)


def write_evaluation(run_dir: Path, step: int, answers: Iterable[dict[str, Any]], result: dict[str, Any]) -> None:
    """Write eval/step_<step>.jsonl (every answer with its verdict), .json (all metrics) and .md (their table)."""
    path = run_dir / "eval" / f"step_{step:05d}.jsonl"
    _write(path, answers)
    path.with_suffix(".json").write_text(to_json(result, indent=2))
    path.with_suffix(".md").write_text(markdown_table(result))


def _write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.unlink(missing_ok=True)  # of a run that was resumed before this step
    for record in records:
        append_json(path, record)
