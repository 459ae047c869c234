"""What the policy loss counts: tokens, or the steps of reasoning that rollouts are made of.

By steps, all tokens of a rollout's step are one action (APPO of OpenR, arXiv 2410.09671): its log-probability is the
sum of theirs, so that it has one ratio, which is clipped once, and the advantage of its first token. That token stands
for it, and the others leave the mask. Teacher tokens stay tokens, and in a step that a teacher began and the policy
went on with, the policy's tokens alone are the action. So hybrid_policy_loss has no case for steps: where it says
token, a step may stand. Its aggregation `constant` divides by the longest response in tokens whatever it counts: there
both levels have the same gradient as long as the policy is the one that sampled.

All tensors are [B, A]. step_index (int) says which step, from 1, a token belongs to; 0: to none. A rollout token that
belongs to none is an action by itself, and not left out.
"""

import torch
from torch import Tensor

from oger_recipe.algorithm.step_tensors import first_tokens, of_steps, over_tokens

RATIO_LEVELS = ("token", "step")


def unit_mask(action_mask: Tensor, off_policy_mask: Tensor, step_index: Tensor) -> Tensor:
    """Mark the tokens that enter the loss, bool [B, A]: teacher tokens, and each step's first rollout token."""
    step = _rollouts_steps(action_mask, off_policy_mask, step_index)
    return action_mask.bool() & ((step < 0) | first_tokens(step))


def step_log_probs(log_probs: Tensor, action_mask: Tensor, off_policy_mask: Tensor, step_index: Tensor) -> Tensor:
    """Sum log-probabilities [B, A] over each rollout's step, at all of its tokens; others stay. In float32 or
    better."""
    step = _rollouts_steps(action_mask, off_policy_mask, step_index)
    exact = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
    sums = of_steps(exact, step, step.shape[1])  # a row has no more steps than tokens
    return torch.where(step < 0, exact, over_tokens(sums, step))


def _rollouts_steps(action_mask: Tensor, off_policy_mask: Tensor, step_index: Tensor) -> Tensor:
    """Return the step from 0 of each rollout token [B, A], -1 where there is none."""
    return torch.where(action_mask.bool() & ~off_policy_mask.bool(), step_index, 0).long() - 1
