"""What a run's folder says of the run, by folders written by hand, held by a live process or left by a killed one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from hand_written_run import T, evaluated, holding, record, said, write_run

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import append_json
from oger_recipe.report.groups import read_groups, sampled_steps
from oger_recipe.report.run_state import Attempt, Note, RunLog, Score, Tail, is_run, read_state, state_of
from oger_recipe.run import ends
from oger_recipe.run_folder import attempt, checkpoints
from oger_recipe.run_folder.records import BEGAN, event


@pytest.fixture()
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_a_killed_run_has_its_figures_and_the_step_to_resume_from(run_dir: Path) -> None:
    actor = run_dir / "checkpoints" / "_actor" / "global_step2"
    actor.mkdir(parents=True)
    (actor / "weights").write_text("w")
    checkpoints.begin(run_dir / "checkpoints", 2)
    checkpoints.seal(run_dir / "checkpoints", 2)
    checkpoints.begin(run_dir / "checkpoints", 3)  # broken off
    before = contents(run_dir)
    state = read_state(run_dir)
    assert (state.state, state.resume_from, state.recipe) == ("ended", 2, "my run")
    assert state.why is not None and state.why.startswith("killed, or lost with its machine, last seen 2023-11-1")
    assert (state.step, state.planned_steps, state.seconds) == (2, 4, 62.0)
    assert state.first == Score(0, "countdown", "avg_at_8", 0.25, (0.15, 0.35))
    assert state.last == state.best == Score(2, "countdown", "avg_at_8", 0.5, (0.4, 0.6))
    assert state.attempts == (Attempt(T - 30, T + 32, 0, 2),)
    assert state.notes == (Note(1, T + 21, "WARNING: one"),)
    json.dumps(asdict(state), default=str)
    assert contents(run_dir) == before


def test_a_run_whose_lock_is_held_is_running_and_is_ended_when_it_is_killed(run_dir: Path) -> None:
    with holding(run_dir) as process:
        state = read_state(run_dir)
        assert (state.state, state.why, state.resume_from, state.attempts[-1].ended) == ("running", None, None, None)
        assert state.seconds > 1e6  # since T
        record(run_dir, {"time": time.time(), "event": "phase", "phase": "training", "step": 3})
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert read_state(run_dir).state == "ended"


def test_looking_never_takes_the_lock(run_dir: Path) -> None:
    """With the lock free and looked at in a row, a run that starts gets it at its first try."""
    with holding(run_dir) as process:
        process.kill()
        process.wait()
    looking = subprocess.Popen(
        [sys.executable, "-c", "import sys; from pathlib import Path; from oger_recipe.run_folder import attempt\n"
         "print('looking', flush=True)\nwhile True: attempt.is_held(Path(sys.argv[1]))", run_dir],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert looking.stdout is not None and looking.stdout.readline() == "looking\n"
        import fcntl

        for _ in range(3000):
            with (run_dir / ".oger-lock").open("a+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        looking.kill()
        looking.wait()


def test_a_process_that_outlives_its_run_does_not_make_it_running(run_dir: Path) -> None:
    with attempt.locked(run_dir):
        assert read_state(run_dir).state == "running"
    assert read_state(run_dir).state == "ended"


@pytest.mark.parametrize(("ago", "state"), [(30, "running"), (7200, "ended")])
def test_on_another_machine_the_last_event_decides_and_is_named(run_dir: Path, ago: float, state: str) -> None:
    (run_dir / ".oger-lock").write_text("1 node7\n")
    record(run_dir, {"time": time.time() - ago, "event": "phase", "phase": "training", "step": 3})
    found = read_state(run_dir)
    assert found.state == state
    assert found.why is not None and (state == "ended" or "node7" in found.why and "0:30 ago" in found.why)


def test_another_container_of_the_same_name_cannot_be_asked(run_dir: Path) -> None:
    (run_dir / ".oger-lock").write_text(f"1 {os.uname().nodename} pid:[1]\n")
    assert attempt.is_held(run_dir) is None


def test_finished_means_that_the_model_was_saved_too(run_dir: Path) -> None:
    record(run_dir, said(40, "step", step=4), said(41, "trained", steps=4), said(42, "finished"))
    assert read_state(run_dir).why is not None and "while saving the model" in str(read_state(run_dir).why)
    (run_dir / "summary.json").write_text('{"finished": true}')
    assert read_state(run_dir).state == "finished"
    record(run_dir, said(100, BEGAN, resumed_at=4))  # resumed, and killed before anything else
    assert read_state(run_dir).state == "ended"


def test_the_reason_that_a_run_leaves_is_the_one_that_is_told(run_dir: Path) -> None:
    (run_dir / "logs").mkdir()
    (run_dir / "logs" / "error.log").write_text("Traceback (most recent call last):\n  File\nValueError: boom\n\n")
    assert read_state(run_dir).why == "ValueError: boom"  # an earlier version recorded no end
    os.utime(run_dir / "logs" / "error.log", (T - 60, T - 60))  # of an attempt before
    assert "ValueError" not in str(read_state(run_dir).why)
    record(run_dir, said(41, "ended", why="stopped by SIGTERM at step 3 of 4\n  resume"))
    assert read_state(run_dir).why == "stopped by SIGTERM at step 3 of 4"


def test_an_attempt_records_how_it_ends_but_only_if_it_began(run_dir: Path) -> None:
    def end(error: Exception, *, begins: bool) -> None:
        with contextlib.suppress(RecipeError), ends.stoppable(run_dir, run_dir / "checkpoints", ["oger", "train"]):
            if begins:
                event(run_dir, BEGAN, since=time.time(), resumed_at=0)
            raise error

    end(RecipeError("refused"), begins=False)
    assert "refused" not in (run_dir / "events.jsonl").read_text()
    end(RecipeError("no memory"), begins=True)
    assert read_state(run_dir).why == "no memory"


def test_a_resumed_run_counts_from_its_checkpoint(run_dir: Path) -> None:
    attempt.cut_back(run_dir, 1)
    record(run_dir, said(100, BEGAN, since=T + 90, resumed_at=1), said(110, "ready", steps=4, resumed_at=1))
    state = read_state(run_dir)
    assert (state.step, state.planned_steps, state.last) == (1, 4, state.first)
    assert state.attempts == (Attempt(T - 30, T + 21, 0, 1), Attempt(T + 90, T + 110, 1, 1))
    record(run_dir, said(115, "training"), said(120, "step", step=2))
    assert read_state(run_dir).step == 2


def test_a_log_sees_what_is_new_and_begins_anew_with_a_resumed_run(run_dir: Path) -> None:
    log = RunLog(run_dir)
    assert log.update() and not log.update()
    assert log.step == 2 and log.phase is not None and log.phase["phase"] == "training"
    attempt.cut_back(run_dir, 1)  # replaces the file
    assert log.update() and log.step == 1 and log.phase is None
    assert [event["event"] for event in log.milestones] == [
        "began", "ready", "evaluating", "evaluated", "training", "note",
    ]  # fmt: skip
    assert log.notes == list(state_of(log).notes) != []


def test_half_a_line_waits_for_its_other_half(run_dir: Path) -> None:
    log = RunLog(run_dir)
    log.update()
    with (run_dir / "events.jsonl").open("a") as file:
        file.write('{"time": 1700000040.0, "event": "step", "st')
        file.flush()
        assert not log.update() and log.step == 2
        file.write('ep": 3}\n\x00\x00not a record\n')
    assert log.update() and log.step == 3


def test_a_step_written_in_another_form_counts_as_well(run_dir: Path) -> None:
    with (run_dir / "events.jsonl").open("a") as file:
        file.write(
            '{"event":"step","step":3,"time":1700000040}\n{"step":4,"phase":"rollouts","event":"phase","time":1700000041}\n'
        )
    log = RunLog(run_dir)
    log.update()
    assert log.step == 3 and log.phase is not None and log.phase["step"] == 4


def test_folders_without_a_run_or_without_events(tmp_path: Path) -> None:
    assert not is_run(tmp_path) and not is_run(tmp_path / "none")
    assert read_state(tmp_path).state == "ended" and read_state(tmp_path).step == 0
    with attempt.locked(tmp_path):  # a run that still builds its task
        assert is_run(tmp_path) and read_state(tmp_path).state == "running"
    assert not is_run(tmp_path)


def test_a_run_of_an_earlier_version_is_one(tmp_path: Path) -> None:
    for name in ("command.sh", "recipe.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step":')
    assert is_run(tmp_path) and read_state(tmp_path).step == 2


def test_checkpoints_are_found_where_the_recipe_has_them_and_in_a_folder_that_was_moved(
    run_dir: Path, tmp_path: Path
) -> None:
    def recipe(path: Path) -> None:
        document = {"oger": {"run_dir": "/gone/run"}, "ckpt": {"path": str(path)}}
        (run_dir / "recipe.yaml").write_text(yaml.safe_dump(document))

    for step, folder in ((3, tmp_path / "elsewhere"), (2, run_dir / "checkpoints")):
        (folder / "_actor" / f"global_step{step}").mkdir(parents=True)
        (folder / "_actor" / f"global_step{step}" / "w").write_text("w")
        checkpoints.seal(folder, step)
    recipe(tmp_path / "elsewhere")
    assert read_state(run_dir).resume_from == 3
    recipe(Path("/gone/run/checkpoints"))
    assert read_state(run_dir).resume_from == 2


def test_several_benchmarks_are_told_by_their_average(run_dir: Path) -> None:
    record(run_dir, evaluated(50, "during", 3, math=0.5, aime=0.1, average=0.3))
    assert read_state(run_dir).last == Score(3, "average", "avg_at_8", 0.3, (pytest.approx(0.2), pytest.approx(0.4)))


def test_reading_what_is_new_of_a_long_run_costs_next_to_nothing(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "events.jsonl")
    (tmp_path / "events.jsonl").write_text("x" * 10_000 + "\n")
    assert tail.read() == (True, [b"x" * 10_000])
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write("y\n")
    assert tail.read() == (False, [b"y"])
    (tmp_path / "events.jsonl").unlink()
    assert tail.read() == (True, []) and tail.read() == (False, [])


def test_groups_have_the_replaced_rollout_before_its_teacher(tmp_path: Path) -> None:
    def line(uid: str, **facts: Any) -> dict[str, Any]:
        return {"uid": uid, "prompt": f"p{uid}", "task": "math", "answer": "7"} | facts

    (tmp_path / "samples").mkdir()
    for each in (
        line("a", text="one"), line("a", text="two", replaced=True), line("a", text="t", source="big"),
        line("b", text="three"),
    ):  # fmt: skip
        append_json(tmp_path / "samples" / "step_00012.jsonl", each)
    (tmp_path / "samples" / "step_100000.jsonl").touch()
    assert sampled_steps(tmp_path) == [12, 100000] and sampled_steps(tmp_path / "none") == []
    first, second = read_groups(tmp_path, 12)
    assert (first.step, first.uid, first.prompt, first.task, first.answer) == (12, "a", "pa", "math", "7")
    assert first.rows == (
        {"text": "one"}, {"text": "two", "replaced": True}, {"text": "t", "source": "big"},
    )  # fmt: skip
    assert second.rows == ({"text": "three"},) and read_groups(tmp_path, 13) == []
