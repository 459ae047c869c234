"""The token loss of a batch that mixes rollouts (on-policy) with teacher trajectories (off-policy).

With p = pi_theta(token), r = pi_theta(token) / pi_old(token) and the advantage A of the token's sequence:

    rollout token:  max(-A r, -A clamp(r, 1 - clip_low, 1 + clip_high))     PPO, arXiv 1707.06347
    teacher token:  -A f(p)                                                 LUFFY, arXiv 2504.14945

f reshapes the probability that the policy gives to a teacher's token; the teacher's own probability is taken as 1, so
p stands where the importance ratio would. The gradient flows through p: df/dtheta = f'(p) p dlog(p)/dtheta.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

AGGREGATIONS = ("token_mean", "sequence_mean", "constant")
_MAX_LOG_RATIO = 20.0

# Each takes (log p, weight, power) and stays in log space where it can: p ** power has no finite gradient at p = 0.
_RESHAPES: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "no_reshape": lambda log_probs, weight, power: log_probs.exp(),
    "logp": lambda log_probs, weight, power: weight * log_probs,
    "p_logp": lambda log_probs, weight, power: log_probs.exp() + weight * log_probs,
    "square_root": lambda log_probs, weight, power: (0.5 * log_probs).exp(),
    "pow": lambda log_probs, weight, power: (power * log_probs).exp(),
}
_GAMMA_RESHAPE = "p_div_p_"
RESHAPES = (*_RESHAPES, f"{_GAMMA_RESHAPE}<gamma>")


def reshape_probability(log_probs: Tensor, reshape: str, weight: float, power: float) -> Tensor:
    """f(p) for p = exp(log_probs), elementwise, by name (LUFFY, arXiv 2504.14945).

    no_reshape: p | logp: weight * log p | p_logp: p + weight * log p | square_root: sqrt(p) | pow: p ** power |
    p_div_p_<gamma>: p / (p + gamma) for any positive number gamma.
    Raises ValueError for any other name.
    """
    if reshape in _RESHAPES:
        return _RESHAPES[reshape](log_probs, weight, power)
    # p / (p + gamma) is the logistic function of log p - log gamma, which neither under- nor overflows.
    return torch.sigmoid(log_probs - math.log(_gamma(reshape)))


def hybrid_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    off_policy_mask: Tensor,
    *,
    reshape: str = "p_div_p_0.1",
    reshape_weight: float = 0.1,
    reshape_power: float = 0.5,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    use_clip: bool = True,
    aggregation: str = "constant",
    max_response_length: int | None = None,
    num_rows: float | Tensor | None = None,
    num_tokens: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss (0-d) of a batch, and detached 0-d metrics whose keys never change; a mean over no token is 0.

    All tensors are [B, T], log-probabilities in nats. Tokens outside action_mask are ignored whatever they hold; those
    inside are the teacher's where off_policy_mask is set. Only log_probs receives a gradient. reshape_probability
    explains `reshape`, aggregate_token_loss explains `aggregation`, `max_response_length` and the totals.
    Raises ValueError for differing shapes and for unknown names.
    """
    _require_one_shape(log_probs, old_log_probs, advantages, action_mask, off_policy_mask)
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    log_probs, old_log_probs = log_probs.to(dtype), old_log_probs.detach().to(dtype)
    advantages = advantages.detach().to(dtype)
    is_action = action_mask.bool()
    is_teacher = is_action & off_policy_mask.bool()
    is_rollout = is_action & ~is_teacher
    clip = (clip_low, clip_high) if use_clip else None
    on_loss, on_metrics = _rollout_terms(log_probs, old_log_probs, advantages, is_rollout, clip)
    off_loss, off_metrics = _teacher_terms(log_probs, advantages, is_teacher, (reshape, reshape_weight, reshape_power))
    loss = aggregate_token_loss(
        torch.where(is_teacher, off_loss, on_loss),
        is_action,
        aggregation,
        max_response_length=max_response_length,
        num_rows=num_rows,
        num_tokens=num_tokens,
    )
    share = {"off_policy_token_share": _mean(is_teacher.to(dtype), is_action)}
    return loss, {**on_metrics, **off_metrics, **share}


def aggregate_token_loss(
    token_loss: Tensor,
    mask: Tensor,
    aggregation: str,
    *,
    max_response_length: int | None = None,
    num_rows: float | Tensor | None = None,
    num_tokens: float | Tensor | None = None,
) -> Tensor:
    """One number (0-d) from the token losses [B, T], which must be 0 wherever the bool mask [B, T] is not set.

    token_mean:    sum / num_tokens
    sequence_mean: sum over rows of the row's token mean / num_rows; rows without a token count nowhere
    constant:      sum / (num_rows * max_response_length), Dr.GRPO's (arXiv 2503.20783); the length is T if None

    num_rows and num_tokens are those of the whole optimizer step, in the sense of the aggregation in use: given them,
    the losses of its micro-batches add up to the loss of the whole, however it is cut. They default to this batch's:
    its tokens; for sequence_mean its rows that have a token; for constant all its rows. A total of 0 gives loss 0.
    Raises ValueError for an aggregation outside AGGREGATIONS.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation={aggregation!r} is unknown; valid values: {', '.join(AGGREGATIONS)}")
    if aggregation == "token_mean":
        return _divide(token_loss.sum(), mask.sum() if num_tokens is None else num_tokens)
    if aggregation == "sequence_mean":
        lengths = mask.sum(dim=1)
        row_means = token_loss.sum(dim=1) / lengths.clamp(min=1)
        return _divide(row_means.sum(), (lengths > 0).sum() if num_rows is None else num_rows)
    length = token_loss.shape[1] if max_response_length is None else max_response_length
    return _divide(token_loss.sum(), (token_loss.shape[0] if num_rows is None else num_rows) * length)


def _rollout_terms(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, clip: tuple[float, float] | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The PPO loss [B, T] of the masked tokens, 0 elsewhere, and its metrics."""
    # Foreign values leave before exp and before any product: a mask applied afterwards turns inf into nan (inf * 0).
    advantages, old_log_probs = torch.where(mask, advantages, 0.0), torch.where(mask, old_log_probs, 0.0)
    log_ratio = torch.where(mask, log_probs, 0.0) - old_log_probs
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    loss = unclipped
    if clip is not None:
        loss = torch.maximum(unclipped, -advantages * ratio.clamp(1 - clip[0], 1 + clip[1]))
    return loss, {
        "on_policy_loss": _mean(loss, mask),
        "on_policy_ratio": _mean(ratio, mask),
        "on_policy_prob": _mean(old_log_probs.exp(), mask),
        "ppo_kl": _mean(-log_ratio, mask),
        "clip_fraction": _mean((loss > unclipped).to(loss.dtype), mask),
    }


def _teacher_terms(
    log_probs: Tensor, advantages: Tensor, mask: Tensor, reshaping: tuple[str, float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The imitation loss [B, T] of the masked tokens, anything elsewhere, and its metrics."""
    log_probs = torch.where(mask, log_probs, 0.0)
    reshaped = reshape_probability(log_probs, *reshaping)
    loss = -advantages * reshaped
    return loss, {
        "off_policy_loss": _mean(loss, mask),
        "off_policy_ratio": _mean(reshaped, mask),
        "off_policy_prob": _mean(log_probs.exp(), mask),
    }


def _gamma(reshape: str) -> float:
    """The gamma of a p_div_p_<gamma> name. Raises ValueError for any other name."""
    try:
        gamma = float(reshape.removeprefix(_GAMMA_RESHAPE)) if reshape.startswith(_GAMMA_RESHAPE) else 0.0
    except ValueError:
        gamma = 0.0
    if not 0 < gamma < math.inf:
        raise ValueError(f"reshape={reshape!r} is unknown; valid values: {', '.join(RESHAPES)} with gamma > 0")
    return gamma


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values.detach(), 0.0).sum() / mask.sum().clamp(min=1)


def _divide(total: Tensor, count: float | Tensor) -> Tensor:
    divisor = torch.as_tensor(count, dtype=total.dtype, device=total.device)
    return total / torch.where(divisor > 0, divisor, 1.0)


def _require_one_shape(*tensors: Tensor) -> None:
    if tensors[0].ndim != 2 or any(tensor.shape != tensors[0].shape for tensor in tensors):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ValueError(f"all tensors must be [B, T] with the same B and T, not {shapes}")
