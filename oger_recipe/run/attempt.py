"""The attempts at one run share its folder: one at a time, each beginning where the last one broke off or anew."""

import contextlib
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from oger_recipe.errors import RecipeError
from oger_recipe.files import atomic_write, read_jsonl, write_jsonl
from oger_recipe.run_folder import checkpoints

COMMAND = "command.sh"  # the last file that is written before anything starts
_LOCK = ".lock"
_RECORDS = ("metrics.jsonl", "events.jsonl", "history.jsonl", "reward_statistics.jsonl")
_OF_STEPS = ("samples", "eval")  # folders of files step_<number>.*
# Whatever a run writes into its folder, for a run that begins anew there. Other files are somebody else's.
_WRITTEN = (
    *_RECORDS, *_OF_STEPS, COMMAND, "recipe.yaml", "environment.json", "reward_errors.jsonl", "source_errors.jsonl",
    "summary.json", "data", "curves", "checkpoints", "model", "model_critic", "tensorboard", "supervised_model",
    "supervised_checkpoints",
)  # fmt: skip
_CLEARED_WITHIN_S = 40  # what the watcher of a killed run may take


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[int]:
    """Holds the folder for this process, and for the watcher that it hands the descriptor to.

    Raises:
        RecipeError: a run that lives writes there.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / _LOCK).open("a+") as lock:
        _take(lock.fileno(), run_dir)
        lock.truncate(0)
        lock.write(f"{os.getpid()} {socket.gethostname()}\n")
        lock.flush()
        yield lock.fileno()


def _take(lock: int, run_dir: Path) -> None:
    deadline = time.monotonic() + _CLEARED_WITHIN_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pid, _, host = (run_dir / _LOCK).read_text().strip().partition(" ")
            killed = host == socket.gethostname() and not Path(f"/proc/{pid}").exists()
            if not killed or time.monotonic() > deadline:
                raise RecipeError(
                    f"a run is going on in {run_dir} (process {pid} on {host}): wait for its end or end it, or choose "
                    "another oger.run_dir"
                ) from None
            time.sleep(0.2)  # what the killed run left is being cleared away
        except OSError as error:  # some file systems of clusters have no locks
            print(f"note: {run_dir} cannot be locked ({error}): start no other run there", flush=True)
            return


def trained(run_dir: Path) -> bool:
    """Whether the folder holds a run that got somewhere: a trained step, or a checkpoint."""
    return bool(read_jsonl(run_dir / "metrics.jsonl") or checkpoints.found(run_dir / "checkpoints"))


def begin_anew(run_dir: Path, checkpoint_folder: Path, *, overwrite: bool) -> None:
    """Removes what an earlier attempt wrote there.

    Raises:
        RecipeError: it would be a loss that nobody asked for, or the folder is not a run's.
    """
    was_begun = any((run_dir / name).exists() for name in (COMMAND, *_RECORDS))
    if overwrite and not was_begun and any(path.name != _LOCK for path in run_dir.iterdir()):
        raise RecipeError(
            f"--overwrite: {run_dir} is not a run's folder (it has no {COMMAND} and no metrics.jsonl); nothing was "
            "removed"
        )
    if trained(run_dir) and not overwrite:
        raise RecipeError(
            f"oger.run_dir {run_dir} holds an earlier run; choose another folder, continue it with "
            "--ckpt.load_enable, or remove it with --overwrite"
        )
    elsewhere = checkpoints.found(checkpoint_folder)
    if elsewhere and not overwrite:
        raise RecipeError(
            f"ckpt.path {checkpoint_folder} holds checkpoints of an earlier run, the last one of step "
            f"{elsewhere[-1].step}; choose another folder, continue that run with --ckpt.load_enable, or remove them "
            "with --overwrite"
        )
    for folder in (checkpoint_folder, checkpoint_folder / checkpoints.BEST):
        for checkpoint in checkpoints.found(folder):
            checkpoints.remove(folder, checkpoint.step)
    if was_begun:
        for path in (run_dir / name for name in [*_WRITTEN, *(["logs"] if overwrite else [])]):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def cut_back(run_dir: Path, step: int) -> None:
    """Takes out what came after the step that is continued from: it will come again."""
    for path in (run_dir / name for name in _RECORDS):
        if path.exists():
            kept = [record for record in read_jsonl(path) if record.get("step", 0) <= step]
            with atomic_write(path) as partial:
                write_jsonl(kept, partial)
    for folder in _OF_STEPS:
        for path in (run_dir / folder).glob("step_*"):
            number = path.stem.removeprefix("step_")
            if number.isdigit() and int(number) > step:
                path.unlink()
