"""Which signals the command heeds, what they do while it imports, and what a second one does. A process that ends with
its parent."""

import ctypes
import os
import signal
import time
from types import FrameType
from typing import Any

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1
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
    """Ignore further signals of this number for a moment, then let the handler ``then`` have them."""
    signal.signal(number, signal.SIG_IGN)
    time.sleep(_SAME_S)
    signal.signal(number, then)


def let_second_kill(number: int) -> None:
    """After the signal of this number, let the next one that a run heeds kill the process; the same one again within a
    moment does not count."""
    for each in HEEDED:
        signal.signal(each, signal.SIG_DFL)
    ignore_same(number, signal.SIG_DFL)


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal once its parent ends; end it now if the parent has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)
