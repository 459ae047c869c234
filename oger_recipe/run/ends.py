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

from oger_recipe.base.errors import RecipeError, RunDied, RunFailed, RunStopped
from oger_recipe.base.files import read_jsonl
from oger_recipe.base.secrets import hide_secrets, redacted
from oger_recipe.base.signals import HEEDED, ignore_same, let_second_kill
from oger_recipe.run_folder import checkpoints
from oger_recipe.run_folder.records import (
    AFTER_STEP,
    AT_ONCE,
    BEGAN,
    ENDED,
    STOP_ASKED,
    ask_to_stop,
    event,
    progress,
    stop_asked,
)

CAN_RESUME = 75  # "try again" among the exit codes of sysexits.h


@contextlib.contextmanager
def stoppable(run_dir: Path, checkpoint_folder: Path, argv: Sequence[str]) -> Iterator[None]:
    """Make the first SIGINT, SIGTERM or SIGUSR1 end the block in order, and a second one at once. The same one
    again within a moment does not count.

    Where the run can save a checkpoint first (`ends_with_checkpoint`), the first SIGTERM or SIGUSR1 asks it to.

    Raises:
        SystemExit: 130, 143 or 138 after a signal, as a shell reports of a process that the signal killed. 75 after
            SIGTERM, and where the run was asked to end, if there is a newer checkpoint to resume from than at the
            start: what starts the run again on that code gets further every time.
    """
    received: list[int] = []
    entered = time.time()
    began = _last_step(checkpoint_folder)

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        let_second_kill(number)
        raise KeyboardInterrupt  # the one that Ray lets through

    asked = run_dir / STOP_ASKED
    asked.unlink(missing_ok=True)  # of an attempt that was killed
    before = {each: signal.signal(each, stop) for each in HEEDED}
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        at_once, orderly = stop_asked(run_dir) == AT_ONCE, isinstance(error, RunStopped) and not received
        if not (received or orderly or at_once):
            _record_end(run_dir, entered, str(error))
            raise
        # Any error counts as the end after these: workers may get the signal too, and break first.
        number = received[0] if received else signal.SIGTERM if at_once else signal.SIGUSR1
        why = f"stopped by {signal.Signals(number).name} {progress(run_dir, in_step=not orderly)}"
        if not (received or orderly):
            why = f"after {signal.Signals(number).name}, {str(error).splitlines()[0]}"
        _record_end(run_dir, entered, why)
        print(f"oger train: {why}; {_rest(run_dir, checkpoint_folder, argv)}", file=sys.stderr, flush=True)
        resumable = orderly or number == signal.SIGTERM
        got_further = _last_step(checkpoint_folder) not in (0, began)  # began may be of one that was found damaged
        sys.exit(CAN_RESUME if resumable and got_further else 128 + number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        asked.unlink(missing_ok=True)


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
def ends_with_checkpoint(run_dir: Path, *, saves: bool) -> Iterator[None]:
    """Let SIGUSR1 ask the run to end after its step, and SIGTERM at once, each with a checkpoint of the last step.

    A second SIGTERM ends the block as before, and so does one before the controller is ready, or in a run that
    ``saves`` no checkpoints.
    """

    def after_step(*_: object) -> None:
        if stop_asked(run_dir) != AT_ONCE:
            ask_to_stop(run_dir, AFTER_STEP)
            _say(b"SIGUSR1: the run ends after this step")

    def at_once(*_: object) -> None:
        ignore_same(signal.SIGTERM, before[signal.SIGTERM])
        if saves and _is_ready(run_dir):
            with contextlib.suppress(OSError):  # the disk may be full
                ask_to_stop(run_dir, AT_ONCE)
                _say(
                    b"SIGTERM: the run saves a checkpoint of its last step and ends; a second SIGTERM ends it without"
                )
                return
        signal.raise_signal(signal.SIGTERM)

    ask_to_stop(run_dir, "")
    asks = {signal.SIGUSR1: after_step, signal.SIGTERM: at_once}
    before = {number: signal.signal(number, handler) for number, handler in asks.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: bytes) -> None:
    os.write(1, b"oger train: " + line + b"\n")  # a signal handler must not print


def _is_ready(run_dir: Path) -> bool:
    """Say whether this attempt's controller heeds what the run is asked."""
    names = [record.get("event") for record in read_jsonl(run_dir / "events.jsonl")]
    return next((name for name in reversed(names) if name in ("ready", BEGAN)), BEGAN) == "ready"


@contextlib.contextmanager
def explained(run_dir: Path, checkpoint_folder: Path, argv: Sequence[str]) -> Iterator[None]:
    """Turn a failure into one message; the tracebacks of all processes go to logs/error.log.

    Raises:
        RunFailed: the run failed; the message says of what.
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
        raise RunFailed(
            f"training stopped {progress(run_dir)}: {redacted(reason)}\n  {_rest(run_dir, checkpoint_folder, argv)}"
            f"\n  traceback: {log}"
        ) from None


def _rest(run_dir: Path, checkpoint_folder: Path, argv: Sequence[str]) -> str:
    """Name the last checkpoint, and the command that resumes from it."""
    newest = checkpoints.newest_whole(checkpoints.found(checkpoint_folder))
    if newest is None:
        return "there is no checkpoint to resume from"
    return f"the last checkpoint is of step {newest.step}; resume with: {resume_command(argv, run_dir)}"


def resume_command(argv: Sequence[str], run_dir: Path) -> str:
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
