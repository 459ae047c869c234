"""What controller and policy read alike of OpenRLHF's experience."""

import torch
from openrlhf.models.utils import compute_approx_kl as upstream_kl
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.batches import off_policy_mask
from oger_recipe.algorithm.token_stats import KL_ESTIMATORS
from oger_recipe.base.cutting import StepCutter


def teachers_tokens(experience: Experience) -> torch.Tensor:
    """Mark the response tokens that came from a teacher (bool [B, A])."""
    tokens = torch.stack(list(experience.info["off_policy_tokens"])).to(experience.action_mask.device)
    return off_policy_mask(experience.action_mask, tokens)


def prompt_tokens(sample: Experience) -> torch.Tensor:
    """Return the tokens of the prompt of a single row, [tokens]."""
    return sample.sequences[0, : int(sample.action_mask[0].long().argmax()) + 1]


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


# OpenRLHF's KL to the reference, with the recipe's estimators beside k1, k2 and k3.


def compute_approx_kl(
    log_probs: torch.Tensor,
    log_probs_base: torch.Tensor,
    log_probs_old: torch.Tensor | None = None,
    kl_estimator: str = "k1",
    unbiased_gradient: bool = False,
) -> torch.Tensor:
    """Estimate each token's KL, [B, A]. Our own are in -10..10 and take k2's unbiased gradient, as upstream's."""
    if kl_estimator not in KL_ESTIMATORS:
        return upstream_kl(log_probs, log_probs_base, log_probs_old, kl_estimator, unbiased_gradient)
    value = KL_ESTIMATORS[kl_estimator](log_probs.float() - log_probs_base.float()).clamp(min=-10, max=10)
    if not unbiased_gradient:
        return value
    unbiased = upstream_kl(log_probs, log_probs_base, log_probs_old, "k2", unbiased_gradient=True)
    return value.detach() + unbiased - unbiased.detach()
