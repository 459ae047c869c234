"""How a run ends in a terminal: stopped by a signal or by a failure, in a sentence and with an exit code."""

import contextlib
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from oger_recipe.base.errors import RecipeError, RunDied, RunStopped
from oger_recipe.base.files import read_jsonl
from oger_recipe.base.secrets import hide_secrets, redacted
from oger_recipe.run_folder import checkpoints
from oger_recipe.run_folder.records import BEGAN, ENDED, STOP_ASKED, event

_HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_GOES_ON = 75  # "try again" among the exit codes of sysexits.h


@contextlib.contextmanager
def stoppable(run_dir: Path, checkpoint_folder: Path, argv: Sequence[str]) -> Iterator[None]:
    """Make the first SIGINT, SIGTERM or SIGUSR1 end the block in order, and a second one at once.

    Raises:
        SystemExit: 130, 143 or 138 after a signal, as a shell reports of a process that the signal killed. 75 where
            the run was asked to end after its step (`stops_after_step`) and has a new checkpoint to go on from: what
            starts it again on that code gets further every time.
    """
    received: list[int] = []
    entered = time.time()
    began = _last_step(checkpoint_folder)

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        for each in _HEEDED:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt  # the one that Ray lets through

    before = {each: signal.signal(each, stop) for each in _HEEDED}
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        after_step = isinstance(error, RunStopped) and not received
        if not (received or after_step):
            _record_end(run_dir, entered, str(error))
            raise
        # Any error counts: workers may get the signal too, and break first.
        number = received[0] if received else signal.SIGUSR1
        where, rest = progress(run_dir, in_step=not after_step), _rest(run_dir, checkpoint_folder, argv)
        why = f"stopped by {signal.Signals(number).name} {where}"
        _record_end(run_dir, entered, why)
        print(f"oger train: {why}; {rest}", file=sys.stderr, flush=True)
        goes_on = after_step and _last_step(checkpoint_folder) > began
        sys.exit(_GOES_ON if goes_on else 128 + number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _record_end(run_dir: Path, since: float, why: str) -> None:
    """Record why the attempt ends, if it has begun since then: else the events are those of an earlier one."""
    with contextlib.suppress(OSError):  # the disk may be full
        events = read_jsonl(run_dir / "events.jsonl")
        if any(each.get("event") == BEGAN and each["time"] >= since for each in events):
            event(run_dir, ENDED, why=redacted(why))


def _last_step(checkpoint_folder: Path) -> int:
    """Return the step of the newest whole checkpoint; 0 without one."""
    newest = checkpoints.newest_whole(checkpoints.found(checkpoint_folder))
    return newest.step if newest else 0


@contextlib.contextmanager
def stops_after_step(run_dir: Path) -> Iterator[None]:
    """Let SIGUSR1 ask the run to end after its current step, by a file: the controller may be on another node."""
    asked = run_dir / STOP_ASKED

    def ask(*_: object) -> None:
        asked.touch()
        os.write(1, b"oger train: SIGUSR1: the run ends after this step\n")  # a signal handler must not print

    asked.unlink(missing_ok=True)  # of an attempt that was killed
    before = signal.signal(signal.SIGUSR1, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
        asked.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(run_dir: Path, checkpoint_folder: Path, argv: Sequence[str]) -> Iterator[None]:
    """Turn a failure into one message; the tracebacks of all processes go to logs/error.log.

    Raises:
        RecipeError: the run failed; the message says of what.
    """
    try:
        yield
    except (RecipeError, RunStopped):
        raise
    except Exception as error:
        log = run_dir / "logs" / "error.log"
        with contextlib.suppress(OSError):  # the disk may be full
            log.write_text(redacted(traceback.format_exc()))
        reason = str(error) if isinstance(error, RunDied) else f"{type(error).__name__}: {error}"
        raise RecipeError(
            f"training stopped {progress(run_dir)}: {redacted(reason)}\n  {_rest(run_dir, checkpoint_folder, argv)}"
            f"\n  traceback: {log}"
        ) from None


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


def _rest(run_dir: Path, checkpoint_folder: Path, argv: Sequence[str]) -> str:
    """Name the last checkpoint, and the command that resumes from it."""
    newest = checkpoints.newest_whole(checkpoints.found(checkpoint_folder))
    if newest is None:
        return "there is no checkpoint to resume from"
    return f"the last checkpoint is of step {newest.step}; resume with: {continuing(argv, run_dir)}"


def continuing(argv: Sequence[str], run_dir: Path) -> str:
    """Turn the command line ``argv`` into one that resumes the run in ``run_dir``."""
    program = Path(argv[0])
    command = ["python", "-m", f"oger_recipe.cli.{program.stem}"] if program.suffix == ".py" else [program.name]
    words = [word for word in hide_secrets(argv[1:]) if word not in ("--overwrite", "--ckpt.load_enable")]
    folder = [] if any(word.startswith("--oger.run_dir") for word in words) else ["--oger.run_dir", str(run_dir)]
    return shlex.join([*command, *words, *folder, "--ckpt.load_enable"])


def typed(argv: Sequence[str]) -> str:
    """Turn the command line ``argv`` into a script that runs the same again, wherever it is started."""
    program = [sys.executable, "-m", f"oger_recipe.cli.{Path(argv[0]).stem}"] if argv[0].endswith(".py") else [argv[0]]
    return f"cd {shlex.quote(str(Path.cwd()))} || exit\n{shlex.join([*program, *hide_secrets(argv[1:])])}\n"
