"""Signals that come before a run heeds them."""

import os
import signal
from types import FrameType


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
