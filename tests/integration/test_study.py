"""The study's table: means, intervals and differences of runs that are known."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from oger_recipe.report import arms, study, study_steps


def _run(regime: str, arm: str, seed: int, avg: float, curve: tuple[float, ...] = (0.0, 0.25)) -> arms.Record:
    own, other = ("countdown_4", "countdown_3") if regime == "beyond_reach" else ("countdown_3", "countdown_4")
    figures = {"avg_at_64": avg, "pass_at_8": 0.5, "pass_at_64": 0.75}
    return {
        "regime": regime,
        "arm": arm,
        "seed": seed,
        "steps": len(curve),
        "seconds": {"total": 90.0},
        "held_out": {own: figures, other: {name: 0.0 for name in figures}},
        "curves": {name: list(curve) for name in study.CURVES},
    }


def _rows(text: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def test_the_interval_is_students_over_the_seeds():
    mean, half = arms.interval([0.1, 0.2, 0.3])
    # s = 0.1, n = 3, t(0.975, 2) = 4.302653 (any table): 4.302653 * 0.1 / sqrt(3)
    assert mean == pytest.approx(0.2) and half == pytest.approx(0.2484138, abs=1e-6)
    assert math.isnan(arms.interval([0.4])[1])


def test_differences_are_from_runs_of_the_same_seed_in_any_order():
    records = [_run("beyond_reach", "grpo", seed, avg) for seed, avg in ((0, 0.10), (1, 0.20), (2, 0.90))]
    records += [_run("beyond_reach", "oger", seed, avg) for seed, avg in ((0, 0.30), (1, 0.50))]
    records += [_run("beyond_reach", "clip", seed, avg) for seed, avg in ((0, 0.25), (1, 0.55), (4, 0.9))]
    records += [_run("within_reach", "oger", 0, 0.9)]
    random.Random(0).shuffle(records)
    rows = _rows(study.table(records, "beyond_reach"))
    assert list(rows) == ["GRPO", "OGER (oger.yaml)", "OGER, teacher's negative advantage zeroed"]
    assert rows["GRPO"][:3] == ["3", "40.0 ± 108.3", ""]  # s = 43.589 points: 4.302653 * 43.589 / sqrt(3)
    # 20 and 30 points more: mean 25, s = 7.0711, t(0.975, 1) = 12.7062: 12.7062 * 7.0711 / sqrt(2)
    assert rows["OGER (oger.yaml)"][:4] == ["2", "40.0 ± 127.1", "+25.0 ± 63.5", ""]
    # 15 and 35 more than GRPO; 5 less and 5 more than OGER: s = 7.0711 again
    assert rows["OGER, teacher's negative advantage zeroed"][2:4] == ["+25.0 ± 127.1", "+0.0 ± 63.5"]
    assert rows["OGER (oger.yaml)"][4:] == ["50.0 ± 0.0", "75.0 ± 0.0", "0.125", "0.125", "0.0 ± 0.0", "1.5"]


def test_a_finished_run_is_read_kept_once_and_drawn(tmp_path: Path, capsys):
    folder = tmp_path / "beyond_reach" / "grpo" / "3"
    (folder / "eval").mkdir(parents=True)
    held_out = _run("beyond_reach", "grpo", 3, 0.25)["held_out"]
    (folder / "eval" / "step_00000.json").write_text(json.dumps({"benchmarks": {}}))
    (folder / "eval" / "step_00002.json").write_text(json.dumps({"benchmarks": held_out}))
    (folder / "summary.json").write_text(json.dumps({"steps": 2, "seconds": {"total": 61.26}}))
    steps = [{"step": step, **{name: 0.5 * step for name in study.CURVES}} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))

    def call(*arguments: str) -> int:
        try:
            arms.run(arguments, study.record, study.table, study.draw, study.REGIMES)
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    run = (str(tmp_path), "beyond_reach", "grpo", "3")
    assert call("has", *run) == 1
    assert call("add", *run) == 0
    assert call("has", *run) == 0
    (record,) = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert record["held_out"] == held_out and record["seconds"] == {"total": 61.3}
    assert record["curves"]["entropy_loss"] == [0.5, 1.0]
    assert call("table", str(tmp_path)) == 0
    (row,) = (tmp_path / "study.md").read_text().splitlines()[2:]  # no row for arms that have not been run
    assert row.startswith("| GRPO | 1 | 25.0 |")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "study.png") in capsys.readouterr().out


def _steps_run(arm: str, seed: int, avg: float, regime: str = "steps_beyond_reach") -> arms.Record:
    curves = {name: [1.0, 1.0, 1.0, 4.0, 4.0, 4.0] for name in study_steps.CURVES}
    held_out = {"avg_at_8": avg, "pass_at_8": 0.5}
    return {"regime": regime, "arm": arm, "seed": seed, "steps": 6, "seconds": {"total": 90.0},
            "held_out": held_out, "curves": curves}  # fmt: skip


def test_arms_of_step_rewards_are_held_against_outcome_alone_by_seed():
    records = [_steps_run("outcome", seed, avg) for seed, avg in ((0, 0.10), (1, 0.20), (2, 0.90))]
    records += [_steps_run("min", seed, avg) for seed, avg in ((1, 0.50), (0, 0.30))]
    records += [_steps_run("min", 0, 0.9, "steps_within_reach")]
    rows = _rows(study_steps.table(records, "steps_beyond_reach"))
    assert list(rows) == ["outcome alone", "min-form"]
    assert rows["outcome alone"][:3] == ["3", "40.0 ± 108.3", ""]
    # 20 and 30 points more, as above; of six steps the first three and the last three
    expected = ["2", "40.0 ± 127.1", "+25.0 ± 63.5", "50.0 ± 0.0", "1.00 to 4.00", "1.0 to 4.0", "1 to 4", "90"]
    assert rows["min-form"] == expected


def test_runs_of_step_rewards_are_kept_and_drawn(tmp_path: Path):
    folder = tmp_path / "steps_within_reach" / "sum" / "1"
    (folder / "eval").mkdir(parents=True)
    figures = {"avg_at_8": 0.25, "pass_at_8": 0.5, "avg_at_8_interval": [0.1, 0.4]}
    (folder / "eval" / "step_00002.json").write_text(json.dumps({"benchmarks": {"countdown": figures}}))
    (folder / "summary.json").write_text(json.dumps({"steps": 2, "seconds": {"total": 61.26}}))
    steps = [{"step": step, **{name: 0.5 * step for name in study_steps.CURVES}} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    known = (study_steps.record, study_steps.table, study_steps.draw, study_steps.REGIMES)
    arms.run(["add", str(tmp_path), "steps_within_reach", "sum", "1"], *known)
    with pytest.raises(SystemExit) as has:
        arms.run(["has", str(tmp_path), "steps_within_reach", "sum", "1"], *known)
    assert has.value.code == 0
    arms.run(["table", str(tmp_path)], *known)
    assert "| sum-form | 1 | 25.0 |" in (tmp_path / "study.md").read_text()
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
