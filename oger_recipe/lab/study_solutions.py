"""Make table and figure of the study of problems with several solutions (docs/study/registered.md, block B); arms.py
has its command line.

Each run keeps how often it wrote every class of right solutions, of every problem, at every evaluation.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oger_recipe.base.files import read_jsonl
from oger_recipe.lab.arms import START, Record, by_regime, name_arms, run, runs_by_arm
from oger_recipe.lab.bonus_ranks import bonus_ranks, groups_of
from oger_recipe.lab.countdown_problem import solutions
from oger_recipe.lab.study_registered import Floats, comparisons, counted, said
from oger_recipe.report.panels import GREY, bare, save, styles

ARMS = {
    "start": "before training",
    "grpo": "GRPO",
    "grpo_low": "GRPO, a third of the learning rate",
    "grpo_lower": "GRPO, a lower rate still",
    "grpo_kl": "GRPO, KL 0.04",
    "maxrl": "MaxRL",
    "uniqueness": "GRPO, uniqueness",
    "darling": "GRPO, DARLING",
    "luffy_same": "LUFFY, teachers with one solution",
    "luffy": "LUFFY, teachers with different ones",
    "luffy_low": "LUFFY, different ones, a third of the rate",
    "oger": "OGER, different ones",
    "oger_rank": "OGER by rank, different ones",
}
REGIMES = {"many_solutions": "first policy", "many_solutions_other": "second policy"}
OF_ARMS = styles(arm for arm in ARMS if arm != "start") | {"start": START}
# Each is held against an arm that differs in one thing, or against the best GRPO of the screen; and in the block's
# continuation against a GRPO that learns as slowly (registered.md). p-values are corrected within each.
AGAINST = (
    (
        ("grpo_low", "grpo"), ("grpo_kl", "grpo"), ("maxrl", "grpo"), ("uniqueness", "grpo"), ("darling", "grpo"),
        ("luffy_same", "grpo"), ("luffy", "luffy_same"), ("oger", "luffy"), ("oger_rank", "luffy"),
        ("luffy", "grpo_low"), ("luffy_low", "grpo_low"),
    ),
    (("luffy_low", "grpo_lower"), ("grpo_lower", "grpo_low")),
)  # fmt: skip


def record(folder: Path, regime: str, arm: str, seed: int) -> Record:
    """Return one finished run as a line of results, with how many classes of solutions each problem has, and which
    right rollouts earned more in training (bonus_ranks.py)."""
    line = counted(folder, regime, arm, seed, "classes", _classes)
    answers = read_jsonl(next((folder / "eval").glob("step_*.jsonl")))
    problems = {each["uid"]: json.loads(each["answer"]) for each in answers}
    known = [len(solutions(problem["numbers"], problem["target"])) for _, problem in sorted(problems.items())]
    return line | {"known": known, "ranks": bonus_ranks(groups_of(folder))}


def _classes(answers: list[Record]) -> list[list[int]]:
    """Return how many samples each class of right solutions has, for each problem in the order of their names."""
    found: dict[str, list[str | None]] = defaultdict(list)
    for answer in answers:
        found[answer["uid"]].append(answer.get("solution") if answer["score"] == 1 else None)
    return [sorted(Counter(filter(None, found[uid])).values(), reverse=True) for uid in sorted(found)]


def distinct(record: Record, step: int) -> Floats:
    """Count the classes of each problem's right samples at an evaluation: distinct@n of n samples, [problems]."""
    return np.array([float(len(counts)) for counts in record["classes"][str(step)]])


def average(record: Record, step: int) -> Floats:
    """Return avg@n of each problem at an evaluation, [problems]."""
    return np.array([sum(counts) / record["samples"] for counts in record["classes"][str(step)]])


def path_of(record: Record, begin: Record | None) -> tuple[list[float], list[Floats]]:
    """Return avg@n (mean over problems) and distinct@n of each problem, at the start and at all evaluations."""
    each = [(run, step) for run in (begin, record) if run is not None for step in sorted(map(int, run["classes"]))]
    return [float(average(*at).mean()) for at in each], [distinct(*at) for at in each]


def at_level(averages: Sequence[float], values: Sequence[Floats], level: float) -> Floats:
    """Return the values where the averages first reach a level: linear between evaluations, the first if it is there.

    Raises ValueError where they never reach it.
    """
    for place, average in enumerate(averages):
        if average >= level:
            if place == 0:
                return values[0]
            share = (level - averages[place - 1]) / (average - averages[place - 1])
            return (1 - share) * values[place - 1] + share * values[place]
    raise ValueError(f"no average reaches {level}: {averages}")


def differences(runs: Mapping[int, Record], others: Mapping[int, Record], starts: Mapping[int, Record]) -> Floats:
    """Return how many more classes a run writes than the other arm's of its seed, [seeds, problems], where both are
    equally often right: at the lower of their highest averages."""
    begin = next(iter(starts.values()), None)
    found = []
    for seed in sorted(runs.keys() & others.keys()):
        mine, theirs = path_of(runs[seed], begin), path_of(others[seed], begin)
        level = min(max(mine[0]), max(theirs[0]))
        found.append(at_level(*mine, level) - at_level(*theirs, level))
    return np.array(found)


def tables(records: list[Record]) -> str:
    """Write a table for each policy that has runs, the comparisons, and which right rollouts the bonuses pay more."""
    parts = [table(records, regime) for regime in by_regime(records, REGIMES)]
    return "\n\n".join(text for text in (*parts, compared(records), paid(records)) if text)


def table(records: list[Record], regime: str) -> str:
    """Write Markdown, one row an arm, of the last evaluation."""
    by_arm = runs_by_arm(records, regime)
    n = next(each["samples"] for each in records if each["regime"] == regime)
    lines = [
        f"| {REGIMES[regime]} | seeds | avg@{n} | pass@{n} | distinct@{n} | of all classes | minutes |",
        "|" + "---|" * 7,
    ]
    for arm in (name for name in ARMS if name in by_arm):
        runs = list(by_arm[arm].values())
        ends = [max(map(int, each["classes"])) for each in runs]
        average_, distinct_ = (
            np.array([measure(each, end) for each, end in zip(runs, ends, strict=True)])
            for measure in (average, distinct)
        )
        known = np.array([each["known"] for each in runs])
        cells = [
            said(f"{regime} {arm} avg", average_),
            said(f"{regime} {arm} pass", (average_ > 0).astype(float)),
            said(f"{regime} {arm} distinct", distinct_, form="{:.2f}", unit=1),
            said(f"{regime} {arm} share", distinct_ / known),
            f"{np.mean([each['seconds']['total'] for each in runs]) / 60:.1f}",
        ]
        lines.append(f"| {ARMS[arm]} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def compared(records: list[Record]) -> str:
    """Write, for each arm and the one that it is held against, how many more classes it writes at equal avg.

    p is of a paired t-test over seeds and policies, corrected over the rows of a table.
    """
    of_regimes = [runs_by_arm(records, regime) for regime in by_regime(records, REGIMES)]
    return "\n\n".join(filter(None, (_compared(of_regimes, pairs) for pairs in AGAINST)))


def _compared(of_regimes: Sequence[Mapping[str, Mapping[int, Record]]], pairs: Sequence[tuple[str, str]]) -> str:
    from scipy import stats

    rows, p_values = [], []
    for arm, other in pairs:
        found = [differences(runs[arm], runs[other], runs["start"]) for runs in of_regimes]
        values = [each for each in found if len(each)]
        if sum(map(len, values)) < 2:
            continue
        named = f"{ARMS[arm]} less {ARMS[other]}"
        both = np.concatenate([each.mean(axis=1) for each in values])
        rows.append((named, len(both), said(named, *values, form="{:+.2f}", unit=1)))
        p_values.append(float(stats.ttest_1samp(both, 0.0).pvalue))
    return comparisons("| classes at equal avg | runs", rows, p_values)


def _ranked(records: list[Record]) -> dict[str, dict[str, tuple[float, int]]]:
    """Return which right rollouts each arm's bonus pays more, over all runs; arms without a bonus are left out.

    ``share`` and ``several`` (bonus_ranks.py) are means over runs, with the number of runs; ``rarer`` and ``new`` are
    shares of pairs, with the number of pairs.
    """
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for arm in ARMS:
        ranks = [each["ranks"] for each in records if each["arm"] == arm and "ranks" in each]
        if not any(each["share"] for each in ranks):
            continue
        found[arm] = {
            kind: (float(np.mean([each[kind] for each in ranks])), len(ranks)) for kind in ("share", "several")
        }
        for kind in ("rarer", "new"):
            won, pairs = np.sum([each[kind] for each in ranks], axis=0)
            found[arm][kind] = (float(won / pairs), int(pairs))
    return found


def paid(records: list[Record]) -> str:
    """Write which right rollouts each bonus pays more, as Markdown, one row an arm that has a bonus, in percent."""
    rows = [
        f"| {ARMS[arm]} | {each['share'][1]} | {100 * each['share'][0]:.2g} | {100 * each['several'][0]:.0f} | "
        f"{' | '.join(f'{100 * each[kind][0]:.0f} (of {each[kind][1]:,})' for kind in ('rarer', 'new'))} |"
        for arm, each in _ranked(records).items()
    ]
    head = (
        "| in groups of training, % | runs | of the variance | groups of several classes | a rarer class earns more "
        "| one that no teacher shows |"
    )
    return "\n".join([head, "|" + "---|" * 6, *rows]) if rows else ""


def draw(records: list[Record], path: Path) -> None:
    """Draw a panel for each policy: how distinct@n and avg@n of every arm change in training, means over its runs;
    and, if any arm has a bonus, one of which right rollouts the bonuses pay more."""
    regimes = by_regime(records, REGIMES)
    ranked = _ranked(records)
    count = len(regimes) + bool(ranked)
    figure = Figure(figsize=(1.0 + 6.5 * count, 6.0), layout="constrained")
    drawn = {each["arm"] for each in records}
    name_arms(figure, ARMS, {arm: look for arm, look in OF_ARMS.items() if arm in drawn})
    panels = figure.subplots(1, count, squeeze=False)[0]
    if ranked:
        _draw_paid(panels[-1], ranked)
    for panel, (regime, runs) in zip(panels, regimes.items(), strict=False):
        by_arm = runs_by_arm(runs, regime)
        begin = next(iter(by_arm["start"].values()), None)
        for arm in (name for name in ARMS if name in by_arm):
            paths = [path_of(each, begin if arm != "start" else None) for each in by_arm[arm].values()]
            x = 100 * np.mean([averages for averages, _ in paths], axis=0)
            y = np.mean([[values.mean() for values in found] for _, found in paths], axis=0)
            look = OF_ARMS[arm]
            panel.plot(x, y, color=look.colour, linestyle=look.line, marker=look.marker, markersize=5)
        bare(panel)
        samples = runs[0]["samples"]
        panel.set_xlabel(f"avg@{samples}, %", fontsize=8)
        panel.set_title(f"{REGIMES[regime]}: distinct@{samples}, classes a problem", loc="left", fontsize=9.5)
    save(figure, path, note="lines: means over seeds, from the start by evaluation")


def _draw_paid(panel: Axes, ranked: Mapping[str, Mapping[str, tuple[float, int]]]) -> None:
    """Draw, for each bonus, how often it pays a rarer class more (full), and one that no teacher shows (hollow)."""
    for place, (arm, each) in enumerate(ranked.items()):
        look = OF_ARMS[arm]
        for kind, face in (("rarer", look.colour), ("new", "none")):
            x = 100 * each[kind][0]
            panel.plot(x, place, marker=look.marker, color=look.colour, markerfacecolor=face, markersize=9)
        said = f"{100 * each['share'][0]:.2g} % of the variance within groups"
        panel.annotate(said, (73, place), va="center", fontsize=8)
    panel.axvline(50, color=GREY, linestyle=":")
    panel.set_yticks(range(len(ranked)), [ARMS[arm] for arm in ranked], fontsize=8)
    panel.set_ylim(len(ranked) - 0.5, -0.5)
    panel.set_xlim(38, 102)
    bare(panel)
    panel.set_xlabel("pairs of right rollouts in a group, %; 50: no preference", fontsize=8)
    panel.set_title("which of two earns more: the rarer class (full), the one no teacher shows (hollow)", loc="left",
                    fontsize=9.5)  # fmt: skip


if __name__ == "__main__":
    run(sys.argv[1:], record, tables, draw)
