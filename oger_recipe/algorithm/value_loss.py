"""The loss of a critic's values where it is Huber's: a value that is far off pulls no more than one that is near."""

import torch
from torch import Tensor
from torch.nn.functional import huber_loss


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
