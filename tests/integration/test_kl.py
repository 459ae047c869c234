"""The KL to the reference by every estimator, beside OpenRLHF's own."""

from __future__ import annotations

import pytest
import torch
from openrlhf.models import utils

from oger_recipe.pipeline.experiences import compute_approx_kl


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_openrlhfs_estimators_are_openrlhfs(estimator: str) -> None:
    policy, base = torch.tensor([[-0.5, -30.0]]), torch.tensor([[-1.0, -0.1]])
    found = compute_approx_kl(policy, base, None, estimator)
    assert torch.equal(found, utils.compute_approx_kl(policy, base, None, estimator))
    old, gradients = torch.tensor([[-0.7, -29.0]]), []
    for function in (compute_approx_kl, utils.compute_approx_kl):
        moving = policy.clone().requires_grad_()
        function(moving, base, old, estimator, unbiased_gradient=True).sum().backward()
        gradients.append(moving.grad)
    assert torch.equal(*gradients)


def test_the_size_of_a_log_ratio_is_bounded_as_the_other_values_are() -> None:
    policy, base = torch.tensor([[-0.5, -30.0, -1.0]]), torch.tensor([[-1.0, -0.1, -31.0]])
    assert compute_approx_kl(policy, base, kl_estimator="abs").tolist() == [[0.5, 10.0, 10.0]]
    half = torch.tensor([[-0.75]], dtype=torch.bfloat16)  # the difference is not rounded to it
    assert compute_approx_kl(half, torch.tensor([[-0.7480]]).bfloat16(), kl_estimator="abs").dtype == torch.float32


def test_an_unbiased_gradient_is_that_of_k2_beside_the_estimators_value() -> None:
    """d/dx of w (x - b)^2 / 2 is w (x - b), where w = pi / pi_old."""
    policy = torch.tensor([[-0.5, -2.0]], requires_grad=True)
    base, old = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-0.5, -2.0 - torch.log(torch.tensor(3.0)).item()]])
    value = compute_approx_kl(policy, base, old, "abs", unbiased_gradient=True)
    assert value.tolist() == [[0.5, 1.0]]
    value.sum().backward()
    assert policy.grad is not None and policy.grad.tolist() == [pytest.approx([0.5, -3.0])]
