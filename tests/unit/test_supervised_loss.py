"""The supervised loss of teachers' tokens, its weights and its mixture, against the papers' formulas in numpy.

CHORD (arXiv 2508.11408):  (1 - mu) L_RL + mu mean(-sg[p (1 - p)] log p)
SRFT (arXiv 2506.19767):   mean(-0.5 sg[exp(-H)] log p) beside LUFFY's -A p / (p + 0.1) on the same tokens
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oger_recipe.algorithm.exploration import scheduled_weight
from oger_recipe.algorithm.policy_loss import TEACHER_LOSSES, TOKEN_WEIGHTS, hybrid_policy_loss

AGGREGATIONS = ["token_mean", "sequence_mean", "constant"]
LONGEST = 9
Batch = dict[str, torch.Tensor]


def make_batch(seed: int = 0) -> Batch:
    """Two teachers' rows of which one goes on with the policy's tokens, three rollouts, and a row that is left out;
    the policy is near the one that sampled, so that nothing is clipped."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    log_probs = -2.5 * noise(6, LONGEST)
    off_policy = torch.zeros(6, LONGEST, dtype=torch.bool)
    off_policy[0], off_policy[1, :4] = True, True
    return {
        "log_probs": log_probs,
        "old_log_probs": log_probs + 0.1 * (noise(6, LONGEST) - 0.5),
        "advantages": (2 * noise(6, 1) - 1).expand(6, LONGEST).contiguous(),
        "action_mask": torch.arange(LONGEST) < torch.tensor([[7], [9], [4], [1], [8], [0]]),
        "off_policy_mask": off_policy,
        "entropy": 2 * noise(6, LONGEST),
    }


def run(batch: Batch, **settings: Any) -> tuple[float, np.ndarray]:
    """Loss and gradient with respect to log_probs."""
    tensors = dict(batch)
    tensors["log_probs"] = tensors["log_probs"].detach().clone().requires_grad_()
    tensors["entropy"] = tensors["entropy"].clone().requires_grad_()
    loss, _ = hybrid_policy_loss(**tensors, **settings)
    loss.backward()
    assert tensors["entropy"].grad is None
    return loss.item(), tensors["log_probs"].grad.numpy()


def reference(
    batch: Batch, aggregation: str, kind: str, weight: str, mu: float, share: float
) -> tuple[float, np.ndarray]:
    """The papers' loss and its gradient, token by token: share * L_RL + mu * L_SFT."""
    log_p, old, advantage, action, off, entropy = (tensor.numpy() for tensor in batch.values())
    p, taught = np.exp(log_p), action & off
    counted = action & ~off if kind == "sft" else action
    row_counts, count = counted.sum(axis=1), counted.sum()
    loss, gradient = 0.0, np.zeros_like(p)
    for row, column in zip(*np.nonzero(counted), strict=True):
        a = advantage[row, column]
        if taught[row, column]:
            value = -a * p[row, column] / (p[row, column] + 0.1)
            slope = -a * 0.1 * p[row, column] / (p[row, column] + 0.1) ** 2
        else:
            value = slope = -a * np.exp(log_p[row, column] - old[row, column])
        divisor = {
            "token_mean": count,
            "sequence_mean": row_counts[row] * (row_counts > 0).sum(),
            "constant": len(p) * LONGEST,
        }[aggregation]
        loss, gradient[row, column] = loss + share * value / divisor, share * slope / divisor
    for row, column in zip(*np.nonzero(taught), strict=True):
        of_row = entropy[row][action[row]].mean()
        w = {"none": 1.0, "p_times_1mp": p[row, column] * (1 - p[row, column]), "exp_neg_entropy": np.exp(-of_row)}
        loss += mu * w[weight] * -log_p[row, column] / taught.sum()
        gradient[row, column] -= mu * w[weight] / taught.sum()
    return loss, gradient


SUPERVISED = [name for name, each in TEACHER_LOSSES.items() if each.supervised]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("weight", TOKEN_WEIGHTS)
@pytest.mark.parametrize("kind", SUPERVISED)
def test_loss_and_gradient_are_the_papers(kind: str, weight: str, aggregation: str) -> None:
    for seed, (mu, share) in enumerate(((0.3, 0.7), (0.5, 1.0), (0.0, 1.0), (1.0, 0.0))):
        batch = make_batch(seed)
        settings = {"teacher_loss": kind, "sft_token_weight": weight, "aggregation": aggregation}
        loss, gradient = run(batch, sft_loss_coef=mu, rollout_loss_coef=share, **settings)
        expected, slopes = reference(batch, aggregation, kind, weight, mu, share)
        assert loss == pytest.approx(expected, rel=1e-9, abs=1e-12)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-9, atol=1e-12)


def test_weights_of_a_token_worked_out_by_hand() -> None:
    """p = 0.25 of a row whose two entropies are 0.2 and 0.6: 0.25 * 0.75, and exp(-0.4)."""
    log_p = torch.tensor([[0.25, 0.25]], dtype=torch.float64).log()
    entropy = torch.full((1, 1), 0.4, dtype=torch.float64)
    expected = {"none": 1.0, "p_times_1mp": 0.1875, "exp_neg_entropy": 0.670320046}
    assert expected.keys() == TOKEN_WEIGHTS.keys()
    for name, value in expected.items():
        assert TOKEN_WEIGHTS[name].weight(log_p, entropy).tolist() == [pytest.approx([value] * 2)]


def test_an_entropy_that_is_not_known_matters_to_its_teachers_row_alone() -> None:
    batch = make_batch(1)
    settings = {"teacher_loss": "sft", "sft_token_weight": "exp_neg_entropy"}
    loss, gradient = run(batch, **settings)
    batch["entropy"][2:] = torch.nan  # rollouts
    again, slopes = run(batch, **settings)
    assert again == loss and np.array_equal(slopes, gradient)


def test_chords_supervised_gradient_is_that_of_a_reshape() -> None:
    """-sg[p (1 - p)] log p has the slope of -f(p) with f(p) = p - p^2 / 2, at every p."""
    log_p = torch.linspace(-4, -0.01, 50, dtype=torch.float64).requires_grad_()
    p = log_p.exp()
    (slope,) = torch.autograd.grad((-(p - p.square() / 2)).sum(), log_p)
    weight = TOKEN_WEIGHTS["p_times_1mp"].weight(log_p.detach(), torch.zeros(50, dtype=torch.float64))
    torch.testing.assert_close(slope, -weight)


def _totals(batch: Batch, kind: str, aggregation: str) -> dict[str, int]:
    counted = batch["action_mask"] & ~batch["off_policy_mask"] if kind == "sft" else batch["action_mask"]
    rows = len(counted) if aggregation == "constant" else int(counted.any(dim=1).sum())
    taught = int((batch["action_mask"] & batch["off_policy_mask"]).sum())
    return {"num_rows": rows, "num_tokens": int(counted.sum()), "num_teacher_tokens": taught}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("weight", TOKEN_WEIGHTS)
@pytest.mark.parametrize("kind", SUPERVISED)
def test_neither_order_nor_padding_nor_cuts_change_it(kind: str, weight: str, aggregation: str) -> None:
    batch = make_batch(5)
    settings = {"teacher_loss": kind, "sft_token_weight": weight, "aggregation": aggregation, "sft_loss_coef": 0.3}
    settings |= {"rollout_loss_coef": 0.7, "max_response_length": LONGEST}
    loss, gradient = run(batch, **settings)
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    shuffled, moved = run({name: tensor[order] for name, tensor in batch.items()}, **settings)
    assert shuffled == pytest.approx(loss)
    np.testing.assert_allclose(moved, gradient[order.numpy()])
    padded = {
        name: torch.cat([tensor, torch.full((6, 2), 0 if "mask" in name else torch.nan).to(tensor.dtype)], dim=1)
        for name, tensor in batch.items()
    }
    longer, wider = run(padded, **settings)
    assert longer == pytest.approx(loss)
    np.testing.assert_allclose(wider, np.pad(gradient, ((0, 0), (0, 2))))
    settings |= _totals(batch, kind, aggregation)
    for cuts in ([1] * 6, [1, 4, 1]):
        pieces = zip(*(tensor.split(cuts) for tensor in batch.values()), strict=True)
        parts = [run(dict(zip(batch, piece, strict=True)), **settings) for piece in pieces]
        assert sum(part for part, _ in parts) == pytest.approx(loss)
        np.testing.assert_allclose(np.concatenate([part for _, part in parts]), gradient, atol=1e-15)


def test_without_entropies_a_weight_that_reads_them_is_refused() -> None:
    batch = {name: tensor for name, tensor in make_batch().items() if name != "entropy"}
    with pytest.raises(ValueError, match="needs the entropy"):
        hybrid_policy_loss(**batch, teacher_loss="sft", sft_token_weight="exp_neg_entropy")
    with pytest.raises(ValueError, match="sft_token_weight='p' is unknown; valid values: none, p_times_1mp"):
        hybrid_policy_loss(**batch, teacher_loss="sft", sft_token_weight="p")


@pytest.mark.parametrize(
    ("warmup", "weights"),
    [
        (0, [0.5, 0.5 - 0.15 * 0.48, 0.26, 0.5 - 0.85 * 0.48, 0.02, 0.02]),
        (1, [0.5, 0.5 - 0.15 * 0.48, 0.26, 0.5 - 0.85 * 0.48, 0.02, 0.02]),
        (3, [0.5 / 3, 1 / 3, 0.5, 0.5 - 0.15 * 0.48, 0.26, 0.5 - 0.85 * 0.48, 0.02, 0.02]),
    ],
)
def test_a_weight_grows_to_its_peak_and_falls_along_a_cosine(warmup: int, weights: list[float]) -> None:
    """CHORD's peak and valley over five steps: half way is their mean; (1 - cos(pi / 4)) / 2 is 0.146."""
    settings = {"start": 0.5, "end": 0.02, "steps": 5, "schedule": "cosine", "warmup": warmup}
    found = [scheduled_weight(step, **settings) for step in range(1, len(weights) + 1)]
    assert found == pytest.approx(weights, abs=0.0025)
