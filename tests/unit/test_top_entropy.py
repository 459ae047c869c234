"""Teacher tokens of highest entropy alone (Prefix-RFT, arXiv 2507.01679), against a reference in numpy by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oger_recipe.algorithm.policy_loss import TEACHER_LOSSES, hybrid_policy_loss
from oger_recipe.algorithm.token_stats import of_highest_entropy

AGGREGATIONS = ["token_mean", "sequence_mean", "constant"]
LENGTHS, TAUGHT, LONGEST = (7, 9, 4, 0), (7, 5, 0, 0), 9
Batch = dict[str, torch.Tensor]


def make_batch(seed: int = 0) -> Batch:
    """A teacher's row, one that goes on after a prefix of five tokens, a rollout, and a row that is left out."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    log_probs, place = -2.5 * noise(4, LONGEST), torch.arange(LONGEST)
    return {
        "log_probs": log_probs,
        "old_log_probs": log_probs + 0.1 * (noise(4, LONGEST) - 0.5),
        "advantages": (2 * noise(4, 1) - 1).expand(4, LONGEST).contiguous(),
        "action_mask": place < torch.tensor(LENGTHS).unsqueeze(1),
        "off_policy_mask": place < torch.tensor(TAUGHT).unsqueeze(1),
        "entropy": 2 * noise(4, LONGEST),
    }


def run(batch: Batch, kind: str, aggregation: str, share: float, **settings: Any) -> tuple[float, np.ndarray]:
    """Loss and gradient with respect to log_probs."""
    tensors = dict(batch)
    tensors["log_probs"] = tensors["log_probs"].detach().clone().requires_grad_()
    tensors["entropy"] = tensors["entropy"].clone().requires_grad_()
    settings = {"max_response_length": LONGEST, "sft_loss_coef": 0.3} | settings
    how = {"teacher_loss": kind, "aggregation": aggregation, "teacher_top_entropy_share": share}
    loss, _ = hybrid_policy_loss(**tensors, **how, **settings)
    loss.backward()
    assert tensors["entropy"].grad is None
    return loss.item(), tensors["log_probs"].grad.numpy()


def reference(batch: Batch, kind: str, aggregation: str, kept: tuple[int, ...]) -> tuple[float, np.ndarray]:
    """Every token's loss over its divisor, but for teacher tokens that are not among their row's ``kept`` highest."""
    log_p, old, advantage, action, off, entropy = (tensor.numpy() for tensor in batch.values())
    p, taught = np.exp(log_p), action & off
    counted = action & ~off if kind == "sft" else action
    rows = counted.sum(axis=1)
    loss, gradient = 0.0, np.zeros_like(p)
    for row, column in zip(*np.nonzero(action), strict=True):
        a, at = advantage[row, column], (row, column)
        higher = sum(entropy[row, other] > entropy[at] for other in np.flatnonzero(taught[row]))
        if taught[at] and higher >= kept[row]:
            continue
        terms = []
        divisor = {
            "token_mean": rows.sum(),
            "sequence_mean": rows[row] * (rows > 0).sum(),
            "constant": len(p) * LONGEST,
        }[aggregation]
        if not taught[at] or kind == "ppo":
            ratio = np.exp(log_p[at] - old[at])
            terms.append((-a * ratio / divisor, -a * ratio / divisor))
        elif "reshape" in kind:
            value, slope = p[at] / (p[at] + 0.1), 0.1 * p[at] / (p[at] + 0.1) ** 2
            terms.append((-a * value / divisor, -a * slope / divisor))
        if taught[at] and "sft" in kind:
            terms.append((-0.3 * log_p[at] / taught.sum(), -0.3 / taught.sum()))
        loss += sum(value for value, _ in terms)
        gradient[at] = sum(slope for _, slope in terms)
    return loss, gradient


# Of 7 and of 5 tokens: a fifth is 1.4 and 1, a half 3.5 and 2.5, four fifths 5.6 and 4.
KEPT = {0.2: (2, 1, 0, 0), 0.5: (4, 3, 0, 0), 0.8: (6, 4, 0, 0), 1.0: (7, 5, 0, 0)}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", TEACHER_LOSSES)
@pytest.mark.parametrize("share", KEPT)
def test_the_others_have_no_loss_and_count_in_every_total(share: float, kind: str, aggregation: str) -> None:
    for seed in range(3):
        batch = make_batch(seed)
        loss, gradient = run(batch, kind, aggregation, share)
        expected, slopes = reference(batch, kind, aggregation, KEPT[share])
        assert loss == pytest.approx(expected, rel=1e-9, abs=1e-12)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-9, atol=1e-12)
        assert int((gradient[:2] != 0).sum()) == sum(KEPT[share]) + 4


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", TEACHER_LOSSES)
def test_neither_order_nor_padding_nor_cuts_change_it(kind: str, aggregation: str) -> None:
    batch = make_batch(5)
    loss, gradient = run(batch, kind, aggregation, 0.4)
    order = torch.tensor([2, 1, 3, 0])
    shuffled, moved = run({name: tensor[order] for name, tensor in batch.items()}, kind, aggregation, 0.4)
    assert shuffled == pytest.approx(loss)
    np.testing.assert_allclose(moved, gradient[order.numpy()])
    padded = {
        name: torch.cat([tensor, torch.full((4, 2), 0 if "mask" in name else torch.nan).to(tensor.dtype)], dim=1)
        for name, tensor in batch.items()
    }
    longer, wider = run(padded, kind, aggregation, 0.4)
    assert longer == pytest.approx(loss)
    np.testing.assert_allclose(wider, np.pad(gradient, ((0, 0), (0, 2))))
    counted = batch["action_mask"] & ~batch["off_policy_mask"] if kind == "sft" else batch["action_mask"]
    totals = {"num_rows": 4 if aggregation == "constant" else int(counted.any(dim=1).sum())}
    totals |= {"num_tokens": int(counted.sum()), "num_teacher_tokens": sum(TAUGHT)}
    for cuts in ([1] * 4, [1, 2, 1]):
        pieces = zip(*(tensor.split(cuts) for tensor in batch.values()), strict=True)
        parts = [run(dict(zip(batch, piece, strict=True)), kind, aggregation, 0.4, **totals) for piece in pieces]
        assert sum(part for part, _ in parts) == pytest.approx(loss)
        np.testing.assert_allclose(np.concatenate([part for _, part in parts]), gradient, atol=1e-15)


def test_of_equal_entropies_the_first_tokens_are_marked_and_none_outside_the_mask() -> None:
    entropy = torch.tensor([[0.5, 2.0, 0.5, 0.5, torch.nan], [9.0, 0.1, 0.2, 9.0, 9.0], [1.0] * 5])
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 0, 0], [0] * 5]).bool()
    expected = {
        0.5: [[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0] * 5],
        0.6: [[1, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0] * 5],  # 2.4 and 1.2 tokens
        0.01: [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0] * 5],
        1.0: mask.long().tolist(),
    }
    for share, marked in expected.items():
        assert of_highest_entropy(entropy, mask, share).long().tolist() == marked, share


def test_a_share_needs_the_entropies() -> None:
    batch = {name: tensor for name, tensor in make_batch().items() if name != "entropy"}
    with pytest.raises(ValueError, match=r"teacher_top_entropy_share=0\.2 needs the entropy of tokens"):
        hybrid_policy_loss(**batch, teacher_top_entropy_share=0.2)
