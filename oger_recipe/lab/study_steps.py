"""Makes table and figure of the study of rewards for steps; arms.py has its command line.

Whether a reward is hacked is to be seen over the steps of training: it grows, and answers do not get right more often.
"""

import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oger_recipe.lab import arms
from oger_recipe.lab.arms import (
    START,
    STEP_HEADS,
    Record,
    by_regime,
    draw_curve,
    draw_scores,
    gains,
    name_arms,
    points,
    run,
    runs_by_arm,
    step_cells,
)
from oger_recipe.report.panels import dress, from_zero, save, styles

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
# In the arms' order: solid for the trained PRM, dashed for exact labels, dotted for the bad PRM.
OF_ARMS = styles(arm for arm in ARMS if arm != "start") | {"start": START}
CURVES = {
    "rollout/solve_rate": "rollouts that are right",
    "reward/prm/step_mean": "mean score of a step",
    "rollout/steps": "steps of reasoning",
    "rollout/response_length": "length, tokens",
}
LEAST = {"rollout/solve_rate": 0.2, "reward/prm/step_mean": 1.0}  # curve -> least length of its axis
SCORE = "avg_at_8"


def record(folder: Path, regime: str, arm: str, seed: int) -> Record:
    """Return the line of one finished run."""
    line = arms.record(folder, regime, arm, seed, CURVES)
    (held_out,) = line["held_out"].values()
    return line | {"held_out": {name: value for name, value in held_out.items() if not isinstance(value, list)}}


def tables(records: list[Record]) -> str:
    return "\n\n".join(table(records, regime) for regime in by_regime(records, REGIMES))


def table(records: list[Record], regime: str) -> str:
    """Write Markdown, one row an arm, in points; differences are from the run with outcome alone of the same seed."""
    by_arm = runs_by_arm(records, regime)
    lines = [
        f"| {REGIMES[regime]} | seeds | {SCORE.replace('_at_', '@')} | against outcome | pass@8 "
        f"| {' | '.join(STEP_HEADS)} |",
        "|" + "---|" * 8,
    ]
    for arm in (name for name in ARMS if name in by_arm):
        runs = by_arm[arm]
        against = "" if arm in ("start", "outcome") else gains(runs, by_arm.get("outcome", {}), _score)
        cells = [ARMS[arm], str(len(runs)), points([_score(each) for each in runs.values()]), against]
        cells.append(points([each["held_out"]["pass_at_8"] for each in runs.values()]))
        cells += step_cells(runs.values())
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _score(record: Record) -> float:
    return float(record["held_out"][SCORE])


def draw(records: list[Record], path: Path) -> None:
    """Draw held-out scores of the arms in every regime, and below the curves that show hacking over the steps."""
    regimes = by_regime(records, REGIMES)
    figure = Figure(figsize=(13, 4.0 + 2.8 * len(regimes)), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.15, len(regimes)])
    of_scores = halves[0].subplots(1, len(regimes), squeeze=False)[0]
    of_curves = halves[1].subplots(len(regimes), len(CURVES), squeeze=False)
    drawn = {each["arm"] for each in records}
    name_arms(halves[1], ARMS, {arm: look for arm, look in OF_ARMS.items() if arm in drawn and arm != "start"})
    for scores, panels, (regime, runs) in zip(of_scores, of_curves, regimes.items(), strict=True):
        by_arm = runs_by_arm(runs, regime)
        of_arms = {arm: [_score(each) for each in by_arm[arm].values()] for arm in ARMS if arm in by_arm}
        title = f"{REGIMES[regime]}: held-out {SCORE.replace('_at_', '@')}, %"
        draw_scores(scores, of_arms, ARMS, OF_ARMS, title)
        for panel, (curve, name) in zip(panels, CURVES.items(), strict=True):
            _draw_curves(panel, runs, curve)
            dress(panel, f"{REGIMES[regime]}: {name}", legend=False)
    note = (
        "dashed: exact labels; dotted: bad PRM; small dots: seeds; bars and bands: 95 % intervals; all axes of curves "
        "have 0 on them; APPO's and TPPO's scores of steps go from 0 to 1, all others' from -1 to 1"
    )
    save(figure, path, note=note)


def _draw_curves(panel: Axes, records: list[Record], curve: str) -> None:
    for arm, look in OF_ARMS.items():
        curves = [each["curves"][curve] for each in records if each["arm"] == arm and each["curves"][curve]]
        if curves:
            draw_curve(panel, curves, look, banded=True)
    from_zero(panel, LEAST.get(curve, 0.0))


if __name__ == "__main__":
    run(sys.argv[1:], record, tables, draw)
