"""Prefix guidance: how much of a teacher's trajectory a rollout begins with (LUFFY, arXiv 2504.14945).

`cosine` falls as in Prefix-RFT (arXiv 2507.01679), `binomial` as in UFT (arXiv 2505.16984).
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

import torch

_WINDOWS = 10  # linear_max and reverse_linear move in so many stages
_PARTS = 5  # of a trajectory, of which binomial shows some


@dataclass(frozen=True)
class Guidance:
    """What a strategy may read; the names are those of the knobs, without `oger.`. Ratios are exactly as written."""

    min_prefix_ratio: Fraction
    max_prefix_ratio: Fraction
    prefix_steps: int
    prefix_linear_max_ratio: Fraction
    step: int  # from 1

    @property
    def stage(self) -> int:
        """The tenth of `prefix_steps` that the step is in, 0 to 9; 9 after them."""
        return min(max(self.step - 1, 0) * _WINDOWS // self.prefix_steps, _WINDOWS - 1)

    @property
    def falling(self) -> Fraction:
        """The share that falls along a cosine from `max_prefix_ratio` to `min_prefix_ratio`, in `prefix_steps`."""
        left = Fraction((1 + math.cos(math.pi * min(self.step / self.prefix_steps, 1))) / 2)
        return self.min_prefix_ratio + (self.max_prefix_ratio - self.min_prefix_ratio) * left


@dataclass(frozen=True)
class PrefixStrategy:
    """ratios: (guidance, uniform numbers in [0, 1), one for each guided rollout) to their ratios; reads: the knobs
    that it looks at, others have no effect; shared: the one ratio of all under prefix_share_across_samples, None for
    that of the first."""

    ratios: Callable[[Guidance, list[Fraction]], list[Fraction]]
    reads: tuple[str, ...]
    shared: Callable[[Guidance], Fraction] | None = None


def _random(given: Guidance, drawn: list[Fraction]) -> list[Fraction]:
    low, high = given.min_prefix_ratio, given.max_prefix_ratio
    return [low + (high - low) * u for u in drawn]


def _linear(given: Guidance, drawn: list[Fraction]) -> list[Fraction]:
    falling = given.max_prefix_ratio * (1 - Fraction(given.step, given.prefix_steps))
    return [max(falling, given.min_prefix_ratio)] * len(drawn)


def _fixed(given: Guidance, drawn: list[Fraction]) -> list[Fraction]:
    last = len(drawn) - 1
    places = [Fraction(row, last) for row in range(len(drawn))] if last > 0 else [Fraction(1)] * len(drawn)
    return [given.min_prefix_ratio * (1 - place) + given.max_prefix_ratio * place for place in places]


def _linear_max(given: Guidance, drawn: list[Fraction]) -> list[Fraction]:
    return [given.prefix_linear_max_ratio * (_WINDOWS - given.stage) / _WINDOWS * u for u in drawn]


def _reverse_linear(given: Guidance, drawn: list[Fraction]) -> list[Fraction]:
    return [given.prefix_linear_max_ratio * (given.stage + 1) / _WINDOWS * u for u in drawn]


def _cosine(given: Guidance, drawn: list[Fraction]) -> list[Fraction]:
    return [given.falling] * len(drawn)


def _binomial(given: Guidance, drawn: list[Fraction]) -> list[Fraction]:
    if given.step > given.prefix_steps:
        return [Fraction(0)] * len(drawn)
    p = given.falling
    chances = [math.comb(_PARTS, k) * p**k * (1 - p) ** (_PARTS - k) for k in range(_PARTS)]
    bounds = [*accumulate(chances)]  # a draw is above as many of them as it has parts
    return [Fraction(bisect_right(bounds, u), _PARTS) for u in drawn]


_BOUNDS = ("min_prefix_ratio", "max_prefix_ratio")
PREFIX_STRATEGIES: dict[str, PrefixStrategy] = {
    "random": PrefixStrategy(_random, _BOUNDS),
    "linear": PrefixStrategy(_linear, (*_BOUNDS, "prefix_steps")),
    "linear_max": PrefixStrategy(_linear_max, ("prefix_steps", "prefix_linear_max_ratio")),
    "reverse_linear": PrefixStrategy(_reverse_linear, ("prefix_steps", "prefix_linear_max_ratio")),
    "cosine": PrefixStrategy(_cosine, (*_BOUNDS, "prefix_steps")),
    "binomial": PrefixStrategy(_binomial, (*_BOUNDS, "prefix_steps")),
    "fixed": PrefixStrategy(_fixed, _BOUNDS, shared=lambda given: given.max_prefix_ratio),
}


def prefix_ratios(
    n: int,
    *,
    n_prefix: int,
    strategy: str,
    min_ratio: float,
    max_ratio: float,
    steps: int,
    linear_max_ratio: float,
    share: bool,
    step: int,
    generator: torch.Generator,
) -> list[float]:
    """Choose the share of the teacher's tokens for each of a group's n rollouts, 0 for those that are not guided.

    The first n_prefix rollouts are guided, all of them if it is -1. With u uniform in [0, 1) and steps from 1:

        random:          min + (max - min) u
        linear:          max (1 - step/steps), the same for all, not below min
        linear_max:      b u, b falling in ten stages over `steps` from linear_max_ratio to a tenth of it
        reverse_linear:  b u, b rising in the same stages
        cosine:          p = min + (max - min) (1 + cos(pi step/steps)) / 2, the same for all; min after `steps`
        binomial:        k/5, k drawn from Bin(5, p) by u; 0 after `steps`
        fixed:           evenly spaced from min to max over the guided rollouts; one alone gets max

    With `share` all guided rollouts have the first one's ratio (fixed: max).
    Ratios outside [0, 1] are clipped to it.
    Raises ValueError for a strategy outside PREFIX_STRATEGIES, an n_prefix outside -1..n, fewer than one of `steps` or
    unless 0 <= min_ratio <= max_ratio <= 1.
    """
    if not -1 <= n_prefix <= n:
        raise ValueError(f"n_prefix must be -1 (all) or 0 to {n}, not {n_prefix}")
    _require_possible(strategy, steps, min_ratio, max_ratio)
    guided = n if n_prefix == -1 else n_prefix
    drawn = map(Fraction, torch.rand(guided, generator=generator, dtype=torch.float64).tolist())
    lowest, highest, linear_max = (Fraction(str(ratio)) for ratio in (min_ratio, max_ratio, linear_max_ratio))
    given, how = Guidance(lowest, highest, steps, linear_max, step), PREFIX_STRATEGIES[strategy]
    ratios = how.ratios(given, list(drawn))
    if share and guided:
        ratios = [how.shared(given) if how.shared else ratios[0]] * guided
    return [min(max(float(ratio), 0.0), 1.0) for ratio in ratios] + [0.0] * (n - guided)


def prefix_length(tokens: int, ratio: float) -> int:
    """Count the leading tokens that are at most this share of all: 29 of 100 at 0.29, though 0.29 * 100 is less."""
    nearest = round(tokens * ratio)
    return nearest - 1 if nearest and nearest / tokens > ratio else nearest


def _require_possible(strategy: str, steps: int, min_ratio: float, max_ratio: float) -> None:
    if strategy not in PREFIX_STRATEGIES:
        raise ValueError(f"strategy={strategy!r} is unknown; valid values: {', '.join(PREFIX_STRATEGIES)}")
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps}")
    if not 0 <= min_ratio <= max_ratio <= 1:
        raise ValueError(f"0 <= min_ratio <= max_ratio <= 1 does not hold for {min_ratio} and {max_ratio}")
