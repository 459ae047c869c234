"""What every member of a registry has to satisfy. A new member is tested by being in its registry.

The exact values of the members have tests of their own beside these.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from itertools import combinations

import pytest
import torch

from oger_recipe.algorithm.advantage import BASELINES, group_advantage
from oger_recipe.algorithm.credit import BATCH_ESTIMATORS, ESTIMATORS, RIGHT_ESTIMATORS, Estimator
from oger_recipe.algorithm.exploration import (
    ENTROPY_WEIGHTS,
    REDUCTIONS,
    SCHEDULES,
    SHAPINGS,
    exploration_bonus,
    scheduled_weight,
    shape_measure,
)
from oger_recipe.algorithm.hybrid_group import DRAWS, REPLACE_MODES, draw_teachers, select_replaced
from oger_recipe.algorithm.policy_loss import AGGREGATIONS, TEACHER_LOSSES, aggregate_token_loss, hybrid_policy_loss
from oger_recipe.algorithm.prefix import PREFIX_STRATEGIES, prefix_ratios
from oger_recipe.algorithm.reshape import MAX_LOG_RATIO, RESHAPES, reshape_probability, reshape_ratio
from oger_recipe.algorithm.token_stats import ENTROPY_POSITIONS, response_entropy

N = 8


def _all_differ(results: dict[str, list]) -> None:
    """Two names for one thing: a branch that was forgotten, or a member that nobody needs."""
    same = [pair for pair in combinations(results, 2) if results[pair[0]] == results[pair[1]]]
    assert not same, f"these do the same: {same}"


def _numbers(tensor: torch.Tensor) -> list[float]:
    return [round(value, 9) for value in tensor.double().flatten().tolist()]


# Exploration bonus


@pytest.mark.parametrize("name", ENTROPY_WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_entropy_weight_is_finite_and_of_each_rollout_alone(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    entropy = torch.cat([torch.tensor([0.0, 12.0]), 4 * torch.rand(N - 2)]).to(dtype)  # nats; ln of a vocabulary is 12
    given, order = entropy.clone(), torch.randperm(N)
    weight = ENTROPY_WEIGHTS[name](entropy)
    assert weight.shape == entropy.shape and weight.dtype == dtype and weight.isfinite().all()
    assert torch.equal(entropy, given), "it writes into its input"
    assert torch.equal(ENTROPY_WEIGHTS[name](entropy[order]), weight[order])
    torch.testing.assert_close(ENTROPY_WEIGHTS[name](entropy.view(2, 4)), weight.view(2, 4))
    for row in range(N):
        torch.testing.assert_close(ENTROPY_WEIGHTS[name](entropy[row : row + 1]), weight[row : row + 1])


@pytest.mark.parametrize("name", ENTROPY_WEIGHTS)
@pytest.mark.parametrize("entropy", [0.5, math.inf, -math.inf, math.nan])
def test_a_wrong_rollout_earns_exactly_nothing_whatever_its_entropy(name: str, entropy: float) -> None:
    bonus = exploration_bonus(torch.tensor([0.3]), torch.tensor([entropy]), torch.tensor([0.0]), weight=name)
    assert bonus.tolist() == [0.0]


def test_entropy_weights_differ() -> None:
    entropy = torch.linspace(0, 3, 7, dtype=torch.float64)
    _all_differ({name: _numbers(weight(entropy)) for name, weight in ENTROPY_WEIGHTS.items()})


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_lies_between_the_least_and_the_most_similar_teacher(name: str) -> None:
    torch.manual_seed(0)
    similarities = 2 * torch.rand(N, 5) - 1
    reduced = REDUCTIONS[name](similarities)
    assert reduced.shape == (N,)
    assert (reduced >= similarities.amin(dim=1)).all() and (reduced <= similarities.amax(dim=1)).all()
    torch.testing.assert_close(REDUCTIONS[name](similarities[:, torch.randperm(5)]), reduced)
    torch.testing.assert_close(REDUCTIONS[name](similarities.flip(0)), reduced.flip(0))
    torch.testing.assert_close(REDUCTIONS[name](similarities[:, :1]), similarities[:, 0])  # of one teacher: itself


@pytest.mark.parametrize("shaping", SHAPINGS)
def test_a_shaping_keeps_the_order_and_follows_permutations_and_groups(shaping: str) -> None:
    torch.manual_seed(0)
    measure, earns = torch.rand(4, N), torch.rand(4, N) < 0.7
    measure[:, 0] = math.nan
    earns[3] = False
    given, order = measure.clone(), torch.randperm(N)
    shaped = shape_measure(measure, earns, shaping=shaping)
    assert shaped.dtype == measure.dtype and torch.equal(measure.nan_to_num(-9), given.nan_to_num(-9))
    permuted = shape_measure(measure[:, order], earns[:, order], shaping=shaping)
    torch.testing.assert_close(permuted, shaped[:, order], equal_nan=True)
    for row in range(4):
        alone = shape_measure(measure[row], earns[row], shaping=shaping)
        torch.testing.assert_close(alone, shaped[row], equal_nan=True)
        counted = earns[row] & ~measure[row].isnan()
        assert shaped[row][counted].isfinite().all()
        assert torch.equal(shaped[row][counted].argsort(), measure[row][counted].argsort())
        torch.testing.assert_close(shaped[row][~counted], measure[row][~counted], equal_nan=True)


@pytest.mark.parametrize("shaping", SHAPINGS)
def test_a_shaping_treats_equals_alike_and_survives_groups_that_cannot_be_compared(shaping: str) -> None:
    everybody = torch.ones(4, dtype=torch.bool)
    for measure in ([0.3] * 4, [0.0] * 4, [-0.2, 0.5, 0.5, 1.7]):
        shaped = shape_measure(torch.tensor(measure), everybody, shaping=shaping)
        assert shaped.isfinite().all()
        assert len(set(shaped.tolist())) == len(set(measure))
    alone = shape_measure(torch.tensor([0.3, 0.4]), torch.tensor([True, False]), shaping=shaping)
    assert alone.isfinite().all()


def test_shapings_differ() -> None:
    measure, everybody = torch.tensor([0.1, 0.7, 0.2, 0.4], dtype=torch.float64), torch.ones(4, dtype=torch.bool)
    _all_differ({name: _numbers(shape_measure(measure, everybody, shaping=name)) for name in SHAPINGS})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("start", "end"), [(0.1, 0.3), (1.0, 0.0)])
def test_a_schedule_begins_at_the_first_weight_and_stays_between_the_two(
    schedule: str, start: float, end: float
) -> None:
    weights = [scheduled_weight(s, start=start, end=end, steps=9, schedule=schedule) for s in range(1, 20)]
    assert weights[0] == start
    assert all(min(start, end) <= weight <= max(start, end) for weight in weights)
    assert len(set(weights[8:])) == 1  # over after its steps


def test_schedules_differ() -> None:
    def course(schedule: str) -> list[float]:
        return [round(scheduled_weight(s, start=0.0, end=1.0, steps=9, schedule=schedule), 9) for s in range(1, 10)]

    _all_differ({name: course(name) for name in SCHEDULES})


# Who makes room, and for whom


def _replaced(mode: str, similarity: torch.Tensor, reward: torch.Tensor, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    order = select_replaced(similarity, reward, max_replace_num=len(reward), mode=mode, generator=generator)
    assert order.dtype == torch.long
    return order.tolist()


def _group(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.rand(
        N, generator=generator, dtype=torch.float64
    )  # no two are equal, nor equally far from a third
    return similarity, torch.rand(N, generator=generator).round()


@pytest.mark.parametrize("mode", REPLACE_MODES)
def test_a_replace_mode_orders_the_whole_group_and_is_repeated_by_its_seed(mode: str) -> None:
    for seed in range(5):
        similarity, reward = _group(seed)
        order = _replaced(mode, similarity, reward, seed)
        assert sorted(order) == list(range(N))
        assert _replaced(mode, similarity, reward, seed) == order
        first = select_replaced(
            similarity, reward, max_replace_num=3, mode=mode, generator=torch.Generator().manual_seed(seed)
        )
        assert first.tolist() == order[:3]
    assert _replaced(mode, torch.empty(0), torch.empty(0)) == []


@pytest.mark.parametrize("mode", REPLACE_MODES)
def test_a_replace_mode_says_whether_it_looks_at_similarity(mode: str) -> None:
    assert REPLACE_MODES[mode].similarity in {None, *REDUCTIONS}
    groups = [_group(seed) for seed in range(5)]
    reacts = any(_replaced(mode, s, r) != _replaced(mode, s.flip(0), r) for s, r in groups)
    assert reacts == (REPLACE_MODES[mode].similarity is not None)


@pytest.mark.parametrize("mode", REPLACE_MODES)
def test_a_replace_mode_draws_or_follows_the_rollouts_wherever_they_stand(mode: str) -> None:
    similarity, reward = _group(0)
    draws = len({tuple(_replaced(mode, similarity, reward, seed)) for seed in range(20)}) > 1
    if draws or REPLACE_MODES[mode].similarity is None:
        return
    permutation = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    permuted = _replaced(mode, similarity[permutation], reward[permutation])
    assert permutation[permuted].tolist() == _replaced(mode, similarity, reward)


def test_replace_modes_differ() -> None:
    orders = {
        name: [mode.similarity, *(_replaced(name, *_group(seed), seed=seed) for seed in range(5))]
        for name, mode in REPLACE_MODES.items()
        if not name.startswith("wrong_first_")  # made of the others; of one that does so itself, no other
    }
    _all_differ(orders)


SOURCES = ["r1", "gpt", "r1", "base", "gpt"]
LENGTHS = [30, 10, 20, 10, 50]


def _draw(mode: str, count: int, seed: int = 0, turn: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    known = {"weights": {"r1": 3.0, "base": 8.0}, "likelihoods": [0.3, 0.1, 0.9, None, 0.5]}
    return draw_teachers(SOURCES, LENGTHS, count=count, mode=mode, generator=generator, turn=turn, **known)


@pytest.mark.parametrize("mode", DRAWS)
def test_a_draw_gives_distinct_teachers_as_many_as_asked_and_present(mode: str) -> None:
    for seed, turn, count in [(seed, seed // 2, count) for seed in range(6) for count in (0, 1, 3, 5, 9)]:
        drawn = _draw(mode, count, seed, turn)
        assert len(drawn) == len(set(drawn)) == min(count, 5)
        assert set(drawn) <= set(range(5)) and all(type(index) is int for index in drawn)
        assert _draw(mode, count, seed, turn) == drawn
    assert draw_teachers([], [], count=2, mode=mode, generator=torch.Generator(), turn=3) == []


def test_draws_differ() -> None:
    _all_differ({mode: [_draw(mode, 5, seed, seed) for seed in range(20)] for mode in DRAWS})


@pytest.mark.parametrize("strategy", PREFIX_STRATEGIES)
def test_a_prefix_strategy_gives_shares_and_says_what_it_reads(strategy: str) -> None:
    settings = {"min_ratio": 0.2, "max_ratio": 0.8, "steps": 100, "linear_max_ratio": 0.7}
    knobs = {
        "min_ratio": "min_prefix_ratio", "max_ratio": "max_prefix_ratio", "steps": "prefix_steps",
        "linear_max_ratio": "prefix_linear_max_ratio",
    }  # fmt: skip

    def ratios(share: bool = False, **other: float) -> list[float]:
        drawn = []
        for seed, step in enumerate((1, 30, 60, 95, 500)):
            generator = torch.Generator().manual_seed(seed)
            given = settings | other
            drawn += prefix_ratios(
                4, n_prefix=3, strategy=strategy, share=share, step=step, generator=generator, **given
            )
        return drawn

    usual = ratios()
    assert all(0 <= ratio <= 1 for ratio in usual)
    assert usual[3::4] == [0.0] * 5  # the fourth rollout is not guided
    shared = ratios(share=True)
    assert all(len(set(shared[start : start + 3])) == 1 for start in range(0, 20, 4))
    others = {"min_ratio": 0.3, "max_ratio": 0.6, "steps": 50, "linear_max_ratio": 0.4}
    reacts = {knobs[name] for name, value in others.items() if ratios(**{name: value}) != usual}
    assert reacts == set(PREFIX_STRATEGIES[strategy].reads)


# Advantage and loss


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_none_or_a_mask_of_the_group(name: str) -> None:
    is_teacher = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]]).bool()
    mask = BASELINES[name](is_teacher)
    assert mask is None or (mask.dtype == torch.bool and mask.shape == is_teacher.shape)
    rewards = torch.tensor([[1.0, 0, 1, 0], [1, 0.3, 0, 1], [0.5, 0.5, 0.5, 0.5]])
    for use_std in (False, True):
        advantages = group_advantage(rewards, use_std=use_std, baseline_mask=mask)
        assert advantages.isfinite().all()
        assert advantages[2].tolist() == [0.0] * 4  # equal rewards, nothing to learn
        assert torch.equal(advantages.argsort(stable=True), rewards.argsort(stable=True))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_compares_the_rows_of_a_group_alone(name: str) -> None:
    torch.manual_seed(0)
    rewards, baseline = torch.rand(3, 8), torch.rand(3, 8) < 0.7
    given, order = rewards.clone(), torch.randperm(8)
    for rows in (None, baseline):
        found = ESTIMATORS[name](rewards, rows)
        assert found.shape == rewards.shape and found.dtype == torch.float32 and found.isfinite().all()
        assert torch.equal(rewards, given), "it writes into its input"
        permuted = ESTIMATORS[name](rewards[:, order], rows if rows is None else rows[:, order])
        torch.testing.assert_close(permuted, found[:, order])
        alone = ESTIMATORS[name](rewards[1:2], rows if rows is None else rows[1:2])
        torch.testing.assert_close(alone, found[1:2])
        assert torch.equal(found.argsort(dim=1), rewards.argsort(dim=1)), "a higher reward has a lower advantage"
    for reward in (0.7, 0.0):  # where all earn the same there is no reason to prefer one
        assert ESTIMATORS[name](torch.full((2, 4), reward), None).tolist() == [[0.0] * 4] * 2


def _properties(estimator: Callable[[torch.Tensor, None], torch.Tensor]) -> dict[str, bool]:
    """Find which of an Estimator's properties hold for what a function makes of a few groups."""
    torch.manual_seed(0)
    rewards = torch.rand(3, 8, dtype=torch.float64)
    found = estimator(rewards, None)
    return {
        "shift_invariant": torch.allclose(estimator(rewards + 2, None), found, atol=1e-4),
        "scale_invariant": torch.allclose(estimator(4 * rewards, None), found, atol=1e-4),
        "sums_to_zero": torch.allclose(found.sum(dim=1), torch.zeros(3, dtype=found.dtype), atol=1e-4),
    }


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_has_the_properties_that_it_claims_and_claims_those_that_it_has(name: str) -> None:
    names = [each.name for each in fields(Estimator) if isinstance(each.default, bool)]
    claims = {each: getattr(ESTIMATORS[name], each) for each in names}
    assert claims == _properties(ESTIMATORS[name]), f"say in ESTIMATORS what holds of {name}"


def test_the_properties_tell_published_estimators_apart() -> None:
    def of(estimator: Callable[[torch.Tensor], torch.Tensor]) -> list[bool]:
        return [*_properties(lambda rewards, baseline: estimator(rewards)).values()]  # shift, scale, sum

    assert of(lambda rewards: rewards - rewards.mean(dim=1, keepdim=True)) == [True, False, True]
    assert of(lambda rewards: rewards / rewards.mean(dim=1, keepdim=True) - 1) == [False, True, True]
    assert of(lambda rewards: rewards - rewards.median(dim=1, keepdim=True).values) == [True, False, False]
    assert of(lambda rewards: rewards) == [False, False, False]


@pytest.mark.parametrize("name", RIGHT_ESTIMATORS)
@pytest.mark.parametrize("k", [1, 3])
def test_an_estimator_of_right_rows_compares_those_of_a_group_alone(name: str, k: int) -> None:
    torch.manual_seed(0)
    right, baseline, order = torch.rand(5, 8) < 0.4, torch.rand(5, 8) < 0.7, torch.randperm(8)
    given = right.clone()
    for rows in (None, baseline):
        found = RIGHT_ESTIMATORS[name](right, rows, k)
        assert found.shape == right.shape and found.dtype == torch.float32 and found.isfinite().all()
        assert torch.equal(right, given), "it writes into its input"
        permuted = RIGHT_ESTIMATORS[name](right[:, order], rows if rows is None else rows[:, order], k)
        torch.testing.assert_close(permuted, found[:, order])
        alone = RIGHT_ESTIMATORS[name](right[1:2], rows if rows is None else rows[1:2], k)
        torch.testing.assert_close(alone, found[1:2])
        assert (found[right] >= 0).all() and (found[~right] <= 0).all()
        torch.testing.assert_close((found * (baseline if rows is not None else 1)).sum(dim=1), torch.zeros(5))
        assert found.count_nonzero()
    assert not RIGHT_ESTIMATORS[name](torch.tensor([[True] * 8, [False] * 8]), None, k).any()


@pytest.mark.parametrize("name", BATCH_ESTIMATORS)
def test_an_estimator_of_batches_compares_all_rows_wherever_they_stand(name: str) -> None:
    torch.manual_seed(0)
    rewards, order = torch.rand(3, 8), torch.randperm(24)
    given = rewards.clone()
    found = BATCH_ESTIMATORS[name](rewards)
    assert found.shape == rewards.shape and found.dtype == torch.float32 and found.isfinite().all()
    assert torch.equal(rewards, given), "it writes into its input"
    permuted = BATCH_ESTIMATORS[name](rewards.flatten()[order].view(3, 8))
    torch.testing.assert_close(permuted.flatten(), found.flatten()[order])
    assert torch.equal(found.flatten().argsort(), rewards.flatten().argsort()), "a higher reward has a lower advantage"
    torch.testing.assert_close(BATCH_ESTIMATORS[name](rewards + 2), found, atol=1e-5, rtol=0)
    assert BATCH_ESTIMATORS[name](torch.full((2, 4), 0.7)).tolist() == [[0.0] * 4] * 2


def test_estimators_differ() -> None:
    rewards = torch.tensor([[0.1, 0.7, 0.2, 0.4], [0.1, 0.3, 0.2, 0.9]])
    groups = {name: _numbers(estimator(rewards, None)) for name, estimator in ESTIMATORS.items()}
    _all_differ(groups | {name: _numbers(estimator(rewards)) for name, estimator in BATCH_ESTIMATORS.items()})


@pytest.mark.parametrize("name", RESHAPES)
def test_a_reshape_rises_with_the_probability_and_its_slope_is_finite(name: str) -> None:
    log_p = torch.linspace(-60, 0, 200, dtype=torch.float64, requires_grad=True)
    for value in (
        reshape_probability(log_p, name, 0.3, 0.7),
        reshape_ratio(log_p, log_p.detach() - 1, name, 0.3, 0.7),
    ):
        assert value.shape == log_p.shape and value.isfinite().all()
        (slope,) = torch.autograd.grad(value.sum(), log_p)
        assert slope.isfinite().all() and (slope >= 0).all() and slope.sum() > 0
    for old in (-1e30, -200.0, 0.0):  # ratios far beyond the bound
        far = reshape_ratio(torch.tensor([-1e30, -200.0, 0.0]), torch.tensor(old), name, 0.3, 0.7)
        assert far.isfinite().all() and far.abs().max() <= 2 * math.exp(MAX_LOG_RATIO)
    d = torch.linspace(-3, 3, 50, dtype=torch.float64)
    assert (reshape_ratio(d, torch.zeros_like(d), name, 0.3, 0.7).diff() > 0).all()


@pytest.mark.parametrize("name", RESHAPES)
def test_a_reshape_says_which_settings_it_reads(name: str) -> None:
    log_p, zero = torch.linspace(-3, -0.1, 20), torch.zeros(20)

    def values(weight: float, power: float) -> dict[str, list[float]]:
        return {
            "off": reshape_probability(log_p, name, weight, power).tolist(),
            "on": reshape_ratio(log_p, zero, name, weight, power).tolist(),
        }

    usual, weight, power = values(0.3, 0.7), values(0.5, 0.7), values(0.3, 0.4)
    reads = {f"{kind}_policy_reshape_weight" for kind in usual if usual[kind] != weight[kind]}
    reads |= {f"{kind}_policy_reshape_pow_exp" for kind in usual if usual[kind] != power[kind]}
    assert set(RESHAPES[name].reads) == reads


def test_reshapes_differ() -> None:
    log_p = torch.linspace(-3, -0.1, 20, dtype=torch.float64)
    _all_differ({name: _numbers(reshape_probability(log_p, name, 0.3, 0.7)) for name in RESHAPES})
    _all_differ({name: _numbers(reshape_ratio(log_p, -log_p, name, 0.3, 0.7)) for name in RESHAPES})


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_an_aggregation_is_linear_blind_to_padding_and_adds_up_over_micro_batches(name: str) -> None:
    torch.manual_seed(0)
    mask = torch.arange(6) < torch.tensor([6, 1, 3, 4])[:, None]
    loss = torch.where(mask, torch.randn(4, 6, dtype=torch.float64), 0.0)
    totals = {"max_response_length": 9, "num_rows": 4, "num_tokens": 14}
    whole = aggregate_token_loss(loss, mask, name, **totals)
    assert whole.ndim == 0 and whole.isfinite()
    torch.testing.assert_close(aggregate_token_loss(3 * loss, mask, name, **totals), 3 * whole)
    order = [2, 0, 3, 1]
    torch.testing.assert_close(aggregate_token_loss(loss[order], mask[order], name, **totals), whole)
    parts = [aggregate_token_loss(loss[rows], mask[rows], name, **totals) for rows in (slice(0, 1), slice(1, 4))]
    torch.testing.assert_close(sum(parts), whole)
    padded, wider = torch.nn.functional.pad(loss, (0, 3)), torch.nn.functional.pad(mask, (0, 3))
    torch.testing.assert_close(aggregate_token_loss(padded, wider, name, **totals), whole)
    nothing = torch.zeros_like(mask)
    assert aggregate_token_loss(torch.zeros(4, 6), nothing, name).item() == 0.0


def test_aggregations_differ() -> None:
    loss, mask = torch.tensor([[1.0, 2, 4], [3, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    _all_differ(
        {name: [aggregate_token_loss(loss, mask, name, max_response_length=5).item()] for name in AGGREGATIONS}
    )


@pytest.mark.parametrize("kind", TEACHER_LOSSES)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1e30])
def test_a_teacher_loss_teaches_right_teachers_and_no_foreign_token(kind: str, garbage: float) -> None:
    torch.manual_seed(0)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 3:] = False
    teacher = torch.zeros_like(mask)
    teacher[0] = True
    log_probs = (-2 * torch.rand(3, 5)).masked_fill(~mask, garbage).requires_grad_()
    old = log_probs.detach().clone()
    loss, metrics = hybrid_policy_loss(log_probs, old, torch.ones(3, 5), mask, teacher, teacher_loss=kind)
    loss.backward()
    assert loss.isfinite() and all(value.isfinite() for value in metrics.values())
    assert log_probs.grad is not None
    assert (log_probs.grad[0, :3] < 0).all()  # a descent step makes the teacher's tokens more likely
    assert (log_probs.grad[0, 3:] == 0).all()
    assert (log_probs.grad[1:] < 0).all()  # and the rollouts of positive advantage as well


@pytest.mark.parametrize("kind", TEACHER_LOSSES)
def test_a_teacher_loss_says_whether_it_takes_the_reshaped_probability(kind: str) -> None:
    log_probs, teacher = torch.tensor([[-0.5, -1.0], [-0.7, -0.2]]), torch.tensor([[1, 1], [0, 0]]).bool()
    losses = [
        hybrid_policy_loss(
            log_probs, log_probs, torch.ones(2, 2), torch.ones(2, 2), teacher, teacher_loss=kind, **settings
        )[0].item()
        for settings in ({}, {"reshape": "square_root"}, {"off_policy_max_clip": 0.1})
    ]
    assert (len(set(losses)) == 3) == TEACHER_LOSSES[kind].reshapes
    assert (len(set(losses)) == 1) != TEACHER_LOSSES[kind].reshapes


@pytest.mark.parametrize("position", ENTROPY_POSITIONS)
def test_an_entropy_position_stays_within_the_response(position: str) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([6, 1, 3, 4])
    mask = torch.arange(6) < lengths[:, None]
    entropy = torch.rand(4, 6)
    chosen = response_entropy(entropy.masked_fill(~mask, 99.0), mask, position=position, top_share=0.5)
    assert chosen.shape == (4,)
    assert (chosen >= entropy.masked_fill(~mask, math.inf).amin(dim=1) - 1e-6).all()
    assert (chosen <= entropy.masked_fill(~mask, -math.inf).amax(dim=1) + 1e-6).all()
    order = [3, 1, 0, 2]
    permuted = response_entropy(entropy[order], mask[order], position=position, top_share=0.5)
    torch.testing.assert_close(permuted, chosen[order])


def test_entropy_positions_differ() -> None:
    entropy, mask = torch.tensor([[0.1, 0.9, 0.4]]), torch.ones(1, 3, dtype=torch.bool)
    _all_differ(
        {name: _numbers(response_entropy(entropy, mask, position=name, top_share=0.3)) for name in ENTROPY_POSITIONS}
    )
