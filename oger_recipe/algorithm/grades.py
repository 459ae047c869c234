"""Grades of sampled tokens: how much likelier a grader G, which knows more than the policy, finds each of them.

    d(token) = log p_G(token | what G reads, earlier tokens) - log p(token | prompt, earlier tokens)

p is the policy that sampled, and neither carries a gradient. A grade is an advantage: in expectation over the policy's
next token, grade * grad log p is minus the gradient of a divergence of the two distributions of that token,

    reverse_kl   KL(p || G) = E_p[-d]         grade: d            (arXiv 2306.13649; on-policy distillation)
    forward_kl   KL(G || p) = E_p[e^d d]      grade: e^d - 1      (its -1 is a baseline: E_p[e^d] = 1)

where the tokens before it are taken as they were sampled. Of the second, one token is an unbiased sample as well, with
a variance that grows with e^d.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Differences d of log-probabilities (nats, any shape) to grades of the same shape.
DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "reverse_kl": lambda difference: difference,
    "forward_kl": torch.expm1,
}


@dataclass(frozen=True)
class Grades:
    """Grades of a micro-batch's tokens. advantages [B, A]: the grades, 0 on tokens without one; clamped (bool [B, A]):
    those that were beyond the limit."""

    advantages: Tensor
    clamped: Tensor


def grade_tokens(difference: Tensor, graded: Tensor, *, divergence: str, limit: float) -> Grades:
    """Grade the tokens in the bool mask `graded`, by their differences d (nats); both are [B, A].

    A grade is clamped to -limit..limit. It is then biased where it was beyond: less weight on tokens that the grader
    finds all but impossible, and under forward_kl on those that the policy hardly ever samples.
    Raises ValueError for a divergence outside DIVERGENCES.
    """
    if divergence not in DIVERGENCES:
        raise ValueError(f"divergence={divergence!r} is unknown; valid values: {', '.join(DIVERGENCES)}")
    grades = DIVERGENCES[divergence](torch.where(graded, difference, 0.0))
    return Grades(grades.clamp(-limit, limit), grades.abs() > limit)
