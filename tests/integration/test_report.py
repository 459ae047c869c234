"""What a person sees of a run: a line a step, what it is at, the summary and the result."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hang import HANG_S

from oger_recipe.base.files import read_jsonl
from oger_recipe.report import console
from oger_recipe.report.console import Console, evaluation_text, pace, step_line, waiting_line
from oger_recipe.report.summary import Report, clock, kept_evaluations, last_attempts, result
from oger_recipe.run_folder.records import Phases

FIGURES: dict[str, Any] = {
    "rollout/solve_rate": 0.25,
    "rollout/solve_none": 0.5,
    "rollout/solve_all": 0.125,
    "rollout/reward": 0.3251,
    "rollout/reward_error": 0.0,
    "oger/on_reward": 0.3672,
    "reward/rule": 0.3251,
    "reward/explore": 0.0421,
    "reward/rule/failed": 0.0,
    "reward/explore/failed": 0.0,
    "rollout/response_length": 31.4,
    "oger/bonus": 0.0421,
    "oger/bonus_of_correct": 0.2,
    "rollout/entropy": 0.75,
    "oger/entropy": 0.005,
    "oger/entropy_weight": 0.5,
    "oger/divergence": 0.6125,
    "oger/replaced": 16.0,
    "oger/prefix_ratio": 0.125,
    "hybrid_batch/kl": 0.0,
    "tokens_per_second": 1234.4,
}


def _evaluation(avg: float, best: float) -> dict[str, Any]:
    """The figures of an event for one benchmark of 16 problems, which answers one in eight more or less by chance."""
    scores = {"avg_at_8": avg, "pass_at_8": best}
    intervals = {f"{name}_interval": [value - 0.125, value + 0.125] for name, value in scores.items()}
    return scores | {"n_problems": 16, "benchmarks": {"countdown": {"problems": 16, "n": 8} | scores | intervals}}


BEFORE, AFTER = _evaluation(0.375, 0.8125), _evaluation(0.5, 0.75)


def _append(path: Path, *records: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def _event(at: float, name: str, **facts: Any) -> dict[str, Any]:
    return {"time": at, "event": name} | facts


@pytest.fixture()
def run_dir(tmp_path: Path) -> Path:
    """The folder of a run before its first event."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "counts.json").write_text('{"prompts": 64, "teachers": 192}')
    return tmp_path


@pytest.fixture()
def first_run(run_dir: Path) -> tuple[Path, float]:
    """A run of two steps that started 100 s ago, and when that was."""
    started = time.time() - 100
    _append(
        run_dir / "events.jsonl",
        _event(started + 40, "ready", steps=2, resumed_at=0),
        _event(started + 41, "evaluating", when="before", step=0),
        _event(started + 47.5, "evaluated", when="before", step=0, **BEFORE),
        _event(started + 48, "training"),
        _event(started + 55, "step", step=1, **FIGURES),
        _event(started + 62, "step", step=2, **FIGURES),
        _event(started + 63, "trained", steps=2),
        _event(started + 64, "evaluating", when="after", step=2),
        _event(started + 68, "evaluated", when="after", step=2, **AFTER),
        _event(started + 69, "finished"),
    )
    _append(run_dir / "metrics.jsonl", {"step": 1, **FIGURES}, {"step": 2, **FIGURES})
    return run_dir, started


@pytest.fixture()
def summary_of() -> Callable[..., dict[str, Any]]:
    def written(run_dir: Path, started: float) -> dict[str, Any]:
        return Report(run_dir, {"task": 12.5, "data": 1.5}, started).summary(finished=True)

    return written


def _line(**figures: float | None) -> str:
    return step_line({"step": 7, **FIGURES, **figures}, 128)


WITHOUT_TEACHERS = {"oger/bonus": 0.0, "oger/divergence": 0.0, "oger/replaced": 0.0, "oger/prefix_ratio": 0.0}
COMMON = "step    7/128 | solved 0.250 | reward 0.367"


def test_the_line_of_a_step_has_its_figures() -> None:
    assert _line() == (f"{COMMON} | entropy 0.750 | divergence {0.6125:.3f} | replaced 16 | length 31 | 1234 tokens/s")


def test_the_line_has_the_reward_that_is_trained_on_and_what_each_source_says() -> None:
    """The rule's own reward is one of them; a source that is gone says nothing, and that is no 0."""
    judge = {"oger/on_reward": 0.71, "rollout/reward": 0.3, "reward/judge": 0.25, "reward/judge/failed": 0.0}
    judge |= {"reward/prm": -0.5, "reward/prm/failed": 46.0, "reward/gone": None, "reward/gone/failed": 128.0}

    def shown(*sources: str) -> str:
        return step_line({"step": 7, **FIGURES, **judge}, 128, sources).split(" | ")[2]

    assert shown("rule") == shown() == "reward 0.710"
    assert shown("rule", "judge") == "reward 0.710 (rule 0.325, judge 0.250)"
    assert shown("rule", "prm", "gone") == "reward 0.710 (rule 0.325, prm -0.500 [46 FAILED], gone - [128 FAILED])"
    judge["reward/judge"] = 0.0
    assert shown("rule", "judge") == "reward 0.710 (rule 0.325, judge 0.000)"
    judge["reward/judge"] = math.nan
    assert shown("rule", "judge") == "reward 0.710 (rule 0.325, judge -)"


def test_the_line_counts_steps_of_reasoning_where_there_are_any() -> None:
    line = _line(**{"rollout/steps": 3.66, "kl_stopped_updates": 1.0})
    assert "| 3.7 steps of reasoning | entropy" in line and line.endswith("updates left out by kl_stop: 1")
    assert "steps of reasoning" not in _line() and "kl_stop" not in _line(kl_stopped_updates=0.0)


def test_the_line_has_what_its_method_has_and_no_zeros() -> None:
    rest = "length 31 | 1234 tokens/s"
    assert _line(**WITHOUT_TEACHERS) == f"{COMMON} | entropy 0.750 | {rest}"
    luffy = WITHOUT_TEACHERS | {"oger/replaced": 16.0, "oger/prefix_ratio": 0.125}
    assert _line(**luffy) == f"{COMMON} | entropy 0.750 | replaced 16 | {rest}"
    guided = WITHOUT_TEACHERS | {"oger/prefix_ratio": 0.125}
    assert _line(**guided) == f"{COMMON} | entropy 0.750 | teachers' share 0.125 | {rest}"
    ppo = {"critic_loss": 0.05678, "explained_variance": -0.0312, "hybrid_batch/kl": 0.00123, "entropy_loss": 0.3312}
    assert _line(**WITHOUT_TEACHERS, **ppo) == (
        f"{COMMON} | entropy 0.750 | kl 0.0012 | critic loss 0.0568 | explained variance -0.031 | {rest}"
    )


def test_a_step_whose_rollouts_teachers_all_began_has_no_entropy_on_the_line() -> None:
    assert "entropy" not in _line(**{"rollout/entropy": None})


def test_a_critic_without_returns_that_differ_has_no_explained_variance_on_the_line() -> None:
    line = _line(critic_loss=0.05678, explained_variance=None)  # nan, as events.jsonl says it
    assert "critic loss 0.0568" in line and "explained" not in line


def test_rollouts_that_could_not_be_graded_are_on_the_line() -> None:
    assert _line(**{"rollout/reward_error": 3.0}).endswith(" | 3 NOT GRADED")


def test_the_summary_has_results_steps_times_and_data(
    first_run: tuple[Path, float], summary_of: Callable[..., dict[str, Any]]
) -> None:
    summary = summary_of(*first_run)
    seconds = summary.pop("seconds")
    assert summary.pop("evaluations") == [{"step": 0} | BEFORE, {"step": 2} | AFTER]
    counts = {"prompts": 64, "teachers": 192}
    assert summary == {
        "before": BEFORE, "after": AFTER, "steps": 2, "planned_steps": 2, "resumed_at": 0, "finished": True,
        "data": counts,
    }  # fmt: skip
    assert 100 <= seconds.pop("total") < 130
    assert seconds == pytest.approx(
        {
            "task": 12.5,
            "data": 1.5,
            "until_ready": 40.0,
            "evaluate_before": 6.5,
            "training": 15.0,
            "evaluate_after": 4.0,
        }
    )


def test_a_resumed_run_keeps_the_earlier_evaluation_and_times_itself(
    first_run: tuple[Path, float], summary_of: Callable[..., dict[str, Any]]
) -> None:
    run_dir, _ = first_run
    resumed = time.time() - 20
    better = AFTER | {"avg_at_8": 0.625}
    _append(
        run_dir / "events.jsonl",
        _event(resumed + 5, "ready", steps=3, resumed_at=1),
        _event(resumed + 6, "training"),
        _event(resumed + 16, "trained", steps=3),
        _event(resumed + 13, "evaluated", when="during", step=2, **AFTER),
        _event(resumed + 17, "evaluating", when="after", step=3),
        _event(resumed + 19, "evaluated", when="after", step=3, **better),
    )
    _append(run_dir / "metrics.jsonl", {"step": 2, **FIGURES}, {"step": 3, **FIGURES})
    summary = summary_of(run_dir, resumed)
    assert summary["before"] == BEFORE
    assert summary["after"] == better
    assert [evaluation["step"] for evaluation in summary["evaluations"]] == [0, 2, 3]  # step 2 was evaluated twice
    assert summary["steps"] == 3
    seconds = summary["seconds"]
    assert 20 <= seconds.pop("total") < 50
    assert seconds == pytest.approx(
        {"task": 12.5, "data": 1.5, "until_ready": 5.0, "training": 10.0, "evaluate_after": 2.0}
    )


def test_a_run_without_evaluation_or_steps_has_a_summary_too(
    run_dir: Path, summary_of: Callable[..., dict[str, Any]]
) -> None:
    started = time.time() - 10
    _append(
        run_dir / "events.jsonl",
        _event(started + 4, "ready", steps=0, resumed_at=0),
        _event(started + 5, "training"),
        _event(started + 5, "trained", steps=0),
    )
    summary = summary_of(run_dir, started)
    assert summary.keys() == {"steps", "planned_steps", "resumed_at", "finished", "seconds", "data", "evaluations"}
    assert summary["steps"] == 0
    assert summary["seconds"]["training"] == 0.0


def test_a_resumed_run_that_is_not_at_its_end_has_no_after(
    first_run: tuple[Path, float], summary_of: Callable[..., dict[str, Any]]
) -> None:
    """Resumed from step 1 after a whole run: what came after step 1 is of another policy than the one that goes on."""
    run_dir, _ = first_run
    resumed = time.time() - 20
    _append(run_dir / "events.jsonl", _event(resumed + 5, "ready", steps=4, resumed_at=1))
    summary = summary_of(run_dir, resumed)
    assert summary["before"] == BEFORE and "after" not in summary
    assert summary["evaluations"] == [{"step": 0} | BEFORE]
    assert summary["planned_steps"] == 4
    assert summary["seconds"].keys() == {"task", "data", "until_ready", "total"}


def test_a_resumed_run_without_a_step_left_to_train_has_the_evaluation_of_its_end(
    first_run: tuple[Path, float], summary_of: Callable[..., dict[str, Any]]
) -> None:
    """It was evaluated as "after" already: what counts is the evaluation of this attempt, or none."""
    run_dir, _ = first_run
    resumed = time.time() - 20
    _append(run_dir / "events.jsonl", _event(resumed + 5, "ready", steps=2, resumed_at=2))
    summary = summary_of(run_dir, resumed)
    assert "after" not in summary and [each["step"] for each in summary["evaluations"]] == [0, 2]
    better = _evaluation(0.625, 0.75)
    _append(run_dir / "events.jsonl", _event(resumed + 9, "evaluated", when="after", step=2, **better))
    assert summary_of(run_dir, resumed)["after"] == better


def test_an_evaluation_of_the_step_that_was_resumed_at_is_kept() -> None:
    events = [
        _event(1, "ready", steps=4, resumed_at=0),
        *(_event(2, "evaluated", when="during", step=step, attempt=1) for step in (2, 4)),
        _event(3, "ready", steps=4, resumed_at=2),
    ]
    assert [event["step"] for event in kept_evaluations(events)] == [2]


def test_the_result_is_a_table_a_person_can_read(
    first_run: tuple[Path, float], summary_of: Callable[..., dict[str, Any]]
) -> None:
    summary = summary_of(*first_run)
    summary["seconds"] |= {"training": 15.0, "total": 100.4}
    assert result(summary, Path("runs/mine")).splitlines() == [
        "                     before training        after training         difference",
        "countdown   avg@8    0.375 [0.250, 0.500]   0.500 [0.375, 0.625]   +0.125",
        f"            pass@8   {0.8125:.3f} [{0.6875:.3f}, {0.9375:.3f}]   0.750 [0.625, 0.875]   {-0.0625:.3f}",
        "16 held-out problems; brackets hold 95 % intervals over the problems",
        "2 steps in 0:15; 1:40 in total",
        "run folder: runs/mine (curves/*.png, summary.json, metrics.jsonl, ...)",
    ]
    assert "2 of 9 steps in" in result(summary | {"planned_steps": 9}, Path("runs/mine"))
    assert "2 steps, the last 1 of them in 0:15;" in result(summary | {"resumed_at": 1}, Path("runs/mine"))
    without = {key: value for key, value in summary.items() if key not in ("before", "after")}
    assert result(without, Path("runs/mine")).splitlines()[0] == "2 steps in 0:15; 1:40 in total"
    only_before = {key: value for key, value in summary.items() if key != "after"}
    assert "after training" not in result(only_before, Path("runs/mine"))


def test_of_a_repeated_step_the_last_attempt_counts() -> None:
    records = [{"step": step, "run": run} for step, run in ((1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 2))]
    assert [(r["step"], r["run"]) for r in last_attempts(records)] == [(1, 1), (2, 2), (3, 2), (4, 2)]
    assert last_attempts([]) == []
    assert last_attempts(records[:4]) == [records[0], records[3]]  # step 3 was of the attempt before


def test_a_file_that_does_not_exist_has_no_lines(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "metrics.jsonl") == []


def _report(run_dir: Path) -> Report:
    return Report(run_dir, {}, time.time())


def test_progress_follows_the_events_of_this_run_only(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = run_dir / "events.jsonl"
    _append(events, _event(0, "evaluated", when="before", step=0, avg_at_8=0.111, n_problems=16))
    with Console(_report(run_dir)):
        _append(
            events,
            _event(1, "ready", steps=4, asked=6, resumed_at=2, sources=["rule", "explore"]),
            _event(2, "evaluating", when="before", step=0),
            _event(3, "evaluated", when="before", step=0, **BEFORE),
            _event(4, "training"),
            _event(5, "phase", phase="rollouts", step=3, done=5, of=8),
            _event(10, "step", step=3, **FIGURES),
            _event(11, "evaluating", when="during", step=3),
            _event(12, "trained", steps=3),
        )
        with events.open("a") as file:
            file.write('{"time": 7, "event": "ev')  # a line that is still being written
    lines = capsys.readouterr().out.splitlines()
    assert "4 steps (train.num_episodes is over before the 6 asked for), resuming after step 2" in lines[1]
    assert lines[2] == "evaluating before training ..."
    assert lines[3] == "before training: avg_at_8 0.375, pass_at_8 0.812 on 16 problems"
    line = step_line({"step": 3, **FIGURES}, 4, ["rule", "explore"])
    assert "(rule 0.325, explore 0.042)" in line and f"{line} | 0:06 elapsed, 0:06 left" in lines
    assert "evaluating after step 3 ..." in lines
    assert not any("0.111" in line for line in lines)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_bar_has_the_times_and_what_the_step_is_at(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = _Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr(console, "LONG_WAIT", 0.0)  # no lines of waiting where there is a bar
    follower = Console(_report(run_dir))
    for event in (
        _event(1, "ready", steps=4, resumed_at=2),
        _event(4, "training"),
        _event(5, "phase", phase="rollouts", step=3, done=5, of=8),
        _event(6, "phase", phase="training", step=3),
        _event(10, "step", step=3, **FIGURES),
    ):
        follower._show(event)
        if event["event"] != "ready":
            follower._show_time()
    shown = screen.getvalue()
    assert "2/4" in shown and "3/4" in shown and "0/4" not in shown  # a resumed run begins where it was
    assert "5 of 8 rollouts" in shown and ", training]" in shown
    assert "elapsed" not in shown and "| for 0:" not in shown


def test_without_a_terminal_a_long_step_says_what_it_is_at(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LONG_WAIT", 0.0)  # seconds
    _append(run_dir / "events.jsonl")
    follower = Console(_report(run_dir))
    for event in (
        _event(1, "ready", steps=40, resumed_at=0),
        _event(2, "training"),
        _event(3, "step", step=7, **FIGURES),
        _event(4, "phase", phase="rollouts", step=8, done=120, of=256),
    ):
        follower._show(event)
    follower._show_time()
    assert "step    8/40 | 120 of 256 rollouts | for 0:0" in capsys.readouterr().out.splitlines()[-1]
    for event in (_event(5, "step", step=40, **FIGURES), _event(6, "phase", phase="saving", step=40)):
        follower._show(event)
    follower._show_time()
    assert capsys.readouterr().out.splitlines()[-1].startswith("after the last step | saving | for 0:0")
    follower._show(_event(7, "finished"))
    follower._show_time()
    assert capsys.readouterr().out.splitlines()[-1].startswith("saving the model | for 0:0")


def test_lines_of_waiting_name_what_takes_so_long() -> None:
    assert waiting_line("step   12/60", "training", 65.2) == "step   12/60 | training | for 1:05"
    assert waiting_line("starting Ray, the engine and the policy", "", 600) == (
        "starting Ray, the engine and the policy | for 10:00"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (40.6, "0:41"), (59.7, "1:00"), (3600, "1:00:00"), (3723, "1:02:03"), (183845, "2 d 3:04:05")],
)
def test_durations_are_written_as_clocks_show_them(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_time_left_follows_from_the_pace_of_the_latest_steps() -> None:
    # The first step took 30 s, the ten after it 4 s each: 20 more take 80 s. 30 + 40 have passed.
    moments = [100.0, 130.0, *(130.0 + 4 * step for step in range(1, 11))]
    assert pace(moments, 20) == "1:10 elapsed, 1:20 left"
    assert pace(moments[:2], 3) == "0:30 elapsed, 1:30 left"
    assert pace(moments, 0) == "1:10 elapsed, 0:00 left"


def test_an_evaluation_on_several_benchmarks_has_a_line_for_each() -> None:
    of = {
        "aime24": {"problems": 30, "n": 32, "avg_at_32": 0.25, "avg_at_32_interval": [0.1, 0.4]},
        "math": {"problems": 500, "n": 4, "avg_at_4": 0.75, "avg_at_4_interval": [0.7, 0.8]},
        "average": {"problems": 530, "avg_at_n": 0.5, "avg_at_n_interval": [0.4, 0.6]},
    }
    event = _event(1, "evaluated", when="during", step=20, avg_at_n=0.5, n_problems=530, benchmarks=of)
    assert evaluation_text(event).splitlines() == [
        "after step 20: average avg_at_n 0.500 on 530 problems",
        "  aime24  avg_at_32 0.250 on 30",
        "  math    avg_at_4 0.750 on 500",
    ]


def test_phases_are_told_at_once_and_counts_not_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    phases = Phases(tmp_path)
    for done, passed in ((1, 0.0), (2, 1.9), (3, 0.2), (4, 0.1)):
        now[0] += passed
        phases.at("rollouts", step=1, done=done, of=4)
    phases.at("training", step=1)
    phases.at("rollouts", step=2, done=1, of=4)
    told = [(event["phase"], event.get("done")) for event in read_jsonl(tmp_path / "events.jsonl")]
    assert told == [("rollouts", 1), ("rollouts", 3), ("training", None), ("rollouts", 1)]


def test_a_run_that_fails_leaves_its_summary_and_says_what_it_reached(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match="the engine died"), Console(_report(run_dir)):
        _append(
            run_dir / "events.jsonl",
            _event(time.time(), "ready", steps=4, resumed_at=0),
            _event(time.time(), "training"),
            _event(time.time(), "step", step=1, **FIGURES),
        )
        _append(run_dir / "metrics.jsonl", {"step": 1, **FIGURES})
        raise RuntimeError("the engine died")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["steps"], summary["planned_steps"], summary["finished"]) == (1, 4, False)
    assert (run_dir / "curves" / "solve_rate.png").exists()
    out = capsys.readouterr().out
    assert "1 of 4 steps" in out and f"run folder: {run_dir}" in out


def test_a_run_that_never_started_overwrites_nothing(run_dir: Path) -> None:
    (run_dir / "summary.json").write_text("of the attempt before")
    with pytest.raises(RuntimeError), Console(_report(run_dir)):
        raise RuntimeError("no engine")
    assert (run_dir / "summary.json").read_text() == "of the attempt before"


def test_summary_curves_and_page_follow_every_step_while_the_run_goes_on(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "REPORT_PAUSE", 0.0)
    with Console(_report(run_dir)):
        _append(run_dir / "metrics.jsonl", {"step": 1, **FIGURES})
        _append(
            run_dir / "events.jsonl",
            _event(1, "ready", steps=4, resumed_at=0),
            _event(4, "training"),
            _event(10, "step", step=1, **FIGURES),
        )
        deadline = time.monotonic() + HANG_S
        while not (run_dir / "report.html").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (run_dir / "report.html").exists()
        assert json.loads((run_dir / "summary.json").read_text())["steps"] == 1
        assert (run_dir / "curves" / "solve_rate.png").exists()


def test_a_report_that_cannot_be_written_does_not_end_a_run(
    first_run: tuple[Path, float], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, started = first_run
    (run_dir / "curves").write_text("a file in the folder's place")
    Report(run_dir, {}, started).finish(print, finished=True)
    out = capsys.readouterr().out
    assert "could not be written" in out and "FileExistsError" in out
    assert json.loads((run_dir / "summary.json").read_text())["steps"] == 2
