"""LUFFY's variants of the hybrid loss against a float64 reference that loops over tokens, slopes in closed form."""

import math
from typing import Any

import pytest
import torch

from oger_recipe.algorithm.policy_loss import TEACHER_LOSSES, hybrid_policy_loss
from oger_recipe.algorithm.reshape import reshape_ratio

AGGREGATIONS = ["token_mean", "sequence_mean", "constant"]
C, K, G = 0.3, 0.7, 0.25
# name -> (value, slope with respect to log p) of p over p_old (LUFFY, arXiv 2504.14945)
RATIOS = {
    "no_reshape": (lambda p, q: p / q, lambda p, q: p / q),
    "logp": (lambda p, q: math.log(p / q), lambda p, q: 1.0),
    "p_logp": (lambda p, q: p / q + C * math.log(p / q), lambda p, q: p / q + C),
    "square_root": (lambda p, q: math.sqrt(p / q), lambda p, q: math.sqrt(p / q) / 2),
    "pow": (lambda p, q: (p / q) ** K, lambda p, q: K * (p / q) ** K),
    "p_div_p_0.25": (
        lambda p, q: p * (q + G) / (q * (p + G)),
        lambda p, q: p * (q + G) / (q * (p + G)) * G / (p + G),
    ),
}
# settings of the loss; teacher_probs is True where the batch's are given
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "ppo": {"teacher_loss": "ppo"},
    "ppo_clipped_unevenly": {"teacher_loss": "ppo", "clip_low": 0.1, "clip_high": 0.3, "on_policy_reshape": "pow"},
    "ppo_ignores_what_is_for_reshape": {
        "teacher_loss": "ppo", "teacher_probs": True, "off_policy_max_clip": 0.2, "off_policy_min_clip": 0.15,
    },
    "dual_clip": {"dual_clip": 1.3},
    "dual_clip_without_clipping": {"dual_clip": 1.3, "use_clip": False},
    "dual_clip_of_ppo": {"dual_clip": 1.3, "teacher_loss": "ppo"},
    "sft": {"teacher_loss": "sft"},
    "sft_weighed": {"teacher_loss": "sft", "sft_loss_coef": 0.4, "use_clip": False},
    "sft_ignores_what_is_for_reshape": {
        "teacher_loss": "sft", "teacher_probs": True, "off_policy_max_clip": 0.2, "off_policy_min_clip": 0.15,
    },
    "teacher_probs": {"teacher_probs": True},
    "teacher_ratio": {"teacher_probs": True, "reshape_teacher_ratio": True},
    "clipped_teacher_ratio": {
        "teacher_probs": True, "reshape_teacher_ratio": True, "off_policy_max_clip": 0.9, "off_policy_min_clip": 0.8,
    },
    "max_clip": {"off_policy_max_clip": 0.7},
    "min_clip": {"off_policy_min_clip": 0.6},
    "both_clips": {"off_policy_max_clip": 0.8, "off_policy_min_clip": 0.6},
    "clipped_teacher_probs": {"teacher_probs": True, "off_policy_max_clip": 1.5, "off_policy_min_clip": 0.5},
    "all_max_clip": {"all_max_clip": 0.6},
    "all_max_clip_of_sft": {"all_max_clip": 0.6, "teacher_loss": "sft"},
    "all_max_clip_of_ppo": {"all_max_clip": 0.6, "teacher_loss": "ppo"},
    "everything_removed": {"all_max_clip": 0.0},
    **{f"on_policy_{name}": {"on_policy_reshape": name, "use_clip": False} for name in RATIOS},
    **{f"on_policy_{name}_clipped": {"on_policy_reshape": name} for name in RATIOS},
    "everything": {
        "teacher_probs": True, "off_policy_max_clip": 1.5, "off_policy_min_clip": 0.5, "all_max_clip": 0.7,
        "on_policy_reshape": "p_logp",
    },
}  # fmt: skip

# One of each sort, for what the others would show again.
SORTS = [
    "default", "ppo", "sft", "teacher_probs", "teacher_ratio", "both_clips", "all_max_clip", "all_max_clip_of_sft",
    "everything_removed", "on_policy_pow_clipped", "on_policy_logp", "everything",
]  # fmt: skip

Batch = dict[str, torch.Tensor]


def make_batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    """A teacher's row, one that a teacher begins, three rollouts and an empty row; some teacher_probs are unknown."""
    rows, length = 6, 8
    generator = torch.Generator().manual_seed(seed)
    log_probs = -2 * torch.rand(rows, length, generator=generator, dtype=torch.float64)
    old_log_probs = log_probs + 0.4 * torch.randn(rows, length, generator=generator, dtype=torch.float64)
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64).expand(rows, length).contiguous()
    lengths = torch.randint(1, length + 1, (rows,), generator=generator)
    lengths[0], lengths[1], lengths[-1] = length - 1, length, 0
    off_policy_mask = torch.zeros(rows, length, dtype=torch.bool)
    off_policy_mask[0], off_policy_mask[1, :3] = True, True
    teacher_probs = torch.rand(rows, length, generator=generator, dtype=torch.float64)
    teacher_probs[0, 1], teacher_probs[0, 2], teacher_probs[1, 0] = math.nan, 0.0, -1.0
    return {
        "log_probs": log_probs.to(dtype),
        "old_log_probs": old_log_probs.to(dtype),
        "advantages": advantages.to(dtype),
        "action_mask": torch.arange(length) < lengths[:, None],
        "off_policy_mask": off_policy_mask,
        "teacher_probs": teacher_probs.to(dtype),
    }


def run(batch: Batch, settings: dict[str, Any], **more) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Loss, its gradient with respect to log_probs, and the metrics."""
    options = {
        "reshape_weight": 7.0,
        "reshape_power": 5.0,
        "on_policy_reshape_weight": C,
        "on_policy_reshape_power": K,
    }
    options |= settings | more
    tensors = dict(batch)
    known = tensors.pop("teacher_probs")
    options["teacher_probs"] = known if settings.get("teacher_probs") else None
    tensors["log_probs"] = tensors["log_probs"].detach().clone().requires_grad_()
    loss, metrics = hybrid_policy_loss(**tensors, **options)
    loss.backward()
    return loss.detach(), tensors["log_probs"].grad, metrics


def bounded(value: float, slope: float, low: float | None, high: float | None) -> tuple[float, float]:
    if high is not None and value > high:
        return high, 0.0
    if low is not None and value < low:
        return low, 0.0
    return value, slope


def surrogate(p: float, p_old: float, a: float, settings: dict[str, Any]) -> tuple[float, float]:
    """PPO's pessimistic choice between -A r and -A clamp(r), with its slope; with dual clip no more than -A c where
    A is negative."""
    name = settings.get("on_policy_reshape", "no_reshape")
    r, slope = (f(p, p_old) for f in RATIOS[name])
    if a < 0 and r > settings.get("dual_clip", math.inf):
        return -a * settings["dual_clip"], 0.0
    if settings.get("use_clip", True):
        low, high = 1 - settings.get("clip_low", 0.2), 1 + settings.get("clip_high", 0.2)
        clipped, clipped_slope = bounded(r, slope, low, high)
        if -a * clipped > -a * r:
            return -a * clipped, -a * clipped_slope
    return -a * r, -a * slope


def imitation(p: float, teacher_prob: float, a: float, settings: dict[str, Any]) -> tuple[float, float]:
    f, slope = p / (p + 0.1), 0.1 * p / (p + 0.1) ** 2
    if settings.get("teacher_probs") and teacher_prob > 0:
        f = slope = p / (teacher_prob + 1e-6)
        if settings.get("reshape_teacher_ratio"):  # ExGRPO, arXiv 2510.02245: r / (r + 0.1) of r = p / pi_stored
            r = p / teacher_prob
            f, slope = r / (r + 0.1), 0.1 * r / (r + 0.1) ** 2
    f, slope = bounded(f, slope, settings.get("off_policy_min_clip"), settings.get("off_policy_max_clip"))
    return -a * f, -a * slope


def reference(batch: Batch, settings: dict[str, Any], aggregation: str) -> tuple[float, torch.Tensor]:
    """Loss and gradient of a batch that is a whole optimizer step."""
    kind = settings.get("teacher_loss", "reshape")
    p = {place: batch["log_probs"][place].exp().item() for place in places(batch)}
    kept = [place for place in p if p[place] <= settings.get("all_max_clip", math.inf)]
    taught = [place for place in kept if batch["off_policy_mask"][place]]
    counted = [place for place in kept if place not in taught] if kind == "sft" else kept
    row_tokens = [sum(row == place[0] for place in counted) for row in range(len(batch["log_probs"]))]
    gradient = torch.zeros(batch["log_probs"].shape, dtype=torch.float64)
    loss = 0.0
    for place in counted:
        a, p_old = batch["advantages"][place].item(), batch["old_log_probs"][place].exp().item()
        if place in taught and kind == "reshape":
            value, slope = imitation(p[place], batch["teacher_probs"][place].item(), a, settings)
        else:
            value, slope = surrogate(p[place], p_old, a, settings)
        divisor = {
            "token_mean": len(counted),
            "sequence_mean": row_tokens[place[0]] * sum(count > 0 for count in row_tokens),
            "constant": batch["log_probs"].numel(),
        }[aggregation]
        loss += value / divisor
        gradient[place] = slope / divisor
    if kind == "sft":
        share = settings.get("sft_loss_coef", 1.0) / max(len(taught), 1)
        loss += sum(-math.log(p[place]) * share for place in taught)
        for place in taught:
            gradient[place] = -share
    return loss, gradient


def places(batch: Batch) -> list[tuple[int, int]]:
    return [(row, column) for row, column in batch["action_mask"].nonzero().tolist()]


def totals(batch: Batch, settings: dict[str, Any], aggregation: str) -> dict[str, float]:
    """Of an optimizer step; all_max_clip does not change totals that are given."""
    counted = batch["action_mask"].clone()
    if settings.get("teacher_loss") == "sft":
        counted &= ~batch["off_policy_mask"]
    rows = len(counted) if aggregation == "constant" else int(counted.any(dim=1).sum())
    teachers = int((batch["action_mask"] & batch["off_policy_mask"]).sum())
    return {"num_rows": rows, "num_tokens": int(counted.sum()), "num_teacher_tokens": teachers}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_the_references_loss_and_gradient(name: str, aggregation: str) -> None:
    for seed in range(2):
        batch = make_batch(seed)
        loss, gradient, _ = run(batch, SETTINGS[name], aggregation=aggregation)
        expected_loss, expected_gradient = reference(batch, SETTINGS[name], aggregation)
        assert loss.item() == pytest.approx(expected_loss, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", RATIOS)
@pytest.mark.parametrize("p", [0.9, 0.3, 1e-3])
@pytest.mark.parametrize("p_old", [0.9, 0.3, 1e-3])
def test_ratios_have_the_value_and_the_gradient_of_their_closed_form(name: str, p: float, p_old: float) -> None:
    log_p = torch.tensor(math.log(p), dtype=torch.float64, requires_grad=True)
    value = reshape_ratio(log_p, torch.tensor(math.log(p_old), dtype=torch.float64), name, C, K)
    value.backward()
    expected_value, expected_slope = RATIOS[name]
    assert value.item() == pytest.approx(expected_value(p, p_old), rel=1e-9, abs=1e-12)
    assert log_p.grad.item() == pytest.approx(expected_slope(p, p_old), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "slope"),
    # weights on the gradient of log p where the policies agree: 1, 1, 1 + c, 1/2, k and, at p = 0.15, g / (g + p)
    [("no_reshape", 1), ("logp", 1), ("p_logp", 1.3), ("square_root", 0.5), ("pow", 0.7), ("p_div_p_0.1", 0.4)],
)
def test_on_policy_the_ratio_is_one_and_its_slope_is_luffys(name: str, slope: float) -> None:
    log_p = torch.tensor(math.log(0.15), dtype=torch.float64, requires_grad=True)
    value = reshape_ratio(log_p, log_p.detach(), name, C, K)
    value.backward()
    assert value.item() == pytest.approx(0.0 if name == "logp" else 1.0)
    assert log_p.grad.item() == pytest.approx(slope)


def test_the_defaults_of_the_on_policy_reshape_are_a_tenth_and_a_half() -> None:
    # p / p_old = 4: 4 + 0.1 ln 4, and 4 ** 0.5 = 2
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = (one * math.log(0.4), one * math.log(0.1), one, one.bool(), ~one.bool())
    for name, expected in [("p_logp", 4 + 0.1 * math.log(4)), ("pow", 2.0)]:
        loss, _ = hybrid_policy_loss(*batch, on_policy_reshape=name, use_clip=False)
        assert loss.item() == pytest.approx(-expected)


def test_teacher_losses_of_one_token_worked_out_by_hand() -> None:
    # p = 0.4, p_old = 0.5, A = 2
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = (one * math.log(0.4), one * math.log(0.5), one * 2, one.bool(), one.bool())
    assert hybrid_policy_loss(*batch)[0].item() == pytest.approx(-2 * 0.4 / 0.5)
    assert hybrid_policy_loss(*batch, teacher_loss="ppo")[0].item() == pytest.approx(-2 * 0.4 / 0.5)
    assert hybrid_policy_loss(*batch, teacher_loss="sft")[0].item() == pytest.approx(-math.log(0.4))
    known, unknown = {"teacher_probs": one * 0.2}, {"teacher_probs": one * math.nan}
    assert hybrid_policy_loss(*batch, **known)[0].item() == pytest.approx(-2 * 0.4 / 0.200001)
    assert hybrid_policy_loss(*batch, **unknown)[0].item() == pytest.approx(-2 * 0.4 / 0.5)
    assert hybrid_policy_loss(*batch, **known, off_policy_max_clip=1.5)[0].item() == pytest.approx(-3.0)
    of_ratio = {"reshape_teacher_ratio": True}
    assert hybrid_policy_loss(*batch, **known, **of_ratio)[0].item() == pytest.approx(-2 * 2 / 2.1)  # r = 2
    assert hybrid_policy_loss(*batch, **unknown, **of_ratio)[0].item() == pytest.approx(-2 * 0.4 / 0.5)
    assert hybrid_policy_loss(*batch, **of_ratio)[0].item() == pytest.approx(-2 * 0.4 / 0.5)
    for reshape, value in (("no_reshape", 2.0), ("square_root", 2**0.5), ("pow", 8.0), ("logp", 7 * math.log(2))):
        given = {"reshape": reshape, "reshape_weight": 7.0, "reshape_power": 3.0}
        assert hybrid_policy_loss(*batch, **known, **of_ratio, **given)[0].item() == pytest.approx(-2 * value)
    assert hybrid_policy_loss(*batch, off_policy_min_clip=0.9)[0].item() == pytest.approx(-1.8)
    assert hybrid_policy_loss(*batch, all_max_clip=0.3)[0].item() == 0.0
    assert hybrid_policy_loss(*batch, all_max_clip=0.5)[0].item() == pytest.approx(-1.6)


def test_supervision_is_a_token_mean_whatever_the_aggregation_and_the_advantages_are() -> None:
    # -ln 0.5 and -ln 0.25 over two teacher tokens: 1.5 ln 2; the rollout's advantage is 0
    log_probs = torch.tensor([[0.5, 0.25], [0.3, 0.3]], dtype=torch.float64).log()
    action, off = torch.ones(2, 2, dtype=torch.bool), torch.tensor([[True, True], [False, False]])
    advantages = torch.tensor([[-3.0, 5.0], [0.0, 0.0]])
    for aggregation in AGGREGATIONS:
        options = {"teacher_loss": "sft", "aggregation": aggregation, "max_response_length": 50}
        loss, _ = hybrid_policy_loss(log_probs, log_probs, advantages, action, off, **options)
        assert loss.item() == pytest.approx(1.5 * math.log(2))
        loss, _ = hybrid_policy_loss(
            log_probs, log_probs, advantages, action, off, **options, sft_loss_coef=0.5, num_teacher_tokens=6
        )
        assert loss.item() == pytest.approx(0.25 * math.log(2))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", SORTS)
@pytest.mark.parametrize("cuts", [[1, 1, 1, 1, 1, 1], [2, 3, 1]])
def test_the_cut_into_micro_batches_changes_neither_loss_nor_gradient(
    name: str, aggregation: str, cuts: list[int]
) -> None:
    batch, settings = make_batch(), SETTINGS[name]
    options = {"aggregation": aggregation, "max_response_length": 12, **totals(batch, settings, aggregation)}
    loss, gradient, _ = run(batch, settings, **options)
    pieces = [{key: x.split(cuts)[index] for key, x in batch.items()} for index in range(len(cuts))]
    parts = [run(piece, settings, **options) for piece in pieces]
    torch.testing.assert_close(sum(part[0] for part in parts), loss)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), gradient)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", [name for name in SORTS if "all_max_clip" not in SETTINGS[name]])
def test_totals_of_the_batch_itself_are_the_defaults(name: str, aggregation: str) -> None:
    batch, settings = make_batch(), SETTINGS[name]
    loss, _, _ = run(batch, settings, aggregation=aggregation)
    given = {key: torch.tensor(total) for key, total in totals(batch, settings, aggregation).items()}
    torch.testing.assert_close(run(batch, settings, aggregation=aggregation, **given)[0], loss)


@pytest.mark.parametrize("name", SETTINGS)
def test_padding_and_the_order_of_rows_change_neither_gradient_nor_metrics(name: str) -> None:
    batch, settings = make_batch(), SETTINGS[name]
    options = {"aggregation": "constant", "max_response_length": 8}
    loss, gradient, metrics = run(batch, settings, **options)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    fills = {"log_probs": -7.0, "old_log_probs": 3.0, "advantages": 2.0, "action_mask": False}
    wide = {key: torch.nn.functional.pad(x[order], (2, 3), value=fills.get(key, True)) for key, x in batch.items()}
    wide_loss, wide_gradient, wide_metrics = run(wide, settings, **options)
    torch.testing.assert_close(wide_loss, loss)
    torch.testing.assert_close(wide_gradient, torch.nn.functional.pad(gradient[order], (2, 3)))
    for key in metrics:
        torch.testing.assert_close(wide_metrics[key], metrics[key])


@pytest.mark.parametrize("name", SORTS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1e30])
def test_garbage_in_ignored_places_reaches_nothing(name: str, garbage: float) -> None:
    batch, settings = make_batch(dtype=torch.float32), SETTINGS[name]
    loss, gradient, metrics = run(batch, settings)
    outside, teachers = ~batch["action_mask"], batch["off_policy_mask"]
    kind = settings.get("teacher_loss", "reshape")
    ignored = {
        "log_probs": outside,
        "old_log_probs": outside if kind == "ppo" else outside | teachers,
        "advantages": outside | teachers if kind == "sft" else outside,
        "teacher_probs": torch.ones_like(outside) if kind == "ppo" else outside | ~teachers,
    }
    dirty = {key: x.masked_fill(ignored[key], garbage) if key in ignored else x for key, x in batch.items()}
    dirty_loss, dirty_gradient, dirty_metrics = run(dirty, settings)
    assert torch.equal(dirty_loss, loss)
    assert torch.equal(dirty_gradient, gradient)
    assert all(torch.equal(dirty_metrics[key], metrics[key]) for key in metrics)


@pytest.mark.parametrize("name", SORTS)
@pytest.mark.parametrize(("new", "old"), [(0.0, -1e4), (-1e4, 0.0), (-1e4, -1e4), (0.0, -1e30), (-1e30, 0.0)])
def test_extreme_log_probs_stay_finite(name: str, new: float, old: float) -> None:
    reshapes = ("p_div_p_0.1", "no_reshape", "pow", "p_logp") if name == "teacher_ratio" else ("p_div_p_0.1",)
    batch = {
        "log_probs": torch.full((2, 2), new),
        "old_log_probs": torch.full((2, 2), old),
        "advantages": torch.tensor([[1.0, 1.0], [-1.0, -1.0]]),
        "action_mask": torch.ones(2, 2, dtype=torch.bool),
        "off_policy_mask": torch.tensor([[False, True], [False, True]]),
        "teacher_probs": torch.tensor([[0.0, 1e-44], [0.0, 1.0]]),
    }
    for reshape in reshapes:
        given = {"reshape": reshape, "reshape_power": 9.0, "on_policy_reshape_power": 9.0}
        loss, gradient, metrics = run(batch, SETTINGS[name], **given)
        assert loss.isfinite() and gradient.isfinite().all()
        assert all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("zero_totals", [True, False])
@pytest.mark.parametrize("name", ["default", "ppo", "sft", "everything", "everything_removed"])
def test_an_empty_mask_gives_zero_everywhere_and_metrics_have_the_same_keys(
    name: str, aggregation: str, zero_totals: bool
) -> None:
    batch = make_batch()
    batch["action_mask"] = torch.zeros_like(batch["action_mask"])
    given = dict.fromkeys(("num_rows", "num_tokens", "num_teacher_tokens"), 0) if zero_totals else {}
    loss, gradient, metrics = run(batch, SETTINGS[name], aggregation=aggregation, **given)
    assert loss.item() == 0.0
    assert not gradient.any()
    assert metrics.keys() == run(make_batch(), {})[2].keys()
    assert not any(value.item() for value in metrics.values())


def four_tokens() -> tuple[torch.Tensor, ...]:
    """A teacher's of p 0.9, 0.4, 0.1 (f 0.9, 0.8, 0.5), p_old 0.5, A = 1; a rollout's of ratio 0.8/0.5, A = 2."""
    log_probs = torch.tensor([[0.9, 0.4, 0.1], [0.8, 0.5, 0.5]], dtype=torch.float64).log()
    old_log_probs = torch.full((2, 3), 0.5, dtype=torch.float64).log()
    advantages = torch.tensor([[1.0] * 3, [2.0] * 3], dtype=torch.float64)
    action = torch.tensor([[True] * 3, [True, False, False]])
    return log_probs, old_log_probs, advantages, action, torch.tensor([[True] * 3, [False] * 3])


def test_metrics_of_clamped_reshapes() -> None:
    _, metrics = hybrid_policy_loss(*four_tokens(), off_policy_max_clip=0.7, off_policy_min_clip=0.6)
    assert metrics["off_policy_ratio_max_clip_fraction"].item() == pytest.approx(2 / 3)
    assert metrics["off_policy_ratio_min_clip_fraction"].item() == pytest.approx(1 / 3)
    assert metrics["off_policy_ratio"].item() == pytest.approx((0.7 + 0.7 + 0.6) / 3)
    assert metrics["off_policy_loss"].item() == pytest.approx(-(0.7 + 0.7 + 0.6) / 3)


@pytest.mark.parametrize("kind", ["ppo", "sft"])
def test_nothing_counts_as_clamped_where_nothing_is(kind: str) -> None:
    _, metrics = hybrid_policy_loss(
        *four_tokens(), teacher_loss=kind, off_policy_max_clip=0.7, off_policy_min_clip=0.6
    )
    assert metrics["off_policy_ratio_max_clip_fraction"].item() == 0.0
    assert metrics["off_policy_ratio_min_clip_fraction"].item() == 0.0


def test_metrics_of_removed_tokens() -> None:
    # p above 0.5: one of the teacher's three and the rollout's only one; f of the other two is 0.8 and 0.5
    _, metrics = hybrid_policy_loss(*four_tokens(), all_max_clip=0.5)
    assert metrics["all_clip_fraction"].item() == pytest.approx(2 / 4)
    assert metrics["off_policy_token_share"].item() == pytest.approx(3 / 4)
    assert metrics["off_policy_ratio"].item() == pytest.approx(0.65)
    assert metrics["on_policy_ratio"].item() == 0.0


def test_metrics_of_the_other_teacher_losses() -> None:
    # ratios of the teacher's tokens 1.8 (clipped at 1.2), 0.8 and 0.2; of the rollout's token 1.6 (clipped)
    _, metrics = hybrid_policy_loss(*four_tokens(), teacher_loss="ppo")
    assert metrics["off_policy_loss"].item() == pytest.approx(-(1.2 + 0.8 + 0.2) / 3)
    assert metrics["off_policy_ratio"].item() == pytest.approx((1.8 + 0.8 + 0.2) / 3)
    assert metrics["on_policy_loss"].item() == pytest.approx(-2.4)
    assert metrics["on_policy_ratio"].item() == pytest.approx(1.6)
    assert metrics["clip_fraction"].item() == 1.0
    assert metrics["ppo_kl"].item() == pytest.approx(-math.log(1.6))
    _, metrics = hybrid_policy_loss(*four_tokens(), teacher_loss="sft", sft_loss_coef=9.0)
    assert metrics["off_policy_loss"].item() == pytest.approx(-math.log(0.9 * 0.4 * 0.1) / 3)
    assert metrics["off_policy_ratio"].item() == pytest.approx((0.9 + 0.8 + 0.5) / 3)
    assert metrics["on_policy_loss"].item() == pytest.approx(-2.4)


@pytest.mark.parametrize("name", SETTINGS)
def test_metrics_are_detached_scalars_with_the_same_keys(name: str) -> None:
    _, _, metrics = run(make_batch(), SETTINGS[name])
    assert metrics.keys() == run(make_batch(), {})[2].keys()
    assert all(value.ndim == 0 and value.is_floating_point() and not value.requires_grad for value in metrics.values())


def test_probabilities_of_the_teacher_are_constants_and_may_be_half_precision() -> None:
    batch = make_batch()
    known = torch.where(batch["teacher_probs"] > 0, 0.25, -1.0)
    expected = run(batch | {"teacher_probs": known}, {"teacher_probs": True})[0]
    for dtype in (torch.bfloat16, torch.float16):
        halved = batch | {"teacher_probs": known.to(dtype)}
        torch.testing.assert_close(run(halved, {"teacher_probs": True})[0], expected)
    given = known.clone().requires_grad_()
    loss, _, _ = run(batch | {"teacher_probs": given}, {"teacher_probs": True})
    torch.testing.assert_close(loss, expected)
    assert given.grad is None


def test_unknown_names_and_shapes_that_would_broadcast_are_refused() -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match="teacher_loss='bc' is unknown; valid values: reshape, ppo, sft"):
        run(batch, {"teacher_loss": "bc"})
    with pytest.raises(ValueError, match="reshape='p_div_p_0' is unknown"):
        run(batch, {"on_policy_reshape": "p_div_p_0"})
    with pytest.raises(ValueError, match=r"\[6, 8\], \[6, 1\]$"):
        run(batch | {"teacher_probs": batch["teacher_probs"][:, :1]}, {"teacher_probs": True})
    assert {"reshape", "ppo", "sft"} <= TEACHER_LOSSES.keys()


@pytest.mark.parametrize("use_clip", [True, False])
def test_dual_clip_bounds_the_loss_of_bad_rollouts_alone(use_clip: bool) -> None:
    """c = 3, in one row each: bad and r = 4 (2 c, without a slope), bad and r = 2 (4), good and r = 4, and a
    teacher's token of p / q = 4 that is worth as little. The first counts half by its engine's weight."""
    log_probs = torch.tensor([[0.8], [0.8], [0.8], [0.8]], dtype=torch.float64).log().requires_grad_()
    old = torch.tensor([[0.2], [0.4], [0.2], [0.2]], dtype=torch.float64).log()
    advantages = torch.tensor([[-2.0], [-2.0], [2.0], [-2.0]], dtype=torch.float64)
    off, every = torch.tensor([[False], [False], [False], [True]]), torch.ones(4, 1, dtype=torch.bool)
    loss, metrics = hybrid_policy_loss(
        log_probs, old, advantages, every, off, teacher_probs=torch.full((4, 1), 0.2, dtype=torch.float64),
        rollout_weights=torch.tensor([[0.5], [1.0], [1.0], [1.0]]), dual_clip=3.0, use_clip=use_clip,
        aggregation="token_mean",
    )  # fmt: skip
    loss.backward()
    good, its_slope = (-2 * 1.2, 0.0) if use_clip else (-8.0, -8.0)
    assert loss.item() == pytest.approx((0.5 * 6 + 4 + good + 8) / 4, rel=1e-5)
    assert (4 * log_probs.grad).flatten().tolist() == pytest.approx([0.0, 4.0, its_slope, 8.0], rel=1e-5)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 3 if use_clip else 1 / 3)
