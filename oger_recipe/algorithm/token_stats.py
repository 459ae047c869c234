"""Log-probability of chosen tokens and entropy of the distributions they were chosen from.

For z = W h / temperature, in nats:

    log p_k = z_k - logsumexp(z)            H = -sum_k p_k log p_k

    d log p_y / d z_k = [k = y] - p_k       d H / d z_k = -p_k (log p_k + H)

With a vocabulary of 150 000 the logits of a batch are larger than everything else in it together. They are therefore
made a few tokens at a time, used, and made again for the gradient.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

# Logits that exist at a time; they take up to 8 bytes each, in float32 beside what is made of them. The backward pass
# also has the head's gradient in float32 (4 V h bytes) and, of one chunk, in the head's dtype (2 V h in 16 bits).
# A GPU reads and writes that gradient once a chunk: of a 7B (V = 152k, h = 3584: 2 GiB) 2**26 logits are 441 rows, 75
# chunks for 32k tokens, and 2**28 are 1765 rows, 19 chunks, for 2 GiB of logits. By arithmetic: no GPU was timed.
CHUNK_LOGITS, CHUNK_LOGITS_ON_GPU = 2**26, 2**28


def token_log_probs_and_entropy(
    hidden: Tensor, lm_head_weight: Tensor, labels: Tensor, *, temperature: float = 1.0, chunk_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Compute each label's log-probability, and the entropy, of softmax(hidden @ lm_head_weight.T / temperature).

    hidden is [N, h] or [B, T, h], lm_head_weight [V, h], labels int64 [N] or [B, T] within 0..V-1; both results, in
    nats, have the shape of labels and are float32, float64 if the inputs are. Logits are computed in the dtype of the
    inputs, as the model's own head does, their statistics in float32. Both results carry gradients to hidden and
    lm_head_weight.
    At most chunk_size rows of the [N, V] logits exist at a time, in the backward pass as well; by default as many as
    make CHUNK_LOGITS logits on a CPU, and CHUNK_LOGITS_ON_GPU elsewhere.
    Raises ValueError for a temperature or chunk_size that is not positive and for shapes that do not fit.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")
    labels_fit = hidden.ndim in (2, 3) and labels.shape == hidden.shape[:-1]
    if not labels_fit or lm_head_weight.ndim != 2 or lm_head_weight.shape[1] != hidden.shape[-1]:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (hidden, lm_head_weight, labels))
        raise ValueError(f"expected hidden [..., h], lm_head_weight [V, h] and labels [...], not {shapes}")
    if chunk_size is None:
        logits = CHUNK_LOGITS if hidden.device.type == "cpu" else CHUNK_LOGITS_ON_GPU
        chunk_size = max(logits // len(lm_head_weight), 1)
    dtype = torch.promote_types(hidden.dtype, lm_head_weight.dtype)
    rows, weight = hidden.reshape(-1, hidden.shape[-1]).to(dtype), lm_head_weight.to(dtype)
    stats = _TokenStats.apply(rows, weight, labels.reshape(-1), temperature, chunk_size)  # type: ignore[no-untyped-call]
    log_probs, entropy = stats
    return log_probs.view_as(labels), entropy.view_as(labels)


def response_entropy(entropy: Tensor, action_mask: Tensor, *, position: str, top_share: float = 0.2) -> Tensor:
    """Reduce token entropies [B, T], in nats, to one for each response [B], over the tokens set in action_mask [B, T].

    entropy[b, t] is of the distribution that produced response token t. By `position`:

        last: that of the last response token
        mean: the mean over the response
        top:  the mean of its highest top_share, at least of one token

    A row without response tokens has 0 under mean and top; under last its value means nothing.
    Raises ValueError for differing shapes and for a position outside ENTROPY_POSITIONS.
    """
    if position not in ENTROPY_POSITIONS:
        raise ValueError(f"position={position!r} is unknown; valid values: {', '.join(ENTROPY_POSITIONS)}")
    if entropy.ndim != 2 or entropy.shape != action_mask.shape:
        raise ValueError(f"both must be [B, T], not {list(entropy.shape)} and {list(action_mask.shape)}")
    mask = action_mask.bool()
    return ENTROPY_POSITIONS[position](entropy, mask, top_share)


def _last(entropy: Tensor, mask: Tensor, top_share: float) -> Tensor:
    last = mask.shape[1] - 1 - mask.flip(1).long().argmax(dim=1)
    return entropy.gather(1, last.unsqueeze(1)).squeeze(1)


def _mean(entropy: Tensor, mask: Tensor, top_share: float) -> Tensor:
    return _mean_of_highest(entropy, mask, mask.sum(dim=1))


def _top(entropy: Tensor, mask: Tensor, top_share: float) -> Tensor:
    return _mean_of_highest(entropy, mask, tokens_of_share(mask.sum(dim=1), top_share))


def tokens_of_share(counts: Tensor, share: float) -> Tensor:
    """Multiply counts [B] by the share as it is written, rounded up, and at least 1 where the count is not 0.

    No float is 0.3: in floats 0.3 * 10 can be more than 3, and four tokens.
    """
    written = Fraction(str(share)).limit_denominator(10**9)  # small enough for int64
    taken = -(-written.numerator * counts // written.denominator)
    return taken.clamp(min=1).minimum(counts)


def of_highest_entropy(entropy: Tensor, mask: Tensor, share: float) -> Tensor:
    """Mark the share (`tokens_of_share`) of each row's tokens in the bool mask [B, T] that have the highest entropy
    [B, T]; of equal ones the first. Returns bool [B, T]."""
    order = entropy.detach().masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    return rank < tokens_of_share(mask.sum(dim=1), share).unsqueeze(1)  # others come last


def _mean_of_highest(entropy: Tensor, mask: Tensor, taken: Tensor) -> Tensor:
    ranked = entropy.masked_fill(~mask, -torch.inf).sort(dim=1, descending=True).values
    chosen = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0) < taken.unsqueeze(1)
    return torch.where(chosen, ranked, 0.0).sum(dim=1) / taken.clamp(min=1)


# (entropies [B, T], bool mask [B, T] of the response, top_share) to one for each response.
ENTROPY_POSITIONS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {"last": _last, "mean": _mean, "top": _top}


class _TokenStats(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float, chunk_size: int
    ) -> tuple[Tensor, Tensor]:
        log_probs = hidden.new_empty(len(hidden), dtype=_statistics_dtype(hidden))
        entropy = torch.empty_like(log_probs)
        for chunk in _chunks(len(hidden), chunk_size):
            log_probs[chunk], entropy[chunk] = _chunk_stats(hidden[chunk], weight, labels[chunk, None], temperature)
        ctx.save_for_backward(hidden, weight, labels, entropy)
        ctx.temperature, ctx.chunk_size = temperature, chunk_size
        return log_probs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_log_probs: Tensor, grad_entropy: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, labels, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # One sum over all chunks: in half precision it would lose the small contributions of later chunks.
        grad_weight = torch.zeros_like(weight, dtype=entropy.dtype) if ctx.needs_input_grad[1] else None
        for chunk in _chunks(len(hidden), ctx.chunk_size):
            wanted = grad_log_probs[chunk, None], grad_entropy[chunk, None]
            grad_logits = _chunk_gradient(
                hidden[chunk], weight, labels[chunk, None], entropy[chunk, None], *wanted, ctx.temperature
            )
            if grad_hidden is not None:
                grad_hidden[chunk] = grad_logits @ weight
            if grad_weight is not None:
                grad_weight += grad_logits.t() @ hidden[chunk]
            del grad_logits  # else it is there while the next chunk's is made
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None


# Separate functions, so that a chunk's logits are freed before the next chunk comes.
def _chunk_stats(hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Compute log-probability and entropy [rows] of hidden [rows, h]; labels are [rows, 1]."""
    log_p = _log_softmax(hidden, weight, temperature)
    return log_p.gather(1, labels).squeeze(1), log_p.exp().mul_(log_p).sum(dim=1).neg_()


def _chunk_gradient(
    hidden: Tensor, weight: Tensor, labels: Tensor, entropy: Tensor, for_label: Tensor, for_entropy: Tensor,
    temperature: float,
) -> Tensor:  # fmt: skip
    """Compute the gradient of the logits [rows, V] in weight's dtype; hidden is [rows, h], the rest [rows, 1]."""
    log_p = _log_softmax(hidden, weight, temperature)
    grad_logits = log_p.exp().neg_()
    grad_logits.mul_(log_p.add_(entropy).mul_(for_entropy).add_(for_label))
    del log_p
    grad_logits.scatter_add_(1, labels, for_label)
    return grad_logits.div_(temperature).to(weight.dtype)


def _chunks(total: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, total, size)]


def _statistics_dtype(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _log_softmax(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    # The backward pass runs outside the caller's autocast; both passes have to see the same logits.
    with torch.autocast(hidden.device.type, enabled=False):
        logits = (hidden @ weight.t()).to(_statistics_dtype(hidden))
        return torch.log_softmax(logits.div_(temperature), dim=1)


# Estimators of the KL to the reference by token that OpenRLHF has not.


# log pi - log pi_ref of the sampled tokens, to a value of the same shape; its gradient goes through the formula.
KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"abs": lambda log_ratio: log_ratio.abs()}
