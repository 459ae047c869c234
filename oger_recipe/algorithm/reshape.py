"""What stands in place of the importance ratio: f(p) on teacher tokens, and its family on rollout tokens.

LUFFY, arXiv 2504.14945. Log-probabilities are in nats; everything stays in log space where it can.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0

Function = Callable[[Tensor, float, float], Tensor]


@dataclass(frozen=True)
class Reshape:
    """probability: (log p, weight, power) to f(p), from log p as p ** power has no finite gradient at p = 0; a ratio
    of up to e^MAX_LOG_RATIO may stand for p. ratio: the same family for e^d with d = log p - log p_old, (d, weight,
    power); d is within +-MAX_LOG_RATIO, and so has to be every exponent. reads: the settings that they take, as knobs
    by name; others have no effect."""

    probability: Function
    ratio: Function
    reads: tuple[str, ...] = ()


RESHAPES: dict[str, Reshape] = {
    "no_reshape": Reshape(lambda log_p, weight, power: log_p.exp(), lambda d, weight, power: d.exp()),
    "logp": Reshape(
        lambda log_p, weight, power: weight * log_p, lambda d, weight, power: d, ("off_policy_reshape_weight",)
    ),
    "p_logp": Reshape(
        lambda log_p, weight, power: log_p.exp() + weight * log_p,
        lambda d, weight, power: d.exp() + weight * d,
        ("off_policy_reshape_weight", "on_policy_reshape_weight"),
    ),
    "square_root": Reshape(lambda log_p, weight, power: (0.5 * log_p).exp(), lambda d, weight, power: (0.5 * d).exp()),
    "pow": Reshape(
        lambda log_p, weight, power: (power * log_p).clamp(max=MAX_LOG_RATIO).exp(),
        lambda d, weight, power: (power * d).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(),
        ("off_policy_reshape_pow_exp", "on_policy_reshape_pow_exp"),
    ),
}
_GAMMA_RESHAPE = "p_div_p_"


def known_reshapes() -> str:
    """List all names, for messages."""
    return f"{', '.join(RESHAPES)}, {_GAMMA_RESHAPE}<gamma>"


def reshape_probability(log_probs: Tensor, reshape: str, weight: float, power: float) -> Tensor:
    """Compute f(p) for p = exp(log_probs), elementwise on any shape, by name.

    no_reshape: p | logp: weight * log p | p_logp: p + weight * log p | square_root: sqrt(p) | pow: p ** power |
    p_div_p_<gamma>: p / (p + gamma) for any positive number gamma.
    Raises ValueError for any other name.
    """
    if reshape in RESHAPES:
        return RESHAPES[reshape].probability(log_probs, weight, power)
    # p / (p + gamma) is the logistic function of log p - log gamma, which neither under- nor overflows.
    return torch.sigmoid(log_probs - math.log(_gamma(reshape)))


def reshape_ratio(log_probs: Tensor, old_log_probs: Tensor, reshape: str, weight: float, power: float) -> Tensor:
    """Compute the same family for the ratio of two policies, elementwise, with d = log p - log p_old.

    no_reshape: e^d | logp: d | p_logp: e^d + weight * d | square_root: e^(d/2) | pow: e^(power d) |
    p_div_p_<gamma>: [p / (p + gamma)] / [p_old / (p_old + gamma)].
    d and every exponent are cut at +-20, beyond which there is no gradient; at d = 0 all but logp (0) are 1.
    Raises ValueError for any other name.
    """
    if reshape in RESHAPES:
        difference = (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return RESHAPES[reshape].ratio(difference, weight, power)
    shift = math.log(_gamma(reshape))
    difference = torch.nn.functional.logsigmoid(log_probs - shift) - torch.nn.functional.logsigmoid(
        old_log_probs - shift
    )
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _gamma(reshape: str) -> float:
    """Read the gamma of a p_div_p_<gamma> name. Raise ValueError for any other name."""
    try:
        gamma = float(reshape.removeprefix(_GAMMA_RESHAPE)) if reshape.startswith(_GAMMA_RESHAPE) else 0.0
    except ValueError:
        gamma = 0.0
    if not 0 < gamma < math.inf:
        raise ValueError(f"reshape={reshape!r} is unknown; valid values: {known_reshapes()} with gamma > 0")
    return gamma
