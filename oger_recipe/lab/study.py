"""Makes table and figure of the study of the method's parts; arms.py has its command line."""

import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oger_recipe.lab import arms
from oger_recipe.lab.arms import (
    START,
    Record,
    by_regime,
    draw_curve,
    draw_scores,
    gains,
    interval,
    name_arms,
    points,
    run,
    runs_by_arm,
)
from oger_recipe.report.panels import band, bare, dress, from_zero, save, styles

ARMS = {
    "start": "before training",
    "sft": "SFT only",
    "grpo": "GRPO",
    "luffy": "LUFFY (teacher in the group, no bonus)",
    "paper": "OGER as in the paper (oger_paper.yaml)",
    "oger": "OGER",
    "no_bonus": "OGER without the bonus",
    "no_entropy": "OGER without the entropy weight",
    "one_teacher": "OGER with one teacher",
    "random": "OGER, random replacement",
    "wrong_first": "OGER, wrong rollouts replaced first",
    "clip": "OGER, teacher's negative advantage zeroed",
}
REGIMES = {"beyond_reach": "countdown_4", "within_reach": "countdown_3"}  # regime -> its own held-out problems
SHORT = {arm: re.sub(r"^OGER(, | (?=with))", "... ", name.partition(" (")[0]) for arm, name in ARMS.items()}
MAIN = ("oger", "luffy", "grpo", "sft")  # arms with bands around their curves
OF_ARMS = styles([*MAIN, *(arm for arm in ARMS if arm not in (*MAIN, "start"))]) | {"start": START}
SHOWN = {"beyond_reach": ("avg@64", "pass@8", "pass@64"), "within_reach": ("avg@64", "pass@4", "pass@8", "pass@64")}
PAIRS = (
    ("within_reach", "luffy", "oger"),
    ("within_reach", "luffy", "grpo"),
    ("within_reach", "oger", "grpo"),
    ("beyond_reach", "oger", "luffy"),
    ("beyond_reach", "oger", "no_bonus"),
    ("beyond_reach", "sft", "oger"),
)
COMPARED = ("avg@64", "pass@4", "pass@8", "pass@16", "pass@64")
DRAWS = (1, 2, 4, 8, 16, 32, 64)  # k of pass@k
PANELS = {
    "rollout/solve_rate": "rollouts' solve rate",
    "entropy_loss": "entropy, nats a token",
    "oger/divergence": "divergence",
}
CURVES = ("rollout/solve_rate", "rollout/solve_none", "entropy_loss", "oger/divergence")


def record(folder: Path, regime: str, arm: str, seed: int) -> Record:
    """Return the line of one finished run."""
    return arms.record(folder, regime, arm, seed, CURVES)


def tables(records: list[Record]) -> str:
    """Write all tables of the study for which there are runs."""
    of_regimes = [table(records, regime) for regime in by_regime(records, REGIMES)]
    return "\n\n".join(text for text in (overview(records), compared(records), *of_regimes) if text)


def overview(records: list[Record]) -> str:
    """Write a Markdown table, one row an arm, with scores in points of both regimes."""
    by_arm = {regime: runs_by_arm(records, regime) for regime in REGIMES}
    heads = [f"{regime.replace('_', ' ')}: {score}" if score == scores[0] else score
             for regime, scores in SHOWN.items() for score in scores]  # fmt: skip
    lines = ["| | " + " | ".join(heads) + " |", "|" + "---|" * (1 + len(heads))]
    for arm in (name for name in ARMS if any(name in runs for runs in by_arm.values())):
        cells = [
            _of(by_arm[regime].get(arm, {}), REGIMES[regime], score) for regime in SHOWN for score in SHOWN[regime]
        ]
        lines.append(f"| {ARMS[arm]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def compared(records: list[Record]) -> str:
    """Write a Markdown table, one row a pair of arms: how far the first is above the second, by seed."""
    lines = []
    for regime, first, second in PAIRS:
        of_first, of_second = (runs_by_arm(records, regime)[arm] for arm in (first, second))
        if of_first.keys() & of_second.keys():
            cells = [
                gains(of_first, of_second, partial(_figure, benchmark=REGIMES[regime], name=name)) for name in COMPARED
            ]
            named = f"{regime.replace('_', ' ')}: {_name(first)} less {_name(second)}"
            lines.append(f"| {named} | " + " | ".join(cells) + " |")
    if not lines:
        return ""
    return "\n".join(["| by seed | " + " | ".join(COMPARED) + " |", "|" + "---|" * (1 + len(COMPARED)), *lines])


def table(records: list[Record], regime: str) -> str:
    """Write Markdown, one row an arm, in points; differences are from GRPO's and OGER's run of the same seed."""
    own, other = REGIMES[regime], next(name for name in REGIMES.values() if name != REGIMES[regime])
    by_arm = runs_by_arm(records, regime)
    lines = [
        f"| {regime.replace('_', ' ')} | seeds | avg@64 | against GRPO | against OGER | pass@4 | pass@8 | pass@16 "
        "| pass@64 | entropy, end | divergence, end | avg@64 of the other regime | minutes |",
        "|" + "---|" * 13,
    ]
    for arm in (name for name in ARMS if name in by_arm):
        runs = by_arm[arm]
        against = [
            "" if arm in ("start", base) else gains(runs, by_arm.get(base, {}), lambda run: _figure(run, own))
            for base in ("grpo", "oger")
        ]
        cells = [ARMS[arm], str(len(runs)), _of(runs, own, "avg@64"), *against]
        cells += [_of(runs, own, score) for score in COMPARED[1:]]
        cells += [_end(runs, "entropy_loss"), _end(runs, "oger/divergence"), _of(runs, other, "avg@64")]
        cells.append(f"{np.mean([run['seconds']['total'] for run in runs.values()]) / 60:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _name(arm: str) -> str:
    return ARMS[arm].partition(" (")[0]


def _figure(run: Record, benchmark: str, name: str = "avg@64") -> float:
    return float(run["held_out"][benchmark][name.replace("@", "_at_")])


def _of(runs: dict[int, Record], benchmark: str, name: str) -> str:
    return points([_figure(run, benchmark, name) for run in runs.values()])


def _end(runs: dict[int, Record], curve: str) -> str:
    """Average over the last ten steps and the seeds; empty where nothing or only 0 was measured."""
    ends = [np.mean(run["curves"][curve][-10:]) for run in runs.values() if run["curves"][curve]]
    return f"{np.mean(ends):.3f}" if ends and any(ends) else ""


def draw(records: list[Record], path: Path) -> None:
    """Draw the arms' scores in every regime, pass@k of the main arms, and below all arms' curves over the steps."""
    regimes = by_regime(records, REGIMES)
    figure = Figure(figsize=(12, 6.4 + 2.9 * len(regimes)), layout="constrained")
    # Figures of their own, so that the arms' long names do not push the curves aside.
    parts: Any = figure.subfigures(3, 1, height_ratios=[3.3, 3.1, 2.9 * len(regimes)])
    of_scores = parts[0].subplots(1, len(regimes), squeeze=False)[0]
    of_draws = parts[1].subplots(1, len(regimes), squeeze=False)[0]
    of_curves = parts[2].subplots(len(regimes), len(PANELS), squeeze=False)
    drawn = {each["arm"] for each in records}
    name_arms(parts[1], SHORT, {arm: look for arm, look in OF_ARMS.items() if arm in drawn})
    for scores, draws, panels, (regime, runs) in zip(of_scores, of_draws, of_curves, regimes.items(), strict=True):
        named = regime.replace("_", " ")
        by_arm = runs_by_arm(runs, regime)
        of_arms = {
            arm: [_figure(each, REGIMES[regime]) for each in by_arm[arm].values()] for arm in ARMS if arm in by_arm
        }
        draw_scores(scores, of_arms, SHORT, OF_ARMS, f"{named}: held-out avg@64, %")
        _draw_pass_at_k(draws, by_arm, REGIMES[regime])
        draws.set_title(f"{named}: held-out problems solved by any of k samples (pass@k), %", loc="left", fontsize=9.5)
        for panel, (curve, title) in zip(panels, PANELS.items(), strict=True):
            _draw_curves(panel, runs, curve)
            dress(panel, f"{named}: {title}", legend=False)
    note = "small dots: seeds; bars and bands: 95 % intervals; every axis of curves begins at 0"
    save(figure, path, note=note)


def _draw_pass_at_k(panel: Axes, by_arm: Mapping[str, dict[int, Record]], benchmark: str) -> None:
    """Draw pass@k, 0 to 100 %, of the main arms' models and of the policy before training."""
    for arm in ("start", *MAIN):
        runs = by_arm.get(arm, {}).values()
        if not runs:
            continue
        known = [k for k in DRAWS if all(f"pass_at_{k}" in run["held_out"][benchmark] for run in runs)]
        each = [interval([100 * _figure(run, benchmark, f"pass@{k}") for run in runs]) for k in known]
        look = OF_ARMS[arm]
        middles, halves = np.array(each).reshape(-1, 2).T
        panel.plot(known, middles, color=look.colour, linestyle=look.line, marker=look.marker, markersize=5)
        if len(runs) > 2:
            band(panel, known, middles - halves, middles + halves, look.colour)
    panel.set_xscale("log", base=2)
    panel.set_xticks(DRAWS, [str(k) for k in DRAWS], fontsize=8)
    panel.set_ylim(-2, 104)
    bare(panel)
    panel.set_xlabel("k", fontsize=8)


def _draw_curves(panel: Axes, records: list[Record], curve: str) -> None:
    for arm in (*(name for name in ARMS if name not in MAIN), *MAIN[::-1]):  # the main arms lie above the others
        curves = [each["curves"][curve] for each in records if each["arm"] == arm]
        # Without encoder divergence is 0; a solve rate of 0 is one.
        curves = [values for values in curves if any(values) or (values and curve == "rollout/solve_rate")]
        if curves:
            draw_curve(panel, curves, OF_ARMS[arm], banded=arm in MAIN)
    from_zero(panel)


if __name__ == "__main__":
    run(sys.argv[1:], record, tables, draw)
