"""Grades of tokens against plain Python, and against the exact divergences whose gradient they are said to be."""

from __future__ import annotations

import math
import random

import pytest
import torch

from oger_recipe.algorithm.grades import DIVERGENCES, grade_tokens


def by_hand(difference: float, divergence: str, limit: float) -> float:
    grade = difference if divergence == "reverse_kl" else math.exp(difference) - 1
    return max(-limit, min(limit, grade))


def random_batch(seed: int, rows: int = 5, tokens: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Differences, nan where there is none, and which tokens are graded; a row without any among them."""
    draw = random.Random(seed)
    difference = torch.tensor([[draw.gauss(0, 2) for _ in range(tokens)] for _ in range(rows)])
    graded = torch.tensor([[row > 0 and draw.random() < 0.6 for _ in range(tokens)] for row in range(rows)])
    return difference.where(graded, torch.nan), graded


@pytest.mark.parametrize("limit", [0.5, 2.0, 100.0])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_grades_are_those_of_plain_python(divergence: str, limit: float) -> None:
    for seed in range(5):
        difference, graded = random_batch(seed)
        grades = grade_tokens(difference, graded, divergence=divergence, limit=limit)
        for row, tokens in enumerate(graded.tolist()):
            for token, is_graded in enumerate(tokens):
                value = by_hand(difference[row, token].item(), divergence, math.inf) if is_graded else 0.0
                wanted = max(-limit, min(limit, value))
                assert grades.advantages[row, token].item() == pytest.approx(wanted, rel=1e-5, abs=1e-6)
                assert grades.clamped[row, token].item() is (abs(value) > limit)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_padding_and_order_change_nothing(divergence: str) -> None:
    difference, graded = random_batch(3)
    how = {"divergence": divergence, "limit": 2.0}
    whole = grade_tokens(difference, graded, **how)
    order = torch.randperm(len(difference), generator=torch.Generator().manual_seed(0))
    assert torch.equal(grade_tokens(difference[order], graded[order], **how).advantages, whole.advantages[order])
    wider = torch.nn.functional.pad(difference, (2, 3), value=torch.inf), torch.nn.functional.pad(graded, (2, 3))
    padded = grade_tokens(*wider, **how)
    assert torch.equal(padded.advantages[:, 2:-3], whole.advantages) and not padded.advantages[:, [0, 1, -1]].any()
    cuts = [grade_tokens(difference[rows], graded[rows], **how).advantages for rows in ([0, 1], [2], [3, 4])]
    assert torch.equal(torch.cat(cuts), whole.advantages)


def exact_kl(logits: torch.Tensor, grader: torch.Tensor, divergence: str) -> torch.Tensor:
    policy = logits.log_softmax(dim=-1)
    if divergence == "reverse_kl":
        return (policy.exp() * (policy - grader)).sum(dim=-1)
    return (grader.exp() * (grader - policy)).sum(dim=-1)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_in_expectation_over_all_tokens_the_gradient_is_that_of_the_exact_divergence(divergence: str) -> None:
    """No token is drawn: each one's policy gradient counts by its probability. Shapes are [positions, vocabulary]."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    grader = (2 * torch.randn(4, 6, generator=generator, dtype=torch.float64)).log_softmax(dim=-1)
    (wanted,) = torch.autograd.grad(exact_kl(logits, grader, divergence).sum(), logits)
    policy = logits.log_softmax(dim=-1)
    everywhere = torch.ones_like(policy, dtype=torch.bool)
    grades = grade_tokens(grader - policy.detach(), everywhere, divergence=divergence, limit=1e6).advantages
    loss = -(policy.detach().exp() * grades * policy).sum()
    (found,) = torch.autograd.grad(loss, logits)
    assert wanted.abs().max() > 0.1
    torch.testing.assert_close(found, wanted)


def test_grades_of_the_forward_divergence_have_a_mean_of_zero() -> None:
    """E_p[p_G / p - 1] = 0: what the baseline of 1 is for."""
    generator = torch.Generator().manual_seed(2)
    policy, grader = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64).log_softmax(dim=-1)
    grades = grade_tokens(grader - policy, torch.ones(3, 6, dtype=torch.bool), divergence="forward_kl", limit=1e6)
    torch.testing.assert_close((policy.exp() * grades.advantages).sum(dim=-1), torch.zeros(3, dtype=torch.float64))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="divergence='jensen' is unknown; valid values: reverse_kl, forward_kl"):
        grade_tokens(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), divergence="jensen", limit=1.0)
