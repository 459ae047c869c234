"""Draws a run: how often it is right, what bonus and teachers do, and how the policy fares."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from oger_recipe.evaluation.tables import is_share, main_metrics
from oger_recipe.report.panels import COLOURS, band, dress, from_zero, label_ends, save, sheet, steps_from_zero

Record = dict[str, Any]
Value = str | Callable[[Record], float | None]  # a metric's name, or how it follows from a step's metrics
SMOOTHED_FROM = 30  # steps
LONGEST_NAME = 20  # letters of a benchmark's name that fit into a panel's title


@dataclass(frozen=True)
class Panel:
    """Curves of one unit: label -> metric. ``deviation``: that of the first one's rows, drawn as a band around it.

    ``least`` is the least length of the axis, which has 0 on it: 1 shows a share or a weight on its whole range.
    """

    title: str
    curves: dict[str, Value]
    deviation: str | None = None
    least: float = 0.0


def _with_bonus(step: Record) -> float | None:
    return step["rollout/reward"] + step["oger/bonus"] if step.get("oger/bonus") else None


def _teachers_rows(step: Record) -> float | None:
    ratio = step.get("oger/off_on_ratio")
    return None if ratio is None else ratio / (1 + ratio)


TRAINING = Panel(
    "rollouts in training, share",
    {
        "right": "rollout/solve_rate",
        "groups: none right": "rollout/solve_none",
        "groups: all right": "rollout/solve_all",
    },
    least=0.5,
)
PICTURES = {
    "bonus_and_teachers": [
        Panel("reward of a rollout", {"verified": "rollout/reward", "with the bonus": _with_bonus}),
        Panel(
            "bonus of a right rollout",
            {"mean": "oger/bonus_of_correct", "sd within a group": "oger/bonus_of_correct_std_in_group"},
        ),
        Panel("divergence from the teachers", {"divergence": "oger/divergence"}, "oger/divergence_std"),
        Panel("entropy weight of the bonus", {"weight": "oger/entropy_weight"}, least=1.0),
        Panel("share of teachers in what is trained", {"rows": _teachers_rows, "tokens": "off_policy_token_share"}),
        Panel(
            "probability of a token under the policy",
            {"rollouts' tokens": "on_policy_prob", "teachers' tokens": "off_policy_prob"},
            least=1.0,
        ),
    ],
    "policy": [
        Panel("entropy of a token, nats", {"entropy": "rollout/entropy"}),
        Panel("length of a response, tokens", {"length": "rollout/response_length"}),
        Panel(
            "share of the rollouts", {"truncated": "rollout/truncated", "repetitive": "rollout/repetitive"}, least=0.1
        ),
        Panel("gradient norm of the policy", {"norm": "actor_grad_norm"}),
        Panel("KL from the reference, nats", {"kl": "hybrid_batch/kl"}),
        Panel("critic's loss", {"loss": "critic_loss"}),
        Panel("explained variance of the critic", {"explained": "explained_variance"}, least=1.0),
        Panel(
            "engine against policy, nats a token",
            {"difference": "vllm_logprob_difference", "limit": "vllm_logprob_limit"},
        ),
        Panel(
            "seconds of a step; sync: weights to the engine",
            {
                "sampling": "timing/generation",
                "rewards, log-probs": "timing/make_experience",
                "updates": "timing/ppo_train",
                "sync": "timing/broadcast",
            },
        ),
    ],
}


def draw_curves(steps: list[Record], evaluations: list[Record], folder: Path) -> None:
    """Draw solve_rate.png, a panel for each benchmark, and one picture for each of PICTURES that has any curve."""
    _draw_solve_rate(steps, evaluations, folder / "solve_rate.png")
    for name, panels in PICTURES.items():
        if name == "bonus_and_teachers" and not any(_acts(step) for step in steps):
            continue
        drawn = [panel for panel in panels if any(_is_drawn(_series(steps, value)) for value in panel.curves.values())]
        if not drawn:
            continue
        figure, axes = sheet(len(drawn))
        for panel, each in zip(drawn, axes, strict=True):
            _draw_panel(each, panel, steps)
        zero = [panel.title for panel in panels if panel not in drawn and _is_zero(panel, steps)]
        notes = [f"0 throughout: {'; '.join(zero)}"] if zero else []
        save(figure, folder / f"{name}.png", note="   ".join([*_smoothing(steps), *notes]))


def _acts(step: Record) -> bool:
    return any(step.get(key) for key in ("oger/bonus", "oger/replaced", "oger/prefix_ratio"))


def _draw_solve_rate(steps: list[Record], evaluations: list[Record], path: Path) -> None:
    names = list(dict.fromkeys(name for each in evaluations for name in each.get("benchmarks", {})))
    if not steps and not names:
        return
    figure, axes = sheet(bool(steps) + len(names))
    last = max(record["step"] for record in [*steps, *evaluations])
    if steps:
        _draw_panel(axes[0], TRAINING, steps)
    for name, panel in zip(names, axes[bool(steps) :], strict=True):
        points = [(each["step"], each["benchmarks"][name]) for each in evaluations if name in each["benchmarks"]]
        _draw_benchmark(panel, name, points, last)
    note = ["band: 95 % interval of avg@n over the problems"] if names else []
    save(figure, path, note="   ".join(_smoothing(steps) + note))


def _draw_benchmark(panel: Axes, name: str, points: list[tuple[int, Record]], last: int) -> None:
    """Draw the scores on held-out problems by step, and write the first and the last value beside them."""
    metrics = list(dict.fromkeys(filter(is_share, (key for _, each in points for key in main_metrics(each.get("n"))))))
    first_ends, last_ends = [], []
    for metric, colour, marker in zip(metrics, COLOURS, "o^sDvP*", strict=False):
        of_metric = [(step, scores) for step, scores in points if metric in scores]
        if not of_metric:
            continue
        at, values = [step for step, _ in of_metric], [scores[metric] for _, scores in of_metric]
        panel.plot(at, values, marker=marker, markersize=4, color=colour, linewidth=1.4)
        if metric == metrics[0]:
            low, high = zip(*(scores[f"{metric}_interval"] for _, scores in of_metric), strict=True)
            band(panel, at, low, high, colour)
        last_ends.append((at[-1], values[-1], f"{metric.replace('_at_', '@')} {values[-1]:.2f}", colour))
        if len(at) > 1:
            first_ends.append((at[0], values[0], f"{values[0]:.2f}", colour))
    panel.set_ylim(0, min(1.04, 1.15 * max(panel.get_ylim()[1], 0.05)))
    short = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
    dress(panel, f"held-out {short}, share right of {points[-1][1]['problems']}")
    steps_from_zero(panel, last, left=4, right=max(len(text) for _, _, text, _ in last_ends))
    label_ends(panel, first_ends, "left")
    label_ends(panel, last_ends, "right")


def _draw_panel(axes: Axes, panel: Panel, steps: list[Record]) -> None:
    at = [step["step"] for step in steps]
    width = _window(len(steps))
    for colour, (label, value) in zip(COLOURS, panel.curves.items(), strict=False):
        values = _series(steps, value)
        if not _is_drawn(values):
            if _is_known(values):
                axes.plot([], [], " ", label=f"{label}: 0 throughout")
            continue
        marker = "o" if len(steps) < 10 else ""
        if width > 1:
            axes.plot(at, values, color=colour, linewidth=0.7, alpha=0.4)
        smooth = moving_mean(values, width)
        axes.plot(at, smooth, color=colour, label=label, linewidth=1.6, marker=marker, markersize=3)
        if panel.deviation and label == next(iter(panel.curves)):
            deviation = moving_mean(_series(steps, panel.deviation), width)
            band(axes, at, np.array(smooth) - deviation, np.array(smooth) + deviation, colour)
    from_zero(axes, panel.least)
    dress(axes, panel.title + (" ± sd" if panel.deviation else ""))
    steps_from_zero(axes, at[-1])


def _series(steps: list[Record], value: Value) -> list[float]:
    """List the values by step; nan where a step has no such metric."""
    found = [value(step) if callable(value) else step.get(value) for step in steps]
    return [math.nan if each is None else float(each) for each in found]


def _is_known(values: Sequence[float]) -> bool:
    return any(not math.isnan(value) for value in values)


def _is_drawn(values: Sequence[float]) -> bool:
    """Say whether any value is known and not 0; curves of zeros would hide each other on the axis."""
    return any(value and not math.isnan(value) for value in values)


def _is_zero(panel: Panel, steps: list[Record]) -> bool:
    return any(_is_known(_series(steps, value)) for value in panel.curves.values())


def _window(steps: int) -> int:
    """Return how many neighbours a curve is averaged over: an odd number, 1 for a short run."""
    return 1 if steps < SMOOTHED_FROM else steps // 24 * 2 + 3


def _smoothing(steps: list[Record]) -> list[str]:
    width = _window(len(steps))
    return [f"thin: each step, thick: mean of {width} steps"] if width > 1 else []


def moving_mean(values: Sequence[float], width: int) -> list[float]:
    """Average over ``width`` (odd) neighbours, at the ends over fewer; nan does not count and stays."""
    half = width // 2
    array = np.array(values, dtype=float)
    known = ~np.isnan(array)
    return [
        float(np.nanmean(array[max(row - half, 0) : row + half + 1])) if known[row] else math.nan
        for row in range(len(array))
    ]
