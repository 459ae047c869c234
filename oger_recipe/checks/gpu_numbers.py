"""Checks that compare the device's numbers with the CPU's in float64, within bounds of rounding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oger_recipe.algorithm.policy_loss import hybrid_policy_loss
from oger_recipe.algorithm.token_stats import token_log_probs_and_entropy
from oger_recipe.checks.gpu_here import Here, Numbers, require

_UNIT = torch.finfo(torch.float32).eps / 2


def _rounding(terms: int) -> float:
    """Bound the rounding of a float32 sum, relative to the terms' absolute values: roundings add like sqrt(n), six
    sigmas allowed for (Higham and Mary, SIAM J. Sci. Comput. 41, 2019)."""
    return 6 * math.sqrt(terms) * _UNIT


def _explained(what: str, **errors: tuple[Tensor, Tensor | float]) -> Numbers:
    """Return each error's largest share of its bound; raise Failed above 1, beyond rounding."""
    shares = {name: round(float((error.abs() / bound).max()), 4) for name, (error, bound) in errors.items()}
    numbers: Numbers = {f"{name} / bound": share for name, share in shares.items()}
    return require(max(shares.values()) <= 1, f"{what}: differs from the CPU by more than rounding explains", numbers)


def token_statistics(here: Here, dtype: torch.dtype) -> Numbers:
    """Compare log-probabilities, their gradient and entropies, within bounds that follow rounding to first order.

    A logit of d products is off by their sum's rounding, and by one of its own, times sum |h w|. A log-probability is
    off by two logits and the sum over the vocabulary. What follows from it has twice that, for higher orders.
    """
    tokens, width, vocabulary = (512, 256, 32_000) if here.cuda else (64, 64, 1000)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator).to(dtype)
    weight = (2 * torch.randn(vocabulary, width, generator=generator) / math.sqrt(width)).to(dtype)
    labels = torch.randint(vocabulary, (tokens,), generator=generator)
    coming = torch.randn(tokens, generator=generator)

    def of(device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        rows = hidden.to(device, dtype).detach().requires_grad_()
        log_probs, entropy = token_log_probs_and_entropy(rows, weight.to(device, dtype), labels.to(device))
        (gradient,) = torch.autograd.grad(log_probs, rows, coming.to(device, log_probs.dtype))
        return tuple(each.detach().cpu().double() for each in (log_probs, entropy, gradient))

    exact, found = of("cpu", torch.float64), of(here.device, dtype)
    errors = [ours - theirs for ours, theirs in zip(found, exact, strict=True)]
    unit, h, w, of_sum = torch.finfo(dtype).eps / 2, hidden.double(), weight.double(), _rounding(vocabulary)
    one = 2 * (_rounding(width) + unit) * (h.abs() @ w.abs().T).amax(dim=1) + of_sum
    log_p = (h @ w.T).log_softmax(dim=1)
    entropy = 2 * one * (log_p.exp() * (log_p + exact[1][:, None]).abs()).sum(dim=1) + of_sum * exact[1]
    logits = coming.double().abs()[:, None] * (log_p.exp() + torch.nn.functional.one_hot(labels, vocabulary))
    gradient = ((2 * one[:, None] + 2 * unit + of_sum) * logits) @ w.abs()
    pairs = zip(("log_probs", "entropy", "gradient"), zip(errors, (one, entropy, gradient), strict=True), strict=True)
    return _explained(f"token statistics in {dtype}", **dict(pairs))


def loss(here: Here) -> Numbers:
    """Check the hybrid loss and its gradient, of equal log-probabilities in float32: terms are off by 16 roundings."""
    shape = (8, 512)
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(shape, generator=generator) * 4
    log_probs = old + 0.1 * torch.randn(shape, generator=generator)
    advantages = torch.randn(8, 1, generator=generator).expand(shape)
    mask = torch.arange(512) < torch.randint(100, 512, (8, 1), generator=generator)
    teachers = mask & (torch.arange(8) % 4 == 0)[:, None]

    def of(device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        ours = log_probs.to(device, dtype).detach().requires_grad_()
        places = (old.to(device, dtype), advantages.to(device, dtype), mask.to(device), teachers.to(device))
        loss, _ = hybrid_policy_loss(ours, *places, max_response_length=512)
        return tuple(each.detach().cpu().double() for each in (loss, *torch.autograd.grad(loss, ours)))

    exact, found = of("cpu", torch.float64), of(here.device, torch.float32)
    terms = advantages.abs() * ((log_probs - old).exp() + 1.2) * mask / mask.numel()  # 1.2: where it is clipped
    return _explained(
        "the loss",
        loss=(found[0] - exact[0], (_rounding(mask.numel()) + 16 * _UNIT) * float(terms.sum())),
        gradient=((found[1] - exact[1])[mask], 16 * _UNIT * terms[mask]),
    )
