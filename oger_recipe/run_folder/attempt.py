"""The attempts at one run share its folder: one at a time, each beginning where the last one broke off or anew."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import atomic_write, iter_jsonl, read_jsonl, write_jsonl
from oger_recipe.run_folder import checkpoints, own_files
from oger_recipe.run_folder.records import BEGAN, ENDED, RESTARTING

_LOCK = ".oger-lock"
_CLEARED_WITHIN_S = 40  # what the watcher of a killed run may take
_NAMED = 5  # files in a message
_OF_ATTEMPTS = (BEGAN, ENDED, RESTARTING)


@contextlib.contextmanager
def locked(run_dir: Path, holder: int | None = None) -> Iterator[int]:
    """Hold the run folder's lock for this process, and for those that get the descriptor: a watcher, a supervisor.

    holder: id of the process to name to others, if it is not this one.
    Raises:
        RecipeError: a live run writes there.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / _LOCK).open("a+") as lock:
        _take(lock.fileno(), run_dir)
        lock.truncate(0)
        lock.write(f"{holder or os.getpid()} {socket.gethostname()} {_process_names()}\n")
        lock.flush()
        yield lock.fileno()


def check_free(run_dir: Path) -> None:
    """Raise RecipeError where a live run writes to the folder. Creates nothing."""
    if (run_dir / _LOCK).exists():
        with (run_dir / _LOCK).open() as lock:
            _take(lock.fileno(), run_dir, fcntl.LOCK_SH)


def _take(lock: int, run_dir: Path, how: int = fcntl.LOCK_EX) -> None:
    deadline = time.monotonic() + _CLEARED_WITHIN_S
    while True:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pid, host, _ = _holder(run_dir)
            killed = host == socket.gethostname() and not Path(f"/proc/{pid}").exists()
            if not killed or time.monotonic() > deadline:
                raise RecipeError(
                    f"another run is active in {run_dir} (process {pid} on {host}): wait for it to finish, stop "
                    "it, or choose another oger.run_dir"
                ) from None
            time.sleep(0.2)  # what the killed run left is being cleared away
        except OSError as error:  # some file systems of clusters have no locks
            print(f"note: {run_dir} cannot be locked ({error}): start no other run there", flush=True)
            return


def is_held(run_dir: Path) -> bool | None:
    """Say whether a run holds the folder's lock, without touching the lock: a run that starts must not meet it.

    None where that cannot be known from here: another machine, container or user holds it, or held it.
    """
    if not (run_dir / _LOCK).exists():
        return False
    pid, host, names = _holder(run_dir)
    if host != socket.gethostname() or names not in ("", _process_names()):
        return None
    try:
        lock = (run_dir / _LOCK).stat()
        return any(_is_open(path, lock) for path in Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return None
    except OSError:  # the process is gone
        return False


def holder(run_dir: Path) -> str:
    """Return the host of the process that took the folder's lock last; empty where none did."""
    return _holder(run_dir)[1]


def lock_taken(run_dir: Path) -> float | None:
    """Return when the folder's lock was taken last; None where it never was."""
    try:
        return (run_dir / _LOCK).stat().st_mtime
    except OSError:
        return None


def _holder(run_dir: Path) -> tuple[str, str, str]:
    """Return process id, host and space of process ids, as the lock's file has them; earlier versions wrote two."""
    try:
        words = (run_dir / _LOCK).read_text().split()
    except OSError:
        words = []
    pid, host, names, *_ = [*words, "", "", ""]
    return pid, host, names


def _process_names() -> str:
    """Return the space of process ids: containers that share a host's name do not share it."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _is_open(descriptor: Path, lock: os.stat_result) -> bool:
    with contextlib.suppress(OSError):  # closed in the meantime
        return os.path.samestat(descriptor.stat(), lock)
    return False


def trained(run_dir: Path) -> bool:
    """Say whether the folder holds a run that got somewhere: a trained step, or a checkpoint."""
    return bool(read_jsonl(run_dir / "metrics.jsonl") or checkpoints.found(run_dir / "checkpoints"))


def is_free(run_dir: Path) -> bool:
    """Say whether a run may begin in the folder."""
    try:
        check_folder(run_dir, run_dir / "checkpoints", overwrite=False)
    except RecipeError:
        return False
    return True


def check_folder(run_dir: Path, checkpoint_folder: Path, *, overwrite: bool) -> None:
    """Check that a run may begin anew in the folder, which need not exist. Makes and removes nothing.

    Raises:
        RecipeError: an earlier run would be lost without ``overwrite``, or files there are of others.
    """
    _check_is_ours(run_dir, own_files.in_the_way(run_dir))
    if overwrite and not own_files.is_marked(run_dir) and _others(run_dir):
        raise RecipeError(
            f"--overwrite: {run_dir} is not a run's folder (it has no {own_files.MARKER}, which a run writes); "
            "nothing was removed"
        )
    if trained(run_dir) and not overwrite:
        raise RecipeError(
            f"oger.run_dir {run_dir} holds an earlier run; choose another folder, resume it with "
            "--ckpt.load_enable, or remove it with --overwrite"
        )
    for folder in _with_best(checkpoint_folder):
        there = checkpoints.found(folder)
        checkpoints.refuse_foreign(folder, there)
        if there and not overwrite:
            raise RecipeError(
                f"ckpt.path {folder} holds checkpoints of an earlier run, the last one of step {there[-1].step}; "
                "choose another folder, resume that run with --ckpt.load_enable, or remove them with --overwrite"
            )


def check_inputs(run_dir: Path, value: Mapping[str, Any]) -> None:
    """Check that a run that begins anew removes no file that it has to read.

    Raises:
        RecipeError: a setting names a file or folder of the earlier run.
    """
    gone = [run_dir / "checkpoints", *(run_dir / name for name in own_files.own(run_dir))]
    for key, setting in value.items():
        if isinstance(setting, str) and not key.startswith(("ckpt.", "logger.")) and key != "oger.run_dir":
            path = Path(setting).expanduser().absolute()
            holds = [each for each in gone if path in (each, *each.parents) or each in path.parents]
            if run_dir in path.parents and path.exists() and holds:
                raise RecipeError(
                    f"{key} {setting} belongs to the earlier run in oger.run_dir {run_dir}, which this command "
                    "starts over; nothing was removed: copy it elsewhere, or choose another oger.run_dir"
                )


def check_continued(run_dir: Path) -> None:
    """Check that a run may resume in the folder, also one of an earlier version, which wrote no marker.

    Raises:
        RecipeError: it would write over files that no run has written.
    """
    strange = [name for name in own_files.in_the_way(run_dir) if not own_files.is_of_model(name)]
    if own_files.is_of_earlier_version(run_dir):
        strange = [name for name in strange if (run_dir / name).is_symlink()]
    _check_is_ours(run_dir, strange)


def _check_is_ours(run_dir: Path, strange: Sequence[str]) -> None:
    if not strange:
        return
    named = ", ".join(strange[:_NAMED]) + (f" and {len(strange) - _NAMED} more" if len(strange) > _NAMED else "")
    earlier = (
        f"an earlier version, which wrote no {own_files.MARKER}, made the run there: resume it with "
        "--ckpt.load_enable, choose another oger.run_dir, or move its files away"
        if own_files.is_of_earlier_version(run_dir)
        else "move them away, or choose another oger.run_dir"
    )
    raise RecipeError(
        f"the run would overwrite files in oger.run_dir {run_dir} that no run has recorded as its own: "
        f"{named}; nothing was removed, and --overwrite does not remove them: {earlier}"
    )


def _with_best(folder: Path) -> tuple[Path, Path]:
    return folder, folder / checkpoints.BEST


def _others(run_dir: Path) -> bool:
    return run_dir.is_dir() and any(path.name != _LOCK for path in run_dir.iterdir())


def begin_anew(run_dir: Path, checkpoint_folder: Path, *, overwrite: bool, logs: bool | None = None) -> None:
    """Remove what an earlier attempt wrote in the folder, and mark it as a run's.

    logs: remove its logs, too; without a word where it overwrites.
    Raises:
        RecipeError: see `check_folder`.
    """
    check_folder(run_dir, checkpoint_folder, overwrite=overwrite)
    for folder in dict.fromkeys([*_with_best(checkpoint_folder), *_with_best(run_dir / "checkpoints")]):
        for checkpoint in checkpoints.found(folder):
            checkpoints.remove(folder, checkpoint.step)
    if own_files.is_marked(run_dir):
        for name in own_files.remove(run_dir, logs=overwrite if logs is None else logs):
            print(f"note: kept {run_dir / name}, which no run has recorded as its own", flush=True)
    own_files.begin(run_dir)


def begin_again(run_dir: Path, checkpoint_folder: Path) -> None:
    """Begin anew after attempts that saved nothing; keep their logs, and what events.jsonl says of their ends.

    Raises:
        RecipeError: something was saved; or see `check_folder`.
    """
    if saved_something(run_dir, checkpoint_folder):
        raise RecipeError(f"the run in {run_dir} has saved something that a restart from the beginning would remove")
    events = read_jsonl(run_dir / "events.jsonl")
    begin_anew(run_dir, checkpoint_folder, overwrite=True, logs=False)
    write_jsonl((each for each in events if each.get("event") in _OF_ATTEMPTS), run_dir / "events.jsonl")


def saved_something(run_dir: Path, checkpoint_folder: Path) -> bool:
    """Say whether the run wrote a checkpoint to its end, or its model; one that cannot be read now counts."""
    folders = (*_with_best(checkpoint_folder), *_with_best(run_dir / "checkpoints"))
    there = (one for each in folders for one in checkpoints.found(each))
    return (run_dir / "model").exists() or any(one.finished or one.unread for one in there)


def mark_resumed(run_dir: Path) -> None:
    """Mark the folder of a run that resumes, unless a run of an earlier version is there: that stays unmarked.

    Raises:
        RecipeError: see `check_continued`.
    """
    check_continued(run_dir)
    if not own_files.is_of_earlier_version(run_dir):
        own_files.begin(run_dir)


def cut_back(run_dir: Path, step: int) -> None:
    """Remove what was recorded after ``step``, from which the run resumes: it will come again."""
    for path in (run_dir / name for name in own_files.RECORDS):
        if path.exists():
            kept = (record for record in iter_jsonl(path) if record.get("step", 0) <= step)
            with atomic_write(path) as partial:
                write_jsonl(kept, partial)
    for name in own_files.of_steps_after(run_dir, step):
        (run_dir / name).unlink()
