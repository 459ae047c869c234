"""Explained variance and the share of clipped values, against numbers worked out by hand."""

import math

import pytest
import torch

from oger_recipe.algorithm.value import clipped_tokens, explained_variance, value_sums


def _explained(values: list[float], returns: list[float]) -> float:
    return explained_variance(value_sums(torch.tensor(values), torch.tensor(returns), torch.ones(len(values))))


def test_explained_variance_by_hand() -> None:
    # Returns 0, 0, 1, 1: mean 0.5, variance 0.25.
    assert _explained([0, 0, 1, 1], [0, 0, 1, 1]) == 1
    # Residuals 0, -0.5, 0.5, 0: mean 0, variance 0.125.
    assert _explained([0, 0.5, 0.5, 1], [0, 0, 1, 1]) == pytest.approx(0.5)
    # Residuals -1, -1, 1, 1: variance 1, four times that of the returns.
    assert _explained([1, 1, 0, 0], [0, 0, 1, 1]) == pytest.approx(-3)


@pytest.mark.parametrize("constant", [0.0, 0.5, -7.0])
def test_a_constant_explains_nothing_and_is_not_held_against_good_values(constant: float) -> None:
    assert _explained([constant] * 4, [0, 0, 1, 1]) == pytest.approx(0)
    assert _explained([constant + value for value in (0, 0, 1, 1)], [0, 0, 1, 1]) == pytest.approx(1)


def test_without_returns_that_differ_there_is_nothing_to_explain() -> None:
    assert math.isnan(_explained([0.1, 0.2], [0.3, 0.3]))
    assert math.isnan(_explained([0.1] * 7, [0.1] * 7))  # rounded sums
    assert math.isnan(_explained([0.1], [0.0]))
    assert math.isnan(_explained([], []))


def _rows(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values and returns [6, 9] around 50, large against their spread, and a mask: rows of any length, one empty."""
    generator = torch.Generator().manual_seed(seed)
    values, returns = (50 + torch.randn(6, 9, generator=generator) for _ in range(2))
    lengths = torch.tensor([9, 1, 4, 0, 7, 2])
    return values, returns, (torch.arange(9) < lengths.unsqueeze(1)).long()


@pytest.mark.parametrize("seed", range(3))
def test_order_padding_and_cut_do_not_matter(seed: int) -> None:
    values, returns, mask = _rows(seed)
    whole = value_sums(values, returns, mask)
    chosen = mask.bool()
    expected = 1 - (returns - values)[chosen].var(correction=0) / returns[chosen].var(correction=0)
    assert explained_variance(whole) == pytest.approx(expected.item(), abs=1e-4)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(value_sums(values[order], returns[order], mask[order]), whole)
    padded = (torch.nn.functional.pad(tensor, (3, 2), value=fill) for tensor, fill in ((values, 9), (returns, -9)))
    assert torch.allclose(value_sums(*padded, torch.nn.functional.pad(mask, (3, 2))), whole)
    for size in (1, 2, 4):
        parts = zip(values.split(size), returns.split(size), mask.split(size), strict=True)
        assert torch.allclose(sum(value_sums(*part) for part in parts), whole)


def test_a_clipped_value_counts_where_it_is_further_from_the_return() -> None:
    """Old value 0, clip 0.25."""
    cases = [  # value, return, whether the clipped value, 0.25 or -0.25, decides
        (0.125, 1.0, False),  # within the clip
        (0.25, 1.0, False),  # at the clip: both are the same
        (0.5, 1.0, True),  # towards the return, beyond the clip: 0.75 off, the value itself 0.5
        (0.5, 0.0, False),  # away from it: the value itself is further off
        (-0.5, -1.0, True),
        (1.0, 0.625, False),  # 0.25 and 1.0 are both 0.375 off
        (1.25, 0.625, False),  # past the return by more than the clipped value falls short
    ]
    for value, target, expected in cases:
        values, returns, one = torch.tensor([[value]]), torch.tensor([[target]]), torch.ones(1, 1)
        assert clipped_tokens(values, torch.zeros(1, 1), returns, one, 0.25).item() == expected, (value, target)
        assert clipped_tokens(values, torch.zeros(1, 1), returns, 0 * one, 0.25).item() == 0
        assert (
            clipped_tokens(values, values - 0.25, returns, one, 0.25).item() == 0
        )  # the bounds move with the old one


@pytest.mark.parametrize("seed", range(3))
def test_clipped_tokens_add_up_over_any_cut_and_are_those_without_gradient(seed: int) -> None:
    values, returns, mask = _rows(seed)
    old = values + torch.randn(values.shape, generator=torch.Generator().manual_seed(100 + seed))
    whole = clipped_tokens(values, old, returns, mask, 0.2).item()
    assert 0 < whole < mask.sum()
    parts = zip(values.split(2), old.split(2), returns.split(2), mask.split(2), strict=True)
    assert sum(clipped_tokens(*part, 0.2).item() for part in parts) == whole
    values.requires_grad_(True)
    held = old + (values - old).clamp(-0.2, 0.2)
    (torch.max((values - returns) ** 2, (held - returns) ** 2) * mask).sum().backward()
    assert (values.grad[mask.bool()] == 0).sum() == whole
