"""Metrics of judges, computed by hand."""

import math

import pytest

from oger_recipe.evaluation.judge_metrics import JudgedPair, Prices, Work, label_metrics, pair_metrics


def test_pairs_by_hand() -> None:
    pairs = [
        JudgedPair(True, 1, 0),  # right in both orders: the first answer, then the second one that was read
        JudgedPair(True, 1, 1),  # always the one that is read first: right, then wrong
        JudgedPair(False, 1, 0),  # wrong in both
        JudgedPair(False, 0, 0.5),  # right, and a tie
        JudgedPair(True, None, 0),  # no verdict, and right
    ]
    found = pair_metrics(pairs)
    assert found == {
        "pairs": 5,
        "verdicts": 10,
        "accuracy": pytest.approx(5 / 10),
        "accuracy_of_read": pytest.approx(5 / 8),
        "accuracy_of_pairs": pytest.approx(3 / 5),  # the first, the fourth and the fifth
        "consistency": pytest.approx(2 / 4),  # the first and the third
        "prefers_first": pytest.approx(4 / 8),  # 1 0, 1 1, 1 0, 0 -, - 0: four of eight
        "ties": pytest.approx(1 / 10),
        "unread": pytest.approx(1 / 10),
    }


def test_a_judge_that_always_reads_the_same_place_is_half_right_and_never_consistent() -> None:
    found = pair_metrics([JudgedPair(first, 1, 1) for first in (True, False, True)])
    assert (found["accuracy"], found["accuracy_of_pairs"]) == (0.5, 0)
    assert (found["consistency"], found["prefers_first"]) == (0, 1)


def test_two_ties_are_consistent_and_not_right() -> None:
    found = pair_metrics([JudgedPair(True, 0.5, 0.5)])
    assert (found["accuracy"], found["consistency"], found["ties"]) == (0, 1, 1)
    assert math.isnan(found["prefers_first"])


def test_labels_of_0_and_1_by_hand() -> None:
    found = label_metrics([1, 1, 0, 0, 1], [0.9, 0.5, 0.5, 0.1, None], threshold=0.5)
    assert found["accuracy"] == pytest.approx(3 / 5)  # 0.5 of label 0 counts as 1; what is not read is not right
    assert found["auc"] == pytest.approx(3.5 / 4)
    assert found["unread"] == pytest.approx(1 / 5)
    # values less 0.5: 0.4, 0, 0, -0.4; labels less 0.5: 0.5, 0.5, -0.5, -0.5: 0.4 / sqrt(0.32)
    assert found["correlation"] == pytest.approx(0.4 / math.sqrt(0.32))
    assert label_metrics([1, 0], [0.3, 0.2], threshold=0.3)["accuracy"] == 1


def test_other_labels_have_ranks() -> None:
    found = label_metrics([1, 2, 3, 10], [0, 1, 5, 6], threshold=0.5)
    assert "accuracy" not in found and found["rank_correlation"] == pytest.approx(1)
    assert found["correlation"] < 0.9
    # ranks 1, 2.5, 2.5, 4 and 2, 1, 3, 4: deviations -1.5 0 0 1.5 and -.5 -1.5 .5 1.5: 3 / sqrt(4.5 * 5)
    assert label_metrics([1, 2, 2, 10], [1, 0, 5, 6], 0.5)["rank_correlation"] == pytest.approx(3 / math.sqrt(22.5))


def test_speed_and_cost_by_hand() -> None:
    work = Work(asked=200, seconds=50.0, tokens=(100_000, 20_000))
    assert work.per_second() == 4
    # 0.1 million at 2 and 0.02 million at 10 are 0.4 for 200 verdicts
    assert work.cost_per_1000(Prices(per_million_tokens=(2, 10))) == pytest.approx(2.0)
    assert work.cost_per_1000(Prices(per_hour=36)) == pytest.approx(2.5)  # 250 seconds of 0.01
    assert math.isnan(work.cost_per_1000(Prices()))
    assert math.isnan(Work(0, 0.0).per_second())
    assert math.isnan(Work(5, 1.0).cost_per_1000(Prices(per_million_tokens=(2, 10))))
