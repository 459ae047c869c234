"""Shows how far something long is: by a bar on a terminal, elsewhere by a line now and then."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
_EVERY_S = 10.0  # between two lines


class Progress:
    """A count that any thread may add to."""

    def __init__(self, what: str, unit: str, total: int | None = None, *, done: int = 0) -> None:
        """Start at ``done`` of ``total``, which were done before. what: the work, as its line names it."""
        self._what, self._unit, self._total, self._done = what, unit, total, done
        self._bar = tqdm(total=total, initial=done, desc=what, unit=f" {unit}", leave=False, disable=None)
        self._said, self._lock = time.monotonic(), threading.Lock()

    def add(self, count: int = 1) -> None:
        with self._lock:
            self._done += count
            self._bar.update(count)
            if self._bar.disable and time.monotonic() - self._said >= _EVERY_S:
                self._said = time.monotonic()
                of = f" of {self._total:,}" if self._total is not None else ""
                print(f"{self._what}: {self._done:,}{of} {self._unit}", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()


class ShownReplies(threading.local):
    """Shows how many replies came, of one model after the other in each thread."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._came = 0

    def told(self, model: str, came: int, total: int) -> None:
        """Show how many replies came; total 0: the model is being loaded."""
        if not total:
            print(f"loading {Path(model).name} ...", file=sys.stderr, flush=True)
            return
        if self._bar is None:
            self._bar, self._came = Progress(Path(model).name, "replies", total), 0
        self._bar.add(came - self._came)
        self._came = came
        if came == total:
            self._bar.__exit__()
            self._bar = None


def progress(items: Iterable[T], what: str, unit: str, total: int | None = None) -> Iterator[T]:
    """Yield the items as they are, and show how many are done."""
    with Progress(what, unit, total) as shown:
        for item in items:
            yield item
            shown.add()
