"""Prefix guidance: how much of a teacher's trajectory a rollout begins with (LUFFY, arXiv 2504.14945)."""

import torch

PREFIX_STRATEGIES = ("random", "linear", "linear_max", "reverse_linear", "fixed")
_WINDOWS = 10  # linear_max and reverse_linear move in so many stages


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
    """Share of the teacher's tokens for each of the n rollouts of a group, 0 for those that are not guided.

    The first n_prefix rollouts are guided, all of them if it is -1. With u uniform in [0, 1) and steps from 1:

        random:          min + (max - min) u
        linear:          max (1 - step/steps), the same for all, not below min
        linear_max:      b u, b falling in ten stages over `steps` from linear_max_ratio to a tenth of it
        reverse_linear:  b u, b rising in the same stages
        fixed:           evenly spaced from min to max over the guided rollouts; one alone gets max

    With `share` all guided rollouts have the first one's ratio (fixed: max).
    Ratios outside [0, 1] are clipped to it.
    Raises ValueError for a strategy outside PREFIX_STRATEGIES, an n_prefix outside -1..n, fewer than one of `steps` or
    unless 0 <= min_ratio <= max_ratio <= 1.
    """
    if strategy not in PREFIX_STRATEGIES:
        raise ValueError(f"strategy={strategy!r} is unknown; valid values: {', '.join(PREFIX_STRATEGIES)}")
    if not -1 <= n_prefix <= n:
        raise ValueError(f"n_prefix must be -1 (all) or 0 to {n}, not {n_prefix}")
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps}")
    if not 0 <= min_ratio <= max_ratio <= 1:
        raise ValueError(f"0 <= min_ratio <= max_ratio <= 1 does not hold for {min_ratio} and {max_ratio}")
    guided = n if n_prefix == -1 else n_prefix
    drawn = torch.rand(guided, generator=generator, dtype=torch.float64).tolist()
    stage = min(max(step - 1, 0) * _WINDOWS // steps, _WINDOWS - 1)
    if strategy == "random":
        ratios = [min_ratio + (max_ratio - min_ratio) * u for u in drawn]
    elif strategy == "linear":
        ratios = [max(max_ratio * (1 - step / steps), min_ratio)] * guided
    elif strategy == "fixed":
        places = [row / (guided - 1) for row in range(guided)] if guided > 1 else [1.0] * guided
        ratios = [min_ratio * (1 - place) + max_ratio * place for place in places]
    else:
        stages_left = _WINDOWS - stage if strategy == "linear_max" else stage + 1
        ratios = [linear_max_ratio * stages_left / _WINDOWS * u for u in drawn]
    if share and guided:
        ratios = [max_ratio if strategy == "fixed" else ratios[0]] * guided
    return [min(max(ratio, 0.0), 1.0) for ratio in ratios] + [0.0] * (n - guided)
