"""OpenRLHF's KL to the reference, with the recipe's estimators beside k1, k2 and k3."""

import torch
from openrlhf.models.utils import compute_approx_kl as upstream_kl

from oger_recipe.algorithm.kl import KL_ESTIMATORS


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
