"""``oger train --max-restarts``: when a run is started again, and when it is not. Real processes, but no Ray.

Each attempt of ATTEMPT does what its entry of a plan says: "save N" writes the checkpoint of a step, "step N" records
one, "alarm N" that an alarm stopped the run; "lose N" and "regain N" take and give back the manifest of a checkpoint,
as a disk that is away for a moment; "choose N" chooses a checkpoint, as a resume does; and the last word says how it
ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import Forked, Forks
from hang import HANG_S

from oger_recipe.base.files import read_jsonl
from oger_recipe.base.stacks import is_stopped
from oger_recipe.report.run_state import read_state
from oger_recipe.report.watch import Watch, doing
from oger_recipe.run_folder import attempt
from oger_recipe.run_folder.checkpoints import seal
from oger_recipe.run_folder.records import BEGAN, ENDED, RESTARTING, STOPPED_BY_ALARM, event

ATTEMPT = """
import json, os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from oger_recipe.base.errors import RecipeError, RunFailed
from oger_recipe.run import resume, supervision, training
from oger_recipe.run.ends import stoppable
from oger_recipe.run_folder import attempt, checkpoints, own_files
from oger_recipe.run_folder.records import BEGAN, ENDED, STOPPED_BY_ALARM, event

run_dir, plan, most, pause = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
supervision._FIRST_PAUSE_S, supervision._LONGEST_PAUSE_S = pause, 4 * pause
sys.argv[:] = ["/venv/bin/oger", "train", "--recipe", "r.yaml", "--overwrite", "--max-restarts", str(most)]
me = supervision.supervised(most)
folder = run_dir / "checkpoints"
stall = {"oger.stall_minutes": float(os.environ["STALL"]) if "STALL" in os.environ else None}
job = SimpleNamespace(run_dir=run_dir, checkpoints=folder, value=stall)
print("attempt", me.restarts, me.flags, me.begins_again, os.getsid(0) == os.getpid(), flush=True)
*acts, end = plan[me.restarts]
try:
    if end == "refuse":
        raise RecipeError("train.seed must be a number")
    with training._lock(job, me), stoppable(run_dir, folder, sys.argv):
        if me.begins_again:
            attempt.begin_again(run_dir, folder)
        else:
            own_files.begin(run_dir)
        newest = checkpoints.newest_whole(checkpoints.found(folder))
        event(run_dir, BEGAN, resumed_at=newest.step if newest else 0)
        me.began(newest.step if newest else 0)
        for act, step in map(str.split, acts):
            if act == "save":
                (folder / "_actor" / f"global_step{step}").mkdir(parents=True)
                (folder / "_actor" / f"global_step{step}" / "states.pt").write_bytes(b"s")
                checkpoints.seal(folder, int(step))
            manifest, aside = folder / f"global_step{step}.json", folder / "aside"
            if act == "lose":
                manifest.rename(aside)
                manifest.symlink_to("/proc/self/mem")
            if act == "regain":
                aside.replace(manifest)
            if act == "choose":
                print("chosen", resume.choose(folder)[0].step, flush=True)
            event(run_dir, STOPPED_BY_ALARM if act == "alarm" else "step", step=int(step))
        if end == "finish":
            sys.exit()
        if end == "wait":
            print("waits", flush=True)
            time.sleep(60)
        if end.startswith("fail"):
            raise RunFailed(f"training stopped: {end[5:]} (pid {os.getpid()})\\n  traceback: logs/error.log")
        if end.startswith("exit"):
            sys.exit(int(end[5:]))
        if end == "leave":  # a process that holds the line for a while, as a watcher does
            if not os.fork():
                time.sleep(1)
                (run_dir / "cleared").touch()
                os._exit(0)
            raise RunFailed("training stopped: it leaves something")
        if end == "look":
            print("cleared" if (run_dir / "cleared").exists() else "not cleared", flush=True)
            sys.exit()
        if end == "stop":
            (run_dir / "logs").mkdir()
            print("stops", os.getpid(), flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            print("goes on", flush=True)
            sys.exit()
        if end == "note and die":
            event(run_dir, ENDED, why="training stopped: it stood still")
            end = "SIGKILL"
        os.kill(os.getpid(), getattr(signal, end))
        time.sleep(60)
except RecipeError as error:
    sys.exit(1 if me.takes(error) else f"oger train: {error}")
"""


@pytest.fixture
def start(tmp_path: Path, forks: Forks) -> Callable[..., Forked]:
    def starts(*plan: str, most: int = 5, pause: float = 0.01, **how: bool) -> Forked:
        words = (str(tmp_path), json.dumps([each.split(", ") for each in plan]), str(most), str(pause))
        return forks.start("-c", ATTEMPT, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)

    return starts


def ended(running: Forked) -> tuple[int, list[str], str]:
    printed, shown = running.communicate(timeout=HANG_S)
    return running.returncode, printed.splitlines(), shown


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def names(run_dir: Path) -> list[str]:
    return [each["event"] for each in read_jsonl(run_dir / "events.jsonl")]


def test_a_long_message_in_any_script_reaches_the_supervisor(start) -> None:
    code, _, shown = ended(start(f"save 1, fail {'🎲' * 3_900}", "finish"))
    assert (code, shown.count("restart 1 of 5"), shown.count("🎲")) == (0, 1, 3_900)


def test_a_run_resumes_from_its_newest_checkpoint_after_failures_and_kills(start, tmp_path: Path) -> None:
    running = start("save 1, save 2, step 3, fail the engine died", "SIGKILL", "save 3, finish")
    code, printed, shown = ended(running)
    resumes = f"['--oger.run_dir', '{tmp_path}', '--ckpt.load_enable']"
    assert code == 0
    assert printed == [f"attempt {k} {flags} False True" for k, flags in ((0, "[]"), (1, resumes), (2, resumes))]
    first, second = shown.splitlines()
    said = r"oger train: training stopped: the engine died \(pid \d+\); restart 1 of 5 in "
    assert re.fullmatch(said + "0.01 s from the checkpoint of step 2", first)
    said = r"oger train: training stopped at step 4: the driver \(pid \d+\) was killed by SIGKILL; restart 2 of 5 in "
    assert re.fullmatch(said + "0.02 s from the checkpoint of step 2", second)
    assert names(tmp_path) == [
        *(BEGAN, "step", "step", "step", ENDED, RESTARTING), *(BEGAN, ENDED, RESTARTING), BEGAN, "step",
    ]  # fmt: skip
    assert [len(read_state(tmp_path).attempts), *attempt._holder(tmp_path)[:1]] == [3, str(running.pid)]


def test_while_a_checkpoint_cannot_be_read_the_run_waits_and_tries_again(start) -> None:
    """It neither begins again nor gives up."""
    running = start("save 2, lose 2, fail the engine died", "choose 2, finish", "regain 2, choose 2, finish")
    code, printed, shown = ended(running)
    assert (code, printed[-1], printed[-2].split()[:2]) == (0, "chosen 2", ["attempt", "2"])
    first, second = shown.splitlines()
    assert first.endswith("; restart 1 of 5 in 0.01 s from the checkpoint of step 2")
    assert "the checkpoint of step 2 in " in second and "global_step2.json cannot be read now (" in second
    assert second.endswith("; restart 2 of 5 in 0.02 s from the checkpoint of step 2")


def test_the_pause_doubles_up_to_its_limit_and_begins_anew_after_a_new_checkpoint(start) -> None:
    plan = ["save 1, fail a", "fail b", "fail c", "fail d", "fail e", "save 2, fail f", "finish"]
    code, _, shown = ended(start(*plan, most=9))
    assert code == 0
    assert re.findall(r"in (\S+) s", shown) == ["0.01", "0.02", "0.04", "0.04", "0.04", "0.01"]


def test_a_run_that_an_alarm_stopped_is_not_restarted(start) -> None:
    """It says so in an event, whatever its message is; an alarm of an attempt before does not count."""
    code, printed, shown = ended(start("alarm 1, SIGKILL", "alarm 1, fail a worker died", most=9))
    assert code == 128 + signal.SIGKILL and len(printed) == 1
    assert shown.splitlines()[-1] == "  not restarted: a restart would train on"


def test_a_message_or_an_earlier_attempt_with_an_alarm_keeps_no_run_from_a_restart(start, tmp_path: Path) -> None:
    event(tmp_path, STOPPED_BY_ALARM, step=1)
    event(tmp_path, BEGAN, resumed_at=1)
    code, printed, _ = ended(start("save 1, fail an alarm stopped the run after step 1", "finish"))
    assert code == 0 and len(printed) == 2


def test_it_gives_up_on_the_third_failure_of_one_kind_at_one_step(start) -> None:
    alike = "fail out of memory"
    code, printed, shown = ended(start(f"save 1, {alike}", "fail another", f"step 2, {alike}", alike, alike))
    assert code == 1 and len(printed) == 5  # the one after step 2 was at another step, before its cut
    assert shown.splitlines()[-3].startswith("oger train: training stopped: out of memory (pid ")
    assert shown.splitlines()[-2:] == [
        "  traceback: logs/error.log",
        "  not restarted: it failed 3 times in this way at step 3",
    ]


def test_it_gives_up_after_so_many_restarts_with_the_code_of_the_last_attempt(start) -> None:
    code, printed, shown = ended(start("save 1, fail a", "save 2, fail b", "SIGKILL", most=2))
    assert code == 128 + signal.SIGKILL and len(printed) == 3
    assert shown.endswith("  not restarted: --max-restarts 2 is used up\n")


@pytest.mark.parametrize(
    ("end", "code", "shown"),
    [
        ("refuse", 1, "oger train: train.seed must be a number\n"),
        ("save 1, exit 75", 75, ""),
        ("save 1, exit 130", 130, ""),
        ("save 1, exit 1", 1, ""),
        ("save 1, SIGINT", 130, "oger train: stopped by SIGINT at step 2; "),
        ("save 1, SIGTERM", 75, "oger train: stopped by SIGTERM at step 2; "),
        ("save 1, SIGHUP", 128 + signal.SIGHUP, None),
        ("save 1, finish", 0, ""),
    ],
)
def test_an_end_that_a_restart_does_not_mend_ends_the_command(start, end: str, code: int, shown: str | None) -> None:
    if shown is None:  # the counter-example: nobody asks a run to end by SIGHUP
        got, printed, said = ended(start(end, "exit 9"))
        assert got == 9 and len(printed) == 2 and "was killed by SIGHUP; restart 1 of 5" in said
        return
    got, printed, said = ended(start(end, "exit 9"))
    assert (got, len(printed)) == (code, 1) and said.startswith(shown) and bool(said) == bool(shown)


def test_a_refusal_of_a_restart_is_a_failure_like_others(start) -> None:
    """The first attempt passed the checks with the same settings: what is refused now may be there again later."""
    code, printed, shown = ended(start("save 1, SIGKILL", "refuse", "finish"))
    assert code == 0 and len(printed) == 3
    assert "train.seed must be a number; restart 2 of 5" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_attempt_once_and_its_code_comes_through(start, number: signal.Signals) -> None:
    running = start("save 1, SIGKILL", "wait")
    assert [running.stdout.readline() for _ in range(3)][-1] == "waits\n"
    running.send_signal(number)
    code, _, shown = ended(running)
    assert code == (130 if number == signal.SIGINT else 75)  # a checkpoint was saved since the command was typed
    assert shown.count("stopped by") == 1 and f"stopped by {number.name} at step 2; the last checkpoint" in shown


def test_ctrl_c_in_a_terminal_reaches_the_attempt_once(start) -> None:
    """All processes in the terminal's foreground get it, so the attempt is not among them; a second one would kill."""
    running = start("wait", start_new_session=True)
    assert [running.stdout.readline() for _ in range(2)][-1] == "waits\n"
    os.killpg(running.pid, signal.SIGINT)
    code, _, shown = ended(running)
    assert code == 130
    assert shown == "oger train: stopped by SIGINT before the first step; there is no checkpoint to resume from\n"


def test_between_two_attempts_the_run_is_running_its_folder_is_held_and_a_signal_ends_it(
    start, tmp_path: Path
) -> None:
    running = start("save 1, fail the engine died", "finish", pause=600)
    until(lambda: (tmp_path / "events.jsonl").exists() and RESTARTING in names(tmp_path))
    with (tmp_path / ".oger-lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    state = read_state(tmp_path)
    assert state.state == "running"
    assert state.why is not None and re.fullmatch(
        r"restart 1 of 5 at \d\d:\d\d:\d\d, as training stopped: the engine died \(pid \d+\)", state.why
    )
    watch = Watch(tmp_path)
    watch.update()
    assert doing(watch._log) == "waiting for restart 1 of 5"
    running.send_signal(signal.SIGTERM)
    code, printed, shown = ended(running)
    assert code == 75 and len(printed) == 1
    assert shown.splitlines()[-1] == (
        "oger train: stopped by SIGTERM before restart 1 of 5; resume with: oger train --recipe r.yaml --max-restarts "
        f"5 --oger.run_dir {tmp_path} --ckpt.load_enable"
    )
    assert read_state(tmp_path).why == "stopped by SIGTERM before restart 1 of 5"


def test_of_a_driver_that_killed_itself_its_own_words_are_said(start, tmp_path: Path) -> None:
    """As the watch for stalls does where nothing else helps."""
    code, _, shown = ended(start("save 1, note and die", "finish"))
    assert code == 0 and shown.startswith("oger train: training stopped: it stood still; restart 1 of 5 in")
    assert names(tmp_path).count(ENDED) == 1


def test_an_attempt_that_is_stopped_and_silent_ends_as_a_stall(start, tmp_path: Path) -> None:
    code, printed, shown = ended(start("save 1, stop", "finish", env=os.environ | {"STALL": "0.01"}))
    assert code == 0 and [line.split()[0] for line in printed] == ["attempt", "stops", "attempt"]
    pid = printed[1].split()[1]
    said = r"oger train: (training stopped at step 2: nothing happened for \d\.\d minutes; the driver "
    said += rf"\(pid {pid}\) is stopped \(SIGSTOP\); the stacks .* are in (\S+/logs/stacks-\S+\.txt)); restart 1"
    found = re.match(said, shown)
    assert found is not None, shown
    assert f"pid {pid}, parent " in Path(found[2]).read_text() and "stopped" in Path(found[2]).read_text()
    (why,) = [each["why"] for each in read_jsonl(tmp_path / "events.jsonl") if each["event"] == ENDED]
    assert why == found[1]


@pytest.mark.parametrize(("stall", "writes"), [("0", False), ("0.05", True)])
def test_a_stopped_attempt_goes_on_where_the_watch_is_off_or_events_come(
    start, tmp_path: Path, stall: str, writes: bool
) -> None:
    running = start("save 1, stop", env=os.environ | {"STALL": stall})
    pid = int([running.stdout.readline() for _ in range(2)][1].split()[1])
    until(lambda: is_stopped(pid))
    for number in range(16):  # for 5 s; the limit is 3 s
        time.sleep(0.3)
        if writes:
            event(tmp_path, "phase", phase="training", done=number)  # the controller's
    os.kill(pid, signal.SIGCONT)
    code, printed, _ = ended(running)
    assert code == 0 and printed == ["goes on"]


def test_the_next_attempt_waits_until_nothing_of_the_last_one_is_left(start) -> None:
    code, printed, _ = ended(start("save 1, leave", "look"))
    assert code == 0 and printed[-1] == "cleared"


def test_an_attempt_ends_with_a_supervisor_that_was_killed(start, tmp_path: Path) -> None:
    running = start("save 1, wait")
    assert [running.stdout.readline() for _ in range(2)][-1] == "waits\n"
    running.kill()
    _, _, shown = ended(running)
    assert "stopped by SIGTERM at step 2" in shown


def test_without_a_checkpoint_it_begins_again_and_keeps_what_is_known_of_the_attempts(start, tmp_path: Path) -> None:
    running = start("step 1, fail the engine died", "step 1, wait")
    second = [running.stdout.readline() for _ in range(3)][1]
    assert second == f"attempt 1 ['--oger.run_dir', '{tmp_path}'] True True\n"
    assert names(tmp_path) == [BEGAN, ENDED, RESTARTING, BEGAN, "step"]
    running.send_signal(signal.SIGINT)
    code, _, shown = ended(running)
    assert code == 130 and "; restart 1 of 5 in 0.01 s from the beginning: there is no checkpoint\n" in shown


def test_it_does_not_begin_again_over_what_it_saved(start, tmp_path: Path) -> None:
    """The best checkpoint lies apart, and no run resumes from it by itself."""
    best = tmp_path / "checkpoints" / "best"
    (best / "_actor" / "global_step1").mkdir(parents=True)
    (best / "_actor" / "global_step1" / "states.pt").write_bytes(b"s")
    seal(best, 1)
    code, printed, shown = ended(start("step 1, fail the engine died", "finish"))
    assert code == 1 and len(printed) == 1
    assert "not restarted: no run can resume from what was saved, and a restart from the beginning would" in shown
    assert (best / "_actor" / "global_step1" / "states.pt").exists()


def test_a_number_of_restarts_is_checked(forks: Forks) -> None:
    done = forks.run("-m", "oger_recipe.cli.train", "--recipe", "countdown_cpu", "--max-restarts", "often")
    assert done.returncode == 2
    assert "argument --max-restarts: 'often' is not a number of restarts, e.g. 3" in done.stderr
