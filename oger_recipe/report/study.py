"""Makes one table and one figure of the study's runs: ``python -m oger_recipe.report.study {has,add,table} FOLDER``.

Every run is a line of results.jsonl, so that its folder need not be kept.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oger_recipe.files import read_jsonl
from oger_recipe.report.curves import moving_mean
from oger_recipe.report.panels import COLOURS, GREY, band, dress, from_zero_if_near, save
from oger_recipe.report.summary import last_attempts

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
Record = dict[str, Any]


def record(folder: Path, regime: str, arm: str, seed: int, curves: Iterable[str] = CURVES) -> Record:
    """Returns the line of one finished run, with these metrics over its steps."""
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


def interval(values: list[float]) -> tuple[float, float]:
    """Returns the mean and half the width of its 95 % interval (Student's t over seeds); nan for a single value."""
    from scipy import stats

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan")
    return mean, float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))


def table(records: list[Record], regime: str) -> str:
    """Writes Markdown, one row an arm, in points; differences are from GRPO's and OGER's run of the same seed."""
    own, other = REGIMES[regime], next(name for name in REGIMES.values() if name != REGIMES[regime])
    by_arm: dict[str, dict[int, Record]] = defaultdict(dict)
    for each in records:
        if each["regime"] == regime:
            by_arm[each["arm"]][each["seed"]] = each
    lines = [
        f"| {regime.replace('_', ' ')} | seeds | avg@64 | against GRPO | against OGER | pass@8 | pass@64 "
        "| entropy, end | divergence, end | avg@64 of the other regime | minutes |",
        "|" + "---|" * 11,
    ]
    for arm in (name for name in ARMS if name in by_arm):
        runs = by_arm[arm]
        gains = [
            "" if arm in ("start", base) else _gains(runs, by_arm.get(base, {}), own) for base in ("grpo", "oger")
        ]
        cells = [ARMS[arm], str(len(runs)), _of(runs, own, "avg_at_64"), *gains]
        cells += [_of(runs, own, "pass_at_8"), _of(runs, own, "pass_at_64")]
        cells += [_end(runs, "entropy_loss"), _end(runs, "oger/divergence"), _of(runs, other, "avg_at_64")]
        cells.append(f"{np.mean([run['seconds']['total'] for run in runs.values()]) / 60:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _gains(runs: dict[int, Record], others: dict[int, Record], benchmark: str) -> str:
    """Says how far avg@64 is above that of the other arm's runs, over the seeds that both have."""
    gains = [
        _figure(runs[seed], benchmark, "avg_at_64") - _figure(others[seed], benchmark, "avg_at_64")
        for seed in sorted(runs.keys() & others.keys())
    ]
    return points(gains, signed=True) if gains else ""


def _figure(run: Record, benchmark: str, name: str) -> float:
    return float(run["held_out"][benchmark][name])


def _of(runs: dict[int, Record], benchmark: str, name: str) -> str:
    return points([_figure(run, benchmark, name) for run in runs.values()])


def points(values: list[float], *, signed: bool = False) -> str:
    mean, half = interval([100 * value for value in values])
    text = f"{mean:+.1f}" if signed else f"{mean:.1f}"
    return text if np.isnan(half) else f"{text} ± {half:.1f}"


def _end(runs: dict[int, Record], curve: str) -> str:
    """Averages over the last ten steps and the seeds; empty where nothing was measured."""
    ends = [np.mean(run["curves"][curve][-10:]) for run in runs.values() if run["curves"][curve]]
    return f"{np.mean(ends):.3f}" if ends and any(ends) else ""


def draw(records: list[Record], path: Path) -> None:
    """Draws the arms' scores in every regime, and below the curves of the main arms over the steps."""
    by_regime = {regime: [each for each in records if each["regime"] == regime] for regime in REGIMES}
    by_regime = {regime: runs for regime, runs in by_regime.items() if runs}
    figure = Figure(figsize=(10.5, 3.5 + 2.8 * len(by_regime)), layout="constrained")
    # Figures of their own: the arms' long names do not push the curves aside.
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.3, len(by_regime)])
    top, bottom = halves
    of_scores = top.subplots(1, len(by_regime), squeeze=False)[0]
    of_curves = bottom.subplots(len(by_regime), len(PANELS), squeeze=False)
    for scores, panels, (regime, runs) in zip(of_scores, of_curves, by_regime.items(), strict=True):
        _draw_scores(scores, runs, regime)
        for panel, (curve, title) in zip(panels, PANELS.items(), strict=True):
            _draw_curve(panel, runs, curve)
            dress(panel, f"{regime.replace('_', ' ')}: {title}", legend=False)
    save(
        figure, path, note="curves in the colours of the arms above; small dots: seeds; bars and bands: 95 % intervals"
    )


def _draw_scores(panel: Axes, records: list[Record], regime: str) -> None:
    """Draws avg@64 of every arm, in the study's order from above."""
    arms = [arm for arm in ARMS if any(each["arm"] == arm for each in records)]
    for row, arm in enumerate(reversed(arms)):
        scores = [100 * _figure(each, REGIMES[regime], "avg_at_64") for each in records if each["arm"] == arm]
        mean, half = interval(scores)
        colour = MAIN.get(arm, GREY)
        panel.plot(scores, [row] * len(scores), "o", color=colour, markersize=3, alpha=0.45)
        bar = half if len(scores) > 2 else None  # that of two seeds leaves the picture
        panel.errorbar(mean, row, xerr=bar, fmt="D", color=colour, capsize=3, markersize=5)
    panel.set_yticks(range(len(arms)), [SHORT[arm] for arm in reversed(arms)], fontsize=8)
    panel.set_ylim(-0.6, len(arms) - 0.4)
    for label, arm in zip(panel.get_yticklabels(), reversed(arms), strict=True):
        label.set_color(MAIN.get(arm, "black"))
    panel.set_xlim(left=-1)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.set_title(f"{regime.replace('_', ' ')}: held-out avg@64, %", loc="left", fontsize=9.5)


def _draw_curve(panel: Axes, records: list[Record], curve: str) -> None:
    """Draws means over the seeds, smoothed over five steps, with intervals; the variants of OGER in grey."""
    drawn: list[float] = []
    for arm in sorted(ARMS, key=lambda arm: arm in MAIN):
        curves = [each["curves"][curve] for each in records if each["arm"] == arm]
        # No encoder, no divergence; but a solve rate of 0 is one.
        curves = [values for values in curves if any(values) or (values and curve == "rollout/solve_rate")]
        if not curves:
            continue
        shortest = min(map(len, curves))
        smooth = [moving_mean(values[:shortest], 5) for values in curves]
        middles, halves = zip(*(interval(list(values)) for values in zip(*smooth, strict=True)), strict=True)
        steps = range(1, shortest + 1)
        drawn += middles
        if arm in MAIN:
            panel.plot(steps, middles, color=MAIN[arm], linewidth=1.8)
            if len(curves) > 1:
                band(panel, steps, np.array(middles) - halves, np.array(middles) + halves, MAIN[arm])
        else:
            panel.plot(steps, middles, color=GREY, linewidth=0.7, alpha=0.7)
    if drawn:
        from_zero_if_near(panel, drawn)


def run(
    arguments: Sequence[str],
    record: Callable[[Path, str, str, int], Record],
    table: Callable[[list[Record], str], str],
    draw: Callable[[list[Record], Path], None],
    regimes: Iterable[str],
) -> None:
    """Does what a study's command line says: ``has`` or ``add`` FOLDER REGIME ARM SEED, or ``table`` FOLDER."""
    command, folder = arguments[0], Path(arguments[1])
    results = folder / "results.jsonl"
    records = read_jsonl(results)
    if command == "table":
        text = "\n\n".join(table(records, regime) for regime in regimes if any(e["regime"] == regime for e in records))
        (folder / "study.md").write_text(text + "\n")
        draw(records, folder / "study.png")
        print(f"{text}\n\ntable: {folder / 'study.md'}\nfigure: {folder / 'study.png'}")
        return
    regime, arm, seed = arguments[2], arguments[3], int(arguments[4])
    if command == "has":
        sys.exit(0 if any((e["regime"], e["arm"], e["seed"]) == (regime, arm, seed) for e in records) else 1)
    with results.open("a") as file:
        file.write(json.dumps(record(folder / regime / arm / str(seed), regime, arm, seed)) + "\n")


def main() -> None:
    run(sys.argv[1:], record, table, draw, REGIMES)


if __name__ == "__main__":
    main()
