"""Ends what the controller waits for when the run is asked to end at once."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from oger_recipe.run_folder.records import AT_ONCE, stop_asked

_POLL_S = 0.5
_SIGNAL = signal.SIGRTMIN  # raised in this process alone; SIGUSR2 asks for its stacks (base/stacks.py)


@contextlib.contextmanager
def interruptible(run_dir: Path, may_end: Callable[[], bool]) -> Iterator[None]:
    """Raise KeyboardInterrupt in the block once the run is asked to end at once, while ``may_end()`` is true.

    The block must run in the main thread. Another thread watches, because the first rollout may take minutes.
    KeyboardInterrupt is the exception that breaks off Ray's waiting.
    """
    left, main = threading.Event(), threading.get_ident()

    def interrupt(*_: object) -> None:
        if may_end():  # still
            raise KeyboardInterrupt

    def watch() -> None:
        while not left.wait(_POLL_S):
            if stop_asked(run_dir) == AT_ONCE and may_end():
                signal.pthread_kill(main, _SIGNAL)  # the main thread hears it in a system call, too

    before = signal.signal(_SIGNAL, interrupt)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        left.set()
        watcher.join()
        signal.signal(_SIGNAL, before)
