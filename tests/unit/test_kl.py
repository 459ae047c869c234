"""Estimators of the KL that OpenRLHF has not: values and gradients by hand."""

import torch

from oger_recipe.algorithm.token_stats import KL_ESTIMATORS


def test_abs_is_the_size_of_the_log_ratio_and_pulls_towards_the_reference() -> None:
    log_ratio = torch.tensor([[0.5, -2.0], [0.0, -0.25]], requires_grad=True)
    value = KL_ESTIMATORS["abs"](log_ratio)
    assert value.tolist() == [[0.5, 2.0], [0.0, 0.25]]
    value.sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [[1.0, -1.0], [0.0, -1.0]]  # of the policy's log-probability: down, up, none, up
