"""Makes table and figure of the study of the method's parts; arms.py has its command line."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oger_recipe.report import arms
from oger_recipe.report.arms import Record, by_regime, draw_scores, gains, points, run, runs_by_arm, smoothed
from oger_recipe.report.panels import COLOURS, GREY, band, dress, from_zero_if_near, save

ARMS = {
    "start": "before training",
    "sft": "SFT only",
    "grpo": "GRPO",
    "luffy": "LUFFY (teacher in the group, no bonus)",
    "paper": "OGER as in the paper (oger_paper.yaml)",
    "oger": "OGER (oger.yaml)",
    "no_bonus": "OGER without the bonus",
    "no_entropy": "OGER without the entropy weight",
    "one_teacher": "OGER with one teacher",
    "random": "OGER, random replacement",
    "wrong_first": "OGER, wrong rollouts replaced first",
    "clip": "OGER, teacher's negative advantage zeroed",
}
REGIMES = {"beyond_reach": "countdown_4", "within_reach": "countdown_3"}  # regime -> its own held-out problems
SHORT = {
    arm: name.partition(" (")[0].removeprefix("OGER, ").replace("OGER with", "with") for arm, name in ARMS.items()
}
MAIN = {"grpo": COLOURS[2], "luffy": COLOURS[1], "oger": COLOURS[0]}  # arm -> its colour
PANELS = {
    "rollout/solve_rate": "rollouts' solve rate",
    "entropy_loss": "entropy, nats a token",
    "oger/divergence": "divergence",
}
CURVES = ("rollout/solve_rate", "rollout/solve_none", "entropy_loss", "oger/divergence")


def record(folder: Path, regime: str, arm: str, seed: int) -> Record:
    """Returns the line of one finished run."""
    return arms.record(folder, regime, arm, seed, CURVES)


def table(records: list[Record], regime: str) -> str:
    """Writes Markdown, one row an arm, in points; differences are from GRPO's and OGER's run of the same seed."""
    own, other = REGIMES[regime], next(name for name in REGIMES.values() if name != REGIMES[regime])
    by_arm = runs_by_arm(records, regime)
    lines = [
        f"| {regime.replace('_', ' ')} | seeds | avg@64 | against GRPO | against OGER | pass@8 | pass@64 "
        "| entropy, end | divergence, end | avg@64 of the other regime | minutes |",
        "|" + "---|" * 11,
    ]
    for arm in (name for name in ARMS if name in by_arm):
        runs = by_arm[arm]
        against = [
            "" if arm in ("start", base) else gains(runs, by_arm.get(base, {}), lambda run: _figure(run, own))
            for base in ("grpo", "oger")
        ]
        cells = [ARMS[arm], str(len(runs)), _of(runs, own, "avg_at_64"), *against]
        cells += [_of(runs, own, "pass_at_8"), _of(runs, own, "pass_at_64")]
        cells += [_end(runs, "entropy_loss"), _end(runs, "oger/divergence"), _of(runs, other, "avg_at_64")]
        cells.append(f"{np.mean([run['seconds']['total'] for run in runs.values()]) / 60:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _figure(run: Record, benchmark: str, name: str = "avg_at_64") -> float:
    return float(run["held_out"][benchmark][name])


def _of(runs: dict[int, Record], benchmark: str, name: str) -> str:
    return points([_figure(run, benchmark, name) for run in runs.values()])


def _end(runs: dict[int, Record], curve: str) -> str:
    """Averages over the last ten steps and the seeds; empty where nothing was measured."""
    ends = [np.mean(run["curves"][curve][-10:]) for run in runs.values() if run["curves"][curve]]
    return f"{np.mean(ends):.3f}" if ends and any(ends) else ""


def draw(records: list[Record], path: Path) -> None:
    """Draws the arms' scores in every regime, and below the curves of the main arms over the steps."""
    regimes = by_regime(records, REGIMES)
    figure = Figure(figsize=(10.5, 3.5 + 2.8 * len(regimes)), layout="constrained")
    # Figures of their own: the arms' long names do not push the curves aside.
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.3, len(regimes)])
    top, bottom = halves
    of_scores = top.subplots(1, len(regimes), squeeze=False)[0]
    of_curves = bottom.subplots(len(regimes), len(PANELS), squeeze=False)
    for scores, panels, (regime, runs) in zip(of_scores, of_curves, regimes.items(), strict=True):
        named = regime.replace("_", " ")
        by_arm = runs_by_arm(runs, regime)
        of_arms = {
            arm: [_figure(each, REGIMES[regime]) for each in by_arm[arm].values()] for arm in ARMS if arm in by_arm
        }
        draw_scores(scores, of_arms, SHORT, MAIN, f"{named}: held-out avg@64, %")
        for panel, (curve, title) in zip(panels, PANELS.items(), strict=True):
            _draw_curve(panel, runs, curve)
            dress(panel, f"{named}: {title}", legend=False)
    save(
        figure, path, note="curves in the colours of the arms above; small dots: seeds; bars and bands: 95 % intervals"
    )


def _draw_curve(panel: Axes, records: list[Record], curve: str) -> None:
    """Draws means over the seeds, smoothed over five steps, with intervals; the variants of OGER in grey."""
    drawn: list[float] = []
    for arm in sorted(ARMS, key=lambda arm: arm in MAIN):
        curves = [each["curves"][curve] for each in records if each["arm"] == arm]
        # No encoder, no divergence; but a solve rate of 0 is one.
        curves = [values for values in curves if any(values) or (values and curve == "rollout/solve_rate")]
        if not curves:
            continue
        middles, halves = smoothed(curves)
        steps = range(1, len(middles) + 1)
        drawn += middles
        if arm in MAIN:
            panel.plot(steps, middles, color=MAIN[arm], linewidth=1.8)
            if len(curves) > 1:
                band(panel, steps, np.array(middles) - halves, np.array(middles) + halves, MAIN[arm])
        else:
            panel.plot(steps, middles, color=GREY, linewidth=0.7, alpha=0.7)
    if drawn:
        from_zero_if_near(panel, drawn)


if __name__ == "__main__":
    run(sys.argv[1:], record, table, draw, REGIMES)
