"""When an engine counts as stale, on hand-made differences of log-probabilities."""

import math

import pytest
import torch

from oger_recipe.algorithm.engine_agreement import Agreement


def _of(values: list[float], top_p: float = 1.0, top_k: int = -1) -> Agreement:
    return Agreement.of(torch.tensor(values), top_p=top_p, top_k=top_k)


def test_the_difference_is_the_mean_distance_and_the_kl_the_mean_with_its_sign() -> None:
    found = _of([0.3, -0.1, -0.1, 0.1])
    assert (found.difference, found.kl) == pytest.approx((0.15, 0.05))
    # Standard errors over four tokens: the std over n - 1, divided by 2.
    assert found.difference_error == pytest.approx(0.1 / 2)
    assert found.kl_error == pytest.approx(math.sqrt((0.25**2 + 2 * 0.15**2 + 0.05**2) / 3) / 2)
    assert _of([]) == Agreement(0.0, 0.0, 0.0, 0.0)


def test_a_nucleus_explains_log_probabilities_that_are_higher_by_its_missing_mass_and_no_more() -> None:
    values = [0.0, 0.1, -math.log(0.9), 0.2, -0.1]
    explained = [0.0, 0.0, 0.0, 0.2 + math.log(0.9), -0.1]
    found = _of(values, top_p=0.9)
    assert found.kl == pytest.approx(sum(explained) / 5, abs=1e-6)
    assert found.difference == pytest.approx(sum(map(abs, explained)) / 5, abs=1e-6)
    assert _of(values, top_k=20).difference == pytest.approx(0.1 / 5)  # without a bound from above
    assert _of(values, top_k=20).kl == pytest.approx(-0.1 / 5)


def test_three_times_the_first_steps_rounding_is_the_limit() -> None:
    first = _of([0.04, -0.04] * 500)
    assert first.limit() == pytest.approx(0.122)
    assert not first.is_stale(None) and not first.is_stale(first.limit())
    assert not _of([0.12, -0.12] * 500).is_stale(first.limit())
    assert _of([0.125, -0.125] * 500).is_stale(first.limit())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_within_no_limit(number: float) -> None:
    found = _of([0.0, number])
    assert found.is_stale(None) and found.is_stale(0.1)
    assert _of([0.0, 0.1]).is_stale(math.nan)


def test_a_mean_over_few_tokens_has_to_be_further_off() -> None:
    """Mean 0.1 above a limit of 0.082; the standard error is 0.1 / sqrt(n - 1)."""
    few, many = [0.0, 0.2] * 5, [0.0, 0.2] * 500
    signs = [1.0, 1.0, -1.0, -1.0]
    mixed = [[value * signs[number % 4] for number, value in enumerate(values)] for values in (few, many)]
    assert not _of(mixed[0]).is_stale(0.082)
    assert _of(mixed[1]).is_stale(0.082)


def test_an_engine_that_is_surer_of_its_tokens_than_the_policy_has_other_weights_from_the_start() -> None:
    assert _of([0.07, -0.02] * 500).is_stale(None)  # mean 0.025
    assert not _of([0.07, -0.04] * 500).is_stale(None)  # mean 0.015
    assert not _of([0.02, -0.07] * 500).is_stale(None)  # the policy is surer: rounding, or a nucleus
    assert not _of([0.07, -0.02] * 500).is_stale(None, 0.03)
    assert _of([0.07, -0.04] * 500).is_stale(None, 0.009)  # less three standard errors it is 0.0098
