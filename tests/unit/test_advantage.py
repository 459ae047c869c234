"""Group-relative advantages on groups that can be worked out on paper."""

import itertools
import math
import statistics

import pytest
import torch

from oger_recipe.algorithm.advantage import (
    BASELINES,
    group_advantage,
    keep_teacher_nonnegative,
    max_rl_advantage,
    pass_at_k_advantage,
)


def test_without_std_the_advantage_is_the_distance_to_the_groups_mean() -> None:
    # means: (1 + 0 + 0 + 1) / 4 = 0.5 and (3 + 1 + 1 + 1) / 4 = 1.5
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 1.0, 1.0, 1.0]])
    expected = [[0.5, -0.5, -0.5, 0.5], [1.5, -0.5, -0.5, -0.5]]
    assert group_advantage(rewards, use_std=False).tolist() == expected


def test_with_std_the_advantage_is_divided_by_the_unbiased_std_plus_eps() -> None:
    # group 1: squares 4 * 0.25 = 1, / 3, std = sqrt(1/3); group 2: squares 2.25 + 3 * 0.25 = 3, / 3 = 1, std = 1
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    eps = 0.25
    first, second = 0.5 / (math.sqrt(1 / 3) + eps), 1 / (1 + eps)
    expected = [[first, -first, -first, first], [1.5 * second, -0.5 * second, -0.5 * second, -0.5 * second]]
    advantages = group_advantage(rewards, use_std=True, eps=eps)
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64))


def test_the_default_eps_is_a_millionth() -> None:
    # mean 5e-7; deviations +-5e-7; squares 2 * 25e-14, / 1, std = sqrt(50e-14) = 7.0710678e-7
    advantages = group_advantage(torch.tensor([[1e-6, 0.0]], dtype=torch.float64), use_std=True)
    expected = 5e-7 / (math.sqrt(50e-14) + 1e-6)
    torch.testing.assert_close(advantages, torch.tensor([[expected, -expected]], dtype=torch.float64))


def test_the_teacher_turns_negative_when_every_rollout_is_correct_and_earns_a_bonus() -> None:
    # seven rollouts of 1.2 and a teacher of 1: mean (8.4 + 1) / 8 = 1.175
    advantages = group_advantage(torch.tensor([[1.2] * 7 + [1.0]]), use_std=False)
    torch.testing.assert_close(advantages, torch.tensor([[0.025] * 7 + [-0.175]]))


@pytest.mark.parametrize("use_std", [True, False])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1.2, -0.5])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_equal_rewards_give_exactly_zero(use_std: bool, value: float, n: int) -> None:
    advantages = group_advantage(torch.full((2, n), value), use_std=use_std)
    assert advantages.tolist() == [[0.0] * n] * 2


@pytest.mark.parametrize("use_std", [True, False])
def test_advantages_of_a_group_sum_to_zero_and_ignore_a_constant(use_std: bool) -> None:
    torch.manual_seed(0)
    rewards = torch.rand(5, 8, dtype=torch.float64)
    advantages = group_advantage(rewards, use_std=use_std)
    torch.testing.assert_close(advantages.sum(dim=1), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(group_advantage(rewards + 3, use_std=use_std), advantages)


@pytest.mark.parametrize("use_std", [True, False])
def test_permuting_members_or_groups_permutes_advantages(use_std: bool) -> None:
    torch.manual_seed(0)
    rewards = torch.rand(5, 8)
    members, groups = torch.randperm(8), torch.randperm(5)
    advantages = group_advantage(rewards, use_std=use_std)
    torch.testing.assert_close(group_advantage(rewards[:, members], use_std=use_std), advantages[:, members])
    assert torch.equal(group_advantage(rewards[groups], use_std=use_std), advantages[groups])


def test_an_undefined_reward_stays_in_its_group() -> None:
    advantages = group_advantage(torch.tensor([[1.0, math.nan], [1.0, 0.0]]), use_std=True)
    assert advantages[0].isnan().all()
    assert advantages[1].isfinite().all()


def test_results_are_float32_or_better() -> None:
    assert group_advantage(torch.tensor([[1, 0]]), use_std=False).tolist() == [[0.5, -0.5]]
    for given, returned in [
        (torch.int64, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ]:
        assert group_advantage(torch.ones(1, 2, dtype=given), use_std=True).dtype == returned


def test_rewards_without_a_group_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[groups, n\]"):
        group_advantage(torch.ones(4), use_std=False)


def test_only_negative_advantages_of_teachers_in_all_correct_groups_are_zeroed() -> None:
    advantages = torch.tensor([[0.1, 0.2, -0.3], [0.1, -0.2, 0.1], [-0.5, 0.25, 0.25], [-0.5, 0.6, -0.1]])
    teacher = torch.tensor([[False, False, True], [False, False, True], [True, False, False], [True, False, True]])
    all_correct = torch.tensor([True, True, False, True])
    # row 1: its teacher (-0.3) is zeroed; row 2: its teacher is positive; row 3: not all correct; row 4: two teachers
    expected = torch.tensor([[0.1, 0.2, 0.0], [0.1, -0.2, 0.1], [-0.5, 0.25, 0.25], [0.0, 0.6, 0.0]])
    before = advantages.clone()
    assert torch.equal(keep_teacher_nonnegative(advantages, teacher, all_correct), expected)
    assert torch.equal(advantages, before)


def test_keeping_teachers_nonnegative_refuses_wrong_shapes() -> None:
    advantages, teacher = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"\[2, 3\], \[2, 3\], \[3\]"):
        keep_teacher_nonnegative(advantages, teacher, torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\[2, 3\], \[2, 1\], \[2\]"):
        keep_teacher_nonnegative(advantages, teacher[:, :1], torch.ones(2, dtype=torch.bool))


def test_a_baseline_of_some_rows_is_applied_to_all() -> None:
    # rollouts 1, 0, 0, 1: mean 0.5, squares 1, / 3, std = sqrt(1/3); the teacher has 2
    rewards = torch.tensor([[2.0, 1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    rollouts = torch.tensor([[False, True, True, True, True]])
    expected = torch.tensor([[1.5, 0.5, -0.5, -0.5, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(group_advantage(rewards, use_std=False, baseline_mask=rollouts), expected)
    divided = group_advantage(rewards, use_std=True, eps=0.25, baseline_mask=rollouts)
    torch.testing.assert_close(divided, expected / (math.sqrt(1 / 3) + 0.25))


@pytest.mark.parametrize("use_std", [True, False])
def test_baselines_without_a_spread_divide_by_one(use_std: bool) -> None:
    # equal rollouts: mean 0.1, std 0 -> 1; a single one: mean 0, std 1; none: nothing to compare with
    rewards = torch.tensor([[1.0, 0.1, 0.1, 0.1], [1.0, 0.5, 0.25, 0.0], [1.0, 0.5, 0.25, 0.0]])
    baseline = torch.tensor([[False, True, True, True], [False, True, False, False], [False] * 4])
    advantages = group_advantage(rewards, use_std=use_std, baseline_mask=baseline)
    expected = torch.tensor([[0.9, 0.0, 0.0, 0.0], [1.0, 0.5, 0.25, 0.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(advantages, expected)
    # in float64 the mean of three times 0.1 is not 0.1
    exact = torch.tensor([[1.0, 0.1, 0.1, 0.1]], dtype=torch.float64)
    advantages_of_exact = group_advantage(exact, use_std=use_std, baseline_mask=baseline[:1])
    torch.testing.assert_close(advantages_of_exact, torch.tensor([[0.9, 0.0, 0.0, 0.0]], dtype=torch.float64))
    assert advantages[0, 1:].tolist() == [0.0] * 3
    assert advantages[2].tolist() == [0.0] * 4


@pytest.mark.parametrize("use_std", [True, False])
def test_a_baseline_of_all_rows_is_the_groups_own(use_std: bool) -> None:
    torch.manual_seed(0)
    rewards = torch.rand(5, 8)
    everyone = torch.ones(5, 8, dtype=torch.bool)
    split = group_advantage(rewards, use_std=use_std, baseline_mask=everyone)
    torch.testing.assert_close(split, group_advantage(rewards, use_std=use_std))


def test_an_undefined_reward_outside_the_baseline_stays_with_its_row() -> None:
    rewards, baseline = torch.tensor([[math.nan, 1.0, 0.0]]), torch.tensor([[False, True, True]])
    advantages = group_advantage(rewards, use_std=False, baseline_mask=baseline)
    assert advantages[0, 0].isnan()
    assert advantages[0, 1:].tolist() == [0.5, -0.5]


def test_a_baseline_of_another_shape_is_refused_and_its_names_are_fixed() -> None:
    with pytest.raises(ValueError, match=r"\[1, 2\], not \[2\]"):
        group_advantage(torch.ones(1, 2), use_std=False, baseline_mask=torch.ones(2, dtype=torch.bool))
    assert {"group", "rollouts"} <= BASELINES.keys()


# MaxRL: A = (r - mean) / mean


def test_the_fewer_rows_are_right_the_more_each_counts() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    expected = [[3.0, -1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0], [0.0] * 4, [0.0] * 4]
    assert max_rl_advantage(rewards).tolist() == expected
    # 1.5, 0.5 and 0, of mean 2/3: a bonus or a partial reward counts by its share of the mean
    torch.testing.assert_close(max_rl_advantage(torch.tensor([[1.5, 0.5, 0.0]])), torch.tensor([[1.25, -0.25, -1.0]]))


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_its_expected_gradient_is_that_of_the_likelihood_up_to_order_n_minus_1(n: int, p: float) -> None:
    """A policy that is right with probability p: d log(row) / dp is 1/p or -1/(1-p); all 2^n groups, by their odds."""
    found = 0.0
    for c in range(n + 1):
        advantages = max_rl_advantage(torch.tensor([[1.0] * c + [0.0] * (n - c)], dtype=torch.float64))[0]
        slopes = torch.tensor([1 / p] * c + [-1 / (1 - p)] * (n - c), dtype=torch.float64)
        found += math.comb(n, c) * p**c * (1 - p) ** (n - c) * (advantages * slopes).mean().item()
    assert found == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, n)))  # d/dp of -(1 - p)^k / k


def test_the_mean_of_some_rows_is_applied_to_all() -> None:
    rewards = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0]])
    rollouts = torch.tensor([[False, True, True, True]] * 3)
    # 1/3 of the rollouts are right; then none; then one, beside a teacher of 0.5
    expected = torch.tensor([[2.0, 2.0, -1.0, -1.0], [0.0] * 4, [0.5, 2.0, -1.0, -1.0]])
    torch.testing.assert_close(max_rl_advantage(rewards, baseline_mask=rollouts), expected)
    assert max_rl_advantage(rewards, baseline_mask=torch.zeros(3, 4, dtype=torch.bool)).tolist() == [[0.0] * 4] * 3


def test_without_a_mean_above_zero_there_is_nothing_to_divide_by() -> None:
    rewards = torch.tensor([[1.0, -1.0, 0.0, 0.0], [1.0, -2.0, 0.0, 0.0], [0.1, 0.2, -0.3, 0.0]])
    assert max_rl_advantage(rewards).tolist() == [[0.0] * 4] * 3  # the last mean is a rounding of 0


def test_max_rl_refuses_what_group_advantage_refuses() -> None:
    with pytest.raises(ValueError, match=r"\[groups, n\], not \[3\]"):
        max_rl_advantage(torch.zeros(3))
    with pytest.raises(ValueError, match=r"baseline_mask must be \[1, 3\], not \[3\]"):
        max_rl_advantage(torch.zeros(1, 3), baseline_mask=torch.ones(3, dtype=torch.bool))


# Pass@k training: a row has the mean advantage of the draws of k rows that it is in


def _by_drawing(right: list[bool], k: int) -> list[float]:
    """All C(n, k) draws, each worth 1 where it holds a right row, compared with each other by mean and std."""
    draws = list(itertools.combinations(range(len(right)), k))
    earned = [float(any(right[row] for row in draw)) for draw in draws]
    mean, std = statistics.fmean(earned), statistics.pstdev(earned)
    if not std:
        return [0.0] * len(right)
    advantages = [(each - mean) / std for each in earned]
    return [
        statistics.fmean(each for each, draw in zip(advantages, draws, strict=True) if row in draw)
        for row in range(len(right))
    ]


@pytest.mark.parametrize("n", range(1, 8))
def test_the_closed_form_is_the_mean_over_all_draws(n: int) -> None:
    groups = list(itertools.product((True, False), repeat=n))
    for k in range(1, n + 1):
        expected = torch.tensor([_by_drawing(list(group), k) for group in groups])
        torch.testing.assert_close(pass_at_k_advantage(torch.tensor(groups), None, k), expected)


def test_the_closed_form_is_the_papers() -> None:
    """n 6, c 2, k 3: rho = 1 - 4/20, sigma = 0.4, right 0.2 / 0.4, wrong (0.2 - 3/10) / 0.4."""
    right = torch.tensor([[True, False, False, True, False, False]])
    expected = torch.tensor([[0.5, -0.25, -0.25, 0.5, -0.25, -0.25]])
    torch.testing.assert_close(pass_at_k_advantage(right, None, 3), expected)


def test_with_draws_of_one_it_is_group_norm_by_the_std_over_n() -> None:
    right = torch.rand(9, 8, generator=torch.Generator().manual_seed(0)) < 0.4
    expected = group_advantage(right.float(), use_std=True, eps=0.0).nan_to_num() * (8 / 7) ** 0.5
    torch.testing.assert_close(pass_at_k_advantage(right, None, 1), expected)


def test_draws_from_some_rows_apply_to_all() -> None:
    right = torch.tensor([[True, True, False, False, False], [True] + [False] * 4, [True] * 4 + [False]])
    rollouts = torch.tensor([[False, True, True, True, True]] * 3)
    found = pass_at_k_advantage(right, rollouts, 2)
    one_of_four = _by_drawing([True, False, False, False], 2)
    expected = [[one_of_four[0], *one_of_four], [0.0] * 5, [0.0] * 5]  # nobody right; only one wrong
    torch.testing.assert_close(found, torch.tensor(expected))
    right[0, 0] = False  # a wrong teacher is like the wrong rollouts
    assert pass_at_k_advantage(right, rollouts, 2)[0].tolist() == pytest.approx([one_of_four[1], *one_of_four])
    assert pass_at_k_advantage(right, rollouts & False, 2).tolist() == [[0.0] * 5] * 3
    solved = torch.tensor([[False, True, True, True, True]])  # the wrong row is not one of those that draw
    assert pass_at_k_advantage(solved, rollouts[:1], 2).tolist() == [[0.0] * 5]
    assert pass_at_k_advantage(right, rollouts, 5).tolist() == [[0.0] * 5] * 3  # of four rows, nobody draws five


@pytest.mark.parametrize(("n", "c", "k"), [(4096, 1, 64), (4096, 2000, 64), (20_000, 3, 9_000), (20_000, 10_000, 1)])
def test_large_groups_agree_with_exact_binomials(n: int, c: int, k: int) -> None:
    fails, draws = math.comb(n - c, k), math.comb(n, k)
    of_right = math.sqrt(fails / (draws - fails))  # integers of thousands of digits, divided once
    found = pass_at_k_advantage((torch.arange(n) < c).unsqueeze(0), None, k)[0]
    assert [found[0].item(), found[-1].item()] == pytest.approx([of_right, -of_right * c / (n - c)], rel=1e-6)


def test_pass_at_k_refuses_draws_of_nothing_and_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="k must be 1 or more, not 0"):
        pass_at_k_advantage(torch.ones(1, 3, dtype=torch.bool), None, 0)
    with pytest.raises(ValueError, match=r"\[groups, n\], not \[3\]"):
        pass_at_k_advantage(torch.ones(3, dtype=torch.bool), None, 1)
