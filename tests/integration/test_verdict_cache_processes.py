"""Replies on disk with several processes at a time, and kills."""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import Forked, Forks
from hang import HANG_S

from oger_recipe.rewards.place import VerdictCache

WRITER = """
import sys
from pathlib import Path
from oger_recipe.rewards.place import VerdictCache
from oger_recipe.rewards.place import Reply
name, count = sys.argv[2], int(sys.argv[3])
cache = VerdictCache(Path(sys.argv[1]))
for number in range(count):
    cache.put({f"{name} {number} {part}": Reply("x" * 5000) for part in "ab"})
    print(number, flush=True)
"""
Writer = Callable[[str, int], Forked]


@pytest.fixture()
def writer(forks: Forks, tmp_path: Path) -> Writer:
    def started(name: str, count: int) -> Forked:
        return forks.start("-c", WRITER, str(tmp_path), name, str(count), stdout=subprocess.PIPE, text=True)

    return started


def test_several_processes_keep_replies_at_a_time(
    tmp_path: Path, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    writers = [writer(name, 20) for name in "pqr"]
    assert [each.wait(HANG_S) for each in writers] == [0, 0, 0]
    keys = [f"{name} {number} {part}" for name in "pqr" for number in range(20) for part in "ab"]
    assert len(VerdictCache(tmp_path).get(keys)) == 120


def test_what_was_kept_before_a_kill_is_there_after_it(
    tmp_path: Path, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cache = VerdictCache(tmp_path)
    for turn in range(3):
        killed = writer(str(turn), 100_000)
        assert killed.stdout
        last = [killed.stdout.readline() for _ in range(5)][-1]
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        told = int((killed.stdout.read().split() or [last])[-1])
        kept = [set(cache.get([f"{turn} {number} {part}" for part in "ab"])) for number in range(told + 2)]
        assert all(len(each) == 2 for each in kept[: told + 1]) and len(kept[told + 1]) in (0, 2)
    assert caplog.records == []
