"""Values within their group, over the run so far and over a batch, against plain Python; and GDPO from end to end."""

from __future__ import annotations

import math
import random
from statistics import mean, stdev

import pytest
import torch

from oger_recipe.algorithm.credit import BATCH_ESTIMATORS, hybrid_advantages
from oger_recipe.algorithm.normalize import Running, batch_normalized, group_normalized

EPS = 1e-6


def compared(values: list[float], others: list[float]) -> list[float]:
    """(x - mean) / (std + eps), with the std over n - 1, which one value alone has not."""
    spread = stdev(others) if len(others) > 1 else 0.0
    return [(value - mean(others)) / (spread + EPS) for value in values]


# Within a group


def test_a_groups_values_are_compared_with_each_other() -> None:
    # 1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9 = 14, std sqrt(14/3)
    values = torch.tensor([[1.0, 2.0, 3.0, 6.0], [5.0, 5.0, 7.0, 7.0]])
    found = group_normalized(values, torch.ones(2, 4, dtype=torch.bool))
    root = math.sqrt(14 / 3)
    assert found[0].tolist() == pytest.approx([-2 / root, -1 / root, 0.0, 3 / root], abs=1e-5)
    assert found[1].tolist() == pytest.approx([-(3**0.5) / 2, -(3**0.5) / 2, 3**0.5 / 2, 3**0.5 / 2], abs=1e-5)


def test_only_rows_with_a_value_count_and_the_others_are_zero() -> None:
    values = torch.tensor([[1.0, math.nan, 3.0, math.inf], [9.0, 1.0, 4.0, 4.0]])
    counted = torch.tensor([[True, False, True, False], [True, False, False, False]])
    found = group_normalized(values, counted)
    # 1 and 3: mean 2, std sqrt(2); a value that is alone has nothing to be compared with.
    assert found[0].tolist() == pytest.approx([-1 / 2**0.5, 0.0, 1 / 2**0.5, 0.0], abs=1e-5)
    assert found[1].tolist() == [0.0] * 4
    assert group_normalized(values, torch.zeros_like(counted)).tolist() == [[0.0] * 4] * 2


def test_equal_values_are_exactly_zero_whatever_they_are() -> None:
    for value in (0.1, 1 / 3, 0.7, 1e6 + 0.1):
        assert (
            group_normalized(torch.full((2, 7), value), torch.ones(2, 7, dtype=torch.bool)).tolist() == [[0.0] * 7] * 2
        )


@pytest.mark.parametrize("seed", range(5))
def test_a_group_is_normalized_row_by_row_as_in_plain_python_whatever_the_order_and_the_padding(seed: int) -> None:
    torch.manual_seed(seed)
    values, counted = 10 * torch.randn(4, 6), torch.rand(4, 6) < 0.7
    given = values.clone()
    found = group_normalized(values, counted)
    for row, mask, got in zip(values.tolist(), counted.tolist(), found.tolist(), strict=True):
        kept = [value for value, has_one in zip(row, mask, strict=True) if has_one]
        expected = iter(compared(kept, kept) if kept else [])
        assert got == pytest.approx([next(expected) if has_one else 0.0 for has_one in mask], abs=1e-5)
    order = torch.randperm(6)
    torch.testing.assert_close(group_normalized(values[:, order], counted[:, order]), found[:, order])
    padding, uncounted = torch.full((4, 3), 1e9), torch.zeros(4, 3, dtype=torch.bool)
    padded = group_normalized(torch.cat([values, padding], 1), torch.cat([counted, uncounted], 1))
    assert torch.equal(padded[:, :6], found) and not padded[:, 6:].any()
    assert torch.equal(group_normalized(values[1:2], counted[1:2]), found[1:2])  # a group is of itself alone
    assert torch.equal(values, given), "it writes into its input"


# Over the run


@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_of_all_values_is_that_of_all_at_once_however_they_came(seed: int) -> None:
    generator = random.Random(seed)
    values = [generator.gauss(100.0, 0.5) for _ in range(60)]
    known, rest = Running(), values
    while rest:
        size = generator.randint(0, 7)
        known, rest = known.joined_by(torch.tensor(rest[:size], dtype=torch.float64)), rest[size:]
    assert known.count == 60 and known.mean == pytest.approx(mean(values), rel=1e-12)
    assert math.sqrt(known.squares / 59) == pytest.approx(stdev(values), rel=1e-9)
    found = known.normalized(torch.tensor(values[:5], dtype=torch.float64))
    assert found.tolist() == pytest.approx(compared(values[:5], values), rel=1e-6)


def test_values_of_later_steps_are_compared_with_those_of_earlier_ones() -> None:
    first = Running().joined_by(torch.tensor([1.0, 3.0]))
    assert (first.count, first.mean, first.squares) == (2, 2.0, 2.0)
    second = first.joined_by(torch.tensor([8.0]))  # 1, 3, 8: mean 4, squares 9 + 1 + 16
    assert (second.count, second.mean, second.squares) == (3, 4.0, 26.0)
    assert second.normalized(torch.tensor([8.0, 4.0])).tolist() == pytest.approx([4 / 13**0.5, 0.0], abs=1e-5)


def test_nothing_one_value_and_equal_values_are_no_spread() -> None:
    assert Running().joined_by(torch.tensor([])) == Running()
    assert Running().joined_by(torch.tensor([7.3])).normalized(torch.tensor([7.3])).tolist() == [0.0]
    equal = Running().joined_by(torch.full((5,), 0.1)).joined_by(torch.full((3,), 0.1))
    assert equal.normalized(torch.full((2,), 0.1)).tolist() == [0.0, 0.0]


# Over a batch


def test_a_batch_is_compared_as_one() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert batch_normalized(values).flatten().tolist() == pytest.approx(compared([1, 2, 3, 6], [1, 2, 3, 6]), abs=1e-5)
    assert batch_normalized(torch.full((2, 3), 0.7)).tolist() == [[0.0] * 3] * 2


# GDPO (arXiv 2601.05242), written out: rewards[k][i][j] of reward k, question i, answer j


def gdpo(rewards: list[list[list[float]]], weights: list[float]) -> list[list[float]]:
    totals = [[0.0] * len(group) for group in rewards[0]]
    for weight, of_questions in zip(weights, rewards, strict=True):
        for i, group in enumerate(of_questions):
            for j, advantage in enumerate(compared(group, group)):
                totals[i][j] += weight * advantage
    every = [total for group in totals for total in group]
    return [compared(group, every) for group in totals]


@pytest.mark.parametrize("seed", range(5))
def test_gdpos_batch_step_after_its_group_steps_is_the_written_out_method(seed: int) -> None:
    torch.manual_seed(seed)
    rewards, weights = torch.rand(3, 4, 6).round(decimals=1), [1.0, 0.3, 2.0]
    all_rows = torch.ones(4, 6, dtype=torch.bool)
    total = sum(weight * group_normalized(each, all_rows) for weight, each in zip(weights, rewards, strict=True))
    found = hybrid_advantages(total, total, ~all_rows, estimator="gdpo", baseline="group", all_correct_group="keep")
    for got, expected in zip(found.tolist(), gdpo(rewards.tolist(), weights), strict=True):
        assert got == pytest.approx(expected, abs=1e-4)


def test_gdpo_tells_apart_what_a_sum_does_not() -> None:
    """The paper's example: of two 0/1 rewards a right answer earns one or both; a sum compared in its group gives both
    questions the same advantages, GDPO twice as much where both are earned."""
    rewards = torch.tensor([[[0.0, 1.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]])  # [reward, question, answer]
    summed = group_normalized(rewards.sum(0), torch.ones(2, 2, dtype=torch.bool))
    assert summed[0].tolist() == pytest.approx(summed[1].tolist(), abs=1e-5)
    found = BATCH_ESTIMATORS["gdpo"](
        sum(group_normalized(each, torch.ones(2, 2, dtype=torch.bool)) for each in rewards)
    )
    assert found[1, 1].item() == pytest.approx(2 * found[0, 1].item(), rel=1e-4)
