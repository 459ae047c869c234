"""Processes of a test whose programs are stand-ins: each has inherited the variable NOTES, the test's folder."""

import contextlib
import subprocess
import time
from pathlib import Path

import psutil
from hang import HANG_S

_LEAVE_S = 60.0  # what those that are about to end may take: a sleep of a moment, say


def there(notes: Path) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if each.environ().get("NOTES") == str(notes):
                found.append(each)
    return found


def end_all(notes: Path) -> None:
    for each in there(notes):
        with contextlib.suppress(psutil.Error):
            each.kill()


def outcome(process: subprocess.Popen[str], notes: Path) -> tuple[int, str]:
    """Exit code and messages of a process, after which nothing is left. What is left would keep its pipes open."""
    process.wait(timeout=HANG_S)
    deadline = time.monotonic() + _LEAVE_S
    while (left := there(notes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    end_all(notes)
    messages = "".join(process.communicate(timeout=HANG_S))
    assert not left, messages
    return process.returncode, messages
