"""What the studies share: runs of several arms and seeds, their intervals, their panels and their command line.

``python -m oger_recipe.lab.study {has,add,table} FOLDER``, and study_steps likewise. Every run is a line of
results.jsonl, so that its folder need not be kept.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from oger_recipe.base.files import read_jsonl, to_json
from oger_recipe.report.curves import moving_mean
from oger_recipe.report.panels import GREY, Style, band, bare
from oger_recipe.report.summary import last_attempts

Record = dict[str, Any]
LEAST_POINTS = 25.0  # least length of an axis of scores, of 100
START = Style(GREY, "d", ":")  # of the policy before training
STEP_HEADS = {  # column of a table -> curve, and how its values are written
    "score of a step": ("reward/prm/step_mean", "{:.2f}"),
    "steps of reasoning": ("rollout/steps", "{:.1f}"),
    "length": ("rollout/response_length", "{:.0f}"),
}


def record(folder: Path, regime: str, arm: str, seed: int, curves: Iterable[str]) -> Record:
    """Return one finished run as a line of results, with these metrics over its steps."""
    last = max((folder / "eval").glob("step_*.json"))
    summary = json.loads((folder / "summary.json").read_text())
    steps = last_attempts(read_jsonl(folder / "metrics.jsonl"))
    return {
        "regime": regime,
        "arm": arm,
        "seed": seed,
        "steps": summary["steps"],
        "seconds": {name: round(value, 1) for name, value in summary["seconds"].items()},
        "held_out": json.loads(last.read_text())["benchmarks"],
        "curves": {name: [round(step[name], 5) for step in steps if step.get(name) is not None] for name in curves},
    }


def runs_by_arm(records: Iterable[Record], regime: str) -> dict[str, dict[int, Record]]:
    """Return the runs of a regime: arm -> seed -> run, in the order of the seeds."""
    by_arm: dict[str, dict[int, Record]] = defaultdict(dict)
    for each in sorted(records, key=lambda run: run["seed"]):
        if each["regime"] == regime:
            by_arm[each["arm"]][each["seed"]] = each
    return by_arm


def by_regime(records: Iterable[Record], regimes: Iterable[str]) -> dict[str, list[Record]]:
    """Group the records by regime; leave out regimes without any."""
    records = list(records)
    found = {regime: [each for each in records if each["regime"] == regime] for regime in regimes}
    return {regime: runs for regime, runs in found.items() if runs}


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval (Student's t over seeds); nan for a single value."""
    from scipy import stats

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan")
    return mean, float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))


def points(values: list[float], *, signed: bool = False) -> str:
    """Write shares, 0 to 1, in points: their mean with its interval, or the values if they are one, two or alike."""
    form = "{:+.1f}" if signed else "{:.1f}"
    percent = [100 * value for value in values]
    each = [form.format(value) for value in percent]
    if len(each) < 3:
        return ", ".join(each)
    if len(set(each)) == 1:
        return f"{each[0]} each"
    mean, half = interval(percent)
    return f"{form.format(mean)} ± {half:.1f}"


def gains(runs: Mapping[int, Record], others: Mapping[int, Record], score: Callable[[Record], float]) -> str:
    """Say how far the score is above that of another arm's runs, over the seeds that both have.

    From three seeds on, add the p-value of a paired t-test, which is not corrected for how many are made.
    """
    both = [score(runs[seed]) - score(others[seed]) for seed in sorted(runs.keys() & others.keys())]
    text = points(both, signed=True)
    return f"{text} ({p_value(both)})" if "±" in text else text


def p_value(differences: list[float]) -> str:
    from scipy import stats

    p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def step_cells(runs: Collection[Record]) -> list[str]:
    """Write the columns of ``STEP_HEADS``: means over the runs, of the first and the last three steps of training.

    A cell without values is empty.
    """
    cells = []
    for curve, form in STEP_HEADS.values():
        curves = [each["curves"][curve] for each in runs if each["curves"][curve]]
        ends = [[values[:3] for values in curves], [values[-3:] for values in curves]]
        cells.append(" to ".join(form.format(np.mean([np.mean(part) for part in end])) for end in ends if end))
    return cells


def smoothed(curves: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the mean over runs at each step of the shortest, smoothed over five steps, and half its interval."""
    shortest = min(map(len, curves))
    smooth = [moving_mean(values[:shortest], 5) for values in curves]
    middles, halves = zip(*(interval(list(values)) for values in zip(*smooth, strict=True)), strict=True)
    return list(middles), list(halves)


def draw_scores(
    panel: Axes, scores: Mapping[str, list[float]], names: Mapping[str, str], looks: Mapping[str, Style], title: str
) -> None:
    """Draw the scores of every arm's runs, 0 to 1, as percentages, with mean and interval: one row an arm, the first
    on top. A dotted line marks the policy before training."""
    arms = list(scores)[::-1]
    for row, arm in enumerate(arms):
        percent = [100 * each for each in scores[arm]]
        mean, half = interval(percent)
        look = looks[arm]
        panel.plot(percent, [row] * len(percent), "o", color=look.colour, markersize=3, alpha=0.45)
        bar = half if len(percent) > 2 else None  # an interval of two seeds leaves the picture
        panel.errorbar(mean, row, xerr=bar, fmt=look.marker, color=look.colour, capsize=3, markersize=6)
        if look is START:
            panel.axvline(mean, color=look.colour, linestyle=look.line, linewidth=1)
    panel.set_yticks(range(len(arms)), [names[arm] for arm in arms], fontsize=8)
    for label, arm in zip(panel.get_yticklabels(), arms, strict=True):
        label.set_color(looks[arm].colour)
    panel.set_ylim(-0.6, len(arms) - 0.4)
    panel.set_xlim(-1, max(panel.get_xlim()[1], LEAST_POINTS))
    bare(panel)
    panel.set_title(title, loc="left", fontsize=9.5)


def draw_curve(panel: Axes, curves: Sequence[Sequence[float]], look: Style, *, banded: bool) -> None:
    """Draw the mean over the seeds, smoothed over five steps, and where ``banded`` its interval."""
    middles, halves = smoothed(curves)
    steps = range(1, len(middles) + 1)
    panel.plot(
        steps, middles, color=look.colour, linestyle=look.line, linewidth=1.8 if banded else 1.1,
        marker=look.marker, markersize=4, markevery=(4, 9),
    )  # fmt: skip
    if banded and len(curves) > 2:
        band(panel, steps, np.array(middles) - halves, np.array(middles) + halves, look.colour)


def name_arms(part: Any, names: Mapping[str, str], looks: Mapping[str, Style]) -> None:
    """Put a legend of the arms' curves above the panels of a figure or of a part of it."""
    lines = [
        Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, markersize=5, label=names[arm])
        for arm, look in looks.items()
    ]
    part.legend(handles=lines, loc="outside upper center", ncols=4, fontsize=8, frameon=False, handlelength=3.5)


def run(
    arguments: Sequence[str],
    record: Callable[[Path, str, str, int], Record],
    tables: Callable[[list[Record]], str],
    draw: Callable[[list[Record], Path], None],
) -> None:
    """Run a study's command line: ``has`` or ``add`` FOLDER REGIME ARM SEED, ``failed`` FOLDER REGIME ARM SEED STATUS
    (the run's exit status), or ``table`` FOLDER. A failed run is kept; it is not run again, and is in no table."""
    command, folder = arguments[0], Path(arguments[1])
    results = folder / "results.jsonl"
    records = read_jsonl(results)
    if command == "table":
        records = [each for each in records if "failed" not in each]
        text = tables(records)
        (folder / "study.md").write_text(text + "\n")
        draw(records, folder / "study.png")
        print(f"{text}\n\ntable: {folder / 'study.md'}\nfigure: {folder / 'study.png'}")
        return
    regime, arm, seed = arguments[2], arguments[3], int(arguments[4])
    if command == "has":
        sys.exit(0 if any((e["regime"], e["arm"], e["seed"]) == (regime, arm, seed) for e in records) else 1)
    if command == "failed":
        line: Record = {"regime": regime, "arm": arm, "seed": seed, "failed": int(arguments[5])}
    else:
        line = record(folder / regime / arm / str(seed), regime, arm, seed)
    with results.open("a") as file:
        file.write(to_json(line) + "\n")
