"""The token loss of a batch that mixes rollouts (on-policy) with teacher trajectories (off-policy).

With p = pi_theta(token), r = pi_theta(token) / pi_old(token) and the advantage A of the token's sequence:

    rollout token:  max(-A r, -A clamp(r, 1 - clip_low, 1 + clip_high))     PPO, arXiv 1707.06347
                    with dual_clip, where A < 0, at most -A dual_clip       dual clip, arXiv 1912.09729
    teacher token:  -A f(p)                                                 LUFFY, arXiv 2504.14945

f reshapes the probability that the policy gives to a teacher's token; the teacher's own probability is taken as 1, so
p stands where the importance ratio would. The gradient flows through p: df/dtheta = f'(p) p dlog(p)/dtheta.
Other losses for teacher tokens: PPO's own, as if they were rollouts, and the supervised one, alone or beside LUFFY's.
The loss of teacher tokens by `teacher_loss`:

    reshape: -A f(p), f(p) clamped to off_policy_min_clip and off_policy_max_clip where given. Where teacher_probs
             [B, T], the teacher's own probabilities, is given and above 0, f(p) is p / (teacher_prob + 1e-6);
             with reshape_teacher_ratio f(p / teacher_prob), that of the ratio (ExGRPO, arXiv 2510.02245)
    ppo:     that of rollout tokens
    sft:     sft_loss_coef * sum(-w log p) / num_teacher_tokens, added to rollout_loss_coef times the aggregated loss
             of the rollout tokens. num_teacher_tokens (default: this batch's) is of the whole optimizer step.
             num_tokens, and the num_rows of sequence_mean, are then of rollout tokens alone; constant still divides
             by all rows. w by sft_token_weight, a name of TOKEN_WEIGHTS, carries no gradient
    reshape_sft: both, the supervised loss added to rollout_loss_coef times the loss that reshape has

all_max_clip: tokens of either kind with p above it are as if outside action_mask, except for totals that are given
and for the metrics all_clip_fraction and off_policy_token_share, which are shares of all tokens in action_mask.
Of the metrics, on_policy_*, ppo_kl, approx_kl and clip_fraction are of rollout tokens, the other off_policy_* of
teacher tokens, whatever teacher_loss is: off_policy_ratio is PPO's under ppo, the unused f(p) under sft; neither is
clamped. off_policy_loss is without sft_loss_coef, and under reshape_sft without the supervised term.
ppo_kl is the mean of -d, approx_kl that of e^d - 1 - d (k3, http://joschu.net/blog/kl-approx.html) with
d = log pi_theta - log pi_old, both over the rollout_tokens that enter the loss.
teacher_top_entropy_share below 1: of each row's teacher tokens in action_mask, those that are not among the share of
highest entropy (rounded up, earlier tokens first) have a loss of 0, whatever teacher_loss is (Prefix-RFT, arXiv
2507.01679). They change no total, and off_policy_loss is a mean over them too.
rollout_weights [B, T], where given, multiply the losses of rollout tokens, on_policy_loss included
(algorithm/engine_ratio.py). They change no total.
loss_units makes steps of reasoning of rollout tokens before they come here: then "rollout token" is a step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from oger_recipe.algorithm.reshape import MAX_LOG_RATIO, reshape_probability, reshape_ratio
from oger_recipe.algorithm.token_stats import of_highest_entropy

_TEACHER_PROB_EPS = 1e-6
_T = TypeVar("_T")


@dataclass(frozen=True)
class TeacherLoss:
    """What teacher tokens are trained by.

    reshapes: -A f(p), aggregated together with the loss of rollout tokens. supervised: -w log p, whose mean is over
    teacher tokens alone and is added with sft_loss_coef. Neither: the loss of rollout tokens.
    """

    reshapes: bool = False
    supervised: bool = False

    @property
    def apart(self) -> bool:
        """Whether teacher tokens are none of those that are aggregated with rollouts."""
        return self.supervised and not self.reshapes

    @property
    def as_rollouts(self) -> bool:
        """Whether teacher tokens are treated as if the policy had sampled them."""
        return not (self.reshapes or self.supervised)


TEACHER_LOSSES: dict[str, TeacherLoss] = {
    "reshape": TeacherLoss(reshapes=True),
    "ppo": TeacherLoss(),
    "sft": TeacherLoss(supervised=True),
    "reshape_sft": TeacherLoss(reshapes=True, supervised=True),
}


@dataclass(frozen=True)
class TokenWeight:
    """A weight w of supervised tokens, from log p [B, T] and the policy's mean entropy (nats) over the row's response
    [B, 1], both without gradient; the entropy is 0 where reads_entropy is not set and none is known."""

    weight: Callable[[Tensor, Tensor], Tensor]
    reads_entropy: bool = False


TOKEN_WEIGHTS: dict[str, TokenWeight] = {
    "none": TokenWeight(lambda log_p, entropy: torch.ones_like(log_p)),
    # CHORD's phi (arXiv 2508.11408)
    "p_times_1mp": TokenWeight(lambda log_p, entropy: -log_p.exp() * log_p.expm1()),
    # SRFT's, before its factor of a half (arXiv 2506.19767)
    "exp_neg_entropy": TokenWeight(lambda log_p, entropy: (-entropy).exp().expand_as(log_p), reads_entropy=True),
}


def hybrid_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, action_mask: Tensor, off_policy_mask: Tensor, *,
    reshape: str = "p_div_p_0.1", reshape_weight: float = 0.1, reshape_power: float = 0.5,
    off_policy_max_clip: float | None = None, off_policy_min_clip: float | None = None,
    teacher_probs: Tensor | None = None, reshape_teacher_ratio: bool = False,
    teacher_loss: str = "reshape", sft_loss_coef: float | Tensor = 1.0,
    rollout_loss_coef: float | Tensor = 1.0, sft_token_weight: str = "none", entropy: Tensor | None = None,
    teacher_top_entropy_share: float = 1.0,
    on_policy_reshape: str = "no_reshape", on_policy_reshape_weight: float = 0.1, on_policy_reshape_power: float = 0.5,
    clip_low: float = 0.2, clip_high: float = 0.2, use_clip: bool = True, dual_clip: float | None = None,
    all_max_clip: float | None = None,
    rollout_weights: Tensor | None = None,
    aggregation: str = "constant", max_response_length: int | None = None, num_rows: float | Tensor | None = None,
    num_tokens: float | Tensor | None = None, num_teacher_tokens: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """Compute the loss (0-d) of a batch, and detached 0-d metrics whose keys never change; a mean over no token is 0.

    All tensors are [B, T], log-probabilities in nats. Tokens outside action_mask are ignored whatever they hold; those
    inside are the teacher's where off_policy_mask is set. Only log_probs receives a gradient. reshape_probability
    explains `reshape`, reshape_ratio `on_policy_reshape`, aggregate_token_loss `aggregation`, `max_response_length`
    and the totals, the module the rest. entropy (nats) is the policy's at each token. Raises ValueError for differing
    shapes, for unknown names, and for a weight or a share that reads the entropy where none is given.
    """
    given = tuple(each for each in (teacher_probs, rollout_weights, entropy) if each is not None)
    _require_one_shape(log_probs, old_log_probs, advantages, action_mask, off_policy_mask, *given)
    how = _named("teacher_loss", teacher_loss, TEACHER_LOSSES)
    weigh = _named("sft_token_weight", sft_token_weight, TOKEN_WEIGHTS)
    if weigh.reads_entropy and entropy is None:
        raise ValueError(f"sft_token_weight={sft_token_weight!r} needs the entropy of tokens")
    if teacher_top_entropy_share < 1 and entropy is None:
        raise ValueError(f"teacher_top_entropy_share={teacher_top_entropy_share} needs the entropy of tokens")
    tokens = _tokens(log_probs, old_log_probs, advantages, action_mask, off_policy_mask, all_max_clip)
    as_rollout = tokens.kept if how.as_rollouts else tokens.is_rollout
    rollout_reshaping = (on_policy_reshape, on_policy_reshape_weight, on_policy_reshape_power)
    clip = (clip_low, clip_high) if use_clip else None
    on, clipped = _rollout_terms(tokens, as_rollout, rollout_reshaping, clip, dual_clip)
    if rollout_weights is not None:
        weights = torch.where(tokens.is_rollout, rollout_weights.detach().to(on.loss.dtype), 1.0)
        on = replace(on, loss=on.loss * weights)
    bounds = (off_policy_min_clip, off_policy_max_clip) if how.reshapes else (None, None)
    reshaping = (reshape, reshape_weight, reshape_power)
    unbounded = _unbounded_ratio(tokens, reshaping, teacher_probs, reshape_teacher_ratio)
    off = _teacher_terms(tokens, how, on, unbounded, bounds)
    learnt = torch.ones_like(tokens.is_action)
    if teacher_top_entropy_share < 1 and entropy is not None:
        is_taught = tokens.is_action & tokens.is_off_policy
        learnt = ~is_taught | of_highest_entropy(entropy, is_taught, teacher_top_entropy_share)
    on, off = (replace(terms, loss=torch.where(learnt, terms.loss, 0.0)) for terms in (on, off))
    aggregated = partial(
        aggregate_token_loss,
        aggregation=aggregation,
        max_response_length=max_response_length,
        num_rows=num_rows,
        num_tokens=num_tokens,
    )
    if how.apart:
        loss = aggregated(on.loss, as_rollout)
    else:
        loss = aggregated(torch.where(tokens.is_teacher, off.loss, on.loss), tokens.kept)
    if how.supervised:
        supervised = torch.where(learnt, _supervised(tokens, weigh, entropy), 0.0)
        taught = tokens.is_teacher.sum() if num_teacher_tokens is None else num_teacher_tokens
        loss = rollout_loss_coef * loss + sft_loss_coef * _divide(supervised.sum(), taught)
        off = _Terms(supervised, off.ratio) if how.apart else off
    return loss, _metrics(tokens, on, off, clipped, unbounded, bounds)


@dataclass(frozen=True)
class _Tokens:
    """A batch in float32 or better, all [B, T]; kept: those of is_action that enter the loss."""

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    is_action: Tensor
    is_off_policy: Tensor
    kept: Tensor

    @property
    def is_teacher(self) -> Tensor:
        return self.kept & self.is_off_policy

    @property
    def is_rollout(self) -> Tensor:
        return self.kept & ~self.is_off_policy


def _tokens(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    off_policy_mask: Tensor,
    all_max_clip: float | None,
) -> _Tokens:
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    log_probs, is_action = log_probs.to(dtype), action_mask.bool()
    kept = is_action if all_max_clip is None else is_action & ~(log_probs.detach().exp() > all_max_clip)
    old_log_probs, advantages = old_log_probs.detach().to(dtype), advantages.detach().to(dtype)
    return _Tokens(log_probs, old_log_probs, advantages, is_action, off_policy_mask.bool(), kept)


@dataclass(frozen=True)
class _Terms:
    """The losses [B, T] of tokens of one kind, 0 elsewhere, and the ratio in them."""

    loss: Tensor
    ratio: Tensor


def _metrics(
    tokens: _Tokens,
    on: _Terms,
    off: _Terms,
    clipped: Tensor,
    unbounded: Tensor,
    bounds: tuple[float | None, float | None],
) -> dict[str, Tensor]:
    is_rollout, is_teacher, dtype = tokens.is_rollout, tokens.is_teacher, tokens.log_probs.dtype
    log_probs, old_log_probs = tokens.log_probs, torch.where(is_rollout, tokens.old_log_probs, 0.0)
    difference = old_log_probs - torch.where(is_rollout, log_probs, 0.0)
    off_policy_share = (tokens.is_action & tokens.is_off_policy).to(dtype)
    return {
        "on_policy_loss": _mean(on.loss, is_rollout),
        "on_policy_ratio": _mean(on.ratio, is_rollout),
        "on_policy_prob": _mean(old_log_probs.exp(), is_rollout),
        "ppo_kl": _mean(difference, is_rollout),
        "approx_kl": _mean(_k3(-difference.detach()), is_rollout),
        "rollout_tokens": is_rollout.sum().to(dtype),
        "clip_fraction": _mean(clipped, is_rollout),
        "off_policy_loss": _mean(off.loss, is_teacher),
        "off_policy_ratio": _mean(off.ratio, is_teacher),
        "off_policy_prob": _mean(torch.where(is_teacher, log_probs, 0.0).exp(), is_teacher),
        "off_policy_ratio_max_clip_fraction": _mean(_exceeds(unbounded, bounds[1]), is_teacher),
        "off_policy_ratio_min_clip_fraction": _mean(
            _exceeds(-unbounded, None if bounds[0] is None else -bounds[0]), is_teacher
        ),
        "off_policy_token_share": _mean(off_policy_share, tokens.is_action),
        "all_clip_fraction": _mean((tokens.is_action & ~tokens.kept).to(dtype), tokens.is_action),
    }


@dataclass(frozen=True)
class Totals:
    """Totals of the whole optimizer step, in the sense of the aggregation in use; None: this batch's."""

    max_response_length: int | None = None
    num_rows: float | Tensor | None = None
    num_tokens: float | Tensor | None = None


def _token_mean(token_loss: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    return _divide(token_loss.sum(), mask.sum() if totals.num_tokens is None else totals.num_tokens)


def _sequence_mean(token_loss: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    lengths = mask.sum(dim=1)
    row_means = token_loss.sum(dim=1) / lengths.clamp(min=1)
    return _divide(row_means.sum(), (lengths > 0).sum() if totals.num_rows is None else totals.num_rows)


def _constant(token_loss: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    length = token_loss.shape[1] if totals.max_response_length is None else totals.max_response_length
    return _divide(token_loss.sum(), (len(token_loss) if totals.num_rows is None else totals.num_rows) * length)


@dataclass(frozen=True)
class Aggregation:
    """loss: (token losses [B, T], mask [B, T], totals) to one number; those of micro-batches add up under given
    totals. rows_with_tokens: whether the num_rows it divides by are those that have a token in the mask; every_row:
    whether they are all, so that rows which are left out weigh as rows without an advantage do."""

    loss: Callable[[Tensor, Tensor, Totals], Tensor]
    rows_with_tokens: bool = False
    every_row: bool = False


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": Aggregation(_token_mean),
    "sequence_mean": Aggregation(_sequence_mean, rows_with_tokens=True),
    "constant": Aggregation(_constant, every_row=True),
}


def aggregate_token_loss(
    token_loss: Tensor,
    mask: Tensor,
    aggregation: str,
    *,
    max_response_length: int | None = None,
    num_rows: float | Tensor | None = None,
    num_tokens: float | Tensor | None = None,
) -> Tensor:
    """Reduce token losses [B, T], which must be 0 wherever the bool mask [B, T] is not set, to one number (0-d).

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
    totals = Totals(max_response_length, num_rows, num_tokens)
    return AGGREGATIONS[aggregation].loss(token_loss, mask, totals)


def _rollout_terms(
    tokens: _Tokens,
    mask: Tensor,
    reshaping: tuple[str, float, float],
    clip: tuple[float, float] | None,
    dual_clip: float | None,
) -> tuple[_Terms, Tensor]:
    """Compute PPO's loss of the masked tokens, and where clipping decided it (1, else 0)."""
    # Other tokens are zeroed before exp and before any product: a mask applied afterwards makes inf nan (inf * 0).
    advantages, old_log_probs = torch.where(mask, tokens.advantages, 0.0), torch.where(mask, tokens.old_log_probs, 0.0)
    ratio = reshape_ratio(torch.where(mask, tokens.log_probs, 0.0), old_log_probs, *reshaping)
    loss = unclipped = -advantages * ratio
    if clip is not None:
        low, high = clip
        loss = torch.maximum(loss, -advantages * ratio.clamp(1 - low, 1 + high))
    if dual_clip is not None:  # without it, the loss of a bad rollout that has become likely has no bound
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return _Terms(loss, ratio), (loss != unclipped).to(loss.dtype)


def _unbounded_ratio(
    tokens: _Tokens, reshaping: tuple[str, float, float], teacher_probs: Tensor | None, of_ratio: bool
) -> Tensor:
    """Compute what stands for the importance ratio of the teacher's tokens, before its bounds."""
    log_probs = torch.where(tokens.is_teacher, tokens.log_probs, 0.0)
    if teacher_probs is None:
        return reshape_probability(log_probs, *reshaping)
    known = tokens.is_teacher & (teacher_probs > 0)
    behaviour = torch.where(known, teacher_probs.detach().to(log_probs.dtype), 1.0)
    if of_ratio:
        return reshape_probability((log_probs - behaviour.log()).clamp(max=MAX_LOG_RATIO), *reshaping)
    reshaped = reshape_probability(log_probs, *reshaping)
    return torch.where(known, log_probs.exp() / (behaviour + _TEACHER_PROB_EPS), reshaped)


def _teacher_terms(
    tokens: _Tokens, how: TeacherLoss, on: _Terms, unbounded: Tensor, bounds: tuple[float | None, float | None]
) -> _Terms:
    """Compute the loss of the teacher's tokens; ``unbounded`` is their ratio before its bounds."""
    if how.as_rollouts:
        return _Terms(on.loss, on.ratio)
    advantages = torch.where(tokens.is_teacher, tokens.advantages, 0.0)
    ratio = unbounded if bounds == (None, None) else unbounded.clamp(*bounds)
    return _Terms(torch.where(tokens.is_teacher, -advantages * ratio, 0.0), ratio)


def _supervised(tokens: _Tokens, weigh: TokenWeight, entropy: Tensor | None) -> Tensor:
    """Compute -w log p of the teacher's tokens, [B, T], 0 elsewhere."""
    log_probs = torch.where(tokens.is_teacher, tokens.log_probs, 0.0)
    of_tokens = torch.zeros_like(log_probs) if entropy is None else entropy
    counted = tokens.is_action.sum(dim=1, keepdim=True).clamp(min=1)
    of_rows = torch.where(tokens.is_action, of_tokens.detach().to(log_probs.dtype), 0.0).sum(dim=1, keepdim=True)
    weights = weigh.weight(log_probs.detach(), of_rows / counted)
    return torch.where(tokens.is_teacher, -weights * log_probs, 0.0)


def _k3(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp() - 1 - log_ratio


def _exceeds(values: Tensor, bound: float | None) -> Tensor:
    return torch.zeros_like(values) if bound is None else (values > bound).to(values.dtype)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values.detach(), 0.0).sum() / mask.sum().clamp(min=1)


def _divide(total: Tensor, count: float | Tensor) -> Tensor:
    divisor = torch.as_tensor(count, dtype=total.dtype, device=total.device)
    return total / torch.where(divisor > 0, divisor, 1.0)


def _named(key: str, name: str, known: dict[str, _T]) -> _T:
    if name not in known:
        raise ValueError(f"{key}={name!r} is unknown; valid values: {', '.join(known)}")
    return known[name]


def _require_one_shape(*tensors: Tensor) -> None:
    if tensors[0].ndim != 2 or any(tensor.shape != tensors[0].shape for tensor in tensors):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ValueError(f"all tensors must be [B, T] with the same B and T, not {shapes}")
