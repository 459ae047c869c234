"""Makes table and figure of the study of rewards for steps; arms.py has its command line.

Whether a reward is hacked is to be seen over the steps of training: it grows, and answers do not get right more often.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oger_recipe.report import arms
from oger_recipe.report.arms import Record, by_regime, draw_scores, gains, points, run, runs_by_arm, smoothed
from oger_recipe.report.panels import COLOURS, band, dress, from_zero_if_near, save

ARMS = {
    "start": "before training",
    "outcome": "outcome alone",
    "min_outcome": "min-form and outcome",
    "ahead_outcome": "min-ahead and outcome",
    "min": "min-form",
    "sum": "sum-form",
    "appo": "APPO, sum-form",
    "tppo": "TPPO, sum-form",
    "min_outcome_exact": "exact labels: min-form and outcome",
    "ahead_outcome_exact": "exact labels: min-ahead and outcome",
    "sum_exact": "exact labels: sum-form",
    "ahead_outcome_bad": "bad PRM: min-ahead and outcome",
    "sum_bad": "bad PRM: sum-form",
}
REGIMES = {"steps_beyond_reach": "beyond reach", "steps_within_reach": "within reach"}
# A colour for what is paid, a line for who scores steps: the trained PRM, exact labels, the bad PRM.
COLOUR = {
    "outcome": COLOURS[6],
    **dict.fromkeys(("min_outcome", "min_outcome_exact"), COLOURS[0]),
    **dict.fromkeys(("ahead_outcome", "ahead_outcome_exact", "ahead_outcome_bad"), COLOURS[4]),
    "min": COLOURS[5],
    **dict.fromkeys(("sum", "sum_exact", "sum_bad"), COLOURS[1]),
    "appo": COLOURS[2],
    "tppo": COLOURS[3],
}
LINES = {"exact": "--", "bad": ":"}
CURVES = {
    "rollout/solve_rate": "rollouts that are right",
    "reward/prm/step_mean": "mean score of a step",
    "rollout/steps": "steps of reasoning",
    "rollout/response_length": "length, tokens",
}
SCORE = "avg_at_8"


def record(folder: Path, regime: str, arm: str, seed: int) -> Record:
    """Returns the line of one finished run."""
    line = arms.record(folder, regime, arm, seed, CURVES)
    (held_out,) = line["held_out"].values()
    return line | {"held_out": {name: value for name, value in held_out.items() if not isinstance(value, list)}}


def table(records: list[Record], regime: str) -> str:
    """Writes Markdown, one row an arm, in points; differences are from the run with outcome alone of the same seed."""
    by_arm = runs_by_arm(records, regime)
    lines = [
        f"| {REGIMES[regime]} | seeds | {SCORE.replace('_at_', '@')} | against outcome | pass@8 | score of a step "
        "| steps of reasoning | length | seconds |",
        "|" + "---|" * 9,
    ]
    for arm in (name for name in ARMS if name in by_arm):
        runs = by_arm[arm]
        against = "" if arm in ("start", "outcome") else gains(runs, by_arm.get("outcome", {}), _score)
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
    regimes = by_regime(records, REGIMES)
    figure = Figure(figsize=(13, 3.2 + 2.8 * len(regimes)), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.15, len(regimes)])
    of_scores = halves[0].subplots(1, len(regimes), squeeze=False)[0]
    of_curves = halves[1].subplots(len(regimes), len(CURVES), squeeze=False)
    for scores, panels, (regime, runs) in zip(of_scores, of_curves, regimes.items(), strict=True):
        by_arm = runs_by_arm(runs, regime)
        of_arms = {arm: [_score(each) for each in by_arm[arm].values()] for arm in ARMS if arm in by_arm}
        title = f"{REGIMES[regime]}: held-out {SCORE.replace('_at_', '@')}, %"
        draw_scores(scores, of_arms, ARMS, COLOUR, title)
        for panel, (curve, name) in zip(panels, CURVES.items(), strict=True):
            _draw_curve(panel, runs, curve)
            dress(panel, f"{REGIMES[regime]}: {name}", legend=False)
    note = (
        "curves in the colours of the arms above; dashed: exact labels, dotted: bad PRM; bars, bands: 95 % intervals"
    )
    save(figure, path, note=note)


def _draw_curve(panel: Axes, records: list[Record], curve: str) -> None:
    """Draws means over the seeds, smoothed over five steps, with intervals."""
    drawn: list[float] = []
    for arm, colour in COLOUR.items():
        curves = [each["curves"][curve] for each in records if each["arm"] == arm and each["curves"][curve]]
        if not curves:
            continue
        middles, halves = smoothed(curves)
        steps = range(1, len(middles) + 1)
        drawn += middles
        line = LINES.get(arm.rpartition("_")[2], "-")
        panel.plot(steps, middles, color=colour, linewidth=1.4, linestyle=line)
        if len(curves) > 2:
            band(panel, steps, np.array(middles) - halves, np.array(middles) + halves, colour)
    if drawn:
        from_zero_if_near(panel, drawn)


if __name__ == "__main__":
    run(sys.argv[1:], record, table, draw, REGIMES)
