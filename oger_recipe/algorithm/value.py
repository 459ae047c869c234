"""What a critic's values are worth: how much of the returns they explain, and where clipping decides their loss.

Over the response tokens of a step, with values v and returns g:

    explained variance = 1 - Var(g - v) / Var(g)

1 is a critic that knows every return, 0 one that says the same of every token, whatever that is; below 0 its values
are worse than a constant. The variances are taken from sums, which add up over rows and ranks.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import huber_loss


def value_sums(values: Tensor, returns: Tensor, action_mask: Tensor) -> Tensor:
    """Sum over the tokens set in action_mask, [5] float64: tokens, sum of g and of g^2, sum of g - v and of (g - v)^2.

    All three have one shape. The sums of several tensors are the sum of their sums.
    """
    mask = action_mask.bool()
    target, value = returns[mask].double(), values[mask].double()
    residual = target - value
    tokens = target.new_tensor(float(len(target)))
    return torch.stack([tokens, target.sum(), target.square().sum(), residual.sum(), residual.square().sum()])


def explained_variance(sums: Tensor) -> float:
    """Compute 1 - Var(g - v) / Var(g) of value_sums [5]; nan without tokens and where all returns are equal."""
    tokens, target, target_squares, residual, residual_squares = sums.tolist()
    if not tokens:
        return math.nan
    variance = target_squares / tokens - (target / tokens) ** 2
    unexplained = residual_squares / tokens - (residual / tokens) ** 2
    if variance <= 1e-12 * target_squares / tokens:  # what rounding leaves of equal returns
        return math.nan
    return 1 - unexplained / variance


def clipped_tokens(values: Tensor, old_values: Tensor, returns: Tensor, action_mask: Tensor, clip: float) -> Tensor:
    """Count the tokens (0-d) whose loss is the clipped value's in PPO's max((v - g)^2, (v_clipped - g)^2).

    Tensors are [B, A]; v_clipped is v, held within clip of the old value. These tokens give the critic no gradient.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return (action_mask.bool() & ((clipped - returns) ** 2 > (values - returns) ** 2)).sum()


# The loss of a critic's values where it is Huber's: a value that is far off pulls no more than one that is near.


def clipped_huber_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float, delta: float) -> Tensor:
    """Compute PPO's clipped loss of values with Huber's in place of the square; tensors have one shape, as the result.

        max(h(v - g), h(v_clipped - g))        v_clipped = v_old + clamp(v - v_old, -clip, clip)
        h(e) = e^2 / 2 for |e| <= delta, else delta (|e| - delta / 2)

    With delta above every error it is OpenRLHF's loss, half of the larger square. In float32 or better.
    """
    exact = torch.promote_types(values.dtype, torch.float32)
    value, old, target = values.to(exact), old_values.to(exact), returns.to(exact)
    clipped = old + (value - old).clamp(-clip, clip)
    losses = [huber_loss(each, target, reduction="none", delta=delta) for each in (value, clipped)]
    return torch.maximum(*losses)
