"""Signals to the command: which of them a run heeds, and what they do before it does."""

import os
import signal
import time
from types import FrameType
from typing import Any

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_SAME_S = 0.3  # `pkill -f "oger train"` reaches the supervisor of restarts, too, which passes the signal on


def end_in_a_line(program: str) -> None:
    """Let SIGINT and SIGTERM kill the program after one line: during its imports, which take seconds, an interrupt
    would print a page, or be taken for a missing package."""

    def end(number: int, _: FrameType | None) -> None:
        os.write(2, f"{program}: stopped by {signal.Signals(number).name}\n".encode())  # a handler must not print
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for each in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, end)


def ignore_same(number: int, then: Any) -> None:
    """Ignore the signal for a moment; from then on, ``then`` handles it."""
    signal.signal(number, signal.SIG_IGN)
    time.sleep(_SAME_S)
    signal.signal(number, then)
