"""What stands in place of the importance ratio: f(p) on teacher tokens, and its family on rollout tokens.

LUFFY, arXiv 2504.14945. Log-probabilities are in nats; everything stays in log space where it can.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0

# Each takes (log p, weight, power): p ** power has no finite gradient at p = 0.
_RESHAPES: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "no_reshape": lambda log_probs, weight, power: log_probs.exp(),
    "logp": lambda log_probs, weight, power: weight * log_probs,
    "p_logp": lambda log_probs, weight, power: log_probs.exp() + weight * log_probs,
    "square_root": lambda log_probs, weight, power: (0.5 * log_probs).exp(),
    "pow": lambda log_probs, weight, power: (power * log_probs).exp(),
}
# Each takes (d, weight, power) with d = log p - log p_old.
_RATIO_RESHAPES: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "no_reshape": lambda d, weight, power: d.exp(),
    "logp": lambda d, weight, power: d,
    "p_logp": lambda d, weight, power: d.exp() + weight * d,
    "square_root": lambda d, weight, power: (0.5 * d).exp(),
    "pow": lambda d, weight, power: (power * d).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(),
}
_GAMMA_RESHAPE = "p_div_p_"
RESHAPES = (*_RESHAPES, f"{_GAMMA_RESHAPE}<gamma>")


def reshape_probability(log_probs: Tensor, reshape: str, weight: float, power: float) -> Tensor:
    """f(p) for p = exp(log_probs), elementwise, by name.

    no_reshape: p | logp: weight * log p | p_logp: p + weight * log p | square_root: sqrt(p) | pow: p ** power |
    p_div_p_<gamma>: p / (p + gamma) for any positive number gamma.
    Raises ValueError for any other name.
    """
    if reshape in _RESHAPES:
        return _RESHAPES[reshape](log_probs, weight, power)
    # p / (p + gamma) is the logistic function of log p - log gamma, which neither under- nor overflows.
    return torch.sigmoid(log_probs - math.log(_gamma(reshape)))


def reshape_ratio(log_probs: Tensor, old_log_probs: Tensor, reshape: str, weight: float, power: float) -> Tensor:
    """The same family for the ratio of two policies, elementwise, with d = log p - log p_old.

    no_reshape: e^d | logp: d | p_logp: e^d + weight * d | square_root: e^(d/2) | pow: e^(power d) |
    p_div_p_<gamma>: [p / (p + gamma)] / [p_old / (p_old + gamma)].
    d and every exponent are cut at +-20, beyond which there is no gradient; at d = 0 all but logp (0) are 1.
    Raises ValueError for any other name.
    """
    if reshape in _RATIO_RESHAPES:
        difference = (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return _RATIO_RESHAPES[reshape](difference, weight, power)
    shift = math.log(_gamma(reshape))
    difference = torch.nn.functional.logsigmoid(log_probs - shift) - torch.nn.functional.logsigmoid(
        old_log_probs - shift
    )
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _gamma(reshape: str) -> float:
    """The gamma of a p_div_p_<gamma> name. Raises ValueError for any other name."""
    try:
        gamma = float(reshape.removeprefix(_GAMMA_RESHAPE)) if reshape.startswith(_GAMMA_RESHAPE) else 0.0
    except ValueError:
        gamma = 0.0
    if not 0 < gamma < math.inf:
        raise ValueError(f"reshape={reshape!r} is unknown; valid values: {', '.join(RESHAPES)} with gamma > 0")
    return gamma
