"""The grading pool: right verdicts, hard limits, and no neighbour that notices another's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oger_recipe.rewards.grading_pool import GradingPool, GradingSettings

VERIFIER = """
import os, sys, time
from oger_recipe.rewards.verifiers import Verdict

def verify(response, answer, **options):
    print("noise"); print("noise", file=sys.stderr)
    if response == "hang":
        while True: pass
    if response == "sleep":
        time.sleep(3600)
    if response == "crash":
        os._exit(3)
    if response == "segfault":
        os.kill(os.getpid(), 11)
    if response == "hog":
        return bytearray(10**12)
    if response == "raise":
        raise KeyError("no such thing")
    if response == "nonsense":
        return "not a verdict"
    if response == "pid":
        return Verdict(float(os.getpid()), 0.0, "", {})
    if response == "count":
        with open(answer, "a") as file: file.write("x")
    right = response == answer
    return Verdict(options.get("scale", 1.0) * right, float(right), response, {"format": 1.0}, response)
"""
HOSTILE = {
    "hang": True,
    "sleep": True,
    "crash": False,
    "segfault": False,
    "hog": False,
    "raise": False,
    "nonsense": False,
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A verifier of the user's, where workers find it as the test does: on sys.path."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "own_grading.py").write_text(VERIFIER)
    sys.path.insert(0, str(folder))
    yield "own_grading:verify"
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def pool(task: str) -> Iterator[GradingPool]:
    with GradingPool(GradingSettings(workers=2, time_limit_s=0.5, memory_limit_mb=256)) as pool:
        yield pool


def test_verdicts_come_back_in_order_with_options_and_broken_text(pool: GradingPool, task: str) -> None:
    texts = ["a", "\ud800 lone", "\x00\n", "é漢🎉", "x" * 3_000_000]
    answers = [(task, text, "a" if number == 1 else text, {"scale": 0.5}) for number, text in enumerate(texts)]
    graded = pool.grade_many(answers)
    assert [result.verdict.reward for result in graded] == [0.5, 0.0, 0.5, 0.5, 0.5]
    assert [result.verdict.extracted for result in graded] == texts
    assert all(result.error is None and not result.timed_out for result in graded)


@pytest.mark.parametrize(("response", "timed_out"), HOSTILE.items(), ids=HOSTILE)
def test_a_hostile_answer_is_not_graded_says_why_and_costs_at_most_its_limit(
    response: str, timed_out: bool, pool: GradingPool, task: str
) -> None:
    result = pool.grade(task, response, "1")
    assert result.error and result.timed_out is timed_out
    assert (result.verdict.reward, result.verdict.score) == (0.0, 0.0)
    assert result.error in result.verdict.reason
    if timed_out:
        assert 0.5 <= result.seconds < 5  # a hang guard, not a measurement
    assert pool.grade(task, "after", "after").verdict.score == 1.0


def test_many_threads_among_hostile_answers_lose_and_swap_nothing(pool: GradingPool, task: str) -> None:
    hostile = list(HOSTILE)

    def ask(number: int) -> bool:
        if number % 25 == 0:
            return pool.grade(task, hostile[number // 25 % len(hostile)], str(number)).error is not None
        expected = number % 3 == 0
        result = pool.grade(task, str(number), str(number) if expected else "other")
        return result.error is None and result.verdict.score == expected and result.verdict.extracted == str(number)

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(ask, range(350)))


def test_a_stuck_worker_is_killed_and_replaced(task: str) -> None:
    with GradingPool(GradingSettings(workers=1, time_limit_s=0.3)) as pool:
        first = int(pool.grade(task, "pid", "").verdict.reward)
        assert pool.grade(task, "hang", "").timed_out
        second = int(pool.grade(task, "pid", " ").verdict.reward)
        assert first != second and not _alive(first) and _alive(second)
    _wait_until_dead(second)


def test_a_dead_nursery_is_replaced(task: str) -> None:
    with GradingPool(GradingSettings(workers=1, time_limit_s=0.5)) as pool:
        assert pool.grade(task, "a", "a").verdict.score == 1.0
        assert pool._nursery._process is not None
        pool._nursery._process.kill()  # its worker goes with it
        pool._nursery._process.wait()
        time.sleep(0.1)
        assert pool.grade(task, "b", "b").error is not None  # the answer that finds out
        assert pool.grade(task, "c", "c").verdict.score == 1.0


def test_what_was_graded_is_remembered_and_failures_are_not(task: str, tmp_path: Path) -> None:
    with GradingPool(GradingSettings(workers=1, time_limit_s=0.3, cache_size=2)) as pool:
        calls = tmp_path / "calls"
        for _ in range(3):
            pool.grade(task, "count", str(calls))
        assert calls.read_text() == "x"
        pool.grade(task, "count", str(calls), {"scale": 2.0})  # other options: another question
        assert calls.read_text() == "xx"
        for text in ("p", "q"):
            pool.grade(task, text, text)
        pool.grade(task, "count", str(calls))  # forgotten: there was room for two
        assert calls.read_text() == "xxx"
        assert all(pool.grade(task, "hang", "h").timed_out for _ in range(2))


def test_bounded_tasks_start_no_process() -> None:
    with GradingPool(GradingSettings()) as pool:
        result = pool.grade("countdown", "<answer>1+2</answer>", '{"numbers": [1, 2], "target": 3}')
        assert result.verdict.reward == 1.0 and result.error is None
        assert pool._nursery._process is None
        unreadable = pool.grade("countdown", "<answer>1+2</answer>", "3")
        assert unreadable.error is not None and unreadable.error.startswith("ValueError")


def test_nothing_is_left_when_the_process_of_the_pool_is_killed(task: str) -> None:
    script = f"""
import sys, threading, time
sys.path.insert(0, {sys.path[0]!r})
from oger_recipe.rewards.grading_pool import GradingPool, GradingSettings
pool = GradingPool(GradingSettings(workers=2, time_limit_s=60))
pid = int(pool.grade({task!r}, "pid", "").verdict.reward)
threading.Thread(target=pool.grade, args=({task!r}, "hang", ""), daemon=True).start()
time.sleep(0.3)
other = int(pool.grade({task!r}, "pid", "x").verdict.reward)
print(pid, other, pool._nursery._process.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 3 and all(_alive(pid) for pid in pids)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for pid in pids:
        _wait_until_dead(pid)


def test_settings_travel_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OGER_GRADING", raising=False)
    assert GradingSettings.from_environment() == GradingSettings()
    settings = GradingSettings(workers=3, time_limit_s=1.5, memory_limit_mb=100, cache_size=7, preload=("math",))
    monkeypatch.setenv("OGER_GRADING", settings.to_json())
    assert GradingSettings.from_environment() == settings


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def _wait_until_dead(pid: int) -> None:
    deadline = time.monotonic() + 20
    while _alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is left over"
        threading.Event().wait(0.05)
