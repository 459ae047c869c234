"""Kind ``unlikeliness``: values by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from groups import group

from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.rewards.compose import Rewards, rewards_of
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.kinds.verifier import Verifier

LOG_PROBS = [-5.0, -2.0, -9.0, -7.0]  # ranks 2, 3, 0, 1


def paid(rewards: list[float], weight: float = 0.25, **facts: Any) -> Rewards:
    entries = [{"name": "rule", "kind": "verifier"}, {"name": "rank", "kind": "unlikeliness", "weight": weight}]
    assert not [*entry_problems(entries)]
    specs = sources_of(entries)
    sources = [Verifier(0.0, None), specs[1].source(None)]  # type: ignore[arg-type]
    return rewards_of([group(rewards, **({"log_prob": LOG_PROBS} | facts))], sources, specs, on_error="zero")


@pytest.mark.parametrize(
    ("rewards", "total"),
    [
        ([1, 1, 1, 1], [1 - 2 / 16, 1 - 3 / 16, 1, 1 - 1 / 16]),
        ([1, 0, 0, 1], [1 - 2 / 16, 0, 0, 1 - 1 / 16]),  # wrong rows are ranked, too
        ([0, 1, 0, 0], [0, 1 - 3 / 16, 0, 0]),
        ([0, 0.1, 0, 0], [0, 0.1, 0, 0]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_a_right_rows_reward_falls_with_its_rank(rewards: list[float], total: list[float]) -> None:
    assert paid(rewards).total.tolist() == [pytest.approx(total)]


def test_the_released_codes_ranks_times_the_reward() -> None:
    """Its ranks are positions in the order of log-probabilities from the lowest, over the size of the group."""
    order = sorted(LOG_PROBS)
    expected = [1 - 0.5 * order.index(each) / len(order) for each in LOG_PROBS]
    assert paid([1, 1, 1, 1], weight=0.5).total.tolist() == [pytest.approx(expected)]


def test_equally_likely_rows_share_their_ranks() -> None:
    total = paid([1, 1, 1, 1], log_prob=[-3.0, -3.0, -3.0, -1.0], weight=1.0).total
    assert total.tolist() == [pytest.approx([1 - 1 / 4, 1 - 1 / 4, 1 - 1 / 4, 1 - 3 / 4])]


def test_teachers_are_not_ranked_and_a_row_that_may_not_earn_counts_as_the_likeliest() -> None:
    of_teacher = {"is_teacher": [False, True, False, False], "may_earn": [True, False, True, False]}
    for log_prob in (LOG_PROBS, [-5.0, -90.0, -9.0, -7.0], [-5.0, math.nan, -9.0, -7.0]):
        found = paid([1, 1, 1, 1], weight=1.0, log_prob=log_prob, **of_teacher)
        assert found.total.tolist() == [pytest.approx([1 - 2 / 3, 1, 1, 1 - 2 / 3])] and not found.errors["rank"]


def test_what_it_says_of_wrong_rows_and_teachers_is_nothing() -> None:
    graded = [Graded(Verdict(reward, float(reward == 1), "")) for reward in (1.0, 0.1, 1.0, 0.1)]
    found = paid([1] * 4, graded=graded, is_teacher=[False, False, True, False], may_earn=[True, True, False, True])
    assert found.said["rank"].tolist() == [pytest.approx([-1 / 3, 0, 0, 0])]  # of three, one is less likely


def test_an_unknown_log_probability_is_a_failure() -> None:
    found = paid([1, 1, 0, 1], weight=1.0, log_prob=[-5.0, math.nan, math.nan, -7.0])
    assert found.errors["rank"] == {1: "the policy's log-probability of this response is not known"}
    assert found.total.tolist() == [pytest.approx([0.5, 1, 0, 1])]
    assert len(paid([1, 1, 0, 1], log_prob=[]).errors["rank"]) == 3


def test_a_rows_own_reward_is_what_it_loses_a_share_of() -> None:
    graded = [Graded(Verdict(reward, 1.0, "")) for reward in (2.0, 1.5, 1.0, 1.0)]
    assert paid([1] * 4, graded=graded).terms["rank"].tolist() == [
        pytest.approx([-2 * 2 / 16, -1.5 * 3 / 16, 0, -1 / 16])
    ]


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ({"weight": -1}, "likely solutions would be paid more"),
        (
            {"combine": "mul"},
            "combine mul with kind unlikeliness: its values are 0 or less, so right rows would be paid",
        ),
    ],
)
def test_entries_that_would_pay_for_the_opposite_are_refused(further: dict[str, Any], words: str) -> None:
    (problem,) = entry_problems(
        [{"name": "rule", "kind": "verifier"}, {"name": "rank", "kind": "unlikeliness", **further}]
    )
    assert words in problem
