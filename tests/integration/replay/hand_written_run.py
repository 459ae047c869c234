"""A run's folder written by hand, and a process that holds its lock as a run does."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oger_recipe.base.files import append_json
from oger_recipe.run_folder import own_files
from oger_recipe.run_folder.records import BEGAN

T = 1_700_000_000.0


def record(folder: Path, *events: dict[str, Any]) -> None:
    for each in events:
        append_json(folder / "events.jsonl", each)


def said(at: float, name: str, **facts: Any) -> dict[str, Any]:
    return {"time": T + at, "event": name} | facts


def evaluated(at: float, when: str, step: int, **scores: float) -> dict[str, Any]:
    rows = {
        name: {"problems": 10, "n": 8, "avg_at_8": value, "avg_at_8_interval": [value - 0.1, value + 0.1]}
        for name, value in scores.items()
    }
    main = scores.get("average", next(iter(scores.values())))
    return said(at, "evaluated", when=when, step=step, avg_at_8=main, n_problems=10, benchmarks=rows)


def write_run(folder: Path) -> Path:
    """Write a run of four steps that nobody runs any more: killed in step 3."""
    folder.mkdir(parents=True)
    own_files.begin(folder)
    (folder / "command.sh").write_text(
        "# As typed.\ncd /x || exit\n/x/oger train --recipe 'configs/my run.yaml' --a.b 1\n"
    )
    record(
        folder,
        said(0, BEGAN, since=T - 30, resumed_at=0),
        said(10, "ready", steps=4, resumed_at=0, sources=["rule"]),
        said(11, "evaluating", when="before", step=0),
        evaluated(12, "before", 0, countdown=0.25),
        said(13, "training"),
        said(14, "phase", phase="rollouts", step=1, done=0, of=8),
        said(20, "step", step=1),
        said(21, "note", step=1, text="WARNING: one"),
        said(29, "step", step=2),
        evaluated(30, "during", 2, countdown=0.5),
        said(32, "phase", phase="training", step=3),
    )
    return folder


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen]:
    """A process that holds the folder's lock, as a run does."""
    code = (
        "import sys, time; from pathlib import Path; from oger_recipe.run_folder.attempt import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
