"""The exploration bonus against hand-made numbers, and the independence of the algorithm package."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import oger_recipe
from oger_recipe.algorithm.exploration import (
    ENTROPY_WEIGHTS,
    REDUCTIONS,
    SCHEDULES,
    SHAPINGS,
    centred,
    exploration_bonus,
    mean_similarity,
    scheduled_weight,
    shape_measure,
    spread_within_groups,
)

# Unit vectors with round cosines: (0.6, 0.8) and (0.8, 0.6).
ROLLOUTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
TEACHERS = torch.tensor([[0.8, 0.6], [0.6, 0.8]])


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        # inner products: row 1: 0.8, 0.6; row 2: 0.6, 0.8; row 3: 0.48 + 0.48 = 0.96, 0.36 + 0.64 = 1
        ("mean", [0.7, 0.7, 0.98]),
        ("max", [0.8, 0.8, 1.0]),
        ("min", [0.6, 0.6, 0.96]),
    ],
)
def test_similarity_is_reduced_over_the_teachers(reduce: str, expected: list[float]) -> None:
    torch.testing.assert_close(mean_similarity(ROLLOUTS, TEACHERS, reduce), torch.tensor(expected))


def test_similarity_reduces_by_mean_unless_told_otherwise() -> None:
    torch.testing.assert_close(mean_similarity(ROLLOUTS, TEACHERS), torch.tensor([0.7, 0.7, 0.98]))


@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
def test_without_teachers_every_similarity_is_nan(reduce: str) -> None:
    similarity = mean_similarity(ROLLOUTS, torch.empty(0, 2), reduce)
    assert similarity.shape == (3,)
    assert similarity.isnan().all()


def test_an_empty_group_has_no_similarities() -> None:
    assert mean_similarity(torch.empty(0, 2), TEACHERS).shape == (0,)
    assert mean_similarity(torch.empty(0, 2), torch.empty(0, 2)).shape == (0,)


@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
def test_permuting_rollouts_permutes_similarities_and_the_order_of_teachers_is_irrelevant(reduce: str) -> None:
    torch.manual_seed(0)
    rollouts = torch.nn.functional.normalize(torch.randn(9, 31), dim=1)
    teachers = torch.nn.functional.normalize(torch.randn(4, 31), dim=1)
    order = torch.randperm(9)
    similarity = mean_similarity(rollouts, teachers, reduce)
    assert torch.equal(mean_similarity(rollouts[order], teachers, reduce), similarity[order])
    torch.testing.assert_close(mean_similarity(rollouts, teachers.flip(0), reduce), similarity)


@pytest.mark.parametrize("n", [2, 5, 7, 9, 17])
@pytest.mark.parametrize("width", [7, 384])
def test_equal_texts_have_bitwise_equal_similarities(n: int, width: int) -> None:
    torch.manual_seed(n + width)
    text = torch.nn.functional.normalize(torch.randn(1, width), dim=1)
    teachers = torch.nn.functional.normalize(torch.randn(3, width), dim=1)
    assert mean_similarity(text.repeat(n, 1), teachers).unique().numel() == 1


def test_similarity_of_half_precision_embeddings_is_computed_in_float32() -> None:
    # 1 - 2**-7 is a bfloat16 number; its square 1 - 2**-6 + 2**-14 is not.
    value = 1 - 2.0**-7
    embedding = torch.tensor([[value]], dtype=torch.bfloat16)
    similarity = mean_similarity(embedding, embedding)
    assert similarity.dtype == torch.float32
    assert similarity.item() == value * value


def test_similarity_refuses_unknown_reductions_by_naming_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"median.*{', '.join(REDUCTIONS)}"):
        mean_similarity(ROLLOUTS, TEACHERS, "median")


@pytest.mark.parametrize(
    ("rollouts", "teachers"),
    [
        (torch.ones(2), torch.ones(1, 2)),
        (torch.ones(3, 2), torch.ones(2)),
        (torch.ones(3, 2), torch.ones(1, 3)),
        (torch.ones(1, 3, 2), torch.ones(1, 2)),
    ],
)
def test_similarity_refuses_wrong_shapes(rollouts: torch.Tensor, teachers: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"\[n, d\] and \[M, d\]"):
        mean_similarity(rollouts, teachers)


def test_what_a_group_shares_is_taken_from_its_rollouts_and_its_teachers() -> None:
    # Mean (0.6, 0): left are (0, 0.8), (0, -0.8), and of teachers (0.4, 0), (0, 0.8), (-1.2, -0.9) of length 1.5.
    rollouts = torch.tensor([[0.6, 0.8], [0.6, -0.8]])
    teachers = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.6, -0.9]])
    ours, theirs = centred(rollouts, teachers)
    torch.testing.assert_close(ours, torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    torch.testing.assert_close(theirs, torch.tensor([[1.0, 0.0], [0.0, 1.0], [-0.8, -0.6]]))
    # As they are, the cosines are 0.6 and 0.6, 1 and -0.28; then 0 and 0, 1 and -1.
    torch.testing.assert_close(mean_similarity(ours, theirs[:2]), torch.tensor([0.5, -0.5]))


def test_the_mean_is_of_rollouts_alone_and_of_those_that_have_an_embedding() -> None:
    rollouts = torch.tensor([[0.6, 0.8], [math.nan, math.nan], [0.6, -0.8]])
    ours, theirs = centred(rollouts, torch.tensor([[0.0, 1.0], [math.nan, math.nan]]))
    torch.testing.assert_close(ours[[0, 2]], torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    assert ours[1].isnan().all() and theirs[1].isnan().all()
    torch.testing.assert_close(theirs[0], torch.tensor([-0.6, 1.0]) / math.sqrt(1.36))
    nothing, _ = centred(torch.full((2, 2), math.nan), torch.ones(1, 2))
    assert nothing.isnan().all()


@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize("rounding", [0.0, 1e-6])
def test_a_group_of_one_text_is_neither_near_its_teachers_nor_far(n: int, rounding: float) -> None:
    torch.manual_seed(n)
    text = torch.nn.functional.normalize(torch.randn(1, 384), dim=1)
    rollouts = text.repeat(n, 1) + rounding * torch.nn.functional.normalize(torch.randn(n, 384), dim=1)
    ours, theirs = centred(rollouts, torch.cat([text, torch.nn.functional.normalize(torch.randn(2, 384), dim=1)]))
    assert ours.tolist() == torch.zeros(n, 384).tolist()
    assert mean_similarity(ours, theirs).tolist() == [0.0] * n
    assert theirs.norm(dim=1).tolist() == pytest.approx([0.0, 1.0, 1.0])


def test_centred_rows_are_of_norm_one_and_of_the_type_they_had_and_permute_with_the_group() -> None:
    torch.manual_seed(0)
    rollouts = torch.nn.functional.normalize(torch.randn(6, 31), dim=1)
    teachers = torch.nn.functional.normalize(torch.randn(3, 31), dim=1)
    ours, theirs = centred(rollouts, teachers)
    assert ours.dtype == theirs.dtype == torch.float32
    torch.testing.assert_close(torch.cat([ours, theirs]).norm(dim=1), torch.ones(9))
    order = torch.randperm(6)
    again, as_before = centred(rollouts[order], teachers)
    torch.testing.assert_close(again, ours[order])
    torch.testing.assert_close(as_before, theirs)


LN2 = math.log(2.0)


@pytest.mark.parametrize(
    ("weight", "reverse", "expected"),
    [
        # similarity 0.75, entropy ln 2, reward 1; then similarity 0.5, entropy ln 4, reward 2.
        ("exp_neg_entropy", True, [0.25 * 0.5, 0.5 * 0.25 * 2]),
        ("neg_entropy", True, [-0.25 * LN2, -0.5 * 2 * LN2 * 2]),
        ("entropy", True, [0.25 * LN2, 0.5 * 2 * LN2 * 2]),
        ("none", True, [0.25, 0.5 * 2]),
        ("exp_neg_entropy", False, [0.75 * 0.5, 0.5 * 0.25 * 2]),
        ("none", False, [0.75, 0.5 * 2]),
    ],
)
def test_bonus_is_divergence_times_weight_times_reward(weight: str, reverse: bool, expected: list[float]) -> None:
    similarity, entropy, reward = torch.tensor([0.75, 0.5]), torch.tensor([LN2, 2 * LN2]), torch.tensor([1.0, 2.0])
    bonus = exploration_bonus(similarity, entropy, reward, weight=weight, reverse=reverse)
    torch.testing.assert_close(bonus, torch.tensor(expected))


def test_bonus_is_the_papers_unless_told_otherwise() -> None:
    # D = 1 - 0.2 = 0.8; exp(-ln 2) = 0.5; R = 1
    bonus = exploration_bonus(torch.tensor([0.2]), torch.tensor([LN2]), torch.tensor([1.0]))
    torch.testing.assert_close(bonus, torch.tensor([0.4]))


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("entropy", [0.5, math.nan])
def test_without_teachers_a_correct_rollout_earns_exactly_nothing(reverse: bool, entropy: float) -> None:
    similarity = mean_similarity(torch.ones(3, 1), torch.empty(0, 1))
    bonus = exploration_bonus(similarity, torch.full((3,), entropy), torch.ones(3), reverse=reverse)
    assert bonus.tolist() == [0.0, 0.0, 0.0]


def test_an_undefined_entropy_of_a_rewarded_rollout_stays_visible_and_alone() -> None:
    bonus = exploration_bonus(torch.tensor([0.5, 0.5]), torch.tensor([math.nan, 0.0]), torch.ones(2))
    assert bonus[0].isnan()
    assert bonus[1].item() == 0.5


def test_a_group_that_is_all_wrong_earns_nothing_and_one_that_is_all_correct_earns_by_distance() -> None:
    similarity, entropy = torch.tensor([0.25, 0.5, 1.0]), torch.zeros(3)
    assert exploration_bonus(similarity, entropy, torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert exploration_bonus(similarity, entropy, torch.ones(3)).tolist() == [0.75, 0.5, 0.0]


def test_permuting_a_group_permutes_its_bonuses() -> None:
    torch.manual_seed(1)
    similarity, entropy, reward = torch.rand(8), torch.rand(8), torch.rand(8).round()
    order = torch.randperm(8)
    bonus = exploration_bonus(similarity, entropy, reward)
    assert torch.equal(exploration_bonus(similarity[order], entropy[order], reward[order]), bonus[order])


def test_integer_rewards_are_accepted() -> None:
    bonus = exploration_bonus(torch.tensor([0.5, 0.5]), torch.zeros(2), torch.tensor([1, 0]))
    assert bonus.tolist() == [0.5, 0.0]


def test_bonus_refuses_unknown_weights_by_naming_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"exp_neg_enp.*{', '.join(ENTROPY_WEIGHTS)}"):
        exploration_bonus(torch.ones(1), torch.ones(1), torch.ones(1), weight="exp_neg_enp")


def test_bonus_refuses_shapes_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match=r"\[2\], \[2, 1\], \[2\]"):
        exploration_bonus(torch.ones(2), torch.ones(2, 1), torch.ones(2))


def test_the_algorithm_package_needs_torch_alone() -> None:
    program = """
import importlib, pkgutil, sys
import oger_recipe
of_the_package = set(sys.modules)
import oger_recipe.algorithm as package
names = [module.name for module in pkgutil.iter_modules(package.__path__)]
for name in names:
    importlib.import_module(f"oger_recipe.algorithm.{name}")
assert {"exploration", "hybrid_group", "advantage", "policy_loss", "token_stats"} <= set(names), names
foreign = {"ray", "vllm", "deepspeed", "transformers", "openrlhf"} & set(sys.modules)
new = set(sys.modules) - of_the_package
ours = {name for name in new if name.startswith("oger_recipe.") and ".algorithm" not in name}
assert not foreign and not ours, (foreign, ours)
"""
    root = str(Path(oger_recipe.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root}
    outcome = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr


NAN = math.nan
MEASURES = torch.tensor([0.2, 0.1, 0.3, 0.2, 0.7, NAN], dtype=torch.float64)
EARNS = torch.tensor([True, False, True, True, True, True])


@pytest.mark.parametrize(
    ("shaping", "expected"),
    [
        # earning: 0.2, 0.3, 0.2, 0.7
        ("none", [0.2, 0.1, 0.3, 0.2, 0.7, NAN]),
        ("ratio", [2 / 3, 0.1, 3 / 4, 2 / 3, 7 / 8, NAN]),
        ("group_minmax", [0.0, 0.1, 0.2, 0.0, 1.0, NAN]),
        # of three others: 0 less and 1 equal; 2 less; 0 less and 1 equal; 3 less
        ("group_rank", [1 / 6, 0.1, 2 / 3, 1 / 6, 1.0, NAN]),
    ],
)
def test_shaping_maps_the_measures_of_earning_rows_only(shaping: str, expected: list[float]) -> None:
    shaped = shape_measure(MEASURES, EARNS, shaping=shaping)
    torch.testing.assert_close(shaped, torch.tensor(expected, dtype=torch.float64), equal_nan=True)
    assert shaped.isnan().tolist() == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("shaping", "alone", "equal", "nobody"),
    [
        ("none", [0.3, 0.4], [0.3, 0.3], [0.3, 0.4]),
        ("ratio", [0.75, 0.4], [0.75, 0.75], [0.3, 0.4]),
        ("group_minmax", [0.3, 0.4], [0.3, 0.3], [0.3, 0.4]),
        ("group_rank", [1.0, 0.4], [0.5, 0.5], [0.3, 0.4]),
    ],
)
def test_shaping_of_rows_that_cannot_be_compared(
    shaping: str, alone: list[float], equal: list[float], nobody: list[float]
) -> None:
    # three groups at once: one row earns; both earn alike; none earns
    measure = torch.tensor([[0.3, 0.4], [0.3, 0.3], [0.3, 0.4]])
    earns = torch.tensor([[True, False], [True, True], [False, False]])
    torch.testing.assert_close(shape_measure(measure, earns, shaping=shaping), torch.tensor([alone, equal, nobody]))


def test_the_ratio_of_a_negative_measure_has_no_pole() -> None:
    shaped = shape_measure(torch.tensor([-0.1, -0.3, 0.0]), torch.ones(3, dtype=torch.bool), shaping="ratio")
    torch.testing.assert_close(shaped, torch.tensor([-0.5, -0.75, 0.0]))


def test_shaping_refuses_unknown_names_and_shapes_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match=f"minmax.*{', '.join(SHAPINGS)}"):
        shape_measure(MEASURES, EARNS, shaping="minmax")
    with pytest.raises(ValueError, match=r"\[6\] and \[1\]"):
        shape_measure(MEASURES, EARNS[:1], shaping="ratio")
    with pytest.raises(ValueError, match=f"minmax.*{', '.join(SHAPINGS)}"):
        exploration_bonus(torch.ones(1), torch.ones(1), torch.ones(1), shaping="minmax")


@pytest.mark.parametrize(
    ("reverse", "expected"),
    [
        # divergences 0.2, 0.6, 0.4, 0.9 of which the first two earn: 0 and 1; similarities 0.8, 0.4: 1 and 0
        (True, [0.0, 2.0, 0.0, 0.0]),
        (False, [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_bonus_is_shaped_among_the_rewarded(reverse: bool, expected: list[float]) -> None:
    similarity, reward = torch.tensor([0.8, 0.4, 0.6, 0.1]), torch.tensor([1.0, 2.0, 0.0, 0.0])
    bonus = exploration_bonus(similarity, torch.zeros(4), reward, shaping="group_minmax", reverse=reverse)
    torch.testing.assert_close(bonus, torch.tensor(expected))


@pytest.mark.parametrize("reward", [0.0, -0.5, 3.0])
@pytest.mark.parametrize(("reverse", "failing", "earning"), [(True, 0.7, 0.2), (False, 0.3, 0.8)])
def test_failing_rollouts_earn_the_opposite_measure_with_a_reward_of_one(
    reward: float, reverse: bool, failing: float, earning: float
) -> None:
    # similarities 0.7 (fails), 0.8 (reward 2), 0.9 (neither); entropies ln 2, ln 2 and 0
    bonus = exploration_bonus(
        torch.tensor([0.7, 0.8, 0.9]),
        torch.tensor([LN2, LN2, 0.0]),
        torch.tensor([reward, 2.0, 0.0]),
        reverse=reverse,
        fails=torch.tensor([True, False, False]),
    )
    torch.testing.assert_close(bonus, torch.tensor([failing * 0.5, earning * 0.5 * 2, 0.0]))


def test_failing_rollouts_neither_are_shaped_nor_shape_others() -> None:
    # divergences 0.9 (fails), 0.2, 0.6: the last two are the group that is shaped
    bonus = exploration_bonus(
        torch.tensor([0.1, 0.8, 0.4]),
        torch.zeros(3),
        torch.ones(3),
        shaping="group_minmax",
        fails=torch.tensor([True, False, False]),
    )
    torch.testing.assert_close(bonus, torch.tensor([0.1, 0.0, 1.0]))


def test_failing_rollouts_without_teachers_earn_nothing_and_masks_may_not_broadcast() -> None:
    nothing = torch.full((2,), NAN)
    fails = torch.tensor([True, False])
    assert exploration_bonus(nothing, torch.zeros(2), torch.ones(2), fails=fails).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"\[2\], \[2\], \[2\], \[1\]"):
        exploration_bonus(nothing, torch.zeros(2), torch.ones(2), fails=fails[:1])


def test_groups_of_a_batch_are_shaped_apart() -> None:
    similarity = torch.tensor([[0.8, 0.4, 0.6], [NAN, NAN, NAN]])
    bonus = exploration_bonus(similarity, torch.zeros(2, 3), torch.ones(2, 3), shaping="group_rank")
    assert bonus.tolist() == [[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # progress 0, 1/4, 1/2, 3/4, 1, 1 over five steps
        ("constant", [0.1] * 6),
        ("linear", [0.1, 0.15, 0.2, 0.25, 0.3, 0.3]),
        ("cosine", [0.1, 0.1 + 0.1 * (1 - math.sqrt(0.5)), 0.2, 0.1 + 0.1 * (1 + math.sqrt(0.5)), 0.3, 0.3]),
    ],
)
def test_schedules_lead_from_start_to_end(schedule: str, expected: list[float]) -> None:
    weights = [scheduled_weight(step, start=0.1, end=0.3, steps=5, schedule=schedule) for step in (1, 2, 3, 4, 5, 500)]
    assert weights == pytest.approx(expected)
    assert weights[0] == 0.1
    assert weights[-1] == weights[-2] == expected[-1]
    # 0.3 + (0.1 - 0.3) is not 0.1 in floating point
    reversed_end = scheduled_weight(5, start=0.3, end=0.1, steps=5, schedule=schedule)
    assert reversed_end == (0.3 if schedule == "constant" else 0.1)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_of_one_step_starts_and_then_ends(schedule: str) -> None:
    assert scheduled_weight(1, start=1.0, end=0.0, steps=1, schedule=schedule) == 1.0
    assert scheduled_weight(2, start=1.0, end=0.0, steps=1, schedule=schedule) == 0.0


def test_unknown_schedules_are_refused_by_naming_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"exp.*{', '.join(SCHEDULES)}"):
        scheduled_weight(1, start=1.0, end=0.0, steps=2, schedule="exp")


def test_the_spread_within_groups_leaves_out_what_whole_groups_differ_by() -> None:
    # Counted: 1 and 3 (std sqrt(2)), 10, 12 and 14 (std 2), 7 alone, none. Over all six values the std is 5.
    values = torch.tensor([[1.0, 3, 99, 99], [10, 12, 14, 99], [7, 99, 99, 99], [99, 99, 99, 99]])
    counted = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    expected = (math.sqrt(2) + 2) / 2
    assert spread_within_groups(values, counted) == pytest.approx(expected)
    assert spread_within_groups(values + torch.tensor([[5.0], [-8], [0], [0]]), counted) == pytest.approx(expected)
    assert spread_within_groups(values[:, [3, 1, 0, 2]], counted[:, [3, 1, 0, 2]]) == pytest.approx(expected)
    assert spread_within_groups(values[2:], counted[2:]) == 0.0
