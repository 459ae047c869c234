"""What the policy loss counts: tokens, or the steps of reasoning that rollouts are made of.

By steps, all tokens of a rollout's step are one action (APPO of OpenR, arXiv 2410.09671): its log-probability is the
sum of theirs, so that it has one ratio, which is clipped once, and the advantage of its first token. That token stands
for it, and the others leave the mask. Teacher tokens stay tokens, and in a step that a teacher began and the policy
went on with, the policy's tokens alone are the action. So hybrid_policy_loss has no case for steps: where it says
token, a step may stand.

All tensors are [B, A]. step_index says which step, from 1, a token belongs to; 0: to none. A rollout token that
belongs to none is an action by itself, and not left out.
"""

import torch
from torch import Tensor

RATIO_LEVELS = ("token", "step")


def first_tokens(step_index: Tensor, mask: Tensor) -> Tensor:
    """Mark the first token in the bool mask of each step of a row (bool [B, A]); of no step, none."""
    return mask & (step_index > 0) & (_stand_in(step_index, mask) == _places(step_index))


def unit_mask(action_mask: Tensor, off_policy_mask: Tensor, step_index: Tensor) -> Tensor:
    """Mark what stands for the units: teacher tokens, and the first rollout token of each step (bool [B, A])."""
    stand_in = _stand_in(step_index, action_mask.bool() & ~off_policy_mask.bool())
    return action_mask.bool() & (stand_in == _places(step_index))


def step_log_probs(log_probs: Tensor, action_mask: Tensor, off_policy_mask: Tensor, step_index: Tensor) -> Tensor:
    """Sum the log-probabilities of each unit at the token that stands for it, 0 elsewhere; in float32 or better."""
    is_action = action_mask.bool()
    inside = torch.where(is_action, log_probs.to(torch.promote_types(log_probs.dtype, torch.float32)), 0.0)
    stand_in = _stand_in(step_index, is_action & ~off_policy_mask.bool())
    return torch.zeros_like(inside).scatter_add(1, stand_in, inside)


def _stand_in(step_index: Tensor, is_rollout: Tensor) -> Tensor:
    """The place of the token that stands for each token: the first rollout token of its step, elsewhere itself."""
    places = _places(step_index)
    step = torch.where(is_rollout, step_index, 0).long()
    # A row of A tokens has at most A steps; column 0 is of what belongs to none.
    of_step = places.new_full((step.shape[0], step.shape[1] + 1), step.shape[1])
    first = of_step.scatter_reduce(1, step, places, "amin")
    return torch.where(step > 0, first.gather(1, step), places)


def _places(step_index: Tensor) -> Tensor:
    return torch.arange(step_index.shape[1], device=step_index.device).expand(step_index.shape)
