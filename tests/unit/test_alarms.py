"""When an alarm is raised, when it is not, and that healthy runs raise none; histories by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.algorithm.alarms import ALARMS, History, found, still_solves

SOLVED, ENTROPY, LENGTH, STEPS = "rollout/solve_rate", "rollout/entropy", "rollout/response_length", "rollout/steps"
TRUNCATED, FORMAT, NORM, EQUAL = "rollout/truncated", "rollout/format", "actor_grad_norm", "oger/equal_groups"
DIFFERENCE, LIMIT, READ = "vllm_logprob_difference", "vllm_logprob_limit", "oger/embedding_share_read"
TEACHERS, RIGHT, PAID = "oger/off_on_ratio", "oger/off_score", "oger/on_reward"
LONGER, FORM, ORDER = (
    f"reward/judge/{end}" for end in ("length_correlation", "format_correlation", "rule_disagreement")
)


def history(columns: dict[str, list[float | None]], accuracy: dict[int, float] | None = None, **given: Any) -> History:
    """A run by the columns of its metrics, with windows of two steps."""
    (count,) = {len(values) for values in columns.values()}
    steps = [{name: values[at] for name, values in columns.items()} for at in range(count)]
    return History(steps, accuracy or {}, **{"window": 2} | given)


def limits(name: str, columns: dict[str, list[float | None]], accuracy: dict[int, float] | None = None) -> list:
    return [(each.value, each.limit) for each in found(name, history(columns, accuracy))]


# name, a run that raises it, (value, limit), and the same but for the least that makes it no alarm.
Columns = dict[str, list[float | None]]
RAISED: list[tuple[str, Columns, tuple[float, float], Columns]] = [
    ("entropy_gone", {ENTROPY: [1.0, 3.0, 0.5, 0.1, 0.1]}, (0.1, 0.2), {ENTROPY: [1.0, 3.0, 0.5, 0.2, 0.2]}),
    ("entropy_growing", {ENTROPY: [0.2, 0.3, 0.7, 0.6]}, (0.65, 0.6), {ENTROPY: [0.2, 0.3, 0.7, 0.5]}),
    (
        "length_collapsing",
        {LENGTH: [30, 60, 20, 14, 10], SOLVED: [0.25, 0.25, 0.9, 0.25, 0.25]},
        (12, 15),
        {LENGTH: [30, 60, 20, 16, 14], SOLVED: [0.25, 0.25, 0.9, 0.25, 0.25]},
    ),
    (
        "length_growing",
        {LENGTH: [40, 40, 40, 60, 60], SOLVED: [0.0, 0.6, 0.5, 0.4, 0.4]},
        (60, 60),
        {LENGTH: [40, 40, 41, 60, 60], SOLVED: [0.0, 0.6, 0.5, 0.4, 0.4]},
    ),
    (
        "steps_growing",
        {STEPS: [4, 4, 5, 5], SOLVED: [0.6, 0.6, 0.5, 0.5]},
        (5, 4.8),
        {STEPS: [4, 4, 5, 5], SOLVED: [0.6, 0.6, 0.6, 0.5]},  # hardly fewer are right
    ),
    ("truncation", {TRUNCATED: [0.0, 0.3, 0.25]}, (0.275, 0.25), {TRUNCATED: [1.0, 0.25, 0.25]}),
    ("equal_groups", {EQUAL: [0.0, 0.9, 0.8]}, (0.85, 0.8), {EQUAL: [1.0, 0.8, 0.8]}),
    ("gradient_norm", {NORM: [1, 9, 2, 2, 3, 21]}, (21, 20), {NORM: [1, 9, 2, 2, 3, 20]}),
    ("solve_rate_lost", {SOLVED: [0.1, 0.3, 0.1, 0.04, 0.0]}, (0.02, 0.05), {SOLVED: [0.1, 0.3, 0.1, 0.1, 0.0]}),
    ("never_solved", {SOLVED: [0.0, 0.0]}, (0.0, 0.0), {SOLVED: [0.0, 0.0, 0.001, 0.0]}),
    ("never_verified", {FORMAT: [1.0, 0.0, 0.18]}, (0.09, 0.1), {FORMAT: [0.0, 0.0, 0.2]}),
    (
        "teachers_never_right",
        {TEACHERS: [0.1, 0.1, 0.1], RIGHT: [1.0, 0.0, 0.0]},
        (0.0, 0.0),
        {TEACHERS: [0.0, 0.0, 0.0], RIGHT: [1.0, 0.0, 0.0]},  # there are none
    ),
    (
        "engine_parted",
        {DIFFERENCE: [0.1, 0.08, 0.08], LIMIT: [0.1] * 3},
        (0.08, 0.075),
        {DIFFERENCE: [0.1, 0.08, 0.07], LIMIT: [0.1] * 3},
    ),
    ("embedding_truncated", {READ: [1.0, 0.4]}, (0.4, 0.995), {READ: [0.4, 0.995]}),
    ("length_correlation", {LONGER: [0.0, -0.6]}, (-0.6, 0.5), {LONGER: [0.6, 0.5]}),
    ("format_correlation", {FORM: [0.0, 0.95]}, (0.95, 0.9), {FORM: [0.95, -0.9]}),
    ("rule_disagreement", {ORDER: [0.0, 0.7]}, (0.7, 0.6), {ORDER: [0.7, 0.6]}),
]  # fmt: skip


@pytest.mark.parametrize("name, columns, expected, calm", RAISED, ids=[each[0] for each in RAISED])
def test_an_alarm_is_raised_beyond_its_limit_and_not_at_it(name, columns, expected, calm) -> None:
    (value_and_limit,) = limits(name, columns)
    assert value_and_limit == pytest.approx(expected)
    assert limits(name, calm) == []
    (finding,) = found(name, history(columns))
    assert finding.text and not finding.text.endswith(".") and finding.metric in columns


def test_every_alarm_has_a_case() -> None:
    assert {each[0] for each in RAISED} | {"reward_without_accuracy"} == set(ALARMS)


@pytest.mark.parametrize("name, columns, _, calm", RAISED, ids=[each[0] for each in RAISED])
def test_what_is_not_known_raises_nothing(name: str, columns: Columns, _: Any, calm: Columns) -> None:
    for unknown in (None, math.nan, math.inf):
        assert limits(name, {metric: [*values[:-1], unknown] for metric, values in columns.items()}) == []
    assert found(name, History([])) == [] == found(name, History([{}] * 50))


@pytest.mark.parametrize(
    "accuracy, rewards, expected",
    [
        ({0: 0.5, 2: 0.4}, [0.2, 0.3], [(0.1, 0.05)]),
        ({0: 0.5, 2: 0.45}, [0.2, 0.3], []),
        ({0: 0.5, 2: 0.4}, [0.3, 0.2], []),  # the reward falls, too
        ({0: 0.05, 2: 0.0}, [0.2, 0.3], []),
        ({0: 0.5, 2: 0.4}, [0.2, 0.2], []),
        ({2: 0.4}, [0.2, 0.3], []),
    ],
)
def test_a_reward_that_rises_while_held_out_accuracy_falls(accuracy, rewards, expected) -> None:
    raised = limits("reward_without_accuracy", {PAID: rewards}, accuracy)
    assert raised == [tuple(map(pytest.approx, each)) for each in expected]


def test_a_solve_rate_that_is_lost_is_not_silenced_by_a_lucky_hit_nor_raised_by_chance() -> None:
    lost = {SOLVED: [0.3] * 10 + [0.0, 0.0, 0.05, 0.0, 0.0]}
    (finding,) = found("solve_rate_lost", history(lost, window=10))
    assert finding.value == pytest.approx(0.01) and finding.limit == pytest.approx(0.075)
    assert "it solved 0.300 of its rollouts at its best, and 0.010 in the last 5 steps" in finding.text
    assert limits("solve_rate_lost", {SOLVED: [0.04, 0.05, 0.0, 0.0]}) == []  # chance: below 0.05 at its best
    assert limits("solve_rate_lost", {SOLVED: [0.05, 0.05, 0.0, 0.0]})
    assert limits("solve_rate_lost", {SOLVED: [0.0] * 4}) == []
    peak = {SOLVED: [0.1] * 9 + [1.0] + [0.1] * 10}  # one step; the best mean of ten is 0.19
    assert found("solve_rate_lost", history(peak, window=10)) == []


def test_the_best_solve_rate_is_a_mean_of_as_many_steps_as_the_recent_ones_at_least() -> None:
    lucky = {SOLVED: [0.06] + [0.012] * 10}  # of 5 steps at best (0.06 + 4 * 0.012) / 5 = 0.0216
    assert found("solve_rate_lost", history(lucky, window=10)) == []
    (finding,) = found("solve_rate_lost", history({SOLVED: [0.3] * 5 + [0.0] * 5}, window=10))
    assert finding.limit == pytest.approx(0.075)
    assert found("solve_rate_lost", history({SOLVED: [0.3] * 4 + [0.0] * 5}, window=10)) == []  # the fifth is a 0


@pytest.mark.parametrize(
    ("rates", "good"),
    [
        ([], False),
        ([0.0], False),
        ([0.001], True),  # so far it has nothing to lose
        ([0.001, 0.0], False),
        ([0.3] * 4 + [0.01], True),  # the best mean is of five steps
        ([0.3] * 5 + [0.07], False),  # a quarter of 0.3 is 0.075: it may be the first step of a collapse
        ([0.3] * 5 + [0.08], True),
        ([0.3] * 5 + [0.07] * 9 + [0.08], False),  # a lucky one: the last five are at 0.072
        ([0.3] * 5 + [0.07, 0.07] + [0.08] * 5, True),
        ([0.04] * 5 + [0.001], True),  # below 0.05 it was chance
        ([0.3] * 5 + [math.nan], False),
    ],
)
def test_a_policy_that_has_solved_something_and_not_lost_it_still_solves(rates: list[float], good: bool) -> None:
    assert still_solves(history({SOLVED: rates}, window=10)) == good


def test_a_lucky_hit_silences_the_alarm_of_no_right_rollout_for_a_window() -> None:
    def said(rates: list[float]) -> list[str]:
        return [each.text for each in found("never_solved", history({SOLVED: rates}, window=3))]

    assert said([0.0] * 4) == ["no rollout has been right in 4 steps"]
    assert said([0.0] * 4 + [0.004]) == said([0.004, 0.0, 0.0]) == []
    assert said([0.0] * 4 + [0.004] + [0.0] * 2) == []
    assert said([0.0] * 4 + [0.004] + [0.0] * 3) == ["no rollout has been right in the last 3 steps"]
    assert said([0.3, 0.2, 0.004] + [0.0] * 5) == ["no rollout has been right in the last 5 steps"]


def test_shorter_responses_that_solve_more_and_longer_ones_that_solve_hardly_less_are_none() -> None:
    assert limits("length_collapsing", {LENGTH: [30, 60, 20, 9, 9], SOLVED: [0.25, 0.25, 0.9, 0.25, 0.3]}) == []
    assert limits("length_growing", {LENGTH: [20, 20, 40, 40], SOLVED: [0.05, 0.05, 0.0, 0.0]}) == []
    assert limits("length_growing", {LENGTH: [20, 20, 40, 40], SOLVED: [0.06, 0.06, 0.0, 0.0]}) != []


def test_levels_of_a_run_are_not_known_in_its_first_steps() -> None:
    """Two windows: the first steps, and the recent ones behind them."""
    falls = [1.0] * 10 + [0.01] * 5
    assert found("entropy_gone", history({ENTROPY: falls}, window=10))
    assert not found("entropy_gone", history({ENTROPY: falls[1:]}, window=10))
    assert not found("gradient_norm", history({NORM: [1.0, 1.0, 1.0, 1.0, 100.0]}))  # four before
    assert not found("gradient_norm", history({NORM: [0.0] * 9 + [1.0]}))  # nothing was learnt before
    assert not found("never_solved", history({SOLVED: [0.0] * 9}, window=10))
    assert not found("equal_groups", history({EQUAL: [1.0]}))


def test_the_median_is_of_the_fifty_steps_before() -> None:
    assert limits("gradient_norm", {NORM: [*[100.0] * 60, *[1.0] * 26, 11.0]}) == [(11.0, 10.0)]
    assert limits("gradient_norm", {NORM: [*[100.0] * 60, *[1.0] * 24, 11.0]}) == []


def test_each_source_raises_an_alarm_of_its_own_unless_it_is_excused() -> None:
    columns: Columns = {f"reward/{name}/length_correlation": [0.9] for name in ("rule", "a.b", "judge")}
    run = history(columns, excused={"reward/rule/length_correlation"})
    raised = found("length_correlation", run)
    assert [each.metric for each in raised] == ["reward/a.b/length_correlation", "reward/judge/length_correlation"]
    assert "reward source a.b pays for longer answers" in raised[0].text
    (shorter,) = found("length_correlation", history({LONGER: [-0.9]}))
    assert "pays for shorter answers" in shorter.text


@pytest.mark.parametrize("window", [2, 5, 10])
def test_a_healthy_run_raises_none(window: int) -> None:
    """Sixty steps of the default recipe, with teachers and bonus, as they were recorded; it was evaluated twice."""
    columns = json.loads((Path(__file__).parent / "healthy_run.json").read_text())
    excused = {"reward/rule/length_correlation"}
    run = history(columns, {0: 0.19, 60: 0.35}, window=window, excused=excused)
    for step in range(1, len(run.steps) + 1):
        until = History(run.steps[:step], {0: 0.19} if step < 60 else run.accuracy, window, excused)
        assert [name for name in ALARMS if found(name, until)] == [], step
