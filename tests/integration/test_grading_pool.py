"""The grading pool: right verdicts, hard limits, and no neighbour that notices another's end."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hang import HANG_S

from oger_recipe.grading.pool import GradingPool, GradingSettings, Limits
from oger_recipe.grading.verdict import Verdict
from oger_recipe.grading.verifiers import TaskSpec, allow

VERIFIER = """
import os, socket, stat, struct, subprocess, sys, time
from oger_recipe.grading.messages import send_message
from oger_recipe.grading.verifiers import TaskSpec, Verdict

def spawn(response, answer, then="return"):
    # answer: a file for the ids of the processes that are started
    if response == "fork":
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
            os._exit(0)
    elif response == "orphan":  # its parent has ended, and it is in a session of its own
        shell = ["sh", "-c", "setsid sleep 3600 > /dev/null & echo $!"]
        pid = int(subprocess.run(shell, stdout=subprocess.PIPE).stdout)
    else:
        pid = subprocess.Popen(["sleep", "3600"], start_new_session=response == "session").pid
    with open(answer, "a") as file: file.write(f"{pid} ")
    if then == "hang":
        while True: pass
    return Verdict(1.0, 1.0, "", {})

def status(response, answer):
    return subprocess.run(["sh", "-c", response]).returncode

def twice(response, answer, fork=False):
    if fork:
        os.fork()
    return Verdict(float(response == answer), float(response == answer), response, {})

def connection():
    for file in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(file).st_mode):
                return socket.socket(fileno=os.dup(file))
        except OSError:
            continue

def intrude(response, answer):
    if response == "other number":
        verdict = {"reward": 1.0, "score": 1.0, "reason": "", "components": {}, "extracted": None, "steps": []}
        send_message(connection(), {"number": 7, "graded": {"verdict": verdict}})
    if response == "no reply":
        send_message(connection(), [1])
    if response == "drip":
        pool = connection()
        pool.sendall(struct.pack("!Q", 1000))
        for _ in range(40):
            pool.sendall(b" ")
            time.sleep(0.1)
    if response == "giant":
        connection().sendall(struct.pack("!Q", 1 << 62))
        time.sleep(3600)
    return Verdict(0.0, 0.0, "", {})

def users(response, answer):
    if response == "exit":
        sys.exit("enough")
    if response == "value":
        raise ValueError("one answer's")
    if response == "none":
        return None
    return {"score": 0.5, "acc": False, "pred": response}

def wordy(response, answer, length=0):
    with open(answer, "a") as file: file.write("x")
    return Verdict(1.0, 1.0, "r" * (length - 8), {"four": 1.0}, "text")

def dies(response, answer, times=0, seconds=0.0):
    # answer: a file with a mark for each time it was graded
    with open(answer, "a") as file: file.write("x")
    time.sleep(seconds)
    if os.path.getsize(answer) <= times:
        os._exit(3)
    return Verdict(-1.0, 0.0, "survived", {})

def looks(response, answer):
    return Verdict(0.0, 0.0, os.environ.get(response, "-"), {})

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

hasty = TaskSpec(verify, time_limit_s=0.5)
hasty_dies = TaskSpec(dies, time_limit_s=1.0)
hasty_intrude = TaskSpec(intrude, time_limit_s=0.5)
hasty_spawn = TaskSpec(spawn, time_limit_s=3.0)
"""
# What ends by a limit of time alone is asked of a task with a short one, everything else of one that has an hour: no
# busy machine turns a verdict.
HASTY = [f"own_grading:{name}" for name in ("hasty", "hasty_dies", "hasty_intrude", "hasty_spawn")]
LIMITED_TASKS = [
    f"own_limited:{name}" for name in ("patient", "hasty", "sleep", "large", "small", "here", "warm", "absent")
]
OF_VERIFIER = ("verify", "looks", "spawn", "status", "twice", "intrude", "wordy", "dies", "users")
ALLOWED = tuple(f"own_grading:{name}" for name in OF_VERIFIER)
ALLOWED += (*HASTY, *LIMITED_TASKS, "own_warm:verify", "own_exit:verify")


def settings(**changed: Any) -> GradingSettings:
    return GradingSettings(**{"workers": 1, "time_limit_s": HANG_S, "allowed": ALLOWED} | changed).for_tasks(HASTY)


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
def quick_processes() -> None:
    """The processes here start as those of a run do."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A verifier of the user's, where workers find it as the test does: on sys.path."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "own_grading.py").write_text(VERIFIER)
    sys.path.insert(0, str(folder))
    allow(ALLOWED)
    yield "own_grading:verify"
    allow(())
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def pool(task: str) -> Iterator[GradingPool]:
    with GradingPool(settings(workers=2, memory_limit_mb=256)) as pool:
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
    result = pool.grade("own_grading:hasty" if timed_out else task, response, "1")
    assert result.error and result.timed_out is timed_out
    assert (result.verdict.reward, result.verdict.score) == (0.0, 0.0)
    assert result.error in result.verdict.reason
    if timed_out:
        assert result.seconds >= 0.5
    assert pool.grade(task, "after", "after").verdict.score == 1.0


def test_many_threads_among_hostile_answers_lose_and_swap_nothing(pool: GradingPool, task: str) -> None:
    hostile = list(HOSTILE)

    def ask(number: int) -> bool:
        if number % 25 == 0:
            response = hostile[number // 25 % len(hostile)]
            asked = "own_grading:hasty" if HOSTILE[response] else task
            return pool.grade(asked, response, str(number)).error is not None
        expected = number % 3 == 0
        result = pool.grade(task, str(number), str(number) if expected else "other")
        return result.error is None and result.verdict.score == expected and result.verdict.extracted == str(number)

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(ask, range(350)))


def test_a_stuck_worker_is_killed_and_replaced(task: str) -> None:
    with GradingPool(settings()) as pool:
        first = int(pool.grade(task, "pid", "").verdict.reward)
        assert pool.grade("own_grading:hasty", "hang", "").timed_out
        second = int(pool.grade(task, "pid", " ").verdict.reward)
        assert first != second and _alive(second)
        _wait_until_dead(first)
    _wait_until_dead(second)


def test_an_idle_worker_that_is_killed_costs_no_answer(task: str) -> None:
    with GradingPool(settings()) as pool:
        worker = int(pool.grade(task, "pid", "").verdict.reward)
        os.kill(worker, signal.SIGKILL)
        _wait_until_dead(worker)
        graded = pool.grade_many([(task, "a", "a", None), (task, "b", "other", None)])
        assert [(each.error, each.verdict.score) for each in graded] == [(None, 1.0), (None, 0.0)]


def test_an_answer_whose_worker_died_is_graded_once_more_and_not_a_third_time(task: str, tmp_path: Path) -> None:
    with GradingPool(settings()) as pool:
        for times, reason, reward in ((1, "survived", -1.0), (2, "not graded: the grading process died", 0.0)):
            marks = tmp_path / str(times)
            answers = [("own_grading:dies", "", str(marks), {"times": times}), (task, "a", "a", None)]
            graded, other = pool.grade_many(answers)
            assert graded.verdict.reason.startswith(reason) and graded.verdict.reward == reward
            assert marks.read_text() == "xx"
            assert other.verdict.score == 1.0


def test_the_time_limit_holds_for_both_times_together(task: str, tmp_path: Path) -> None:
    with GradingPool(settings()) as pool:
        lasting = {"times": 1, "seconds": 0.6}  # twice 0.6 s are more than 1 s
        graded = pool.grade("own_grading:hasty_dies", "", str(tmp_path / "marks"), lasting)
        assert graded.timed_out and graded.error == "grading took more than 1.0 s" and graded.seconds >= 1.0


@pytest.mark.parametrize("how", ["child", "session", "fork", "orphan"])
def test_what_a_verifier_started_ends_with_its_worker(how: str, task: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with GradingPool(settings()) as pool:
        assert pool.grade("own_grading:hasty_spawn", how, str(started), {"then": "hang"}).timed_out
        (given_up,) = map(int, started.read_text().split())
        _wait_until_dead(given_up)
        assert pool.grade("own_grading:spawn", how, str(started)).verdict.score == 1.0
        left = int(started.read_text().split()[1])
        time.sleep(1.2)  # the fork server looks for orphans once a second
        assert _alive(left) or how == "orphan"  # a verifier may keep a helper for its next answers
    _wait_until_dead(left)


def test_what_a_verifier_started_ends_after_the_fork_server_was_killed(task: str, tmp_path: Path) -> None:
    with GradingPool(settings()) as pool:
        assert pool.grade("own_grading:spawn", "child", str(tmp_path / "started")).verdict.score == 1.0
        worker = int(pool.grade(task, "pid", "").verdict.reward)
        assert pool._fork_server._process is not None
        pool._fork_server._process.kill()
        _wait_until_dead(worker)
        assert pool.grade(task, "", "").verdict.score == 1.0  # the answer that finds out
        _wait_until_dead(int((tmp_path / "started").read_text()))


def test_verifiers_see_how_their_processes_ended(task: str, pool: GradingPool) -> None:
    assert pool.grade("own_grading:status", "exit 3", "").verdict.reward == 3.0
    assert pool.grade("own_grading:status", "exit 0", "").verdict.reward == 0.0


def test_a_verifier_that_forks_and_returns_twice_changes_no_other_grade(task: str) -> None:
    with GradingPool(settings()) as pool:
        for number in range(20):
            expected = number % 3 == 0
            graded = pool.grade(
                "own_grading:twice", str(number), str(number) if expected else "-", {"fork": number % 5 == 0}
            )
            assert (graded.error, graded.verdict.score, graded.verdict.reason) == (None, expected, str(number))


@pytest.mark.parametrize("response", ["other number", "no reply"])
def test_a_reply_that_is_not_this_answers_is_no_grade_and_ends_the_worker(response: str, task: str) -> None:
    with GradingPool(settings()) as pool:
        first = int(pool.grade(task, "pid", "").verdict.reward)
        graded = pool.grade("own_grading:intrude", response, "")
        assert graded.error is not None and "cannot be trusted" in graded.error and not graded.timed_out
        assert graded.verdict.score == 0.0
        assert pool.grade(task, "a", "a").verdict.score == 1.0
        assert int(pool.grade(task, "pid", "again").verdict.reward) != first
        _wait_until_dead(first)


def test_the_time_limit_is_for_the_whole_answer_however_it_arrives(pool: GradingPool, task: str) -> None:
    graded = pool.grade("own_grading:hasty_intrude", "drip", "")  # for 4 s, and then no verdict
    assert graded.timed_out and graded.seconds >= 0.5


def test_a_reply_of_any_length_is_not_waited_for(pool: GradingPool, task: str) -> None:
    graded = pool.grade("own_grading:intrude", "giant", "")
    assert graded.error is not None and not graded.timed_out
    assert "4611686018427387904 bytes are more than 16777216" in graded.error


def test_a_dead_fork_server_is_replaced(task: str) -> None:
    with GradingPool(settings()) as pool:
        assert pool.grade(task, "a", "a").verdict.score == 1.0
        assert pool._fork_server._process is not None
        pool._fork_server._process.kill()  # its worker goes with it
        pool._fork_server._process.wait()
        time.sleep(0.1)
        assert pool.grade(task, "b", "b").verdict.score == 1.0  # the answer that finds out


def test_what_was_graded_is_remembered_and_failures_are_not(task: str, tmp_path: Path) -> None:
    with GradingPool(settings(cache_size=2)) as pool:
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
        assert all(pool.grade("own_grading:hasty", "hang", "h").timed_out for _ in range(2))


def test_what_is_remembered_is_small(task: str, tmp_path: Path) -> None:
    with GradingPool(settings()) as pool:
        for length, calls in ((2000, "x"), (2001, "xx")):  # characters of a verdict's texts
            file = tmp_path / str(length)
            for _ in range(2):
                verdict = pool.grade("own_grading:wordy", "", str(file), {"length": length}).verdict
                assert len(verdict.reason) + len("text" + "four") == length
            assert file.read_text() == calls
        reference = "r" * 100_000
        assert pool.grade(task, "a", reference).verdict.score == 0.0
        assert pool.grade(task, reference, reference, {"scale": 2.0}).verdict.reward == 2.0
        assert len(pickle.dumps(pool._cache)) < 5000


def test_users_verifiers_may_return_dicts_and_their_errors_are_those_of_an_answer(
    pool: GradingPool, task: str
) -> None:
    def error_of(response: str) -> str:
        graded = pool.grade("own_grading:users", response, "")
        assert graded.error is not None and graded.verdict.score == 0.0 and not graded.unreadable
        return graded.error

    verdict = Verdict(reward=0.5, score=0.0, reason="", components={"acc": 0.0}, extracted="7")
    assert pool.grade("own_grading:users", "7", "").verdict == verdict
    assert error_of("exit") == "the verifier called sys.exit('enough')"
    assert error_of("value") == "ValueError: one answer's"
    assert "NoneType" in error_of("none")


def test_only_the_recipes_verifiers_tell_of_unreadable_references(pool: GradingPool, task: str) -> None:
    assert pool.grade("countdown", "<answer>1+2</answer>", "3").unreadable
    assert not pool.grade("chess", "e4", "e4").unreadable
    assert not pool.grade(task, "raise", "").unreadable
    with GradingPool(settings()) as patient:  # it imports math-verify
        in_worker = patient.grade("math", r"\boxed{1}", "")
        assert in_worker.error == "a math answer must not be empty: ''" and in_worker.unreadable
        unknown = patient.grade("math", r"\boxed{1}", "1", {"no_such_option": 1})
        assert unknown.error is not None and not unknown.unreadable


def test_a_verifier_sees_no_keys(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k3y")
    monkeypatch.setenv("MY_TOKEN", "passed")
    monkeypatch.setenv("OF_THE_USER", "seen")
    monkeypatch.setenv("OGER_PASS_ENV", "OTHERS, MY_TOKEN")
    with GradingPool(settings()) as pool:
        names = ("WANDB_API_KEY", "MY_TOKEN", "OF_THE_USER", "HOME")
        seen = [pool.grade("own_grading:looks", name, "").verdict.reason for name in names]
    assert seen == ["-", "passed", "seen", os.environ["HOME"]]


def test_users_verifiers_are_imported_before_the_first_answer_but_not_called(task: str, tmp_path: Path) -> None:
    folder = Path(sys.path[0])
    (folder / "own_warm.py").write_text(f"""
from pathlib import Path
Path({str(tmp_path)!r}, "imported").touch()
def verify(response, answer):
    Path({str(tmp_path)!r}, "called").touch()
""")
    (folder / "own_exit.py").write_text("import sys; sys.exit('no licence')")
    preload = ("own_exit:verify", "own_warm:verify")
    with GradingPool(GradingSettings(workers=1, time_limit_s=HANG_S, preload=preload, allowed=ALLOWED)) as pool:
        assert pool.grade(task, "a", "a").verdict.score == 1.0
        assert [path.name for path in tmp_path.iterdir()] == ["imported"]
        assert pool.grade("own_exit:verify", "", "").error == "the verifier called sys.exit('no licence')"


LIMITED = """
import os, time
from pathlib import Path
from oger_recipe.grading.verifiers import TaskSpec, allow

HERE = Path(__file__)

def sleep(response, answer):
    time.sleep(float(response))
    return 1.0

def take(response, answer):
    return float(len(bytearray(int(response) * 2**20)) > 0)

def pid(response, answer):
    return float(os.getpid())

def warm_up():
    HERE.with_name("warm").touch()
    raise RuntimeError("no matter")

patient = TaskSpec(sleep, time_limit_s=3600)
hasty = TaskSpec(sleep, time_limit_s=0.2)
large = TaskSpec(take, time_limit_s=3600, memory_limit_mb=700)
small = TaskSpec(take, time_limit_s=3600)
here = TaskSpec(pid, bounded=True)
warm = TaskSpec(pid, warm_up=warm_up)
"""


@pytest.fixture(scope="module")
def limited(task: str) -> Iterator[GradingPool]:
    """A pool of tasks with limits of their own beside plain ones; `large` has room for 512 MiB, `small` has not."""
    Path(sys.path[0], "own_limited.py").write_text(LIMITED)
    limits = GradingSettings(workers=1, time_limit_s=5.0, memory_limit_mb=256, allowed=ALLOWED)
    with GradingPool(limits.for_tasks(LIMITED_TASKS)) as pool:
        yield pool


def test_a_task_has_its_own_time_limit_and_the_others_the_runs(limited: GradingPool) -> None:
    assert limited.grade("own_limited:patient", "5.5", "").verdict.reward == 1.0
    assert limited.grade("own_limited:sleep", "5.5", "").error == "grading took more than 5.0 s"
    assert limited.grade("own_limited:hasty", "0.6", "").error == "grading took more than 0.2 s"
    assert limited.grade("own_limited:sleep", "0.6", "").verdict.reward == 1.0


def test_a_task_has_its_own_memory_limit_whichever_worker_was_free(limited: GradingPool) -> None:
    tasks = ["own_limited:small", "own_limited:large"] * 3
    graded = limited.grade_many([(name, "512", str(number), None) for number, name in enumerate(tasks)])
    assert [each.verdict.reward for each in graded] == [0.0, 1.0] * 3
    assert {each.error for each in graded[::2]} == {"MemoryError: grading took more memory than its limit"}
    assert limited.grade("own_limited:small", "128", "").verdict.reward == 1.0
    assert limited.grade("own_limited:large", "1024", "").error is not None


def test_a_users_bounded_task_is_graded_here_and_an_absent_one_says_so(limited: GradingPool) -> None:
    assert limited.grade("own_limited:here", "", "").verdict.reward == os.getpid()
    error = limited.grade("own_limited:absent", "", "").error
    assert error is not None and "has no attribute 'absent'" in error


def test_a_warm_up_is_called_before_the_first_answer_and_may_fail(limited: GradingPool) -> None:
    assert limited.grade("own_limited:warm", "", "").verdict.reward not in (0.0, os.getpid())
    assert Path(sys.path[0], "warm").exists()


def test_no_limit_is_none(task: str) -> None:
    for limit in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be above 0"):
            TaskSpec(lambda response, answer: 1.0, time_limit_s=limit)


def test_bounded_tasks_start_no_process() -> None:
    with GradingPool(GradingSettings()) as pool:
        result = pool.grade("countdown", "<answer>1+2</answer>", '{"numbers": [1, 2], "target": 3}')
        assert result.verdict.reward == 1.0 and result.error is None
        assert pool._fork_server._process is None
        unreadable = pool.grade("countdown", "<answer>1+2</answer>", "3")
        assert unreadable.error == "Countdown answer is not {'numbers': [...], 'target': ...}: '3'"


def test_nothing_is_left_when_the_process_of_the_pool_is_killed(task: str, tmp_path: Path) -> None:
    script = f"""
import sys, threading, time
sys.path.insert(0, {sys.path[0]!r})
from oger_recipe.grading.pool import GradingPool, GradingSettings
pool = GradingPool(GradingSettings(workers=2, time_limit_s=60, allowed={ALLOWED!r}))
pid = int(pool.grade({task!r}, "pid", "").verdict.reward)
threading.Thread(target=pool.grade, args=({task!r}, "hang", ""), daemon=True).start()
time.sleep(0.3)
other = int(pool.grade({task!r}, "pid", "x").verdict.reward)
for how in ("child", "session", "fork"):
    pool.grade("own_grading:spawn", how, {str(tmp_path / "started")!r})
print(pid, other, pool._fork_server._process.pid, open({str(tmp_path / "started")!r}).read(), flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 6 and all(_alive(pid) for pid in pids)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for pid in pids:
        _wait_until_dead(pid)


def test_no_error_of_a_verifier_has_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_MINE_API_KEY", key := "0123456789" * 4)
    monkeypatch.setenv("OGER_PASS_ENV", "OF_MINE_API_KEY")
    (tmp_path / "own_key.py").write_text(
        "import os, sys\n"
        "def verify(response, answer):\n"
        "    key = os.environ['OF_MINE_API_KEY']\n"
        "    if response == 'exit':\n"
        "        sys.exit(key)\n"
        "    raise ConnectionError(response + key)\n"
    )
    settings = GradingSettings(1, allowed=("own_key:verify",), path=(str(tmp_path),))
    with GradingPool(settings) as pool:
        for response, said in (
            ("401 for ", "401 for $OF_MINE_API_KEY"),
            ("x" * 970, "xx$OF_M"),
            ("exit", "exit('$OF_MINE_API_KEY')"),
        ):
            graded = pool.grade("own_key:verify", response, "")
            assert said in str(graded.error) and said in graded.verdict.reason and key[:10] not in str(graded)


def test_settings_travel_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OGER_GRADING", raising=False)
    assert GradingSettings.from_environment() == GradingSettings()
    limits = {"mine:grade": Limits(20.0, 100), "mine:quick": Limits(1.5, 100, bounded=True)}
    given = GradingSettings(3, 1.5, 100, 7, preload=("math",), own=limits, path=("here",))
    monkeypatch.setenv("OGER_GRADING", given.to_json())
    assert GradingSettings.from_environment() == given


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or while it was read
        return False


def _wait_until_dead(pid: int) -> None:
    deadline = time.monotonic() + HANG_S
    while _alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is left over"
        threading.Event().wait(0.05)
