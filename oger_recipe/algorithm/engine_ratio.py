"""Weights of rollout tokens that an engine sampled with other probabilities than the policy computes for them.

An engine samples a token with probability mu; the policy, with the same weights, computes pi for it. Kernels and
precision set them apart. With w = pi / mu, the loss of a rollout's token is multiplied by a weight without a gradient:

    level token, mode clip    clamp(w, low, high)                   truncated importance sampling (TIS)
    level token, mode mask    w where low <= s <= high, else 0      IcePop
    level seq, mode mask      w where low <= S <= high, else 0      sequence mask; S is one number for the response

s is what gating measures of a token, S its mean over the tokens of the response (the geometric mean of w):

    ratio        s = w                                                            S = exp(mean log w)
    binary_kl    s = mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi))          S = mean s
    tv           s = |mu - pi|                                                    S = mean s

TIS: https://fengyao.notion.site/off-policy-rl · IcePop: https://ringtech.notion.site/icepop, arXiv 2510.18855 ·
sequence mask: https://richardli.xyz/rl-collapse (geometric mean). The settings and their meaning are those of
PolicyLoss in OpenRLHF 0.11.2 (algo.advantage.is_correction_*). As there, a token with weight 0 still counts in the
totals that a loss is divided by: a mask removes its gradient and does not scale up the others'.

Only the policy's own tokens are weighed, and only they enter S: no engine sampled a teacher's tokens, and a response
that a teacher begins is judged by the policy's continuation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from oger_recipe.algorithm.reshape import MAX_LOG_RATIO

_LEAST_PROB = 1e-6  # of either outcome in binary_kl, as upstream has it


def _binary_kl(engine: Tensor, policy: Tensor) -> Tensor:
    mu, pi = (log_probs.exp().clamp(_LEAST_PROB, 1 - _LEAST_PROB) for log_probs in (engine, policy))
    return mu * (mu / pi).log() + (1 - mu) * ((1 - mu) / (1 - pi)).log()


# (log mu, log pi) to a distance of at least 0, which has an upper bound alone. The gating "ratio" is none of them.
DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "binary_kl": _binary_kl,
    "tv": lambda engine, policy: (engine.exp() - policy.exp()).abs(),
}


@dataclass(frozen=True)
class Weighed:
    """The tokens of some rows, all [B, A]. Outside of `own`, weight and ratio are 1."""

    own: Tensor  # bool: the policy's own tokens
    weight: Tensor
    ratio: Tensor  # w
    filtered: Tensor  # bool: truncated by a clip, or left out by a mask


@dataclass(frozen=True)
class EngineCorrection:
    """How tokens are weighed. by_sequence: level seq; clips: mode clip; low, high: bounds on what gating measures."""

    by_sequence: bool
    clips: bool
    gating: str
    low: float
    high: float

    @classmethod
    def named(cls, level: str, mode: str, gating: str, threshold: Sequence[float]) -> Self | None:
        """Read OpenRLHF's settings; None: off. A single threshold is the upper bound."""
        low, high = (0.0, *threshold)[-2:]
        return None if level == "off" else cls(level == "seq", mode == "clip", gating, low, high)

    def of(self, log_probs: Tensor, engine_log_probs: Tensor, own: Tensor) -> Weighed:
        """Weigh the tokens that `own` marks, by log-probabilities (nats) of the policy before its updates and of the
        engine. All are [B, A]; what lies outside of `own` is not read, nan and inf included."""
        own, exact = own.bool(), torch.promote_types(log_probs.dtype, torch.float32)
        policy, engine = (torch.where(own, each.detach().to(exact), 0.0) for each in (log_probs, engine_log_probs))
        log_ratio = (policy - engine).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = log_ratio.exp()
        if self.gating == "ratio":
            measured = _row_means(log_ratio, own).exp() if self.by_sequence else ratio
        else:
            distance = DISTANCES[self.gating](engine, policy)  # 0 outside of own, where both are 0
            measured = _row_means(distance, own) if self.by_sequence else distance
        within = (measured >= self.low) & (measured <= self.high)
        weight = ratio.clamp(self.low, self.high) if self.clips else torch.where(within, ratio, 0.0)
        return Weighed(own, torch.where(own, weight, 1.0), ratio, own & ~within)


def _row_means(values: Tensor, mask: Tensor) -> Tensor:
    """Average values [B, A], which are 0 outside of the mask, over each row: [B, 1]."""
    return values.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def correction_metrics(weighed: Sequence[Weighed]) -> dict[str, float]:
    """Return the metrics of a training step's weights, over the policy's own tokens; 0 where there is none.

    vllm_ratio, vllm_ratio_max: the mean and the highest w, before any clip or mask. vllm_filtered_tokens,
    vllm_filtered_rows: the share of tokens that are clipped or left out, and of rows that have any such token.
    """
    ratio = torch.cat([each.ratio[each.own] for each in weighed])
    filtered = torch.cat([each.filtered[each.own] for each in weighed])
    rows = torch.cat([each.filtered.any(dim=1)[each.own.any(dim=1)] for each in weighed])
    return {
        "vllm_ratio": _mean(ratio),
        "vllm_ratio_max": ratio.max().item() if len(ratio) else 0.0,
        "vllm_filtered_tokens": _mean(filtered),
        "vllm_filtered_rows": _mean(rows),
    }


def _mean(values: Tensor) -> float:
    return values.double().mean().item() if len(values) else 0.0
