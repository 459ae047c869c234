"""The clipped Huber loss of values, against its formula in plain Python."""

from __future__ import annotations

import random

import pytest
import torch

from oger_recipe.algorithm.value import clipped_huber_loss


def _huber(error: float, delta: float) -> tuple[float, float]:
    """Loss and slope."""
    if abs(error) <= delta:
        return error**2 / 2, error
    return delta * (abs(error) - delta / 2), delta if error > 0 else -delta


def _reference(value: float, old: float, target: float, clip: float, delta: float) -> tuple[float, float]:
    held = min(max(value, old - clip), old + clip)
    free, slope = _huber(value - target, delta)
    bound, slope_of_bound = _huber(held - target, delta)
    if bound > free:
        return bound, slope_of_bound if held == value else 0.0
    return free, slope


@pytest.mark.parametrize("delta", [0.1, 0.7, 10.0])
@pytest.mark.parametrize("clip", [0.05, 0.5, 10.0])
def test_loss_and_gradient_are_those_of_the_formula(clip: float, delta: float) -> None:
    dice = random.Random(0)
    numbers = [[dice.gauss(0, 1) for _ in range(60)] for _ in range(3)]
    values, old, returns = (torch.tensor(each, dtype=torch.float64).view(6, 10) for each in numbers)
    values.requires_grad_()
    losses = clipped_huber_loss(values, old, returns, clip=clip, delta=delta)
    losses.sum().backward()
    expected = [_reference(*each, clip, delta) for each in zip(*numbers, strict=True)]
    assert losses.flatten().tolist() == pytest.approx([loss for loss, _ in expected])
    assert values.grad.flatten().tolist() == pytest.approx([slope for _, slope in expected])
    errors = [value - target for value, _, target in zip(*numbers, strict=True)]
    if delta < 10:  # both branches of both signs
        assert min(errors) < -delta < 0 < delta < max(errors) and min(map(abs, errors)) < delta


def test_above_every_error_it_is_half_of_the_larger_square() -> None:
    values, old, returns = torch.tensor([[2.0, 2.0, -1.0]]), torch.tensor([[0.0, 1.9, 0.0]]), torch.tensor([[1.0] * 3])
    # held at 0.5, 2 and -0.5; the errors are 1 or 0.5, 1, and 2 or 1.5
    losses = clipped_huber_loss(values, old, returns, clip=0.5, delta=100.0)
    assert losses.tolist() == [[0.5, 0.5, 2.0]]


def test_values_in_bfloat16_are_compared_in_float32() -> None:
    values = torch.tensor([[1.0]], dtype=torch.bfloat16)
    losses = clipped_huber_loss(values, torch.tensor([[1.0]]), torch.tensor([[1.001]]), clip=1.0, delta=1.0)
    assert losses.item() == pytest.approx(0.001**2 / 2, rel=1e-3)
