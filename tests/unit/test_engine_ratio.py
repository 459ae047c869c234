"""The weights that correct for an engine, and the loss that takes them, against loops over tokens in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oger_recipe.algorithm.engine_ratio import EngineCorrection, Weighed, correction_metrics
from oger_recipe.algorithm.policy_loss import AGGREGATIONS, TEACHER_LOSSES, hybrid_policy_loss

# Level, mode, gating and threshold, as OpenRLHF has them.
SCHEMES = {
    "tis": ("token", "clip", "ratio", [2.0]),
    "clipped on both sides": ("token", "clip", "ratio", [0.8, 1.25]),
    "icepop": ("token", "mask", "ratio", [0.5, 2.0]),
    "sequence mask": ("seq", "mask", "ratio", [0.95, 1.1]),
    "tokens by KL": ("token", "mask", "binary_kl", [0.25]),
    "sequences by KL": ("seq", "mask", "binary_kl", [0.03]),
    "tokens by TV": ("token", "mask", "tv", [0.1]),
    "sequences by TV": ("seq", "mask", "tv", [0.12]),
}
# Rows of (pi, mu, whether it is a teacher's): a teacher's row, a rollout, one that a teacher begins, one with a
# single token, and an empty one.
ROWS = [
    [(0.9, math.nan, True), (0.2, 0.6, True)],
    [(0.5, 0.5, False), (0.4, 0.1, False), (0.05, 0.3, False), (0.6, 0.55, False)],
    [(0.01, 0.9, True), (0.3, 0.25, False), (0.7, 0.72, False)],
    [(0.1, 0.095, False)],
    [],
]
LENGTH = 6


def batch() -> tuple[torch.Tensor, ...]:
    """log pi, log mu, action mask and teachers' mask, [5, 6]; responses begin at place 1, between nan."""
    policy, engine = torch.full((2, len(ROWS), LENGTH), math.nan, dtype=torch.float64)
    action, teacher = torch.zeros(2, len(ROWS), LENGTH, dtype=torch.bool)
    for row, tokens in enumerate(ROWS):
        for place, (pi, mu, is_teacher) in enumerate(tokens, start=1):
            policy[row, place], engine[row, place] = math.log(pi), math.log(mu)
            action[row, place], teacher[row, place] = True, is_teacher
    return policy, engine, action, teacher


def measured(pi: float, mu: float, gating: str) -> float:
    if gating == "ratio":
        return math.log(pi / mu)
    if gating == "tv":
        return abs(mu - pi)
    return mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu) / (1 - pi))


def expected_weights(scheme: str) -> tuple[np.ndarray, np.ndarray]:
    """The weight of every token, and which were clipped or left out, one token at a time."""
    level, mode, gating, threshold = SCHEMES[scheme]
    low, high = (0.0, threshold[0]) if len(threshold) == 1 else threshold
    weights, filtered = np.ones((len(ROWS), LENGTH)), np.zeros((len(ROWS), LENGTH), dtype=bool)
    for row, tokens in enumerate(ROWS):
        own = [measured(pi, mu, gating) for pi, mu, is_teacher in tokens if not is_teacher]
        for place, (pi, mu, is_teacher) in enumerate(tokens, start=1):
            if is_teacher:
                continue
            value = sum(own) / len(own) if level == "seq" else measured(pi, mu, gating)
            value = math.exp(value) if gating == "ratio" else value
            filtered[row, place] = not low <= value <= high
            if mode == "clip":
                weights[row, place] = min(max(pi / mu, low), high)
            else:
                weights[row, place] = 0.0 if filtered[row, place] else pi / mu
    return weights, filtered


def weighed(scheme: str) -> Weighed:
    policy, engine, action, teacher = batch()
    correction = EngineCorrection.named(*SCHEMES[scheme])
    assert correction is not None
    return correction.of(policy, engine, action & ~teacher)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_weights_are_those_of_the_formulas(scheme: str) -> None:
    weights, filtered = expected_weights(scheme)
    found = weighed(scheme)
    np.testing.assert_allclose(found.weight.numpy(), weights, rtol=1e-12)
    assert found.filtered.tolist() == filtered.tolist()
    assert 0 < filtered.sum() < 7  # of seven own tokens: every scheme keeps some and filters some


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_row_is_weighed_the_same_beside_others_padded_and_alone(scheme: str) -> None:
    policy, engine, action, teacher = batch()
    correction, own = EngineCorrection.named(*SCHEMES[scheme]), action & ~teacher
    assert correction is not None
    whole, order = correction.of(policy, engine, own).weight, [3, 1, 4, 2, 0]
    assert torch.equal(correction.of(policy[order], engine[order], own[order]).weight, whole[order])
    for row, tokens in enumerate(ROWS):
        place = (slice(row, row + 1), slice(1, len(tokens) + 1))
        assert torch.equal(correction.of(policy[place], engine[place], own[place]).weight, whole[place])


def test_bounds_belong_to_what_is_kept_and_a_far_token_has_a_finite_weight() -> None:
    mask = torch.ones(1, 3, dtype=torch.bool)
    policy = torch.tensor([[2.0, 0.5, 1.0]], dtype=torch.float64).log()
    icepop = EngineCorrection.named("token", "mask", "ratio", [0.5, 2.0])
    assert icepop is not None and icepop.of(policy, torch.zeros_like(policy), mask).weight.tolist() == [
        [2.0, 0.5, 1.0]
    ]
    # A half and two: their geometric mean is 1, their arithmetic mean 1.25.
    even = torch.tensor([[2.0, 0.5, 1.0]], dtype=torch.float64).log()
    sequence = EngineCorrection.named("seq", "mask", "ratio", [0.9, 1.1])
    assert sequence is not None
    torch.testing.assert_close(sequence.of(even, torch.zeros_like(even), mask).weight, even.exp())
    for scheme in SCHEMES.values():
        correction = EngineCorrection.named(*scheme)
        assert correction is not None
        assert not correction.of(policy.clone().requires_grad_(), torch.zeros_like(policy), mask).weight.requires_grad
        far = correction.of(torch.zeros(1, 3), torch.tensor([[-900.0, 0.0, 0.0]]), mask)
        assert far.weight.isfinite().all() and far.ratio.isfinite().all()


def test_off_is_no_correction() -> None:
    assert EngineCorrection.named("off", "mask", "ratio", [0.5, 5.0]) is None


def test_metrics_are_of_the_policys_own_tokens_over_all_micro_batches() -> None:
    icepop = weighed("icepop")
    ratios = [1.0, 4.0, 1 / 6, 0.6 / 0.55, 1.2, 0.7 / 0.72, 0.1 / 0.095]  # two of seven tokens, of one row in three
    expected = {
        "vllm_ratio": sum(ratios) / 7, "vllm_ratio_max": 4.0, "vllm_filtered_tokens": 2 / 7,
        "vllm_filtered_rows": 1 / 3,
    }  # fmt: skip
    assert correction_metrics([icepop]) == pytest.approx(expected)
    cut = [
        Weighed(*(getattr(icepop, name)[rows] for name in ("own", "weight", "ratio", "filtered")))
        for rows in ([0, 3], [4, 2], [1])
    ]
    assert correction_metrics(cut) == pytest.approx(expected)
    of_teachers = [Weighed(*(getattr(icepop, name)[:1] for name in ("own", "weight", "ratio", "filtered")))]
    assert set(correction_metrics(of_teachers).values()) == {0.0}


# The loss with weights.

LOW, HIGH, ADVANTAGES = 0.2, 0.3, [0.7, -0.4, 1.1, -0.9, 0.3]
STEP = math.log(1.1)  # the update so far: r = 1.1 for half of the tokens, 1.5 for the others


def losses(scheme: str, aggregation: str, teacher_loss: str) -> tuple[float, np.ndarray]:
    """The loss and its gradient by log p, one token at a time: PPO's with the weight, and the teachers' without."""
    weights, _ = expected_weights(scheme)
    gradient, sums, counts, teachers = np.zeros((len(ROWS), LENGTH)), [0.0] * 5, [0] * 5, (0.0, 0)
    for row, tokens in enumerate(ROWS):
        for place, (pi, _, is_teacher) in enumerate(tokens, start=1):
            advantage, ratio = ADVANTAGES[row], math.exp(STEP * (1 if place % 2 else 4))
            clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
            value = max(-advantage * ratio, -advantage * clipped)
            slope = -advantage * ratio if value == -advantage * ratio else 0.0
            if is_teacher and teacher_loss != "ppo":
                p = pi * ratio
                if teacher_loss == "sft":
                    teachers = teachers[0] - math.log(p), teachers[1] + 1
                    continue
                value, slope = -advantage * p / (p + 0.1), -advantage * 0.1 * p / (p + 0.1) ** 2
            elif not is_teacher:
                value, slope = weights[row, place] * value, weights[row, place] * slope
            sums[row], counts[row], gradient[row, place] = sums[row] + value, counts[row] + 1, slope
    rows = sum(count > 0 for count in counts)
    divisors = {
        "token_mean": [sum(counts)] * 5, "sequence_mean": [max(count, 1) * rows for count in counts],
        "constant": [5 * 7] * 5,
    }[aggregation]  # fmt: skip
    loss = sum(total / divisor for total, divisor in zip(sums, divisors, strict=True))
    gradient /= np.array(divisors)[:, None]
    if teacher_loss == "sft":
        loss += teachers[0] / teachers[1]
        for row, tokens in enumerate(ROWS):
            for place, (_, _, is_teacher) in enumerate(tokens, start=1):
                gradient[row, place] = -1 / teachers[1] if is_teacher else gradient[row, place]
    return loss, gradient


def computed(
    scheme: str, aggregation: str, teacher_loss: str, rows: list[int], **totals: float
) -> tuple[float, torch.Tensor, dict[str, torch.Tensor]]:
    old, _, action, teacher = (each[rows] for each in batch())
    weights = torch.where(teacher, 50.0, weighed(scheme).weight[rows])  # a teacher's is not read
    places = torch.arange(LENGTH) % 2 == 1
    log_probs = (old + STEP * torch.where(places, 1.0, 4.0)).requires_grad_()
    advantages = torch.tensor(ADVANTAGES, dtype=old.dtype)[rows].unsqueeze(1).expand(-1, LENGTH)
    loss, metrics = hybrid_policy_loss(
        log_probs, old, advantages, action, teacher,
        clip_low=LOW, clip_high=HIGH, aggregation=aggregation, teacher_loss=teacher_loss, max_response_length=7,
        rollout_weights=weights, **totals,
    )  # fmt: skip
    loss.backward()
    assert log_probs.grad is not None
    return loss.item(), log_probs.grad, metrics


@pytest.mark.parametrize("teacher_loss", ["reshape", "ppo", "sft"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_loss_and_its_gradient_are_weighed_on_rollouts_alone_however_cut(
    scheme: str, aggregation: str, teacher_loss: str
) -> None:
    assert teacher_loss in TEACHER_LOSSES
    expected, gradient = losses(scheme, aggregation, teacher_loss)
    loss, found, metrics = computed(scheme, aggregation, teacher_loss, [0, 1, 2, 3, 4])
    assert loss == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(found.numpy(), gradient, rtol=1e-6, atol=1e-12)
    # No weight changes a total: of tokens (7 of rollouts, 3 of teachers), of rows that have any, or of all rows.
    apart = teacher_loss == "sft"
    rows_with_tokens = 3 if apart else 4
    totals = {
        "num_tokens": 7.0 if apart else 10.0, "num_teacher_tokens": 3.0,
        "num_rows": float(rows_with_tokens if aggregation == "sequence_mean" else 5),
    }  # fmt: skip
    total = 0.0
    for rows in ([4, 1], [0], [2, 3]):
        part, found, _ = computed(scheme, aggregation, teacher_loss, rows, **totals)
        np.testing.assert_allclose(found.numpy(), gradient[rows], rtol=1e-6, atol=1e-12)
        total += part
    assert total == pytest.approx(expected, rel=1e-6)
    assert metrics["rollout_tokens"] == 7


def test_weights_of_one_change_nothing_and_others_the_mean_of_rollouts_alone() -> None:
    old, _, action, teacher = batch()
    log_probs, advantages = torch.where(action, old, -1.0) * 0.9, torch.full_like(old, 0.5)
    ones = torch.ones_like(old)
    plain, metrics = hybrid_policy_loss(log_probs, old, advantages, action, teacher)
    same, weighed_metrics = hybrid_policy_loss(log_probs, old, advantages, action, teacher, rollout_weights=ones)
    assert plain == same and metrics == weighed_metrics
    _, halved = hybrid_policy_loss(log_probs, old, advantages, action, teacher, rollout_weights=ones / 2)
    assert halved["on_policy_loss"] == metrics["on_policy_loss"] / 2
    assert {name for name in metrics if halved[name] != metrics[name]} == {"on_policy_loss"}
    with pytest.raises(ValueError, match="same B and T"):
        hybrid_policy_loss(log_probs, old, advantages, action, teacher, rollout_weights=ones[:1])
