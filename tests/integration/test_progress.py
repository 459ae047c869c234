"""Long waits are told of: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hang import HANG_S

from oger_recipe.base import progress

SCRIPT = """
import time
from oger_recipe.base.progress import progress
for item in progress(range(5), "tokens", "prompts", 5):
    time.sleep(0.05)
"""


def test_elsewhere_than_on_a_terminal_a_line_comes_when_the_last_is_old(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 4.0, 11.0, 11.0, 12.0, 20.9, 21.0, 21.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    assert list(progress.progress(range(5), "tokens", "prompts", 46_000)) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err.splitlines() == [
        "tokens: 2 of 46,000 prompts", "tokens: 5 of 46,000 prompts",
    ]  # fmt: skip


class _Late(int):
    """A count that is added late: between reading the sum and writing it."""

    def __radd__(self, other: int) -> int:
        time.sleep(0.05)
        return int(self) + other


def test_threads_lose_no_count(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = progress.Progress("tokens", "prompts")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(shown.add, [_Late(1)] * 4))
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    shown.add()
    assert capsys.readouterr().err == "tokens: 5 prompts\n"


def test_a_terminal_shows_a_bar() -> None:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    termios.tcsetwinsize(theirs, (24, 80))  # a bar of no width shows nothing
    subprocess.run([sys.executable, "-c", SCRIPT], stderr=theirs, check=True, timeout=HANG_S)
    assert b"tokens:" in os.read(ours, 10_000)
    os.close(theirs)
    os.close(ours)
