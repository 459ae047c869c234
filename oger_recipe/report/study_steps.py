"""Makes table and figure of the study of rewards for steps; its command line is that of study.py.

Whether a reward is hacked is to be seen over the steps of training: it grows, and answers do not get right more often.
"""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oger_recipe.report import study
from oger_recipe.report.curves import moving_mean
from oger_recipe.report.panels import COLOURS, GREY, band, dress, from_zero_if_near, save
from oger_recipe.report.study import Record, interval, points, run

ARMS = {
    "start": "before training",
    "outcome": "outcome alone",
    "min_outcome": "min-form and outcome",
    "min": "min-form",
    "sum": "sum-form",
    "appo": "APPO, sum-form",
    "tppo": "TPPO, sum-form",
    "min_outcome_prm": "trained PRM: min-form and outcome",
    "min_prm": "trained PRM: min-form",
    "sum_prm": "trained PRM: sum-form",
    "min_bad": "bad PRM: min-form",
    "sum_bad": "bad PRM: sum-form",
}
REGIMES = {"steps_beyond_reach": "beyond reach", "steps_within_reach": "within reach"}
# A colour for what is paid, a line for who scores steps: exact labels, the trained PRM, the bad one.
COLOUR = {
    "outcome": COLOURS[6],
    **dict.fromkeys(("min_outcome", "min_outcome_prm"), COLOURS[0]),
    **dict.fromkeys(("min", "min_prm", "min_bad"), COLOURS[5]),
    **dict.fromkeys(("sum", "sum_prm", "sum_bad"), COLOURS[1]),
    "appo": COLOURS[2],
    "tppo": COLOURS[3],
}
LINES = {"prm": "--", "bad": ":"}
CURVES = {
    "rollout/solve_rate": "rollouts that are right",
    "reward/prm/step_mean": "mean score of a step",
    "rollout/steps": "steps of reasoning",
    "rollout/response_length": "length, tokens",
}
SCORE = "avg_at_8"


def record(folder: Path, regime: str, arm: str, seed: int) -> Record:
    """Returns the line of one finished run."""
    line = study.record(folder, regime, arm, seed, CURVES)
    (held_out,) = line["held_out"].values()
    return line | {"held_out": {name: value for name, value in held_out.items() if not isinstance(value, list)}}


def table(records: list[Record], regime: str) -> str:
    """Writes Markdown, one row an arm, in points; differences are from the run with outcome alone of the same seed."""
    by_arm: dict[str, dict[int, Record]] = defaultdict(dict)
    for each in records:
        if each["regime"] == regime:
            by_arm[each["arm"]][each["seed"]] = each
    lines = [
        f"| {REGIMES[regime]} | seeds | {SCORE.replace('_at_', '@')} | against outcome | pass@8 | score of a step "
        "| steps of reasoning | length | seconds |",
        "|" + "---|" * 9,
    ]
    for arm in (name for name in ARMS if name in by_arm):
        runs = by_arm[arm]
        against = "" if arm in ("start", "outcome") else _against(runs, by_arm.get("outcome", {}))
        cells = [ARMS[arm], str(len(runs)), points([_score(each) for each in runs.values()]), against]
        cells.append(points([each["held_out"]["pass_at_8"] for each in runs.values()]))
        cells += [_ends(runs, name, form) for name, form in (
            ("reward/prm/step_mean", "{:.2f}"), ("rollout/steps", "{:.1f}"), ("rollout/response_length", "{:.0f}")
        )]  # fmt: skip
        cells.append(f"{np.mean([each['seconds']['total'] for each in runs.values()]):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _score(record: Record) -> float:
    return float(record["held_out"][SCORE])


def _against(runs: dict[int, Record], others: dict[int, Record]) -> str:
    gains = [_score(runs[seed]) - _score(others[seed]) for seed in sorted(runs.keys() & others.keys())]
    return points(gains, signed=True) if gains else ""


def _ends(runs: dict[int, Record], curve: str, form: str) -> str:
    """Averages over the first and the last three steps and the seeds."""
    curves = [each["curves"][curve] for each in runs.values() if each["curves"][curve]]
    if not curves:
        return ""
    return " to ".join(form.format(np.mean([np.mean(part) for part in parts])) for parts in (
        [values[:3] for values in curves], [values[-3:] for values in curves]
    ))  # fmt: skip


def draw(records: list[Record], path: Path) -> None:
    """Draws held-out scores of the arms in every regime, and below what tells of hacking over the steps."""
    by_regime = {regime: [each for each in records if each["regime"] == regime] for regime in REGIMES}
    by_regime = {regime: runs for regime, runs in by_regime.items() if runs}
    figure = Figure(figsize=(13, 3.2 + 2.8 * len(by_regime)), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.15, len(by_regime)])
    of_scores = halves[0].subplots(1, len(by_regime), squeeze=False)[0]
    of_curves = halves[1].subplots(len(by_regime), len(CURVES), squeeze=False)
    for scores, panels, (regime, runs) in zip(of_scores, of_curves, by_regime.items(), strict=True):
        _draw_scores(scores, runs, REGIMES[regime])
        for panel, (curve, title) in zip(panels, CURVES.items(), strict=True):
            _draw_curve(panel, runs, curve)
            dress(panel, f"{REGIMES[regime]}: {title}", legend=False)
    note = (
        "curves in the colours of the arms above, dashed: trained PRM, dotted: bad PRM; bars and bands: 95 % intervals"
    )
    save(figure, path, note=note)


def _draw_scores(panel: Axes, records: list[Record], regime: str) -> None:
    arms = [arm for arm in ARMS if any(each["arm"] == arm for each in records)][::-1]
    for row, arm in enumerate(arms):
        scores = [100 * _score(each) for each in records if each["arm"] == arm]
        mean, half = interval(scores)
        colour = COLOUR.get(arm, GREY)
        panel.plot(scores, [row] * len(scores), "o", color=colour, markersize=3, alpha=0.45)
        bar = half if len(scores) > 2 else None  # that of two seeds leaves the picture
        panel.errorbar(mean, row, xerr=bar, fmt="D", color=colour, capsize=3, markersize=5)
    panel.set_yticks(range(len(arms)), [ARMS[arm] for arm in arms], fontsize=8)
    for label, arm in zip(panel.get_yticklabels(), arms, strict=True):
        label.set_color(COLOUR.get(arm, GREY))
    panel.set_ylim(-0.6, len(arms) - 0.4)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.set_title(f"{regime}: held-out {SCORE.replace('_at_', '@')}, %", loc="left", fontsize=9.5)


def _draw_curve(panel: Axes, records: list[Record], curve: str) -> None:
    """Draws means over the seeds, smoothed over five steps, with intervals."""
    drawn: list[float] = []
    for arm, colour in COLOUR.items():
        curves = [each["curves"][curve] for each in records if each["arm"] == arm and each["curves"][curve]]
        if not curves:
            continue
        shortest = min(map(len, curves))
        smooth = [moving_mean(values[:shortest], 5) for values in curves]
        middles, halves = zip(*(interval(list(values)) for values in zip(*smooth, strict=True)), strict=True)
        steps = range(1, shortest + 1)
        drawn += middles
        line = LINES.get(arm.rpartition("_")[2], "-")
        panel.plot(steps, middles, color=colour, linewidth=1.4, linestyle=line)
        if len(curves) > 2:
            band(panel, steps, np.array(middles) - halves, np.array(middles) + halves, colour)
    if drawn:
        from_zero_if_near(panel, drawn)


if __name__ == "__main__":
    run(sys.argv[1:], record, table, draw, REGIMES)
