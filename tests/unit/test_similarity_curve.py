"""The curve from a cosine to a reward: VeRL-with-RMs' at its defaults, and of the same shape elsewhere."""

import math

import pytest
import torch

from oger_recipe.algorithm.exploration import similarity_reward


def curve(*cosines: float, **shape: float) -> list[float]:
    return similarity_reward(torch.tensor(cosines, dtype=torch.float64), **shape).tolist()


def test_it_is_the_seeds_curve_at_its_defaults() -> None:
    assert [round(value, 3) for value in curve(0.70, 0.75, 0.80)] == [0.199, 0.357, 0.606]
    assert curve(-1.0, 0.0, 0.5, 0.65) == [0.1] * 4
    assert curve(0.85, 0.9, 1.0) == [1.0] * 3
    between = [0.6501, 0.66, 0.68, 0.72, 0.77, 0.81, 0.84, 0.8499]
    seed = [(1e4**cosine / 3981.07 - 0.1) * 1.69811 + 0.1 for cosine in between]
    assert curve(*between) == pytest.approx(seed, abs=1e-5)


def test_it_begins_at_the_floor_ends_near_1_and_only_grows_in_between_wherever_its_ends_are() -> None:
    for low, high, floor in ((0.65, 0.85, 0.1), (0.2, 0.9, 0.0), (0.5, 0.51, 0.3), (0.0, 1.0, 0.9)):
        shape = {"low": low, "high": high, "floor": floor}
        inside = [low + (high - low) * part / 100 for part in range(1, 100)]
        values = curve(*inside, **shape)
        assert all(a < b for a, b in zip(values, values[1:], strict=False))
        assert curve(low, high, **shape) == [floor, 1.0]
        assert curve(low + 1e-9, **shape)[0] == pytest.approx(floor, abs=1e-5)
        assert curve(high - 1e-9, **shape)[0] == pytest.approx(1.0, abs=0.05 * (1 - floor))  # its rise is rounded


def test_by_hand_with_other_ends() -> None:
    # 1e4^0.25 = 10 and 1e4^0.5 = 100: rise 99, and (10 - 1) / 99 = 1/11 half way.
    assert curve(0.45, low=0.2, high=0.7, floor=0.0) == pytest.approx([1 / 11])
    assert curve(0.45, low=0.2, high=0.7, floor=0.45) == pytest.approx([0.5])


def test_what_is_not_known_stays_unknown() -> None:
    assert math.isnan(curve(math.nan)[0])
    assert similarity_reward(torch.rand(2, 3)).shape == (2, 3)
    assert similarity_reward(torch.rand(2, 3)).dtype == torch.float32
