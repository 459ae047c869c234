"""oger runs, oger watch and oger show: what a person sees, in pipes and in terminals, also of hostile text."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hand_written_run import T, evaluated, holding, record, said, write_run

from oger_recipe.base.files import append_json
from oger_recipe.cli import runs, show, watch
from oger_recipe.report.metric_table import TABLE, lookup
from oger_recipe.report.run_state import RunLog
from oger_recipe.report.terminal import figure, plain, sparkline
from oger_recipe.report.watch import TRENDS, Watch, concern, doing, phase_text, shortened
from oger_recipe.run_folder import checkpoints

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x00\r\u202egnorw\u2028\ud800\x9b31m[bold]:smile:"
SEEN = r"\x1b[2J\x1b]0;owned\x07\x00\r\u202egnorw\u2028\ud800\x9b31m[bold]:smile:"


def rollout(uid: str, text: str, reward: float, **facts: Any) -> dict[str, Any]:
    prompt = {"uid": uid, "prompt": f"Solve {uid}.", "task": "countdown", "answer": '{"target":7}'}
    verdict = {
        "score": float(reward == 1),
        "extracted": text[:3],
        "reason": "right" if reward == 1 else "equals 8, not 7",
    }
    numbers = {"similarity": 0.75, "divergence": 0.25}
    return (
        prompt | {"truncated": False, "text": text, "off_policy": False, "reward": reward} | verdict | numbers | facts
    )


def trained(advantage: float, **sources: float) -> dict[str, Any]:
    return {"entropy": 0.5, "sources": sources, "total_reward": sum(sources.values()), "advantage": advantage}


def write_samples(folder: Path, step: int, *lines: dict[str, Any]) -> None:
    (folder / "samples").mkdir(exist_ok=True)
    for line in lines:
        append_json(folder / "samples" / f"step_{step:05d}.jsonl", line)


def teacher(uid: str, text: str) -> dict[str, Any]:
    line = rollout(uid, text, 1.0, source="big", off_policy=True) | trained(0.9, rule=1.0)
    return {
        name: value for name, value in line.items() if name not in ("extracted", "reason", "similarity", "divergence")
    }


@pytest.fixture()
def run_dir(tmp_path: Path) -> Path:
    """The run of `write_run` with metrics and, of step 2, three groups: all wrong, mixed with a teacher, all right."""
    folder = write_run(tmp_path / "runs" / "one")
    for step, solved, entropy in ((1, 0.25, 0.9), (2, 0.5, 0.75)):
        metrics = {"rollout/solve_rate": solved, "rollout/entropy": entropy, "rollout/truncated": 0.0, "odd": 1.0}
        append_json(folder / "metrics.jsonl", {"step": step} | metrics)
    write_samples(
        folder, 2,
        rollout("u-wrong", "no", 0.1) | trained(0.0, rule=0.1), rollout("u-wrong", "n", 0.1) | trained(0.0, rule=0.1),
        rollout("u-mixed", "yes", 1.0) | trained(0.6, rule=1.0, explore=0.125),
        rollout("u-mixed", "evicted", 0.1, replaced=True), teacher("u-mixed", "by the teacher"),
        rollout("u-right", "all", 1.0) | trained(0.0, rule=1.0),
    )  # fmt: skip
    return folder


@contextlib.contextmanager
def in_terminal(columns: int, lines: int, *words: object) -> Iterator[Terminal]:
    """A command of oger in a terminal of this size."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "oger_recipe.cli.main", *map(str, words)]
    process = subprocess.Popen(
        command,
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment | {"TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored where the tests run in the background
    )
    try:
        yield Terminal(process, ours, its)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)


class Terminal:
    def __init__(self, process: subprocess.Popen, ours: int, its: int) -> None:
        self.process, self.ours, self.its, self.text = process, ours, its, ""

    def until(self, expected: str, seconds: float = 30) -> str:
        """Read until the screen has had the text, or the command has ended."""
        deadline = time.monotonic() + seconds
        while expected not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.ours], [], [], 0.1)[0]:
                self.text += os.read(self.ours, 65536).decode(errors="replace")
            elif self.process.poll() is not None:
                break
        assert expected in self.shown, self.shown
        return self.shown

    @property
    def shown(self) -> str:
        """What was written, without colours and movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)

    def ended(self) -> int:
        """Read to the end, as a terminal does: a command whose output nobody reads would wait."""
        deadline = time.monotonic() + 30
        while select.select([self.ours], [], [], 0.1)[0] or self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.ours], [], [], 0.1)[0]:
                self.text += os.read(self.ours, 65536).decode(errors="replace")
        return self.process.wait()


def refusal(capsys: pytest.CaptureFixture[str], command: Any, *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(list(map(str, words)))
    assert capsys.readouterr().out == ""
    return str(ended.value)


def printed(capsys: pytest.CaptureFixture[str], command: Any, *words: object) -> str:
    command.main(list(map(str, words)))
    return capsys.readouterr().out


# ---- runs


@pytest.fixture()
def three_runs(run_dir: Path) -> Path:
    """A run that was killed, one that is newer and finished, one that is held; and what is no run."""
    folder = run_dir.parent
    (run_dir / "checkpoints" / "_actor" / "global_step2").mkdir(parents=True)
    (run_dir / "checkpoints" / "_actor" / "global_step2" / "w").touch()
    checkpoints.seal(run_dir / "checkpoints", 2)
    done = write_run(folder / "study" / "two")
    record(done, evaluated(40, "after", 4, countdown=0.375), said(41, "finished"))
    (done / "summary.json").write_text('{"finished": true}')
    write_run(done / "model" / "inside")  # inside a run is no run of its own
    write_run(folder / ".hidden" / "three")
    (folder / "notes").mkdir()
    return folder


def test_runs_are_listed_with_state_scores_and_time_the_newest_first(
    three_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *rows = [line.split() for line in printed(capsys, runs, three_runs).splitlines()]
    assert " ".join(header) == "run state recipe steps held out last best time"
    assert " ".join(rows[0]) == f"{three_runs}/study/two finished my run 2/4 countdown avg@8 0.375 0.500 @2 1:11"
    assert " ".join(rows[1][:2]) == f"{three_runs}/one ended:" and len(rows) == 2
    assert "can resume from step 2 my run 2/4 countdown avg@8 0.500 0.500 @2 1:02" in " ".join(rows[1])


def test_a_held_run_comes_first_and_the_next_command_is_named(three_runs: Path) -> None:
    with holding(three_runs / "one"), in_terminal(80, 24, "runs", three_runs) as terminal:
        assert terminal.ended() == 0
    lines = terminal.shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert terminal.shown.index("running") < terminal.shown.index("finished")
    assert f"oger watch {three_runs}/one" in terminal.shown.replace("\r\n", "")
    assert "recipe" not in lines[0]  # for which 80 columns have no room


def test_the_same_as_json(three_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, killed = json.loads(printed(capsys, runs, three_runs, "--json"))
    assert (done["folder"], done["state"], done["last"]["value"]) == (f"{three_runs}/study/two", "finished", 0.375)
    assert (killed["resume_from"], killed["attempts"][0]["last_step"]) == (2, 2)
    assert killed["notes"] == [{"step": 1, "time": T + 21, "text": "WARNING: one"}]


def test_a_folder_without_runs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, runs, tmp_path) == f"no run at or below {tmp_path}\n"
    assert printed(capsys, runs, tmp_path, "--json") == "[]\n"
    assert "there is no folder" in refusal(capsys, runs, tmp_path / "none")
    assert "unknown option --jsn" in refusal(capsys, runs, tmp_path, "--jsn")


def test_a_reader_that_has_enough_is_no_failure(three_runs: Path) -> None:
    command = f"{sys.executable} -m oger_recipe.cli.main runs {three_runs} --json | true"
    assert subprocess.run(command, shell=True, capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize("command", [watch, show])
def test_a_folder_that_is_no_run_names_the_nearest_runs(
    three_runs: Path, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    above = refusal(capsys, command, three_runs)
    assert "is not the folder of a run; the nearest runs: " in above
    assert {f"{three_runs}/one", f"{three_runs}/study/two"} == set(above.partition("runs: ")[2].split(", "))
    beside = refusal(capsys, command, three_runs / "tow")
    assert f"there is no folder {three_runs}/tow; the nearest runs: {three_runs}/study/two, " in beside


# ---- watch


def test_a_pipe_gets_one_snapshot(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with holding(run_dir):
        before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
        text = printed(capsys, watch, run_dir)
        assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == f"{run_dir} recipe my run running"
    assert lines[1].startswith("step 2/4") and lines[1].endswith("0:16 elapsed, 0:16 left")
    assert lines[2].startswith("step 3 | training | for ")
    assert "solved 0.500 ▁█ 0.250 to 0.500" in lines and "entropy 0.750 █▁ 0.750 to 0.900" in lines
    assert "before training: avg_at_8 0.250 on 10 problems" in lines
    assert "after step 2: avg_at_8 0.500 on 10 problems" in lines
    assert "step 1: WARNING: one" in lines
    assert "a rollout of step 2: wrong: equals 8, not 7" in lines
    assert "odd" not in text and "truncated" not in text and "\x1b" not in text


def test_a_terminal_that_knows_ascii_alone_gets_letters(run_dir: Path) -> None:
    write_samples(run_dir, 3, rollout("u", "né", 0.1))
    command = [sys.executable, "-m", "oger_recipe.cli.main", "watch", run_dir]
    done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_@" in done.stdout and "n?" in done.stdout


def test_a_watched_run_that_is_killed_ends_the_watch(run_dir: Path) -> None:
    with holding(run_dir) as process, in_terminal(80, 24, "watch", run_dir) as terminal:
        terminal.until("step 2/4")
        record(run_dir, said(40, "step", step=3))
        terminal.until("step 3/4")
        process.kill()
        process.wait()
        assert terminal.ended() == 0
    shown = " ".join(terminal.shown.split())
    assert "ended: killed, or lost with its machine" in shown and "nothing to resume from" in shown


def test_a_watched_run_that_finishes_leaves_its_result(run_dir: Path) -> None:
    scores = {"problems": 10, "n": 8, "avg_at_8": 0.625, "avg_at_8_interval": [0.5, 0.75]}
    summary = {
        "after": {"n_problems": 10, "benchmarks": {"countdown": scores}}, "steps": 4, "planned_steps": 4,
        "resumed_at": 0, "finished": True, "seconds": {"training": 60.0, "total": 90.0},
    }  # fmt: skip
    with holding(run_dir) as process, in_terminal(120, 40, "watch", run_dir) as terminal:
        terminal.until("q quits")
        record(run_dir, said(40, "step", step=4), said(41, "finished"))
        (run_dir / "summary.json").write_text(json.dumps(summary))
        terminal.until("saving the model")
        process.kill()
        process.wait()
        assert terminal.ended() == 0
    assert "0.625 [0.500, 0.750]" in terminal.shown and "4 steps in 1:00; 1:30 in total" in terminal.shown


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_leaving_a_watch_leaves_the_run_and_the_terminal_as_they_were(run_dir: Path, key: bytes) -> None:
    with holding(run_dir) as process, in_terminal(80, 24, "watch", run_dir) as terminal:
        before = termios.tcgetattr(terminal.its)
        terminal.until("q quits")
        assert termios.tcgetattr(terminal.its) != before  # keys come without Enter
        if key == b"q":
            os.write(terminal.ours, key)
        else:
            os.kill(terminal.process.pid, 2)  # what Ctrl-C sends
        assert terminal.ended() == 0
        assert termios.tcgetattr(terminal.its) == before and process.poll() is None
    assert "\x1b[?1049l" in terminal.text and "Traceback" not in terminal.text  # the other screen is left


def test_a_watch_begins_anew_with_a_run_that_resumes(run_dir: Path) -> None:
    watched = Watch(run_dir)
    watched.update()
    append_json(run_dir / "metrics.jsonl", {"step": 2, "rollout/solve_rate": 0.125})  # a resumed run repeats it
    watched.update()
    assert watched._series()["rollout/solve_rate"] == [0.25, 0.125]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], "preparing task and data"),
        ([said(0, "began")], "starting Ray, the engine and the policy"),
        ([said(0, "ready", steps=2, resumed_at=0)], "ready"),
        ([said(0, "evaluating", when="during", step=2)], "evaluating after step 2"),
        ([said(0, "ready", steps=2, resumed_at=0), said(1, "training")], "step 1"),
        ([said(0, "training"), said(1, "step", step=1), said(2, "note", text="x")], "step 2"),
        (
            [said(0, "ready", steps=1, resumed_at=0), said(1, "training"), said(2, "step", step=1)],
            "after the last step",
        ),
        ([said(0, "finished")], "saving the model"),
    ],
)
def test_what_a_run_is_at_is_said_as_its_own_console_says_it(tmp_path: Path, events: list, expected: str) -> None:
    record(tmp_path, *events)
    log = RunLog(tmp_path)
    log.update()
    assert doing(log) == expected


def test_a_phase_of_another_version_is_named(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for phase, expected in (("dreaming", "dreaming"), ("rollouts", "rollouts")):
        record(tmp_path, said(0, "phase", phase=phase, step=1))
        log.update()
        assert phase_text(log) == expected


def test_trends_are_metrics_of_the_table_and_a_value_outside_its_range_says_so() -> None:
    assert set(TRENDS) <= {metric.name for metric in TABLE}
    solved = lookup("rollout/solve_rate")
    assert concern(solved, 0.5) == "" and concern(solved, 0.01).startswith("! ") and concern(None, 7.0) == ""


def test_long_texts_lose_their_middle() -> None:
    assert shortened("abcdefgh", 8) == "abcdefgh" and shortened("abcdefghi", 4) == "ab … hi"


# ---- show


def test_by_default_a_group_from_which_the_policy_learns(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, show, run_dir).splitlines() == [
        "group 2 of 3 of step 2, uid u-mixed",
        "rollouts  1 of 2 right, mean reward 0.550",
        "task  countdown",
        'answer  {"target":7}',
        "prompt",
        "Solve u-mixed.",
        "",
        "rollout 1: right",
        "yes",
        "  extracted  yes",
        "  advantage  +0.600",
        "  numbers  reward 1, score 1, total_reward 1.125, similarity 0.750, divergence 0.250, entropy 0.500",
        "  sources  rule 1, explore 0.125",
        "",
        "rollout 2: wrong: equals 8, not 7  replaced by the teacher that follows",
        "evicted",
        "  extracted  evi",
        "  numbers  reward 0.100, score 0, similarity 0.750, divergence 0.250",
        "",
        "teacher big: right",
        "by the teacher",
        "  advantage  +0.900",
        "  numbers  reward 1, score 1, total_reward 1, entropy 0.500",
        "  sources  rule 1",
    ]


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["--worst"], "group 1 of 3 of step 2, uid u-wrong"),
        (["--best"], "group 3 of 3 of step 2, uid u-right"),
        (["--uid", "u-old"], "group 1 of 1 of step 1, uid u-old"),
        (["--step", "1"], "group 1 of 1 of step 1, uid u-old"),
    ],
)
def test_other_groups_can_be_chosen(
    run_dir: Path, words: list[str], first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(run_dir, 1, rollout("u-old", "old", 0.1) | trained(0.0, rule=0.1))
    assert printed(capsys, show, run_dir, *words).splitlines()[0] == first


def test_what_was_not_sampled_is_said_with_what_is_near(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, show, run_dir, "--step", 9).endswith("; the nearest steps: 2")
    assert "no group of uid u-mixd was sampled; the nearest uids: u-mixed, " in refusal(
        capsys, show, run_dir, "--uid", "u-mixd"
    )
    (run_dir / "samples" / "step_00002.jsonl").unlink()
    assert "has no samples yet" in refusal(capsys, show, run_dir)
    (run_dir / "samples" / "step_00003.jsonl").write_text('{"uid": "half')
    assert "are being written" in refusal(capsys, show, run_dir)


def test_a_teacher_stands_beside_the_rollout_that_it_replaced(run_dir: Path) -> None:
    with in_terminal(120, 50, "show", run_dir) as wide:
        assert wide.ended() == 0
    with in_terminal(80, 50, "show", run_dir) as narrow:
        assert narrow.ended() == 0
    assert any("rollout 2: " in line and "teacher big: " in line for line in wide.shown.splitlines())
    assert not any("rollout 2: " in line and "teacher big: " in line for line in narrow.shown.splitlines())
    assert max(map(len, narrow.shown.splitlines())) <= 80


def test_steps_of_reasoning_have_score_and_advantage(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"text": "first", "reward": 0.5, "advantage": -0.25, "sources": {"prm": 0.125}}, {"text": "second"}]
    failed = {
        "response_length": 7,
        "graded": False,
        "errors": {"judge": "timeout"},
        "criteria": {"judge": {"clear": 1}},
        "steps_of_reasoning": steps,
    }
    write_samples(run_dir, 3, rollout("u", "x", 0.1, truncated=True) | failed)
    text = " ".join(printed(capsys, show, run_dir).split())
    assert "rollout 1: not graded: equals 8, not 7 truncated" in text and ", response_length 7" in text
    assert "errors judge: timeout criteria judge: {'clear': 1}" in text
    assert "step reward advantage sources text 1 0.500 -0.250 prm 0.125 first 2 - - second" in text


# ---- text


def test_hostile_text_is_shown_and_commands_nothing(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = rollout(HOSTILE, HOSTILE, 0.1, extracted=HOSTILE, reason=HOSTILE, errors={HOSTILE: HOSTILE})
    with (run_dir / "samples" / "step_00003.jsonl").open("w") as file:
        file.write(json.dumps(line | {name: HOSTILE for name in ("prompt", "task", "answer")}) + "\n")
    record(run_dir, {"time": T + 50, "event": "note", "text": HOSTILE.replace("\ud800", "")})
    (run_dir / "command.sh").write_text("oger train --recipe '\x1b[2J.yaml'")
    outputs = [printed(capsys, command, run_dir) for command in (show, watch, runs)]
    for text in outputs:
        assert not [letter for letter in text if letter != "\n" and not letter.isprintable()], text
    assert outputs[0].count(SEEN) == 9
    assert SEEN in outputs[1] and r"\x1b[2J" in outputs[2]


def test_text_keeps_lines_tabs_and_joined_emoji() -> None:
    for text in ("a\n\tb", "👩\u200d🔬 مرحبا $x^2$ </script>"):
        assert plain(text).plain == text


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 2.0, 10.0, 12.0], 2) == "▁█"  # the means of 1 and 11
    assert sparkline([1.0, None, 3.0, float("nan")], 9) == "▁ █ "
    assert sparkline([5.0, 5.0], 9) == "▄▄" and sparkline([None], 9) == "" == sparkline([], 9)
    assert sparkline([0, 7], 9, blocks=False) == "_@"


def test_figures() -> None:
    known = {
        0.0: "0",
        1.0: "1",
        0.25: "0.250",
        -0.5: "-0.500",
        0.00012: "1.2e-04",
        12345.6: "12,346",
        float("nan"): "-",
    }
    assert {value: figure(value) for value in known} == known
    assert figure(None) == "-"
