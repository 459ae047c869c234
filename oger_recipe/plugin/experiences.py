"""What controller and policy read alike of OpenRLHF's experience."""

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.batches import off_policy_mask
from oger_recipe.steps import StepCutter


def teachers_tokens(experience: Experience) -> torch.Tensor:
    """Mark the response tokens that came from a teacher (bool [B, A])."""
    tokens = torch.stack(list(experience.info["off_policy_tokens"])).to(experience.action_mask.device)
    return off_policy_mask(experience.action_mask, tokens)


def response_tokens(sample: Experience) -> torch.Tensor:
    """Return the tokens of the response of a single row, [tokens]."""
    return sample.sequences[0, 1:][sample.action_mask[0].bool()]


def with_step_index(sample: Experience, cutter: StepCutter | None) -> Experience:
    """Number the steps of reasoning of a single row's tokens, from 1, where there is something to cut by."""
    if cutter is not None:
        sample.step_index = torch.zeros_like(sample.action_mask, dtype=torch.long)
        numbers = cutter.numbers(response_tokens(sample).tolist())
        sample.step_index[sample.action_mask.bool()] = torch.tensor(numbers, dtype=torch.long) + 1
    return sample
