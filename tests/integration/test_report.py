"""What a person sees of a run: a line a step, the summary, the curves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.files import read_jsonl
from oger_recipe.report.progress import Progress, step_line
from oger_recipe.report.summary import CURVES, last_attempts, write_summary
from oger_recipe.report.sweep import draw

FIGURES: dict[str, Any] = {
    "rollout/solve_rate": 0.25,
    "rollout/solve_none": 0.5,
    "rollout/solve_all": 0.125,
    "rollout/reward": 0.3251,
    "rollout/reward_error": 0.0,
    "rollout/response_length": 31.4,
    "oger/bonus": 0.0421,
    "oger/bonus_of_correct": 0.2,
    "oger/entropy": 0.75,
    "oger/entropy_weight": 0.5,
    "oger/divergence": 0.6125,
    "oger/replaced": 16.0,
    "oger/prefix_ratio": 0.125,
    "hybrid_batch/kl": 0.0,
    "tokens_per_second": 1234.4,
}
BEFORE = {"avg_at_8": 0.375, "pass_at_8": 0.8125, "n_problems": 16}
AFTER = {"avg_at_8": 0.5, "pass_at_8": 0.75, "n_problems": 16}


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
        write_summary(run_dir, {"task": 12.5, "data": 1.5}, started)
        result: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
        return result

    return written


def _line(**figures: float | None) -> str:
    return step_line({"step": 7, **FIGURES, **figures}, 128)


WITHOUT_TEACHERS = {"oger/bonus": 0.0, "oger/divergence": 0.0, "oger/replaced": 0.0, "oger/prefix_ratio": 0.0}
COMMON = "step    7/128 | solved 0.250 | reward 0.325"


def test_the_line_of_a_step_has_its_figures() -> None:
    assert _line() == (
        f"{COMMON} + bonus 0.042 | entropy 0.750 | divergence {0.6125:.3f} | replaced 16 | length 31 | 1234 tokens/s"
    )


def test_the_line_has_what_its_method_has_and_no_zeros() -> None:
    rest = "length 31 | 1234 tokens/s"
    assert _line(**WITHOUT_TEACHERS) == f"{COMMON} | entropy 0.750 | {rest}"
    luffy = WITHOUT_TEACHERS | {"oger/replaced": 16.0, "oger/prefix_ratio": 0.125}
    assert _line(**luffy) == f"{COMMON} | entropy 0.750 | replaced 16 | {rest}"
    guided = WITHOUT_TEACHERS | {"oger/prefix_ratio": 0.125}
    assert _line(**guided) == f"{COMMON} | entropy 0.750 | teachers' share 0.125 | {rest}"
    ppo = {"critic_loss": 0.05678, "explained_variance": -0.0312, "hybrid_batch/kl": 0.00123, "entropy_loss": 0.3312}
    assert _line(**WITHOUT_TEACHERS, **ppo) == (
        f"{COMMON} | policy entropy 0.331 | kl 0.0012 | critic loss 0.0568 | explained variance -0.031 | {rest}"
    )


def test_the_entropy_is_the_one_that_weighs_the_bonus_where_there_is_one() -> None:
    assert "| entropy 0.750 |" in _line(entropy_loss=0.3312)


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
    assert summary == {"before": BEFORE, "after": AFTER, "steps": 2, "data": {"prompts": 64, "teachers": 192}}
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
    assert summary.keys() == {"steps", "seconds", "data", "evaluations"}
    assert summary["steps"] == 0
    assert summary["seconds"]["training"] == 0.0


def test_the_curves_are_drawn_even_where_a_figure_is_missing(
    first_run: tuple[Path, float], summary_of: Callable[..., dict[str, Any]]
) -> None:
    run_dir, started = first_run
    _append(run_dir / "metrics.jsonl", {"step": 3, **FIGURES, "oger/divergence": None})
    summary_of(run_dir, started)
    assert {path.name for path in (run_dir / "curves").iterdir()} == {f"{name}.png" for name in CURVES}
    for path in (run_dir / "curves").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000


def test_the_result_is_printed_with_the_folder(
    first_run: tuple[Path, float], summary_of: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    summary = summary_of(*first_run)
    folder, figures = capsys.readouterr().out.splitlines()
    assert folder == f"run folder: {first_run[0]}"
    assert json.loads(figures) == {key: summary[key] for key in ("before", "after", "steps", "seconds")}


def test_of_a_repeated_step_the_last_attempt_counts() -> None:
    records = [{"step": step, "run": run} for step, run in ((1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 2))]
    assert [(r["step"], r["run"]) for r in last_attempts(records)] == [(1, 1), (2, 2), (3, 2), (4, 2)]
    assert last_attempts([]) == []


def test_a_file_that_does_not_exist_has_no_lines(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "metrics.jsonl") == []


def test_progress_follows_the_events_of_this_run_only(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = run_dir / "events.jsonl"
    _append(events, _event(0, "evaluated", when="before", step=0, avg_at_8=0.111, n_problems=16))
    with Progress(events):
        _append(
            events,
            _event(1, "ready", steps=4, resumed_at=2),
            _event(2, "evaluating", when="before", step=0),
            _event(3, "evaluated", when="before", step=0, **BEFORE),
            _event(4, "training"),
            _event(5, "step", step=3, **FIGURES),
            _event(6, "evaluating", when="during", step=3),
            _event(6, "trained", steps=3),
        )
        with events.open("a") as file:
            file.write('{"time": 7, "event": "ev')  # a line that is still being written
    lines = capsys.readouterr().out.splitlines()
    assert "steps, resuming after step 2" in lines[1]
    assert lines[2] == "evaluating before training ..."
    assert lines[3] == "before training: avg_at_8 0.375, pass_at_8 0.812 on 16 problems"
    assert step_line({"step": 3, **FIGURES}, 4) in lines
    assert "evaluating after step 3 ..." in lines
    assert not any("0.111" in line for line in lines)


def test_a_sweep_is_one_curve_for_each_value_in_the_order_of_the_values(tmp_path: Path) -> None:
    for value, last in (("1.2", 0.5), ("0.6", 0.25), ("10", 0.75)):
        (tmp_path / value).mkdir()
        evaluations = [{"step": 4, "avg_at_8": last, "n_problems": 16}, {"step": 0, **BEFORE}]
        (tmp_path / value / "summary.json").write_text(json.dumps({"evaluations": evaluations}))
    (tmp_path / "interrupted").mkdir()
    records = draw(tmp_path, "rollout.temperature")
    assert [record["value"] for record in records] == ["0.6", "1.2", "10"]
    assert records[1] == {"value": "1.2", "metric": "avg_at_8", "points": [(0, 0.375), (4, 0.5)]}
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_a_sweep_of_runs_without_evaluation_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "summary.json").write_text(json.dumps({"evaluations": []}))
    with pytest.raises(ValueError, match="eval.dataset"):
        draw(tmp_path, "rollout.temperature")
