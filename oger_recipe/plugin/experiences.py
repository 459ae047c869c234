"""What controller and policy read alike of OpenRLHF's experience."""

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.batches import off_policy_mask


def teachers_tokens(experience: Experience) -> torch.Tensor:
    """Mark the response tokens that came from a teacher (bool [B, A])."""
    tokens = torch.stack(list(experience.info["off_policy_tokens"])).to(experience.action_mask.device)
    return off_policy_mask(experience.action_mask, tokens)
