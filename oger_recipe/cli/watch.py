"""``oger watch RUN``: follow a run in a terminal, from another shell than the run's."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oger_recipe.cli.shared import CommandParser, own_flags_only, run_command

if TYPE_CHECKING:
    from rich.console import Console

    from oger_recipe.report.watch import Watch

_PAUSE = 1.0  # seconds between two screens


def main(argv: Sequence[str] | None = None) -> None:
    run_command(_parser, _watch, argv)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "oger watch",
        description="Shows a run in a terminal, also over ssh: progress, phase, time left, trends, evaluations, "
        "warnings and a rollout of the newest step. q or Ctrl-C quits, and the run continues. Exits with the "
        "run, and shows its result. Prints the state once if stdout is not a terminal.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, help="folder of the run, as oger runs lists it")
    return parser


@own_flags_only
def _watch(args: argparse.Namespace) -> None:
    from oger_recipe.report.runs import require_run
    from oger_recipe.report.terminal import terminal
    from oger_recipe.report.watch import Watch

    console, watch = terminal(), Watch(require_run(args.run))
    if watch.update().state == "running" and console.is_terminal and not console.is_dumb_terminal:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(watch, console)
    console.print(watch.screen(console))
    if result := watch.result():
        console.print(result)


def _follow(watch: Watch, console: Console) -> None:
    """Draw the run until it ends or somebody leaves."""
    from rich.live import Live

    with _leaving() as left, Live(console=console, screen=True, auto_refresh=False) as live:
        while watch.update().state == "running":
            live.update(watch.screen(console, height=console.height), refresh=True)
            if left(_PAUSE):
                return


@contextlib.contextmanager
def _leaving() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits so many seconds for the key q, and says whether it was pressed."""
    if not sys.stdin.isatty():
        yield _wait
        return
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def left(seconds: float) -> bool:
        ready, _, _ = select.select([stdin], [], [], seconds)
        keys = os.read(stdin, 100) if ready else b" "
        return not keys or b"q" in keys.lower()  # no keys: the terminal is gone

    try:
        tty.setcbreak(stdin)
        yield left
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


if __name__ == "__main__":
    main()
