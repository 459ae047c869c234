"""Hashes of checkpoints: made in the background while the run trains on, and compared before a run resumes.

SHA-256: processors have instructions for it, so that it is faster than the other hashes of hashlib, and it lets other
threads run meanwhile.
"""

import contextlib
import functools
import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from oger_recipe.run_folder import checkpoints

_LARGE = 2**30  # bytes from which a comparison is announced


class Hashing:
    """Adds hashes to the manifests of sealed checkpoints, one after another, in a thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=os.nice, initargs=(10,))  # of this thread, on Linux
        self._begun: list[Future[None]] = []

    def start(self, folder: Path, step: int) -> None:
        self._begun.append(self._thread.submit(_add, folder, step))

    def finish(self, seconds: float | None = None) -> bool:
        """Wait, at most so many seconds; say whether all hashes are made. Without them, a checkpoint is compared
        by its sizes alone."""
        return not wait(self._begun, seconds).not_done


def _add(folder: Path, step: int) -> None:
    with contextlib.suppress(OSError):  # the disk may be full
        for one in checkpoints.found(folder):
            if one.step == step:
                checkpoints.add(folder, step, hashes={name: _hash(folder / name) for name in one.files})


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def altered(folder: Path, one: checkpoints.Checkpoint) -> str | None:
    """Name a file of a whole checkpoint that is not as it was when it was hashed; announce what takes long.

    Raises OSError for one that cannot be read, which says nothing of what is in it: the disk may be away for a moment.
    """
    written = tuple((folder / name).stat().st_mtime_ns for name in one.files)
    return _altered(folder, one.step, tuple(one.hashes.items()), one.size, written)


@functools.cache
def _altered(
    folder: Path, step: int, hashes: tuple[tuple[str, str], ...], size: int, written: tuple[int, ...]
) -> str | None:
    """Compare once in a process: a start looks at its checkpoint before it takes the run's folder, and then again."""
    if size >= _LARGE and hashes:
        print(f"comparing the checkpoint of step {step}, {size / 2**30:.1f} GiB, with its hashes ...", flush=True)
    for name, known in hashes:
        try:
            if _hash(folder / name) != known:
                return f"{name} is not as it was written: its SHA-256 differs"
        except (OSError, ValueError) as error:
            if checkpoints.leads_nowhere(error):
                return f"{name}, which has a hash, is no file"
            if isinstance(error, OSError):
                error.filename = name
            raise
    return None
