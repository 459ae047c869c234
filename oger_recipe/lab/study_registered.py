"""Make table and figure of blocks A, C and E of docs/study/registered.md; arms.py has the command line.

A run is evaluated four times, and its figures are means of the last two. Each keeps how many samples of every problem
were right, so that intervals are over seeds and problems, and arms can be compared where they are equally often right.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from oger_recipe.base.files import read_jsonl
from oger_recipe.base.seeds import stable_seed
from oger_recipe.evaluation.metrics import interval, metrics_by_problem, pass_at_k
from oger_recipe.lab import arms
from oger_recipe.lab.arms import (
    START,
    STEP_HEADS,
    Record,
    by_regime,
    draw_curve,
    draw_scores,
    name_arms,
    run,
    runs_by_arm,
    step_cells,
)
from oger_recipe.lab.bonus_ranks import bonus_ranks, groups_of
from oger_recipe.lab.word_problems import class_of
from oger_recipe.report.panels import Line, Style, bare, dress, from_zero, save, styles

Floats = NDArray[np.float64]

ARMS = {
    "start": "before training",
    "grpo": "GRPO",
    "grpo_kl": "GRPO, KL 0.04",
    "grpo_entropy": "GRPO, entropy term 0.01",
    "grpo_low": "GRPO, a third of the learning rate",
    "grpo_unclipped": "GRPO, unclipped",
    "sft_grpo": "SFT, then GRPO",
    "luffy": "LUFFY",
    "luffy_one": "LUFFY, one teacher",
    "self_distillation": "self-distillation, no reward",
    "luffy_clip": "LUFFY, clipped",
    "luffy_low": "LUFFY, clipped, a third of the rate",
    "oger": "OGER",
    "oger_clip": "OGER, clipped",
    "oger_low": "OGER, clipped, a third of the rate",
    "chord": "CHORD",
    "hpt": "HPT",
    "outcome": "outcome alone",
    "min_outcome": "min-form and outcome",
    "ahead_outcome": "min-ahead and outcome",
    "sum_outcome": "sum-form and outcome",
    "appo_rule": "APPO, outcome alone",
    "appo_outcome": "APPO, sum-form and outcome",
    "tppo_rule": "TPPO, outcome alone",
    "tppo_outcome": "TPPO, sum-form and outcome",
}
TEXT = "word_problems"
REGIMES = {
    "rivals_within_reach": "within reach",
    "rivals_beyond_reach": "beyond reach",
    TEXT: "word problems",
    "fair_steps_beyond_reach": "rewards for steps, beyond reach",
    "fair_steps_within_reach": "rewards for steps, within reach",
}
CURVES = (
    "rollout/solve_rate", "rollout/solve_none", "rollout/entropy", "rollout/response_length",
    "oger/bonus_of_correct", "oger/bonus_of_correct_std_in_group", "oger/replaced_correct", "rollout/steps",
    "reward/prm/step_mean",
)  # fmt: skip
# Columns of the table of word problems -> what a run has there, of its training; bonus_ranks.py has the shares.
TEXT_HEADS: dict[str, Callable[[Record], float]] = {
    "bonus, spread in a group": lambda run: _mean(run, "oger/bonus_of_correct_std_in_group"),
    "of the variance, %": lambda run: 100 * run["ranks"]["share"],
    "groups of several ways, %": lambda run: 100 * run["ranks"]["several"],
    "right rollouts replaced, a step": lambda run: _mean(run, "oger/replaced_correct"),
}
KS = (1, 4, 8, 32)  # of pass@k, as far as there are samples; pass@1 is avg
SHOWN_K = {"rivals_within_reach": 8}  # of the figure's pass@k; elsewhere it has avg
# The comparisons of each block, whose p-values are corrected together: regime, k of pass@k, two arms.
_IN, _OUT = "rivals_within_reach", "rivals_beyond_reach"
_STEPS = [
    *((f"{credit}_outcome", "outcome") for credit in ("min", "ahead", "sum")),
    *((f"{estimator}_outcome", f"{estimator}_rule") for estimator in ("appo", "tppo")),
]
_TEXT_PAIRS = (("luffy", "grpo"), ("oger", "luffy"), ("luffy", "luffy_one"))
COMPARED = {
    "A": [
        *((_IN, 8, "luffy", arm) for arm in ("grpo", "grpo_kl", "grpo_entropy", "grpo_low")),
        (_OUT, 1, "oger", "sft_grpo"),
    ],
    "A, continued": [
        (_IN, 8, "luffy_low", "grpo_low"), (_IN, 8, "luffy_clip", "grpo"),
        (_OUT, 1, "oger_low", "sft_grpo"), (_OUT, 1, "oger_clip", "oger"),
    ],
    "C": [(TEXT, 1, *pair) for pair in _TEXT_PAIRS],
    "C, pass@8, not registered": [(TEXT, 8, *pair) for pair in _TEXT_PAIRS],
    "E": [("fair_steps_beyond_reach", 1, *pair) for pair in _STEPS],
    "E, within reach, not registered": [("fair_steps_within_reach", 1, *pair) for pair in _STEPS],
}  # fmt: skip
_VARIANTS: dict[str, Line] = {"": "-", "_clip": "--", "_low": ":"}  # of an arm with teachers: one colour and marker
_LAST, _DRAWS = 2, 4000  # evaluations that count, and draws of a bootstrap


def record(folder: Path, regime: str, arm: str, seed: int) -> Record:
    """Return the line of one finished run: its evaluations, and on word problems as ``ranks`` what ``bonus_ranks``
    measures in its training."""
    line = counted(folder, regime, arm, seed, "right", _right)
    return line | ({"ranks": bonus_ranks(groups_of(folder, class_of))} if regime == TEXT else {})


def counted(
    folder: Path, regime: str, arm: str, seed: int, name: str, count: Callable[[list[Record]], list[Any]]
) -> Record:
    """Return a run's line of results, with what its evaluations counted.

    The entry ``name`` has, for each evaluation's step, what ``count`` returns for its answers: a value for every
    problem. The entry ``samples`` is how often each problem was answered.
    """
    line = arms.record(folder, regime, arm, seed, CURVES)
    del line["held_out"]
    answers = {int(path.stem[5:]): read_jsonl(path) for path in sorted((folder / "eval").glob("step_*.jsonl"))}
    values = {step: count(each) for step, each in answers.items()}
    (samples,) = {len(each) // len(values[step]) for step, each in answers.items()}
    return line | {"samples": samples, name: values}


def _right(answers: list[Record]) -> list[int]:
    """Return how many samples of each problem are right, problems in the order of their names."""
    ((uids, metrics),) = metrics_by_problem(answers).values()
    samples = len(answers) // len(uids)
    right: list[int] = np.rint(samples * metrics[f"avg_at_{samples}"]).astype(int).tolist()
    return right


def solved(record: Record, k: int, step: int | None = None) -> Floats:
    """Estimate pass@k of each problem, [problems]: the mean of the last two evaluations, or that of one step."""
    right = {int(number): counts for number, counts in record["right"].items()}
    steps = sorted(right)[-_LAST:] if step is None else [step]
    return np.mean([pass_at_k(_scores(right[each], record["samples"]), k) for each in steps], axis=0)


def _scores(right: Sequence[int], samples: int) -> Floats:
    return (np.arange(samples) < np.array(right)[:, None]).astype(float)


def over_both(name: str, *policies: Floats) -> tuple[float, float, float]:
    """Return the mean of values [seeds, problems] and its 95 % interval, by a bootstrap over seeds and problems.

    A draw takes as many seeds as there are, and as many problems, which are the same in all of its seeds. Several
    policies each have problems of their own, and count as often as they have seeds.
    """
    generator = np.random.default_rng(stable_seed(name))
    weights = np.array([len(values) for values in policies]) / sum(map(len, policies))
    means = np.zeros(_DRAWS)
    for weight, values in zip(weights, policies, strict=True):
        of_seeds, of_problems = (generator.integers(size, size=(_DRAWS, size)) for size in values.shape)
        means += [weight * values[rows][:, at].mean() for rows, at in zip(of_seeds, of_problems, strict=True)]
    ((low, high),) = interval(means[:, None])
    return float(sum(weight * values.mean() for weight, values in zip(weights, policies, strict=True))), low, high


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons (Holm 1979): the i-th least of m times m - i + 1, never falling."""
    least, corrected = 0.0, [0.0] * len(p_values)
    for place, index in enumerate(np.argsort(p_values)):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = least
    return corrected


def tables(records: list[Record]) -> str:
    """Write a table for each regime that has runs, and one of the comparisons."""
    parts = [table(records, regime) for regime in by_regime(records, REGIMES)]
    return "\n\n".join(text for text in (*parts, compared(records)) if text)


def table(records: list[Record], regime: str) -> str:
    """Write Markdown, one row an arm, in points."""
    by_arm = runs_by_arm(records, regime)
    samples = next(each["samples"] for each in records if each["regime"] == regime)
    ks = [k for k in KS if k <= samples]
    heads = [f"avg@{samples}", *(f"pass@{k}" for k in ks[1:])]
    further, further_cells = _further(regime)
    heads += ["entropy, end", *further]
    lines = [f"| {REGIMES[regime]} | seeds | {' | '.join(heads)} |", "|" + "---|" * (2 + len(heads))]
    for arm in (name for name in ARMS if name in by_arm):
        runs = list(by_arm[arm].values())
        cells = [said(f"{regime} {arm} {k}", np.array([solved(each, k) for each in runs])) for k in ks]
        ends = [np.mean(each["curves"]["rollout/entropy"][-10:]) for each in runs if each["curves"]["rollout/entropy"]]
        cells.append(f"{np.mean(ends):.3f}" if ends else "")
        cells += further_cells(runs)
        lines.append(f"| {ARMS[arm]} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _scores_steps(regime: str) -> bool:
    return regime.startswith("fair_steps")


def _further(regime: str) -> tuple[Iterable[str], Callable[[Sequence[Record]], list[str]]]:
    """Return the heads of the columns that only this kind of regime has, and the function that writes an arm's cells
    under them."""
    if _scores_steps(regime):
        return STEP_HEADS, step_cells
    if regime == TEXT:
        return TEXT_HEADS, _text_cells
    return (), lambda runs: []


def _text_cells(runs: Sequence[Record]) -> list[str]:
    """Write an arm's cells under ``TEXT_HEADS``: means over its runs; empty for the policy before training."""
    trained = [each for each in runs if each["steps"]]
    return [f"{np.mean([value(each) for each in trained]):.2g}" if trained else "" for value in TEXT_HEADS.values()]


def _mean(run: Record, curve: str) -> float:
    """Return a metric's mean over a run's steps; 0 where the run has none of it."""
    return float(np.mean(run["curves"][curve] or 0))


def overview(records: list[Record], k: int = 8) -> str:
    """Write avg and pass@k of every arm in every regime as Markdown, one row an arm, in points."""
    by_arm = {regime: runs_by_arm(runs, regime) for regime, runs in by_regime(records, REGIMES).items()}
    heads = [f"{REGIMES[regime]}: avg | pass@{k}" for regime in by_arm]
    lines = [f"| | {' | '.join(heads)} |", "|" + "---|" * (1 + 2 * len(by_arm))]
    for arm, name in ARMS.items():
        cells = []
        for regime, of_regime in by_arm.items():
            runs = list(of_regime[arm].values())
            cells += [said(f"{regime} {arm} {of}", np.array([solved(each, of) for each in runs])) if runs else ""
                      for of in (1, k)]  # fmt: skip
        if any(cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def said(name: str, *policies: Floats, form: str = "{:.1f}", unit: float = 100) -> str:
    """Write the mean and interval of values [seeds, problems], in points unless ``unit`` says otherwise."""
    return "{} [{}, {}]".format(*(form.format(unit * value) for value in over_both(name, *policies)))


def compared(records: list[Record]) -> str:
    """Write the comparisons of ``COMPARED`` as Markdown, a table for each entry that has runs.

    p is of a paired t-test over seeds, then corrected for all comparisons of the block that have runs.
    """
    from scipy import stats

    by_arm = {regime: runs_by_arm(records, regime) for regime in REGIMES}
    tables = []
    for pairs in COMPARED.values():
        rows, p_values = [], []
        for regime, k, first, second in pairs:
            differences = _differences(by_arm[regime][first], by_arm[regime][second], k)
            if len(differences) < 2:
                continue
            named = f"{REGIMES[regime]}, {f'pass@{k}' if k > 1 else 'avg'}: {ARMS[first]} less {ARMS[second]}"
            rows.append((named, len(differences), said(named, differences, form="{:+.1f}")))
            p_values.append(float(stats.ttest_1samp(differences.mean(axis=1), 0.0).pvalue))
        tables.append(comparisons("| comparison | seeds", rows, p_values))
    return "\n\n".join(filter(None, tables))


def comparisons(head: str, rows: list[tuple[str, int, str]], p_values: list[float]) -> str:
    """Write a Markdown table of comparisons: what is compared, how many pairs of runs, their difference, and the
    p-value as it is and corrected over all rows. ``head`` names the first two columns."""
    if not rows:
        return ""
    lines = [f"{head} | difference | p | p, corrected |", "|" + "---|" * 5]
    for (named, pairs, difference), p, corrected in zip(rows, p_values, holm(p_values), strict=True):
        lines.append(f"| {named} | {pairs} | {difference} | {p:.2g} | {corrected:.2g} |")
    return "\n".join(lines)


def _differences(runs: Mapping[int, Record], others: Mapping[int, Record], k: int) -> Floats:
    """Return how far the first's pass@k is above the second's, [seeds that both have, problems]."""
    both = sorted(runs.keys() & others.keys())
    return np.array([solved(runs[seed], k) - solved(others[seed], k) for seed in both])


def draw(records: list[Record], path: Path) -> None:
    """Draw, for every regime, the arms' pass@8 or avg, and pass@8 against avg over the evaluations of training.

    Where steps earn rewards the second panel has the length of responses instead, which shows how a reward is hacked.
    """
    regimes = by_regime(records, REGIMES)
    figure = Figure(figsize=(13, 1.0 + 4.2 * len(regimes)), layout="constrained")
    panels = figure.subplots(len(regimes), 2, squeeze=False)
    drawn = {each["arm"] for each in records}
    looks = _looks(drawn)
    name_arms(figure, ARMS, {arm: looks[arm] for arm in ARMS if arm in drawn})
    for (scores, training), (regime, runs) in zip(panels, regimes.items(), strict=True):
        by_arm = runs_by_arm(runs, regime)
        k = SHOWN_K.get(regime, 1)
        score = f"pass@{k}" if k > 1 else f"avg@{runs[0]['samples']}"
        of_arms = {
            arm: [float(solved(each, k).mean()) for each in by_arm[arm].values()] for arm in ARMS if arm in by_arm
        }
        draw_scores(scores, of_arms, ARMS, looks, f"{REGIMES[regime]}: held-out {score}, %")
        if _scores_steps(regime):
            _draw_lengths(training, by_arm, looks)
            dress(training, f"{REGIMES[regime]}: length of responses in training, tokens", legend=False)
        else:
            _draw_while_training(training, by_arm, looks)
            training.set_title(f"{REGIMES[regime]}: pass@8 against avg while training, %", loc="left", fontsize=9.5)
    save(figure, path, note="small dots: seeds; bars: 95 % intervals over them; lines: means over seeds")


def _looks(drawn: Collection[str]) -> dict[str, Style]:
    """Return colour, marker and line of every arm that is drawn.

    LUFFY and OGER with clipping, or at a lower rate, differ from LUFFY and OGER in the line alone.
    """
    variants = {f"{base}{end}": (base, line) for base in ("luffy", "oger") for end, line in _VARIANTS.items()}
    bases = [arm for arm in ARMS if arm in drawn and variants.get(arm, (arm,))[0] == arm and arm != "start"]
    looks = styles(bases) | {"start": START}
    return looks | {arm: replace(looks[base], line=line) for arm, (base, line) in variants.items() if arm in drawn}


def _draw_lengths(panel: Axes, by_arm: Mapping[str, Mapping[int, Record]], looks: Mapping[str, Style]) -> None:
    for arm in (name for name in ARMS if name in by_arm and name != "start"):
        lengths = [each["curves"]["rollout/response_length"] for each in by_arm[arm].values()]
        draw_curve(panel, lengths, looks[arm], banded=True)
    from_zero(panel)


def _draw_while_training(panel: Axes, by_arm: Mapping[str, Mapping[int, Record]], looks: Mapping[str, Style]) -> None:
    def mean(runs: Mapping[int, Record], k: int, step: int) -> float:
        return 100 * float(np.mean([solved(each, k, step).mean() for each in runs.values()]))

    begin = by_arm.get("start")
    for arm in (name for name in ARMS if name in by_arm):
        runs, look = by_arm[arm], looks[arm]
        steps = sorted({int(step) for each in runs.values() for step in each["right"]})
        points = [(mean(begin, 1, 0), mean(begin, 8, 0))] if begin and arm != "start" else []
        points += [(mean(runs, 1, step), mean(runs, 8, step)) for step in steps]
        x, y = zip(*points, strict=True)
        panel.plot(x, y, color=look.colour, linestyle=look.line, marker=look.marker, markersize=5)
    bare(panel)
    panel.set_xlabel("avg, %", fontsize=8)


if __name__ == "__main__":
    run(sys.argv[1:], record, tables, draw)
