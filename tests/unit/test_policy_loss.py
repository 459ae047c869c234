"""The hybrid loss against a float64 reference that loops over tokens and knows every gradient in closed form."""

import math

import pytest
import torch

from oger_recipe.algorithm.policy_loss import aggregate_token_loss, hybrid_policy_loss
from oger_recipe.algorithm.reshape import reshape_probability

AGGREGATIONS = ["token_mean", "sequence_mean", "constant"]
METRICS = {
    "on_policy_loss",
    "off_policy_loss",
    "clip_fraction",
    "ppo_kl",
    "approx_kl",
    "rollout_tokens",
    "off_policy_prob",
    "on_policy_prob",
    "off_policy_ratio",
    "off_policy_token_share",
    "off_policy_ratio_max_clip_fraction",
    "off_policy_ratio_min_clip_fraction",
    "all_clip_fraction",
    "on_policy_ratio",
}
C, K = 0.3, 0.7
# name -> (f(p), p f'(p)), the second being the weight on the gradient of log p (LUFFY, arXiv 2504.14945)
CLOSED_FORMS = {
    "no_reshape": (lambda p: p, lambda p: p),
    "logp": (lambda p: C * math.log(p), lambda p: C),
    "p_logp": (lambda p: p + C * math.log(p), lambda p: p + C),
    "square_root": (lambda p: math.sqrt(p), lambda p: math.sqrt(p) / 2),
    "pow": (lambda p: p**K, lambda p: K * p**K),
    "p_div_p_0.1": (lambda p: p / (p + 0.1), lambda p: 0.1 * p / (p + 0.1) ** 2),
    "p_div_p_0.3": (lambda p: p / (p + 0.3), lambda p: 0.3 * p / (p + 0.3) ** 2),
    "p_div_p_0.5": (lambda p: p / (p + 0.5), lambda p: 0.5 * p / (p + 0.5) ** 2),
    "p_div_p_2": (lambda p: p / (p + 2), lambda p: 2 * p / (p + 2) ** 2),
    "p_div_p_1e-3": (lambda p: p / (p + 1e-3), lambda p: 1e-3 * p / (p + 1e-3) ** 2),
}

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def make_batch(rows: int = 6, length: int = 9, seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    """Rows of different lengths: a teacher's, one that a teacher begins, rollouts, and at last an empty one."""
    generator = torch.Generator().manual_seed(seed)
    log_probs = -2 * torch.rand(rows, length, generator=generator, dtype=torch.float64)
    old_log_probs = log_probs + 0.4 * torch.randn(rows, length, generator=generator, dtype=torch.float64)
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64).expand(rows, length).contiguous()
    lengths = torch.randint(1, length + 1, (rows,), generator=generator)
    lengths[0], lengths[1], lengths[-1] = length - 1, length, 0
    action_mask = torch.arange(length) < lengths[:, None]
    off_policy_mask = torch.zeros(rows, length, dtype=torch.bool)
    off_policy_mask[0], off_policy_mask[1, :3] = True, True
    floats = (log_probs.to(dtype).requires_grad_(), old_log_probs.to(dtype), advantages.to(dtype))
    return (*floats, action_mask, off_policy_mask)


def reference(
    batch: Batch, aggregation: str, clip: tuple[float, float] | None = (0.2, 0.2), max_length: int | None = None
) -> tuple[float, torch.Tensor]:
    """Loss and its gradient with respect to log_probs, token by token, for p / (p + 0.1)."""
    log_probs, old, advantages, action, off = (x.tolist() for x in batch)
    rows, length = len(action), len(action[0])
    counts = [sum(row) for row in action]
    gradient = torch.zeros(rows, length, dtype=torch.float64)
    loss = 0.0
    for i in range(rows):
        for t in range(length):
            if not action[i][t]:
                continue
            a = advantages[i][t]
            if off[i][t]:
                p = math.exp(log_probs[i][t])
                value, slope = -a * p / (p + 0.1), -a * 0.1 * p / (p + 0.1) ** 2
            else:
                r = math.exp(log_probs[i][t] - old[i][t])
                value, slope = -a * r, -a * r
                if clip is not None:
                    low, high = 1 - clip[0], 1 + clip[1]
                    if (a > 0 and r > high) or (a < 0 and r < low):
                        value, slope = -a * (high if a > 0 else low), 0.0
            divisor = {
                "token_mean": sum(counts),
                "sequence_mean": counts[i] * sum(count > 0 for count in counts),
                "constant": rows * (max_length or length),
            }[aggregation]
            loss += value / divisor
            gradient[i, t] = slope / divisor
    return loss, gradient


def loss_and_gradient(batch: Batch, **options) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    log_probs = batch[0].detach().clone().requires_grad_()
    loss, metrics = hybrid_policy_loss(log_probs, *batch[1:], **options)
    loss.backward()
    return loss.detach(), log_probs.grad, metrics


def take(batch: Batch, index) -> Batch:
    return tuple(tensor.detach()[index] for tensor in batch)


@pytest.mark.parametrize("name", CLOSED_FORMS)
@pytest.mark.parametrize("p", [1.0, 0.9, 0.5, 0.1, 1e-3, 1e-8])
def test_every_reshape_has_the_value_and_the_gradient_of_its_closed_form(name: str, p: float) -> None:
    log_p = torch.tensor(math.log(p), dtype=torch.float64, requires_grad=True)
    value = reshape_probability(log_p, name, C, K)
    value.backward()
    f, weight = CLOSED_FORMS[name]
    assert value.item() == pytest.approx(f(p), rel=1e-9, abs=1e-15)
    assert log_p.grad.item() == pytest.approx(weight(p), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", CLOSED_FORMS)
@pytest.mark.parametrize("advantage", [0.7, -0.7])
def test_a_teachers_token_is_learnt_by_minus_advantage_times_reshape(name: str, advantage: float) -> None:
    p = 0.25
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = (one * math.log(p), one * -3.0, one * advantage, one.bool(), one.bool())
    loss, gradient, metrics = loss_and_gradient(batch, reshape=name, reshape_weight=C, reshape_power=K)
    f, weight = CLOSED_FORMS[name]
    assert loss.item() == pytest.approx(-advantage * f(p), rel=1e-9)
    assert gradient.item() == pytest.approx(-advantage * weight(p), rel=1e-9)
    assert metrics["off_policy_ratio"].item() == pytest.approx(f(p), rel=1e-9)


def test_the_default_reshape_is_steepest_at_a_tenth() -> None:
    # 0.1 p / (p + 0.1)^2: at p = 0.1 it is 0.01 / 0.04 = 1/4, at p = 1 it is 0.1 / 1.21
    log_p = torch.tensor([0.1, 1.0], dtype=torch.float64).log().requires_grad_()
    reshape_probability(log_p, "p_div_p_0.1", 0.0, 0.0).sum().backward()
    torch.testing.assert_close(log_p.grad, torch.tensor([0.25, 0.1 / 1.21], dtype=torch.float64))


@pytest.mark.parametrize("name", [name for name in CLOSED_FORMS if name not in ("logp", "p_logp")])
def test_reshapes_stay_finite_where_the_probability_underflows(name: str) -> None:
    log_p = torch.tensor([-1e4, -200.0], requires_grad=True)
    value = reshape_probability(log_p, name, C, K)
    value.sum().backward()
    assert value.isfinite().all() and log_p.grad.isfinite().all()
    assert value[0].item() == 0.0


@pytest.mark.parametrize(
    "name",
    ["", "p", "pow_0.5", "p_div_p_", "p_div_p_x", "p_div_p_0", "p_div_p_-1", "p_div_p_inf", "p_div_p_nan", "0.1"],
)
def test_unknown_reshapes_are_refused_by_naming_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="no_reshape, logp, p_logp, square_root, pow, p_div_p_<gamma>"):
        reshape_probability(torch.zeros(1), name, 0.1, 0.5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # clip_low 0.2, clip_high 0.3: the range is 0.8 .. 1.3; the slope is with respect to log p, so -A r or 0
        (1.0, 2.0, -2.0, -2.0),
        (1.25, 2.0, -2.5, -2.5),
        (1.5, 2.0, -2.6, 0.0),
        (0.5, 2.0, -1.0, -1.0),
        (1.5, -2.0, 3.0, 3.0),
        (0.5, -2.0, 1.6, 0.0),
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_a_rollouts_token_has_ppos_clipped_surrogate(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = (one * (math.log(ratio) - 1), one * -1.0, one * advantage, one.bool(), ~one.bool())
    value, gradient, metrics = loss_and_gradient(batch, clip_low=0.2, clip_high=0.3)
    assert value.item() == pytest.approx(loss)
    assert gradient.item() == pytest.approx(slope)
    assert metrics["clip_fraction"].item() == (0.0 if slope else 1.0)
    value, gradient, metrics = loss_and_gradient(batch, clip_low=0.2, clip_high=0.3, use_clip=False)
    assert value.item() == pytest.approx(-advantage * ratio)
    assert gradient.item() == pytest.approx(-advantage * ratio)
    assert metrics["clip_fraction"].item() == 0.0


def test_a_teachers_token_is_never_clipped_and_never_sees_the_old_policy() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    # 0.9 / (0.9 + 0.1) = 0.9 and 0.1 * 0.9 / (0.9 + 0.1)^2 = 0.09
    for old in (-9.0, -0.1, math.nan, math.inf):
        loss, gradient, _ = loss_and_gradient((one * math.log(0.9), one * old, one, one.bool(), one.bool()))
        assert loss.item() == pytest.approx(-0.9)
        assert gradient.item() == pytest.approx(-0.09)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.1, 0.4), None])
@pytest.mark.parametrize("max_length", [None, 20])
def test_a_mixed_batch_has_the_references_loss_and_gradient(
    aggregation: str, clip: tuple[float, float] | None, max_length: int | None
) -> None:
    for seed in range(3):
        batch = make_batch(seed=seed)
        low, high = clip or (0.2, 0.2)
        options = {"clip_low": low, "clip_high": high, "use_clip": clip is not None, "aggregation": aggregation}
        loss, gradient, _ = loss_and_gradient(batch, max_response_length=max_length, **options)
        expected_loss, expected_gradient = reference(batch, aggregation, clip, max_length)
        assert loss.item() == pytest.approx(expected_loss, rel=1e-9)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


def test_defaults_are_the_papers_reshape_clipping_at_a_fifth_and_the_constant_divisor() -> None:
    batch = make_batch()
    loss, gradient, _ = loss_and_gradient(batch)
    expected_loss, expected_gradient = reference(batch, "constant", (0.2, 0.2))
    assert loss.item() == pytest.approx(expected_loss, rel=1e-9)
    torch.testing.assert_close(gradient, expected_gradient)


def test_aggregations_of_a_batch_worked_out_by_hand() -> None:
    # rows with 2, 1 and 0 tokens of losses (1, 3), (5), (): the sum is 9
    token_loss = torch.tensor([[1.0, 3.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert aggregate_token_loss(token_loss, mask, "token_mean").item() == 3.0  # 9 / 3
    assert aggregate_token_loss(token_loss, mask, "sequence_mean").item() == 3.5  # (2 + 5) / 2
    assert aggregate_token_loss(token_loss, mask, "constant").item() == 1.0  # 9 / (3 * 3)
    assert aggregate_token_loss(token_loss, mask, "constant", max_response_length=6).item() == 0.5  # 9 / (3 * 6)
    assert aggregate_token_loss(token_loss, mask, "token_mean", num_tokens=18).item() == 0.5  # 9 / 18
    assert aggregate_token_loss(token_loss, mask, "sequence_mean", num_rows=14).item() == 0.5  # 7 / 14
    assert aggregate_token_loss(token_loss, mask, "sequence_mean", num_rows=0.5).item() == 14.0  # 7 / 0.5
    assert aggregate_token_loss(token_loss, mask, "constant", num_rows=0.5).item() == 6.0  # 9 / (0.5 * 3)
    assert aggregate_token_loss(token_loss, mask, "token_mean", num_tokens=torch.tensor(9)).item() == 1.0


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("cuts", [[1, 1, 1, 1, 1, 1], [2, 3, 1], [5, 1], [6]])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_the_cut_into_micro_batches_changes_neither_loss_nor_gradient(
    aggregation: str, cuts: list[int], as_tensor: bool
) -> None:
    batch = make_batch()
    options = {"aggregation": aggregation, "max_response_length": 12}
    loss, gradient, _ = loss_and_gradient(batch, **options)
    action_mask = batch[3]
    rows = float(len(action_mask) if aggregation == "constant" else action_mask.any(dim=1).sum())
    tokens = float(action_mask.sum())
    totals = {"num_rows": torch.tensor(rows), "num_tokens": torch.tensor(tokens)}
    if not as_tensor:
        totals = {"num_rows": rows, "num_tokens": tokens}
    pieces, start = [], 0
    for size in cuts:
        piece = take(batch, slice(start, start + size))
        longest = max(int(piece[3].sum(dim=1).max()), 1)
        piece_loss, piece_gradient, _ = loss_and_gradient(
            take(piece, (slice(None), slice(longest))), **options, **totals
        )
        pieces.append((piece_loss, torch.nn.functional.pad(piece_gradient, (0, 9 - longest))))
        start += size
    torch.testing.assert_close(sum(piece_loss for piece_loss, _ in pieces), loss)
    torch.testing.assert_close(torch.cat([piece_gradient for _, piece_gradient in pieces]), gradient)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_padding_columns_change_neither_loss_nor_gradient_nor_metrics(aggregation: str) -> None:
    batch = make_batch()
    options = {"aggregation": aggregation, "max_response_length": 9}
    loss, gradient, metrics = loss_and_gradient(batch, **options)
    fills = (-7.0, 3.0, 2.0, False, True)
    wide = tuple(
        torch.nn.functional.pad(tensor.detach(), (2, 3), value=fill) for tensor, fill in zip(batch, fills, strict=True)
    )
    wide_loss, wide_gradient, wide_metrics = loss_and_gradient(wide, **options)
    torch.testing.assert_close(wide_loss, loss)
    torch.testing.assert_close(wide_gradient[:, 2:-3], gradient)
    assert not wide_gradient[:, :2].any() and not wide_gradient[:, -3:].any()
    for name in METRICS:
        torch.testing.assert_close(wide_metrics[name], metrics[name])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_permuting_rows_permutes_gradients(aggregation: str) -> None:
    batch = make_batch()
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    loss, gradient, _ = loss_and_gradient(batch, aggregation=aggregation)
    permuted_loss, permuted_gradient, _ = loss_and_gradient(take(batch, order), aggregation=aggregation)
    torch.testing.assert_close(permuted_loss, loss)
    torch.testing.assert_close(permuted_gradient, gradient[order])


@pytest.mark.parametrize("reshape", [*CLOSED_FORMS])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_garbage_in_ignored_places_reaches_nothing(reshape: str, aggregation: str, garbage: float) -> None:
    batch = make_batch(dtype=torch.float32)
    options = {"reshape": reshape, "aggregation": aggregation}
    loss, gradient, metrics = loss_and_gradient(batch, **options)
    log_probs, old_log_probs, advantages, action_mask, off_policy_mask = take(batch, slice(None))
    dirty = (
        log_probs.masked_fill(~action_mask, garbage),
        old_log_probs.masked_fill(~action_mask | off_policy_mask, garbage),
        advantages.masked_fill(~action_mask, garbage),
        action_mask,
        off_policy_mask,
    )
    dirty_loss, dirty_gradient, dirty_metrics = loss_and_gradient(dirty, **options)
    assert torch.equal(dirty_loss, loss)
    assert torch.equal(dirty_gradient, gradient)
    assert all(torch.equal(dirty_metrics[name], metrics[name]) for name in METRICS)


@pytest.mark.parametrize("use_clip", [True, False])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(("new", "old"), [(0.0, -1e4), (-1e4, 0.0), (0.0, -3e38), (-3e38, 0.0)])
def test_extreme_log_ratios_stay_finite(use_clip: bool, advantage: float, new: float, old: float) -> None:
    batch = (
        torch.tensor([[new, new]]),
        torch.tensor([[old, old]]),
        torch.full((1, 2), advantage),
        torch.ones(1, 2, dtype=torch.bool),
        torch.tensor([[False, True]]),
    )
    loss, gradient, metrics = loss_and_gradient(batch, use_clip=use_clip)
    assert loss.isfinite() and gradient.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())


def test_log_ratios_are_cut_at_twenty() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    for log_ratio, cut in [(19.0, 19.0), (21.0, 20.0), (-21.0, -20.0)]:
        batch = (one * 0, one * -log_ratio, one, one.bool(), ~one.bool())
        assert loss_and_gradient(batch, use_clip=False)[0].item() == pytest.approx(-math.exp(cut))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("totals", [{}, {"num_rows": 0, "num_tokens": 0}, {"num_rows": 8, "num_tokens": 64}])
@pytest.mark.parametrize("length", [0, 4])
def test_an_empty_mask_gives_zero_loss_zero_gradient_and_zero_metrics(
    aggregation: str, totals: dict[str, float], length: int
) -> None:
    log_probs = torch.full((2, length), -1.0, requires_grad=True)
    nothing = torch.zeros(2, length, dtype=torch.bool)
    ones = torch.ones(2, length)
    loss, metrics = hybrid_policy_loss(log_probs, ones, ones, nothing, ~nothing, aggregation=aggregation, **totals)
    loss.backward()
    assert loss.item() == 0.0
    assert log_probs.grad.tolist() == [[0.0] * length] * 2
    assert {name: value.item() for name, value in metrics.items()} == dict.fromkeys(METRICS, 0.0)


@pytest.mark.parametrize("everything_is_a_teachers", [True, False])
def test_a_batch_of_one_kind_has_the_same_metrics_with_zeros_for_the_other(everything_is_a_teachers: bool) -> None:
    log_probs, old_log_probs, advantages, action_mask, _ = make_batch()
    off_policy_mask = torch.full_like(action_mask, everything_is_a_teachers)
    _, metrics = hybrid_policy_loss(log_probs, old_log_probs, advantages, action_mask, off_policy_mask)
    absent = {
        "on_policy_loss", "on_policy_prob", "on_policy_ratio", "clip_fraction", "ppo_kl", "approx_kl",
        "rollout_tokens",
    }  # fmt: skip
    if not everything_is_a_teachers:
        absent = {"off_policy_loss", "off_policy_prob", "off_policy_ratio"}
    assert set(metrics) == METRICS
    assert {name: metrics[name].item() for name in absent} == dict.fromkeys(absent, 0.0)
    assert metrics["off_policy_token_share"].item() == float(everything_is_a_teachers)


def test_metrics_are_means_over_the_tokens_of_their_kind() -> None:
    # row 1, rollout: ratios 1.5 (clipped at 1.2) and 1, A = 2, old p 0.4 and 0.5
    # row 2, teacher: p 0.1 and 0.4, A = -1; the third column is padding
    log_probs = torch.tensor([[0.6, 0.5, 0.9], [0.1, 0.4, 0.9]], dtype=torch.float64).log()
    old_log_probs = torch.tensor([[0.4, 0.5, 0.1], [0.3, 0.3, 0.1]], dtype=torch.float64).log()
    advantages = torch.tensor([[2.0], [-1.0]], dtype=torch.float64).expand(2, 3)
    action_mask = torch.tensor([[True, True, False], [True, True, False]])
    off_policy_mask = torch.tensor([[False] * 3, [True] * 3])
    _, metrics = hybrid_policy_loss(log_probs, old_log_probs, advantages, action_mask, off_policy_mask)
    expected = {
        "on_policy_loss": (-2.4 - 2.0) / 2,
        "off_policy_loss": (0.1 / 0.2 + 0.4 / 0.5) / 2,
        "clip_fraction": 0.5,
        "ppo_kl": -math.log(1.5) / 2,
        "approx_kl": (1.5 - 1 - math.log(1.5)) / 2,
        "rollout_tokens": 2.0,
        "off_policy_prob": 0.25,
        "on_policy_prob": 0.45,
        "off_policy_ratio": (0.5 + 0.8) / 2,
        "off_policy_token_share": 0.5,
        "on_policy_ratio": 1.25,
        "off_policy_ratio_max_clip_fraction": 0.0,
        "off_policy_ratio_min_clip_fraction": 0.0,
        "all_clip_fraction": 0.0,
    }
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(expected)


def test_metrics_are_detached_scalars_of_floating_type() -> None:
    _, metrics = hybrid_policy_loss(*make_batch(dtype=torch.float32))
    for value in metrics.values():
        assert value.ndim == 0 and value.is_floating_point() and not value.requires_grad


def test_a_group_whose_advantages_are_all_zero_teaches_nothing() -> None:
    log_probs, old_log_probs, advantages, action_mask, off_policy_mask = make_batch()
    batch = (log_probs, old_log_probs, torch.zeros_like(advantages), action_mask, off_policy_mask)
    loss, gradient, metrics = loss_and_gradient(batch)
    assert loss.item() == 0.0
    assert not gradient.any()
    assert metrics["clip_fraction"].item() == 0.0


def test_old_log_probs_and_advantages_are_constants() -> None:
    log_probs, _, advantages, action_mask, off_policy_mask = make_batch()
    weights = advantages.clone().requires_grad_()
    loss, _ = hybrid_policy_loss(log_probs, log_probs, weights, action_mask, off_policy_mask)
    loss.backward()
    detached = (log_probs, log_probs.detach(), advantages, action_mask, off_policy_mask)
    _, expected = reference(detached, "constant")
    torch.testing.assert_close(log_probs.grad, expected)
    assert weights.grad is None


def test_masks_may_be_numbers_and_half_precision_is_computed_in_float32() -> None:
    batch = make_batch(dtype=torch.bfloat16)
    loss, gradient, metrics = loss_and_gradient(batch)
    assert loss.dtype == torch.float32 and gradient.dtype == torch.bfloat16
    expected, _ = reference(batch, "constant")
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    numbers = (*take(batch, slice(None))[:3], batch[3].float(), batch[4].long())
    assert torch.equal(loss_and_gradient(numbers)[0], loss)


def test_unknown_aggregations_are_refused_by_naming_the_known_ones() -> None:
    with pytest.raises(ValueError, match="token-mean.*token_mean, sequence_mean, constant"):
        hybrid_policy_loss(*make_batch(), aggregation="token-mean")


def test_an_unknown_reshape_is_refused_even_when_the_batch_has_no_teacher() -> None:
    log_probs, old_log_probs, advantages, action_mask, off_policy_mask = make_batch()
    with pytest.raises(ValueError, match="reshape='sqrt' is unknown"):
        hybrid_policy_loss(
            log_probs, old_log_probs, advantages, action_mask, torch.zeros_like(off_policy_mask), reshape="sqrt"
        )


def test_shapes_that_would_broadcast_are_refused() -> None:
    log_probs, old_log_probs, advantages, action_mask, off_policy_mask = make_batch()
    with pytest.raises(ValueError, match=r"\[6, 9\], \[6, 9\], \[6, 1\]"):
        hybrid_policy_loss(log_probs, old_log_probs, advantages[:, :1], action_mask, off_policy_mask)
    with pytest.raises(ValueError, match="must be"):
        hybrid_policy_loss(
            *(tensor[0] for tensor in (log_probs, old_log_probs, advantages, action_mask, off_policy_mask))
        )
