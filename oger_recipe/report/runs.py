"""The runs below a folder: found, and listed as a table."""

import difflib
import os
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from oger_recipe.base.errors import RecipeError
from oger_recipe.evaluation.tables import metric_name
from oger_recipe.report.run_state import RunState, Score, is_run, read_state
from oger_recipe.report.summary import clock
from oger_recipe.report.terminal import plain
from oger_recipe.run_folder.attempt import lock_taken

_COLOURS = {"running": "cyan", "finished": "green", "ended": "yellow"}
_NAMED = 3  # runs in a message
_LOOKED_INTO = 500  # folders, for a message


def find_runs(folder: Path, most: int | None = None) -> list[Path]:
    """List the folders of runs at or below ``folder``, but none inside a run, in a link or in a hidden folder.

    most: folders to look into.
    """
    found = []
    for path, folders, _ in islice(os.walk(folder), most):
        if is_run(Path(path)):
            found.append(Path(path))
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return found


def read_runs(folder: Path) -> list[RunState]:
    """Read the state of all runs at or below ``folder``, the newest first."""
    return sorted(map(read_state, find_runs(folder)), key=_newest, reverse=True)


def _newest(state: RunState) -> float:
    if state.state == "running":
        return time.time()
    return state.last_event or lock_taken(state.folder) or 0.0


def require_run(path: Path) -> Path:
    """Return the folder of a run. Raises RecipeError, naming the nearest runs, for any other path."""
    if is_run(path):
        return path
    near = find_runs(path, _LOOKED_INTO)
    if not near:
        around = (path.parent, Path("runs"))
        near = _similar(path, [run for folder in around for run in find_runs(folder, _LOOKED_INTO)])
    what = f"{path} is not the folder of a run" if path.exists() else f"there is no folder {path}"
    named = ", ".join(str(each) for each in list(dict.fromkeys(near))[:_NAMED])
    raise RecipeError(f"{what}; " + (f"the nearest runs: {named}" if named else "oger runs FOLDER lists runs"))


def _similar(path: Path, runs: Sequence[Path]) -> list[Path]:
    def likeness(run: Path) -> float:
        return difflib.SequenceMatcher(None, run.name, path.name).ratio()

    return sorted(runs, key=likeness, reverse=True)


def runs_table(states: Sequence[RunState], *, narrow: bool) -> Table:
    """Lay out runs as a table. ``narrow``: without recipes, whose names the folders mostly have."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("run", overflow="fold")
    table.add_column("state", overflow="fold")
    if not narrow:
        table.add_column("recipe", overflow="fold")
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("held out", overflow="fold")
    table.add_column("last", justify="right", no_wrap=True)
    table.add_column("best", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for state in states:
        recipe = [] if narrow else [plain(state.recipe or "-")]
        table.add_row(plain(state.folder), state_text(state), *recipe, *map(plain, _figures(state)))
    return table


def state_text(state: RunState) -> Text:
    """Say the state, why it is so, from where the run can resume, and which alarms are raised."""
    text = plain(state.state, _COLOURS[state.state])
    if state.why:
        text += plain(f": {state.why}")
    if state.state == "ended":
        resume = "nothing to resume from" if state.resume_from is None else f"can resume from step {state.resume_from}"
        text += plain(f"; {resume}")
    if state.raised:
        text += plain(f"; {'alarm' if len(state.raised) == 1 else 'alarms'}: {', '.join(state.raised)}", "red")
    return text


def _figures(state: RunState) -> tuple[str, ...]:
    steps = f"{state.step}/{'?' if state.planned_steps is None else state.planned_steps}"
    if state.last is None or state.best is None:
        return steps, "-", "-", "-", clock(state.seconds)
    best = f"{state.best.value:.3f} @{state.best.step}"
    return steps, score_name(state.last), f"{state.last.value:.3f}", best, clock(state.seconds)


def score_name(score: Score) -> str:
    return f"{score.benchmark} {metric_name(score.metric)}".strip()


def next_commands(states: Sequence[RunState]) -> list[str]:
    """Suggest what to type next: one command for the newest run of each state that has one."""
    commands = {"running": "watch", "finished": "report", "ended": "show"}
    newest: dict[str, Any] = {}
    for state in states:
        newest.setdefault(state.state, state.folder)
    return [f"oger {commands[state]} {folder}" for state, folder in newest.items()]
