"""The study's tables: means, intervals and differences of runs. Its pages and figures follow its lines."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest

from oger_recipe.base.files import read_jsonl
from oger_recipe.lab import arms, study, study_registered, study_solutions, study_steps
from oger_recipe.lab.bonus_ranks import bonus_ranks
from oger_recipe.report.panels import sheet, styles
from oger_recipe.teachers.store import Teacher, write_teacher_store

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "study"
LINES, STEPS_LINES, RIVALS, SOLUTIONS, CONFIRMED, FAIR, TEXT = (
    [line for line in read_jsonl(PAGES / f"results{name}.jsonl") if "failed" not in line]
    for name in ("", "_steps", "_rivals", "_solutions", "_confirm", "_fair", "_text")
)


def _run(regime: str, arm: str, seed: int, avg: float, curve: tuple[float, ...] = (0.0, 0.25)) -> arms.Record:
    own, other = ("countdown_4", "countdown_3") if regime == "beyond_reach" else ("countdown_3", "countdown_4")
    figures = {"avg_at_64": avg, "pass_at_4": 0.4, "pass_at_8": 0.5, "pass_at_16": 0.6, "pass_at_64": 0.75}
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
    assert list(rows) == ["GRPO", "OGER", "OGER, teacher's negative advantage zeroed"]
    assert rows["GRPO"][:3] == ["3", "40.0 ± 108.3", ""]  # s = 43.589 points: 4.302653 * 43.589 / sqrt(3)
    # Of two runs the values, in the order of the seeds: 20 and 30 points more than GRPO.
    assert rows["OGER"][:4] == ["2", "30.0, 50.0", "+20.0, +30.0", ""]
    # 15 and 35 more than GRPO; 5 less and 5 more than OGER; the third seed has no other to be held against.
    assert rows["OGER, teacher's negative advantage zeroed"][2:4] == ["+15.0, +35.0", "-5.0, +5.0"]
    scores = ["40.0, 40.0", "50.0, 50.0", "60.0, 60.0", "75.0, 75.0"]
    assert rows["OGER"][4:] == [*scores, "0.125", "0.125", "0.0, 0.0", "1.5"]


def test_differences_of_three_seeds_have_an_interval_and_a_p_value_and_seeds_that_are_alike_have_none():
    records = [_run("beyond_reach", "grpo", seed, 0.0) for seed in (0, 1, 2)]
    records += [_run("beyond_reach", "oger", seed, avg) for seed, avg in ((0, 0.1), (1, 0.2), (2, 0.3))]
    rows = _rows(study.table(records, "beyond_reach"))
    assert rows["GRPO"][1] == "0.0 each"
    # s = 10 points: t = 20 / (10 / sqrt(3)) = 3.4641 at two degrees of freedom: p = 1 - t / sqrt(2 + t^2) = 0.0742
    assert rows["OGER"][2] == "+20.0 ± 24.8 (p = 0.074)"
    assert arms.points([0.1, 0.1, 0.1]) == "10.0 each" and arms.points([0.25]) == "25.0"
    assert arms.p_value([0.1, 0.1001, 0.1002]) == "p < 0.001"


def test_two_arms_are_compared_in_every_k_over_the_seeds_that_both_have():
    records = [_run("within_reach", "oger", seed, 0.5) for seed in (0, 1)]
    records += [_run("within_reach", "luffy", seed, avg) for seed, avg in ((3, 0.9), (1, 0.75), (0, 0.5))]
    (row,) = _rows(study.compared(records)).items()
    assert row == ("within reach: LUFFY less OGER", ["+0.0, +25.0", *["+0.0, +0.0"] * 4])
    assert study.compared(records[:2]) == ""


@pytest.mark.parametrize(
    ("page", "tables"),
    [
        (
            PAGES / "README.md",
            [
                study_registered.overview(RIVALS),
                study_registered.compared(RIVALS),
                study.overview(LINES),
                study.compared(LINES),
                *study_solutions.tables(SOLUTIONS).split("\n\n"),
                *study_solutions.tables(CONFIRMED).split("\n\n"),
                *study_registered.tables(FAIR).split("\n\n"),
                *study_registered.tables(TEXT).split("\n\n"),
            ],
        ),
        (PAGES / "study.md", [study.tables(LINES)]),
        (PAGES / "steps.md", [study_steps.table(STEPS_LINES, regime) for regime in study_steps.REGIMES]),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_tables_of_a_page_are_those_of_the_lines(page: Path, tables: list[str]):
    assert [table for table in tables if table not in page.read_text()] == []


def test_the_table_of_the_readme_is_a_part_of_the_studys():
    section = (ROOT / "README.md").read_text().partition("## What teachers buy")[2].partition("\n\n**")[0]
    shown = [line for line in section.splitlines() if line.startswith("|")]
    assert [line for line in shown if line not in study_registered.overview(RIVALS).splitlines()] == []
    names = {line.split("|")[1].strip() for line in shown}
    assert names >= {study_registered.ARMS[arm] for arm in ("start", "grpo", "grpo_low", "sft_grpo", "luffy", "oger")}


def _held_out(regime: str, arm: str, score: str) -> list[float]:
    return [study._figure(run, study.REGIMES[regime], score) for run in arms.runs_by_arm(LINES, regime)[arm].values()]


def test_what_pages_say_of_differences_is_in_the_tables_of_the_lines():
    from scipy import stats

    text = (PAGES / "README.md").read_text()
    section = (ROOT / "README.md").read_text().partition("## What teachers buy")[2].partition("\n## ")[0]
    registered = "".join(map(study_registered.tables, (RIVALS, FAIR, TEXT)))
    registered += study_solutions.tables(SOLUTIONS) + study_solutions.tables(CONFIRMED)
    p_values = re.findall(r"[|] (\S+) [|] (\S+) [|]$", registered, re.MULTILINE)  # of comparisons, the last two cells
    assert len(p_values) > 20
    known = " ".join([study.tables(LINES), registered, *(f"p = {p}" for pair in p_values for p in pair)])
    interval = r"[+-]?\d+\.\d+ \[[+-]?\d+\.\d+, [+-]?\d+\.\d+\]"
    said = re.findall(rf"[+-]?\d+\.\d ± \d+\.\d|p = 0\.\d+|{interval}", f"{text} {section}")
    variants = [
        _held_out("beyond_reach", arm, "avg@64")
        for arm in study.ARMS
        if arm not in (*study.MAIN[1:], "start", "paper")
    ]
    known += f" p = {stats.f_oneway(*variants).pvalue:.2f}"
    assert len(said) > 100 and [each for each in said if each not in known] == []
    steps = study_steps.tables(STEPS_LINES)
    said = re.findall(r"\d+\.\d ± \d+\.\d|p = 0\.\d+", (PAGES / "steps.md").read_text().replace("\n", " "))
    assert len(said) > 30 and [each for each in said if each not in steps] == []


@pytest.mark.parametrize("of_study", [study, study_steps], ids=["study", "study_steps"])
def test_every_arm_of_a_study_has_a_colour_and_a_marker_of_its_own(of_study):
    looks = of_study.OF_ARMS
    assert looks.keys() == of_study.ARMS.keys()
    assert len({look.colour for look in looks.values()}) == len({look.marker for look in looks.values()}) == len(looks)


def test_lines_tell_who_scores_steps_and_more_arms_than_styles_are_refused():
    looks = {arm: look.line for arm, look in study_steps.OF_ARMS.items()}
    for arm, line in looks.items():
        if arm != "start":
            assert line == {"exact": "--", "bad": ":"}.get(arm.rpartition("_")[2], "-")
    with pytest.raises(ValueError, match="13 arms"):
        styles(map(str, range(13)))


def test_curves_of_a_share_near_one_do_not_fill_the_axis():
    records = [_run("within_reach", "oger", seed, 0.5, (0.96, 0.99, 0.97, 0.98)) for seed in (0, 1, 2)]
    _, (panel,) = sheet(1)
    study._draw_curves(panel, records, "rollout/solve_rate")
    low, high = panel.get_ylim()
    assert low < 0 < 0.99 < high and 0.03 / (high - low) < 0.05


def test_scores_that_are_small_stay_at_the_left_of_their_axis():
    _, (panel,) = sheet(1)
    arms.draw_scores(panel, {"oger": [0.01, 0.02, 0.03]}, study.SHORT, study.OF_ARMS, "a title")
    assert panel.get_xlim() == (-1, 25)


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
            arms.run(arguments, study.record, study.tables, study.draw)
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
    rows = [line for line in (tmp_path / "study.md").read_text().splitlines() if re.match("[|] [A-Z]", line)]
    assert len(rows) == 2  # none for arms that have not been run
    assert rows[0] == "| GRPO | 25.0 | 50.0 | 75.0 |  |  |  |  |" and rows[1].startswith("| GRPO | 1 | 25.0 |")
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
    expected = ["2", "30.0, 50.0", "+20.0, +30.0", "50.0, 50.0", "1.00 to 4.00", "1.0 to 4.0", "1 to 4"]
    assert rows["min-form"] == expected


def test_runs_of_step_rewards_are_kept_and_drawn(tmp_path: Path):
    folder = tmp_path / "steps_within_reach" / "sum" / "1"
    (folder / "eval").mkdir(parents=True)
    figures = {"avg_at_8": 0.25, "pass_at_8": 0.5, "avg_at_8_interval": [0.1, 0.4]}
    (folder / "eval" / "step_00002.json").write_text(json.dumps({"benchmarks": {"countdown": figures}}))
    (folder / "summary.json").write_text(json.dumps({"steps": 2, "seconds": {"total": 61.26}}))
    steps = [{"step": step, **{name: 0.5 * step for name in study_steps.CURVES}} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    known = (study_steps.record, study_steps.tables, study_steps.draw)
    arms.run(["add", str(tmp_path), "steps_within_reach", "sum", "1"], *known)
    with pytest.raises(SystemExit) as has:
        arms.run(["has", str(tmp_path), "steps_within_reach", "sum", "1"], *known)
    assert has.value.code == 0
    arms.run(["table", str(tmp_path)], *known)
    assert "| sum-form | 1 | 25.0 |" in (tmp_path / "study.md").read_text()
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


def _rivals_run(arm: str, seed: int, right: dict[str, list[int]], regime: str = "rivals_within_reach") -> arms.Record:
    curves = {name: [0.25, 0.25] for name in study_registered.CURVES}
    return {"regime": regime, "arm": arm, "seed": seed, "steps": 40, "seconds": {"total": 90.0},
            "samples": 32, "right": right, "curves": curves}  # fmt: skip


def _write_evaluation(folder: Path, step: int, answers: list[dict[str, object]]) -> None:
    """Write what a run leaves that was evaluated after a step; after none, it is the policy before training."""
    (folder / "eval").mkdir(parents=True, exist_ok=True)
    (folder / "eval" / f"step_{step:05d}.json").write_text(json.dumps({"benchmarks": {}}))
    text = "".join(json.dumps(answer) + "\n" for answer in answers)
    (folder / "eval" / f"step_{step:05d}.jsonl").write_text(text)
    (folder / "summary.json").write_text(json.dumps({"steps": 2, "seconds": {"total": 61.26}}))
    (folder / "metrics.jsonl").write_text(
        json.dumps({"step": 1} | dict.fromkeys(study_registered.CURVES, 0.5)) + "\n" if step else ""
    )


def test_a_runs_figures_are_of_its_last_two_evaluations():
    run = _rivals_run("grpo", 10, {"10": [8, 8], "40": [1, 0], "30": [2, 0]}) | {"samples": 8}
    assert study_registered.solved(run, 1).tolist() == [1.5 / 8, 0.0]
    # pass@4 of 2 and of 1 right among 8: 1 - C(6, 4) / C(8, 4) = 1 - 15 / 70, and 1 - C(7, 4) / C(8, 4) = 1 / 2
    assert study_registered.solved(run, 4).tolist() == pytest.approx([(1 - 15 / 70 + 0.5) / 2, 0.0])
    assert study_registered.solved(run, 4, 10).tolist() == [1.0, 1.0]


def test_intervals_are_over_seeds_and_problems():
    assert study_registered.over_both("a", np.full((3, 4), 0.5)) == (0.5, 0.5, 0.5)
    # Two seeds that differ, and two problems that do: a draw takes the same one twice with a chance of a half.
    of_seeds = np.array([[0.0, 0.0], [1.0, 1.0]])
    assert study_registered.over_both("b", of_seeds) == study_registered.over_both("c", of_seeds.T) == (0.5, 0.0, 1.0)
    # Of many seeds and problems that are drawn apart, the variance is the sum of both: 1 / 400 + 1 / 400, by 1.96.
    many = (np.arange(100)[:, None] % 2 + np.arange(100) % 2) / 1.0
    mean, low, high = study_registered.over_both("d", many)
    assert mean == 1.0 and (high - low) / 2 == pytest.approx(1.96 * math.sqrt(2 / 400), rel=0.08)
    # Six of eight seeds are of a policy whose values do not vary, and two of the one above: a quarter of its interval.
    assert study_registered.over_both("e", np.full((6, 5), 0.2), of_seeds) == pytest.approx((0.275, 0.15, 0.4))


def test_p_values_are_corrected_by_holm():
    """Times 3, 2 and 1 from the least on, never falling, at most 1."""
    assert study_registered.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert study_registered.holm([0.9, 0.5]) == [1.0, 1.0]
    assert study_registered.holm([0.04]) == [0.04]


def test_rivals_are_compared_by_seed_and_problem():
    all_right, none = {"30": [32, 32], "40": [32, 32]}, {"30": [0, 0], "40": [0, 0]}
    records = [_rivals_run("luffy", seed, all_right) for seed in (10, 11, 12)]
    records += [_rivals_run("grpo", 10, none), _rivals_run("grpo", 11, none), _rivals_run("grpo", 13, all_right)]
    records += [_rivals_run("grpo_kl", 10, none)]
    assert list(_rows(study_registered.compared(records))) == ["within reach, pass@8: LUFFY less GRPO"]
    (row,) = _rows(study_registered.compared(records)).values()
    assert row[:2] == ["2", "+100.0 [+100.0, +100.0]"]
    rows = _rows(study_registered.table(records, "rivals_within_reach"))
    assert rows["GRPO"][0] == "3" and rows["LUFFY"][1:5] == ["100.0 [100.0, 100.0]"] * 4
    assert rows["GRPO, KL 0.04"][5:] == ["0.250"]


def test_of_fewer_samples_there_are_fewer_columns():
    run = _rivals_run("luffy", 40, {"30": [16, 0]}) | {"samples": 16}
    head, _, row = study_registered.table([run], "rivals_within_reach").splitlines()
    assert "| avg@16 | pass@4 | pass@8 | entropy, end |" in head
    assert row.startswith("| LUFFY | 1 | 50.0 [0.0, 100.0] | 50.0 [0.0, 100.0] | 50.0 [0.0, 100.0] | 0.250 |")


def test_of_word_problems_the_table_says_what_the_bonus_is():
    run = _rivals_run("oger", 40, {"30": [8]}, "word_problems")
    run["curves"] |= {"oger/bonus_of_correct_std_in_group": [0.01, 0.03], "oger/replaced_correct": [5.0, 7.0]}
    other = run | {"seed": 41, "ranks": {"share": 0.03, "several": 0.75}}
    other["curves"] = run["curves"] | dict.fromkeys(run["curves"], [])  # no bonus, nothing replaced: no curve
    start = _rivals_run("start", 40, {"0": [0]}, "word_problems") | {"steps": 0}
    rows = _rows(
        study_registered.table([start, run | {"ranks": {"share": 0.01, "several": 0.25}}, other], "word_problems")
    )
    # Of 0.02 and 0, 1 and 3 %, 25 and 75 %, 6 and 0.
    assert rows["OGER"][-4:] == ["0.01", "2", "50", "3"]
    assert rows["before training"][-4:] == [""] * 4


def test_of_word_problems_avg_and_pass_at_8_are_compared_each_in_a_table():
    records = [_rivals_run("luffy", seed, {"30": [8]}, "word_problems") | {"samples": 8} for seed in (40, 41)]
    records += [_rivals_run("grpo", seed, {"30": [0]}, "word_problems") | {"samples": 8} for seed in (40, 41)]
    avg, pass_at_8 = study_registered.compared(records).split("\n\n")
    assert list(_rows(avg)) == ["word problems, avg: LUFFY less GRPO"]
    assert list(_rows(pass_at_8)) == ["word problems, pass@8: LUFFY less GRPO"]


def test_a_run_on_word_problems_keeps_what_its_bonus_did(tmp_path: Path):
    folder = tmp_path / "word_problems" / "oger" / "40"
    _write_evaluation(folder, 10, [{"uid": "a", "benchmark": "gsm8k", "sample": 0, "score": 1.0, "extracted": "17"}])
    (folder / "data").mkdir(exist_ok=True)
    write_teacher_store(
        {"b": [Teacher("forward", " 30+12=42, 42-25=17 #### 17", [], 1.0, 1.0)]}, folder / "data" / "teachers.arrow"
    )
    rows = [
        {"uid": "b", "answer": "17", "text": f" {text} #### {found}", "off_policy": False, "total_reward": reward}
        for text, found, reward in (
            ("12+30=42, 42-25=17", 17, 1.0), ("30-25=5, 5+12=17", 17, 1.5),
            ("12+5=17 of 30-25=5", 17, 1.5), ("30-25=4, 4+12=16", 16, 0.0),
        )
    ]  # fmt: skip
    (folder / "samples").mkdir()
    (folder / "samples" / "step_00001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # The teacher's way and two of another earn 1, 1.5 and 1.5 (1/6 of squares), one wrong 0 (3/2 of all).
    assert study_registered.record(folder, "word_problems", "oger", 40)["ranks"] == {
        "share": pytest.approx(1 / 9), "several": 1.0, "rarer": [0.0, 2], "new": [2.0, 2]
    }  # fmt: skip


def test_where_steps_earn_rewards_the_table_says_how_they_change_and_the_figure_how_long_responses_are(tmp_path: Path):
    curves = {name: [1.0, 1.0, 1.0, 4.0, 4.0, 7.0] for name in study_registered.CURVES}
    run = _rivals_run("outcome", 50, {"20": [8], "30": [8]}, "fair_steps_beyond_reach") | {"curves": curves}
    start = _rivals_run("start", 50, {"0": [0]}, "fair_steps_beyond_reach")
    start["curves"] = {name: [] for name in study_registered.CURVES}
    rows = _rows(study_registered.tables([start, run, run | {"seed": 51}]))
    # Of six steps all (18 / 6), and the first and the last three.
    assert rows["outcome alone"][-4:] == ["3.000", "1.00 to 5.00", "1.0 to 5.0", "1 to 5"]
    assert rows["before training"][-4:] == [""] * 4
    study_registered.draw([start, run], tmp_path / "fair.png")
    assert (tmp_path / "fair.png").read_bytes().startswith(b"\x89PNG")


def test_p_values_are_corrected_within_a_block():
    """One comparison of block A and one of its continuation: of each the p-value is the corrected one."""
    records = [
        _rivals_run(arm, seed, {"30": [right, seed], "40": [right, seed]})
        for arm, right in (("luffy", 9), ("grpo", 4), ("luffy_low", 8), ("grpo_low", 3)) for seed in (10, 11, 12)
    ]  # fmt: skip
    for run in records:  # so that differences vary over seeds
        run["right"]["40"] = [run["right"]["40"][0] + (run["seed"] % 3) * (run["arm"] == "luffy_low"), 0]
    first, second = study_registered.compared(records).split("\n\n")
    rows = _rows(first) | _rows(second)
    assert len(rows) == 3  # LUFFY less GRPO and its lower rate, and LUFFY's lower rate less GRPO's
    (alone,) = _rows(second).values()
    assert alone[-1] == alone[-2]


def test_arms_of_every_block_can_be_told_apart():
    always = {"start", "chord", "hpt", "luffy", "oger"}
    blocks = [{arm for _, _, *pair in block for arm in pair} for block in study_registered.COMPARED.values()]
    for arms_of in (always | block for block in (*blocks, {run["arm"] for run in RIVALS})):
        looks = study_registered._looks(arms_of)
        assert looks.keys() == arms_of
        assert len({(look.colour, look.line) for look in looks.values()}) == len(looks)
    variant, base = (study_registered._looks({"luffy", "luffy_low"})[arm] for arm in ("luffy_low", "luffy"))
    assert (variant.colour, variant.marker) == (base.colour, base.marker) and variant.line != base.line


def test_an_overview_has_a_row_for_every_arm_and_two_columns_for_every_regime_that_has_runs():
    half = {"30": [32, 0], "40": [32, 0]}
    records = [_rivals_run("luffy", seed, half) for seed in (10, 11)] + [_rivals_run("grpo", 10, {"40": [32, 32]})]
    assert study_registered.overview(records).startswith("| | within reach: avg | pass@8 |\n")
    records += [_rivals_run("luffy", 10, {"40": [0, 0]}) | {"regime": "rivals_beyond_reach"}]
    assert study_registered.overview(records).splitlines() == [
        "| | within reach: avg | pass@8 | beyond reach: avg | pass@8 |",
        "|---|---|---|---|---|",
        "| GRPO | 100.0 [100.0, 100.0] | 100.0 [100.0, 100.0] |  |  |",
        "| LUFFY | 50.0 [0.0, 100.0] | 50.0 [0.0, 100.0] | 0.0 [0.0, 0.0] | 0.0 [0.0, 0.0] |",
    ]


def test_a_rivals_run_is_kept_with_each_problems_right_samples_and_one_that_failed_is_kept_too(tmp_path: Path):
    for arm, step in (("start", 0), ("luffy", 10), ("luffy", 20)):
        answers = [
            {"uid": uid, "benchmark": "countdown", "sample": sample, "score": float(sample < right), "extracted": None}
            for uid, right in (("b", 12 + 4 * step // 10), ("a", 0))
            for sample in range(32)
        ]
        _write_evaluation(tmp_path / "rivals_within_reach" / arm / "10", step, answers)
    known = (study_registered.record, study_registered.tables, study_registered.draw)
    for arm in ("start", "luffy"):
        arms.run(["add", str(tmp_path), "rivals_within_reach", arm, "10"], *known)
    arms.run(["failed", str(tmp_path), "rivals_within_reach", "hpt", "10", "1"], *known)
    with pytest.raises(SystemExit) as has:
        arms.run(["has", str(tmp_path), "rivals_within_reach", "hpt", "10"], *known)
    assert has.value.code == 0
    lines = read_jsonl(tmp_path / "results.jsonl")
    assert lines[1]["right"] == {"10": [0, 16], "20": [0, 20]} and lines[1]["samples"] == 32
    assert lines[2] == {"regime": "rivals_within_reach", "arm": "hpt", "seed": 10, "failed": 1}
    arms.run(["table", str(tmp_path)], *known)
    text = (tmp_path / "study.md").read_text()
    assert "| LUFFY | 1 | 28.1 [" in text and "| before training | 1 | 18.8 [" in text and "HPT" not in text
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


def _solutions_run(arm: str, seed: int, classes: dict[str, list[list[int]]], regime: str = "many_solutions"):
    curves = {name: [0.25, 0.25] for name in study_registered.CURVES}
    return {"regime": regime, "arm": arm, "seed": seed, "steps": 20, "seconds": {"total": 90.0},
            "samples": 8, "known": [4, 2], "classes": classes, "curves": curves}  # fmt: skip


def test_values_are_read_where_an_average_is_first_reached():
    averages, values = [0.2, 0.4, 0.3, 0.6], [np.array([float(each)]) for each in (3, 2, 9, 1)]
    assert study_solutions.at_level(averages, values, 0.1) == 3
    assert study_solutions.at_level(averages, values, 0.4) == 2
    assert study_solutions.at_level(averages, values, 0.5) == pytest.approx(9 / 3 + 2 * 1 / 3)  # two thirds of the way
    with pytest.raises(ValueError, match=r"no average reaches 0\.7"):
        study_solutions.at_level(averages, values, 0.7)


def test_classes_are_compared_where_arms_are_equally_often_right():
    start = _solutions_run("start", 20, {"0": [[2, 1, 1], []]})  # avg 4 of 16, 3 and 0 classes
    # avg 8 of 16 with 1 and 1 classes; then 12 of 16.
    narrow = {"10": [[4], [4]], "20": [[8], [4]]}
    # avg 6 of 16 with 4 and 1 classes, then 8 of 16 with 2 and 2: the other's level at its first evaluation.
    wide = {"10": [[1, 1, 1, 1], [2]], "20": [[3, 1], [3, 1]]}
    records = [start]
    records += [_solutions_run("luffy_same", seed, narrow) for seed in (20, 21)]
    records += [_solutions_run("luffy", seed, wide) for seed in (20, 21, 22)]
    by_arm = arms.runs_by_arm(records, "many_solutions")
    found = study_solutions.differences(by_arm["luffy"], by_arm["luffy_same"], by_arm["start"])
    assert found.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    row = _rows(study_solutions.compared(records))[
        "LUFFY, teachers with different ones less LUFFY, teachers with one solution"
    ]
    assert row[:2] == ["2", "+1.00 [+1.00, +1.00]"]
    rows = _rows(study_solutions.table(records, "many_solutions"))
    # 8 of 16; both problems; 2 classes each, of 4 and of 2
    assert [cell.split(" ")[0] for cell in rows["LUFFY, teachers with different ones"]] == [
        "3", "50.0", "100.0", "2.00", "75.0", "1.5"
    ]  # fmt: skip
    other = [each | {"regime": "many_solutions_other"} for each in records]
    assert "| 4 | +1.00 [+1.00, +1.00] |" in study_solutions.compared(records + other)  # over both policies


def test_a_bonus_is_known_by_what_separates_right_rollouts_of_a_group():
    groups = [
        # Mean 0.9, squares 1.16; of the three right ones mean 1.2, squares 0.08. b is rarer and new, and earns most.
        ([(1.2, "a"), (1.0, "a"), (1.4, "b"), (0.0, None)], {"a"}),
        # Mean 7/6, squares 1/6, all right. c is rarer and shown: it earns as much as one d, and less than the other.
        ([(1.0, "c"), (1.0, "d"), (1.5, "d")], {"c"}),
        ([(0.1, None), (0.0, None)], set()),  # squares 0.005
        ([(1.0, "a"), (1.0, "a")], set()),
    ]
    found = bonus_ranks(groups)
    assert found["share"] == pytest.approx((0.08 + 1 / 6) / (1.16 + 1 / 6 + 0.005))
    assert found["several"] == 2 / 4
    assert found["rarer"] == [2 + 0.5, 4] and found["new"] == [2 + 1.5, 4]
    turned = bonus_ranks([(rows[::-1], shown) for rows, shown in groups[::-1]])
    assert turned == found | {"share": pytest.approx(found["share"])}


def test_only_what_is_paid_is_told_of_bonuses():
    ranks = {"share": 0.01, "several": 0.25, "rarer": [1.0, 4], "new": [3.0, 4]}
    other = {"share": 0.03, "several": 0.35, "rarer": [2.0, 2], "new": [0.0, 2]}
    records = [{"arm": "oger", "ranks": ranks}, {"arm": "oger", "ranks": other}, {"arm": "grpo"}]
    records.append({"arm": "luffy", "ranks": other | {"share": 0.0}})
    # 1 and 3, 25 and 35 on average; 3 of 6 pairs each.
    assert _rows(study_solutions.paid(records)) == {"OGER, different ones": ["2", "2", "30", "50 (of 6)", "50 (of 6)"]}
    assert study_solutions.paid(records[2:]) == ""


def test_a_run_keeps_the_classes_of_right_solutions_and_how_many_there_are(tmp_path: Path):
    for arm, step in (("start", 0), ("grpo", 10), ("grpo", 20)):
        said = ["1+2+3", "2*3", "2*3", None]
        answers = [
            {"uid": uid, "benchmark": "countdown_4", "sample": sample, "score": float(said[sample] is not None),
             "solution": said[sample], "answer": json.dumps({"numbers": [1, 2, 3], "target": target})}
            for uid, target in (("b", 6), ("a", 7))
            for sample in range(4)
        ]  # fmt: skip
        for answer in answers[4:]:  # one of a right solution that was not written in time, say
            answer["score"] = 0.0
        _write_evaluation(tmp_path / "many_solutions" / arm / "20", step, answers)
        (tmp_path / "many_solutions" / arm / "20" / "data").mkdir(exist_ok=True)
        teacher = Teacher("forward", "<answer>1+2+3</answer>", [], 1.0, 1.0)
        write_teacher_store({"b": [teacher]}, tmp_path / "many_solutions" / arm / "20" / "data" / "teachers.arrow")
    rows = [
        {"uid": "b", "answer": json.dumps({"numbers": [1, 2, 3], "target": 6}), "text": f"<answer>{said}</answer>",
         "off_policy": said == "1+2+3", "total_reward": reward}
        for said, reward in (("1+2+3", 9.0), ("3+2+1", 1.0), ("1*2*3", 1.5), ("2*3*1", 1.5), ("1+2-3", 0.0))
    ]  # fmt: skip
    rows.append(rows[2] | {"replaced": True})  # by the teacher: recorded before it would have earned a bonus
    del rows[-1]["total_reward"]
    samples = tmp_path / "many_solutions" / "grpo" / "20" / "samples" / "step_00001.jsonl"
    samples.parent.mkdir()
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = (study_solutions.record, study_solutions.tables, study_solutions.draw)
    for arm in ("start", "grpo"):
        arms.run(["add", str(tmp_path), "many_solutions", arm, "20"], *known)
    lines = read_jsonl(tmp_path / "results.jsonl")
    # 1 + 2 * 3 = 7 is the only way there; 6 is a sum and a product.
    assert lines[1]["known"] == [1, 2] and lines[1]["samples"] == 4
    assert lines[1]["classes"] == {"10": [[], [2, 1]], "20": [[], [2, 1]]}
    # A sum, which its teacher shows, and two products earn 1, 1.5 and 1.5 (1/6 of squares), one wrong 0 (3/2 of all).
    assert lines[1]["ranks"] == {"share": pytest.approx(1 / 9), "several": 1.0, "rarer": [0.0, 2], "new": [2.0, 2]}
    assert lines[0]["ranks"] == {"share": 0.0, "several": 0.0, "rarer": [0, 0], "new": [0, 0]}
    arms.run(["table", str(tmp_path)], *known)
    assert "| GRPO | 1 | 37.5 [" in (tmp_path / "study.md").read_text()
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
