"""Estimators of advantages from step rewards, against plain Python on random trees and against numbers by hand."""

from __future__ import annotations

import math
import random
from statistics import mean, pstdev
from typing import Any, NamedTuple

import pytest
import torch
from step_trees import Tree, filled, index_of, mask_of, plain_process_grpo, plain_process_rloo, trees
from torch import Tensor

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS, STEP_ESTIMATORS
from oger_recipe.algorithm.step_credit import (
    StepRewards,
    appo,
    process_grpo,
    process_grpo_batch,
    process_rloo,
    tppo,
    whitening,
)
from oger_recipe.algorithm.step_tensors import first_tokens, last_steps, of_steps, over_tokens
from oger_recipe.algorithm.steps import step_gae, token_gae_by_steps

SEEDS = range(8)
IN_GROUP = {"process_grpo": process_grpo, "process_grpo_batch": process_grpo_batch, "process_rloo": process_rloo}


def groups_of(
    seed: int, *, more: int = 0, groups: int = 3, n: int = 4
) -> tuple[tuple[StepRewards, Tensor], list[list[list[float]]]]:
    """Random groups, and their rewards as lists of lists; ``more`` columns are added to all."""
    draw = random.Random(seed)
    counts = [[draw.randrange(5) for _ in range(n)] for _ in range(groups)]
    longest = max(max(each) for each in counts) + more
    rewards = torch.full((groups, n, longest), math.nan, dtype=torch.float64)
    tokens = torch.full((groups, n, longest), 77)
    outcome = torch.tensor([[draw.choice((0.0, 1.0, 0.3)) for _ in range(n)] for _ in range(groups)]).double()
    plain = []
    for group in range(groups):
        plain.append([])
        for row in range(n):
            steps = [draw.uniform(-1, 1) for _ in range(counts[group][row])]
            if steps:
                steps[-1] += outcome[group, row].item()
            rewards[group, row, : len(steps)] = torch.tensor(steps, dtype=torch.float64)
            tokens[group, row, : len(steps)] = torch.tensor([draw.randint(1, 9) for _ in steps], dtype=torch.long)
            plain[-1].append(steps)
    mask = torch.arange(longest) < torch.tensor(counts).unsqueeze(2)
    return (StepRewards(rewards, mask, outcome), tokens), plain


def plain(name: str, rows: tuple[StepRewards, Tensor], rewards: list[list[list[float]]]) -> list[list[list[float]]]:
    if name == "process_grpo":
        return [plain_process_grpo(group) for group in rewards]
    if name == "process_grpo_batch":
        every = [reward for group in rewards for row in group for reward in row]
        middle, spread = mean(every), pstdev(every)
        return [[[(reward - middle) / (spread + 1e-8) for reward in row] for row in group] for group in rewards]
    paid, counts = rows
    tokens = [
        [row[: len(steps)] for row, steps in zip(group, of, strict=True)]
        for group, of in zip(counts.tolist(), rewards, strict=True)
    ]
    return [plain_process_rloo(*group) for group in zip(rewards, tokens, paid.of_response.tolist(), strict=True)]


def padded(values: list[list[list[float]]], steps: int) -> Tensor:
    lists = [[row + [0.0] * (steps - len(row)) for row in group] for group in values]
    return torch.tensor(lists, dtype=torch.float64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", IN_GROUP)
def test_groups_are_compared_as_in_plain_python(name: str, seed: int) -> None:
    rows, rewards = groups_of(seed, more=seed % 3)
    found = IN_GROUP[name](*rows)
    expected = padded(plain(name, rows, rewards), rows[1].shape[2])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", IN_GROUP)
def test_padding_and_the_order_of_rows_and_groups_change_nothing(name: str) -> None:
    rows, _ = groups_of(5)
    found = IN_GROUP[name](*rows)
    wider = IN_GROUP[name](*groups_of(5, more=4)[0])
    torch.testing.assert_close(wider[..., : found.shape[2]], found, rtol=0, atol=1e-12)
    assert not wider[..., found.shape[2] :].any()
    order, of_groups = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 2, 0])
    paid, tokens = rows
    *moved, of_tokens = (each[of_groups][:, order] for each in (paid.rewards, paid.mask, paid.of_response, tokens))
    torch.testing.assert_close(
        IN_GROUP[name](StepRewards(*moved), of_tokens), found[of_groups][:, order], rtol=0, atol=1e-12
    )


def steps(*rewards: list[float], outcome: list[float] | None = None, tokens: list[list[int]] | None = None) -> Any:
    """One group; every step has one token unless ``tokens`` says otherwise."""
    longest = max(map(len, rewards))
    filled = torch.tensor([[*row, *[math.nan] * (longest - len(row))] for row in rewards])
    mask = torch.arange(longest) < torch.tensor([len(row) for row in rewards]).unsqueeze(1)
    counts = torch.ones_like(mask, dtype=torch.long)
    for row, each in enumerate(tokens or []):
        counts[row, : len(each)] = torch.tensor(each)
    own = torch.tensor(outcome or [0.0] * len(rewards))
    return StepRewards(filled.unsqueeze(0), mask.unsqueeze(0), own.unsqueeze(0)), counts.unsqueeze(0)


def test_process_grpo_by_hand() -> None:
    # 1, 1, 0, 0, 1, 0: mean 0.5, squares 6 * 0.25 = 1.5, / 5, std sqrt(0.3); +-d with d = 0.5 / std
    d = 0.5 / (math.sqrt(0.3) + 1e-6)
    found = process_grpo(*steps([1.0, 1.0, 0.0], [0.0, 1.0, 0.0]))
    assert found.tolist() == [[pytest.approx([d, 0, -d], abs=1e-6), pytest.approx([-d, 0, -d], abs=1e-6)]]
    assert process_grpo(*steps([0.1, 0.1], [0.1])).tolist() == [[[0.0, 0.0], [0.0, 0.0]]]  # nothing to compare
    assert process_grpo(*steps([0.7])).tolist() == [[[0.0]]]


def test_process_grpo_batch_by_hand() -> None:
    # 2, 0, 0, 2, over n: mean 1, std 1
    found = process_grpo_batch(*steps([2.0, 0.0, 0.0], [2.0]))
    assert found.tolist() == [[pytest.approx([1, -1, -1]), pytest.approx([1, 0, 0])]]
    assert process_grpo_batch(*steps([0.1, 0.1], [0.1])).tolist() == [[[0.0, 0.0], [0.0, 0.0]]]


def test_process_rloo_by_hand() -> None:
    # Earned from each step on, without the outcomes 1 and 0: 0.5, 0.25 (2 and 1 tokens) and -1 (3 tokens).
    # b of the first row: -1; of the second: (2 * 0.5 + 0.25) / 3 = 5/12. Outcomes: 1 - 0 and 0 - 1.
    rows = steps([0.25, 1.25], [-1.0], outcome=[1.0, 0.0], tokens=[[2, 1], [3]])
    assert process_rloo(*rows).tolist() == [[pytest.approx([2.5, 2.25]), pytest.approx([-1 - 5 / 12 - 1, 0])]]


def test_process_rloo_of_outcomes_alone_is_rloo() -> None:
    # 1, 0, 0, 1 less the means of the others: 1/3, 2/3, 2/3, 1/3, in whatever number of steps
    rows = steps([0.0, 0.0, 1.0], [0.0], [0.0, 0.0], [1.0], outcome=[1.0, 0.0, 0.0, 1.0])
    found = process_rloo(*rows)[0]
    expected = [[2 / 3] * 3, [-2 / 3, 0, 0], [-2 / 3, -2 / 3, 0], [2 / 3, 0, 0]]
    assert found.tolist() == [pytest.approx(row) for row in expected]


def test_process_rloo_does_not_pay_for_steps_or_tokens() -> None:
    """What answers of one worth are worth does not depend on how many steps or tokens say it."""
    for worth in (0.5, -0.5):
        rows = steps([0.0, 0.0, worth], [worth], [worth], tokens=[[3, 3, 3], [1], [50]])
        assert process_rloo(*rows).abs().max().item() == pytest.approx(0, abs=1e-7)


def test_a_row_with_no_others_is_held_against_nothing() -> None:
    assert process_rloo(*steps([0.5, 1.5], outcome=[1.0])).tolist() == [[[2.0, 1.5]]]
    assert process_rloo(*steps([0.5, 1.5], [], outcome=[1.0, 9.0])).tolist() == [[[2.0, 1.5], [0.0, 0.0]]]


def test_with_a_baseline_its_rows_alone_are_compared_with() -> None:
    rows = steps([1.0, 3.0], [2.0], [9.0, 9.0], outcome=[1.0, 0.0, 5.0])
    split = torch.tensor([[True, True, False]])
    # 1, 3 and 2: mean 2, std 1
    scale = 1 + 1e-6
    assert process_grpo(*rows, split).tolist() == [
        [
            pytest.approx([0, 1 / scale], abs=1e-6),
            pytest.approx([0, 0], abs=1e-6),
            pytest.approx([14 / scale, 7 / scale]),
        ]
    ]
    # Without the outcomes: earned 3, 2 and 2 and 13, 4. b of the third row: (3 + 2 + 2) / 3, and its others' mean 0.5;
    # the first is held against the second, the second against the first: 2.5.
    assert process_rloo(*rows, split).tolist() == [
        [
            pytest.approx([3 - 2 + 1, 2 - 2 + 1]),
            pytest.approx([2 - 2.5 - 1, 0]),
            pytest.approx([13 - 7 / 3 + 4.5, 4 - 7 / 3 + 4.5]),
        ]
    ]
    everyone = torch.ones(1, 3, dtype=torch.bool)
    for compare in (process_grpo, process_rloo):
        torch.testing.assert_close(compare(*rows, everyone), compare(*rows))


# ---- with a critic


class Valued(NamedTuple):
    rewards: Tensor
    mask: Tensor
    values: Tensor
    step_index: Tensor


def valued(rows: list[Tree], seed: int) -> Valued:
    index, mask = index_of(rows, more=1), mask_of(rows, more=2)
    return Valued(filled(mask, seed), mask, filled(index >= 0, seed + 1), index)


@pytest.mark.parametrize("seed", SEEDS)
def test_appo_values_a_step_by_the_state_before_its_first_token(seed: int) -> None:
    rows = trees(seed)
    given = valued(rows, seed)
    advantages, returns = appo(*given, 0.9, 0.8)
    before = torch.zeros(given.mask.shape, dtype=torch.float64)
    for i, row in enumerate(rows):
        for s, places in enumerate(row.steps):
            before[i, s] = given.values[i, places[0]]
    of_steps, returned = step_gae(given.rewards, before, given.mask, gamma=0.9, lam=0.8)
    expected, towards = torch.zeros_like(advantages), torch.zeros_like(advantages)
    for i, row in enumerate(rows):
        for s, places in enumerate(row.steps):
            expected[i, places] = of_steps[i, s]
            towards[i, places[0]] = returned[i, s]
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, towards)


def test_appo_reads_no_value_but_those_of_first_tokens() -> None:
    given = valued(trees(1), 1)
    poisoned = torch.where(first_tokens(given.step_index), given.values, math.nan)
    for one, other in zip(
        appo(*given, 0.9, 0.8), appo(*given._replace(values=poisoned), 0.9, 0.8),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("seed", SEEDS)
def test_tppo_is_the_gae_of_tokens_by_steps(seed: int) -> None:
    given = valued(trees(seed), seed)
    expected = token_gae_by_steps(given.rewards, given.values, given.step_index, gamma=0.9, lam=0.8)
    for one, other in zip(tppo(*given, 0.9, 0.8), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_rows_without_tokens_and_batches_without_rows_are_worth_nothing() -> None:
    none = torch.zeros(2, 0)
    rows = (none, none.bool(), none, none.long())
    for estimate in (appo, tppo):
        assert [each.shape for each in estimate(*rows, 1.0, 1.0)] == [(2, 0), (2, 0)]
    empty = StepRewards(torch.zeros(1, 2, 0), torch.zeros(1, 2, 0).bool(), torch.ones(1, 2))
    for compare in IN_GROUP.values():
        assert compare(empty, torch.zeros(1, 2, 0)).shape == (1, 2, 0)


def test_estimators_are_known_by_name_and_say_what_they_need() -> None:
    assert {name: each.in_group for name, each in STEP_ESTIMATORS.items() if each.in_group} == IN_GROUP
    assert {name: each.with_values for name, each in STEP_ESTIMATORS.items() if each.needs_critic} == {
        "appo": appo, "tppo": tppo,
    }  # fmt: skip
    assert CRITIC_ESTIMATORS == ("gae", "appo", "tppo")


# ---- between steps and tokens


def test_values_go_from_tokens_to_steps_and_back() -> None:
    index = torch.tensor([[-1, 0, 0, 1, -1, 1], [-1, -1, -1, 0, 1, 2]])
    values = torch.tensor([[math.nan, 1.0, 2.0, 4.0, math.inf, 8.0], [math.nan] * 3 + [1.0, 2.0, 3.0]])
    assert of_steps(values, index, 4).tolist() == [[3.0, 12.0, 0.0, 0.0], [1.0, 2.0, 3.0, 0.0]]
    back = over_tokens(torch.tensor([[5.0, 6.0, math.nan], [7.0, 8.0, 9.0]]), index)
    assert back.tolist() == [[0.0, 5.0, 5.0, 6.0, 0.0, 6.0], [0.0, 0.0, 0.0, 7.0, 8.0, 9.0]]
    assert first_tokens(index).int().tolist() == [[0, 1, 0, 1, 0, 0], [0, 0, 0, 1, 1, 1]]
    mask = torch.tensor([[True, True, False], [True, True, True], [False] * 3])
    assert last_steps(mask).int().tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_whitened_values_have_mean_0_and_std_1_over_n() -> None:
    # 1 and 5: mean 3, variance 4
    assert whitening(torch.tensor([1.0, 5.0]), divide=True) == pytest.approx((3.0, 0.5))
    assert whitening(torch.tensor([1.0, 5.0]), divide=False) == (3.0, 1.0)
    assert whitening(torch.tensor([2.0, 2.0]), divide=True) == pytest.approx((2.0, 1e4))
    assert whitening(torch.tensor([]), divide=True) == (0.0, 1.0)
