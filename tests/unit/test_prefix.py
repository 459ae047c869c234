"""Shares of a teacher's trajectory: every strategy on numbers that can be worked out on paper."""

import math
from fractions import Fraction

import pytest
import torch

from oger_recipe.algorithm.prefix import PREFIX_STRATEGIES, Guidance, prefix_length, prefix_ratios


def ratios(n: int = 4, seed: int = 0, **options) -> list[float]:
    settings = {
        "n_prefix": -1,
        "strategy": "random",
        "min_ratio": 0.2,
        "max_ratio": 0.8,
        "steps": 100,
        "linear_max_ratio": 0.8,
        "share": False,
        "step": 1,
    }
    return prefix_ratios(n, generator=torch.Generator().manual_seed(seed), **{**settings, **options})


@pytest.mark.parametrize("strategy", PREFIX_STRATEGIES)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(("n_prefix", "guided"), [(-1, 4), (0, 0), (1, 1), (3, 3), (4, 4)])
def test_the_first_rollouts_are_guided_and_the_others_are_not(
    strategy: str, share: bool, n_prefix: int, guided: int
) -> None:
    for seed in range(5):
        drawn = ratios(strategy=strategy, share=share, n_prefix=n_prefix, seed=seed)
        assert len(drawn) == 4
        assert all(0 < ratio <= 1 for ratio in drawn[:guided])
        assert drawn[guided:] == [0.0] * (4 - guided)
        assert drawn == ratios(strategy=strategy, share=share, n_prefix=n_prefix, seed=seed)
        if share:
            assert len(set(drawn[:guided])) <= 1


@pytest.mark.parametrize("strategy", PREFIX_STRATEGIES)
def test_an_empty_group_has_no_ratios(strategy: str) -> None:
    assert ratios(0, strategy=strategy, share=True) == []


def test_random_ratios_are_uniform_between_the_bounds() -> None:
    drawn = torch.tensor(ratios(4000), dtype=torch.float64)
    assert 0.2 <= drawn.min() < 0.21 and 0.79 < drawn.max() <= 0.8
    # mean 0.5, sd 0.6 / sqrt(12 * 4000) = 0.0027; half of them below the mean
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.014)
    assert (drawn < 0.35).double().mean().item() == pytest.approx(0.25, abs=0.035)
    assert ratios(min_ratio=1.0, max_ratio=1.0) == [1.0] * 4


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(("step", "expected"), [(1, 0.792), (25, 0.6), (75, 0.2), (90, 0.2), (1000, 0.2)])
def test_linear_falls_from_max_to_min_and_is_one_value(share: bool, step: int, expected: float) -> None:
    # 0.8 (1 - 1/100) = 0.792; 0.8 * 3/4 = 0.6; 0.8 / 4 = 0.2; then 0.08, below the minimum
    assert ratios(strategy="linear", step=step, share=share, n_prefix=3)[:3] == pytest.approx([expected] * 3)


@pytest.mark.parametrize(
    ("step", "falling", "rising"),
    [(1, 0.8, 0.08), (10, 0.8, 0.08), (11, 0.72, 0.16), (50, 0.48, 0.4), (91, 0.08, 0.8), (900, 0.08, 0.8)],
)
def test_windows_move_the_upper_bound_in_ten_stages(step: int, falling: float, rising: float) -> None:
    for strategy, bound in [("linear_max", falling), ("reverse_linear", rising)]:
        drawn = torch.tensor(ratios(2000, strategy=strategy, step=step), dtype=torch.float64)
        # U(0, b) without regard to min_ratio; the largest of 2000 is above 0.99 b but for (0.99)^2000 = 2e-9
        assert 0 <= drawn.min() < 0.01 * bound
        assert 0.99 * bound < drawn.max() <= bound
        assert drawn.mean().item() == pytest.approx(bound / 2, rel=0.07)


def test_every_window_has_a_tenth_of_the_steps() -> None:
    bounds = [max(ratios(300, strategy="linear_max", step=step)) for step in range(1, 101)]
    stages = [round(10 * bound / 0.8 + 0.4) for bound in bounds]
    assert stages == [10 - (step // 10) for step in range(100)]


def test_fixed_ratios_are_evenly_spaced_and_one_alone_gets_the_maximum() -> None:
    assert ratios(strategy="fixed") == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert ratios(strategy="fixed", n_prefix=2) == pytest.approx([0.2, 0.8, 0.0, 0.0])
    assert ratios(strategy="fixed", n_prefix=1) == [0.8, 0.0, 0.0, 0.0]
    assert ratios(strategy="fixed", min_ratio=0.3, max_ratio=0.3) == pytest.approx([0.3] * 4)
    assert ratios(strategy="fixed", share=True) == [0.8] * 4


def _shares(max_ratio: float, min_ratio: float, steps: int) -> list[float]:
    return [min_ratio + (max_ratio - min_ratio) * (1 + math.cos(math.pi * t / steps)) / 2 for t in range(1, steps + 1)]


@pytest.mark.parametrize("share", [True, False])
def test_the_cosines_share_falls_from_max_to_min_and_is_one_value(share: bool) -> None:
    found = [ratios(3, strategy="cosine", steps=4, step=step, share=share) for step in range(1, 7)]
    # 0.2 + 0.6 (1 + cos(pi/4)) / 2 = 0.7121; half way 0.5; then 0.2879, and 0.2 from the fourth step on
    expected = [0.7121320344, 0.5, 0.2878679656, 0.2, 0.2, 0.2]
    assert found == [pytest.approx([each] * 3) for each in expected]
    assert found[:4] == [pytest.approx([each] * 3) for each in _shares(0.8, 0.2, 4)]


def test_binomial_shares_are_fifths_as_often_as_ufts_formula_says() -> None:
    """p(t) = 0.05 + 0.45 (1 + cos(pi t / 300)) of 300 steps; then no hint."""
    settings = {"strategy": "binomial", "min_ratio": 0.05, "max_ratio": 0.95, "steps": 300}
    for step, p in ((1, 0.95), (150, 0.5), (300, 0.05)):
        assert _shares(0.95, 0.05, 300)[step - 1] == pytest.approx(p, abs=1e-4)
        drawn = ratios(4000, step=step, **settings)
        for parts in range(6):
            chance = math.comb(5, parts) * p**parts * (1 - p) ** (5 - parts)
            found = sum(round(5 * ratio) == parts for ratio in drawn) / 4000
            assert found == pytest.approx(chance, abs=4.5 * math.sqrt(chance / 4000) + 1e-4), (step, parts)
        assert {ratio for ratio in drawn} <= {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}
    assert ratios(50, step=301, **settings) == [0.0] * 50
    together = ratios(50, step=150, share=True, **settings)
    assert len({*together}) == 1 and together[0] == ratios(50, step=150, **settings)[0]


def test_a_binomial_draw_is_the_number_of_bounds_below_it() -> None:
    """p = 0.5: 1, 6, 16, 26 and 31 of 32 are the bounds; a draw on one of them is above it."""
    given = Guidance(Fraction(1, 2), Fraction(1, 2), 10, Fraction(1), step=3)
    drawn = [
        Fraction(32 * n + m, 1024) for n, m in ((0, 0), (0, 31), (1, 0), (5, 31), (6, 0), (30, 31), (31, 0), (31, 31))
    ]
    found = PREFIX_STRATEGIES["binomial"].ratios(given, drawn)
    assert [5 * share for share in found] == [0, 0, 1, 1, 2, 4, 5, 5]


def test_a_prefix_is_at_most_its_share_of_the_tokens_as_it_is_written() -> None:
    for hundredths in range(101):
        for tokens in range(400):
            exact = Fraction(hundredths, 100) * tokens
            assert prefix_length(tokens, hundredths / 100) == math.floor(exact), (hundredths, tokens)


@pytest.mark.parametrize("strategy", ["random", "linear", "fixed"])
def test_a_share_is_of_as_many_tokens_as_it_is_written(strategy: str) -> None:
    """linear is at its lower bound."""
    for hundredths in range(101):
        given = {"min_ratio": hundredths / 100, "max_ratio": hundredths / 100}
        drawn = ratios(3, strategy=strategy, step=100, **given)
        assert [prefix_length(100, ratio) for ratio in drawn] == [hundredths] * 3


def test_a_share_between_two_others_is_of_as_many_tokens_as_they_say() -> None:
    # From 0 to 0.3 in thirds: 0, 0.1, 0.2, 0.3. Down from 0.9 to 0.09 at the ninth of ten steps.
    spaced = ratios(strategy="fixed", min_ratio=0.0, max_ratio=0.3)
    assert [prefix_length(10, ratio) for ratio in spaced] == [0, 1, 2, 3]
    falling = ratios(1, strategy="linear", min_ratio=0.0, max_ratio=0.9, steps=10, step=9)
    assert [prefix_length(100, ratio) for ratio in falling] == [9]


@pytest.mark.parametrize("strategy", ["linear_max", "reverse_linear"])
@pytest.mark.parametrize(("linear_max_ratio", "clipped"), [(50.0, 1.0), (-3.0, 0.0)])
def test_ratios_are_clipped_to_shares(strategy: str, linear_max_ratio: float, clipped: float) -> None:
    drawn = ratios(50, strategy=strategy, step=50, linear_max_ratio=linear_max_ratio)
    assert all(0 <= ratio <= 1 for ratio in drawn)
    assert drawn.count(clipped) > 25


@pytest.mark.parametrize("strategy", ["random", "linear_max", "reverse_linear"])
def test_seeds_decide(strategy: str) -> None:
    assert len({tuple(ratios(strategy=strategy, seed=seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "sudden"}, f"sudden.*{', '.join(PREFIX_STRATEGIES)}"),
        ({"n_prefix": 5}, "0 to 4, not 5"),
        ({"n_prefix": -2}, "not -2"),
        ({"steps": 0}, "1 or more, not 0"),
        ({"min_ratio": 0.9}, "0.9 and 0.8"),
        ({"min_ratio": -0.1}, "-0.1 and 0.8"),
        ({"max_ratio": 1.1}, "0.2 and 1.1"),
    ],
)
def test_impossible_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ratios(**options)
