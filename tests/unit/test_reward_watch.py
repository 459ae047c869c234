"""What a source follows besides the answer, and when reward and accuracy part; values by hand or from NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oger_recipe.algorithm.reward_watch import (
    LEAST,
    Drift,
    Growth,
    comoments,
    correlation,
    disagreement,
    drift,
    growth,
    pair_orders,
)

NAN = math.nan


def test_sums_are_taken_about_the_groups_means() -> None:
    """x: 1, 3 about 2 and 10, 10, 40 about 20; y: 5, 1 about 3 and 0, 3, 3 about 2."""
    x = torch.tensor([[1.0, 3.0, NAN], [10.0, 10.0, 40.0]])
    y = torch.tensor([[5.0, 1.0, 7.0], [0.0, 3.0, 3.0]])
    assert comoments(x, y).tolist() == [5, 2 + 600, 8 + 6, -4 + 20 - 10 + 20]
    assert comoments(y, x).tolist() == [5, 14, 602, 26]


def test_the_correlation_is_pearsons_of_what_is_left_of_rows_without_their_groups_means() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 30, 5)
    y = y + 0.8 * x + 100 * torch.arange(30.0).unsqueeze(1)  # prompts differ by far more than their rows do
    left = [(each - each.mean(dim=1, keepdim=True)).flatten().numpy() for each in (x, y)]
    expected = np.corrcoef(*left)[0, 1]
    assert correlation(comoments(x, y)) == pytest.approx(expected, abs=1e-5) and expected > 0.4
    assert correlation(comoments(x, -y)) == pytest.approx(-expected, abs=1e-5)
    halves = comoments(x[:10], y[:10]) + comoments(x[10:], y[10:])
    assert correlation(halves) == pytest.approx(expected, abs=1e-5)


def test_rows_that_one_of_the_two_lacks_and_groups_of_one_do_not_count() -> None:
    x = torch.tensor([[0.0, 1.0, 50.0, NAN], [7.0, NAN, NAN, NAN]])
    y = torch.tensor([[0.0, 2.0, NAN, -9.0], [3.0, 3.0, 3.0, 3.0]])
    assert comoments(x, y).tolist() == [2, 0.5, 2, 1]
    assert comoments(torch.full((2, 3), NAN), torch.ones(2, 3)).tolist() == [0, 0, 0, 0]
    assert comoments(torch.ones(0, 3), torch.ones(0, 3)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e7 / 3, 0.1 * 2**40])
def test_what_does_not_vary_within_groups_has_no_correlation_and_too_few_rows_have_none(constant: float) -> None:
    varying = torch.arange(LEAST * 3.0).view(-1, 3)
    same = torch.full_like(varying, constant, dtype=torch.float64)  # whose mean may be off by its last digit
    assert math.isnan(correlation(comoments(same, varying)))
    assert math.isnan(correlation(comoments(varying, same)))
    assert math.isnan(correlation(comoments(varying[:33], varying[:33])))  # 99 rows
    assert correlation(comoments(varying[:34], varying[:34])) == pytest.approx(1.0)
    assert correlation(torch.tensor([100.0, 1.0, 1.0, 0.5])) == 0.5
    assert [correlation(torch.tensor([100.0, 1.0, 1.0, sign * 1.01])) for sign in (1, -1)] == [1.0, -1.0]  # rounding


def test_pairs_are_counted_where_both_order_them() -> None:
    """Group 1: the rule says row 0 > rows 1, 2; the values put row 1 above and row 2 below it. Group 2: the rule ties
    rows 0 and 1, of row 3 nothing is known; 0 and 1 are put above row 2 by both."""
    rule = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.5, 0.0]])
    values = torch.tensor([[0.5, 0.9, 0.1, 0.5], [3.0, 2.0, 1.0, NAN]])
    assert pair_orders(values, rule).tolist() == [4, 1]
    assert pair_orders(-values, rule).tolist() == [4, 3]


def test_disagreement_is_the_share_of_pairs_and_needs_enough_of_them() -> None:
    assert disagreement(torch.tensor([200.0, 50.0])) == 0.25
    assert disagreement(torch.tensor([100.0, 50.0])) == 0.5
    assert math.isnan(disagreement(torch.tensor([99.0, 50.0])))


REWARDS = {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0, 5: 1.25, 6: 1.5}


@pytest.mark.parametrize(
    ("accuracy", "found"),
    [
        ({0: 0.5, 6: 0.25}, Drift(0, 0.25, 1.375 - 0.25)),  # before training: the first step's rollouts
        ({0: 0.5, 2: 0.75, 6: 0.25}, Drift(2, 0.5, 1.375 - 0.375)),
        ({2: 0.75, 4: 0.75, 6: 0.5}, Drift(4, 0.25, 1.375 - 0.875)),  # the later of two best ones
        ({2: 0.5, 6: 0.75}, Drift(2, -0.25, 1.0)),
        ({6: 0.75}, None),
        ({}, None),
        ({0: 0.5, 20: 0.25}, None),  # rewards are not known there
    ],
)
def test_the_newest_evaluation_is_compared_with_the_best_one(accuracy, found) -> None:
    assert drift(REWARDS, accuracy, window=2) == found


def test_rewards_that_are_not_known_at_the_best_evaluation_are_compared_with_nothing() -> None:
    assert drift({6: 1.5}, {2: 0.5, 6: 0.25}, window=2) is None


@pytest.mark.parametrize(
    ("sizes", "solved", "found"),
    [
        ([4, 6, 8, 12], [0.5, 0.75, 0.25, 0.5], Growth(2, 0.25, 10 / 5)),
        ([4, 4, 5, 5, 8, 8], [0.75, 0.75, 0.5, 0.5, 0.25, 0.25], Growth(2, 0.5, 8 / 4)),  # the best window
        ([4, 4, 5, 5, 8, 8], [0.5, 0.5, 0.5, 0.5, 0.25, 0.25], Growth(4, 0.25, 8 / 5)),  # the later of two best ones
        ([4, 4, 8, 8], [0.25, 0.25, 0.5, 0.5], Growth(2, -0.25, 8 / 4)),  # the newest is never the best
        ([9, 4, 6, 8, 12], [1.0, 0.5, 0.75, 0.25, 0.5], Growth(3, 0.25, 10 / 5)),  # windows end with the newest step
        ([4, 4, None, 5, 8, 8], [0.5, 0.5, None, 1.0, 0.25, 0.25], Growth(2, 0.25, 8 / 4)),  # a gap
        ([4, 4, 6, 6, None, 8], [0.5, 0.5, 0.5, 0.5, None, 0.25], None),  # the newest window is not known
        ([4, 4, None, 8], [0.5, 0.5, 0.25, 0.25], None),
        ([4, 4, 8], [0.5, 0.5, 0.25], None),
        ([0, 0, 8, 8], [0.5, 0.5, 0.25, 0.25], None),
        ([], [], None),
    ],
)
def test_the_newest_window_is_compared_with_the_best_one_before_it(sizes, solved, found) -> None:
    of_sizes, of_solved = (
        {step: float(each) for step, each in enumerate(values, start=1) if each is not None}
        for values in (sizes, solved)
    )
    assert growth(of_sizes, of_solved, window=2) == found
