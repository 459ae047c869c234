"""A process reward model on labelled steps: it is asked as in a run, and its scores are held against the labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.machine import where_named
from oger_recipe.checks.settings import loaded_for, require_loadable
from oger_recipe.data.labelled_steps import Solution, is_apart
from oger_recipe.evaluation.prm_metrics import best_threshold, first_error, reliability, rivals, solution_metrics
from oger_recipe.evaluation.tables import aligned
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.offline.shared import Metered, Settings, asking, spec_of
from oger_recipe.rewards.sources import Group
from oger_recipe.rewards.spec import SourceSpec

# What an evaluation reads are scores of steps: each step's own, as a probability where it is one.
_PLAIN = {"credit": "sum", "scale": "probability"}
_BY_THRESHOLD = ("accuracy_erroneous", "accuracy_correct", "f1", "step_accuracy")
Metrics = dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """Solutions with the scores of their steps; None: there are none, and errors says why (row -> reason).

    probabilities: scores say how likely a step is good; otherwise they are rewards, of which 0 says neither.
    """

    solutions: Sequence[Solution]
    scores: list[list[float] | None]
    errors: Mapping[int, str]
    probabilities: bool = True
    asked: int = 0  # replies that were not kept from before
    seconds: float = 0.0  # that they took
    loading_s: float = 0.0

    def of(self, rows: Sequence[int]) -> Scored:
        """Select rows; the work stays that of all."""
        errors = {place: self.errors[row] for place, row in enumerate(rows) if row in self.errors}
        return replace(
            self,
            solutions=[self.solutions[row] for row in rows],
            scores=[self.scores[row] for row in rows],
            errors=errors,
        )

    def without(self, rows: Collection[int]) -> Scored:
        return self.of([row for row in range(len(self.solutions)) if row not in rows])

    def metrics(self, threshold: float, name: str = "") -> Metrics:
        """Compute the metrics, nan where there is nothing. threshold: nan where nobody has given or chosen one."""
        found = solution_metrics(
            [each.labels for each in self.solutions],
            self.scores,
            [each.question for each in self.solutions],
            threshold,
            seed=name,
        )
        if not self.probabilities:
            found["calibration_error"] = math.nan
        if math.isnan(threshold):
            found |= dict.fromkeys(_BY_THRESHOLD, math.nan) | {"intervals": {}}
        return found


def prm_of(entry: Mapping[str, Any], value: Settings) -> SourceSpec:
    """Read an entry of oger.reward.sources. Raises RecipeError for one that is wrong or scores no steps."""
    spec = spec_of(entry, value, "PRM")
    if not spec.keys.reads_steps and not spec.keys.is_own:
        raise RecipeError(f"{spec.name} is of kind {spec.kind}, which scores no steps: use kind process")
    if spec.keys.learns:
        raise RecipeError(
            f"{spec.name} would learn from the labelled solutions, which are not rollouts: leave learning_rate out"
        )
    return spec


def gives_rewards(spec: SourceSpec) -> bool:
    """Say whether scores are rewards, by a key of the entry; a user's own source shows it by its scores."""
    return spec.keys.gives_rewards


def scored(spec: SourceSpec, solutions: Sequence[Solution], value: Settings) -> Scored:
    """Ask the PRM about all solutions at once. Raises RecipeError for a model that cannot be loaded."""
    models = spec.keys.models
    require_loadable(value, (each for keys in models for each in loaded_for(where_named(spec.name), keys)))
    meters: list[Metered] = []
    with asking(value, models, meters) as surroundings:
        source = _plain(spec).source(surroundings)
        said = source.score([_group(each) for each in solutions], torch.ones(len(solutions), 1, dtype=torch.bool))
    errors = {row: why for (row, _), why in said.errors.items()}
    scores: list[list[float] | None] = []
    for row, solution in enumerate(solutions):
        of_row = [] if said.steps is None or row in errors else said.steps[row, 0, : len(solution.steps)].tolist()
        there = len(of_row) == len(solution.steps) and all(map(math.isfinite, of_row))
        if not there:
            errors.setdefault(row, "some of its steps have no score")
        scores.append(of_row if there else None)
    within = all(0 <= each <= 1 for of_row in scores for each in of_row or ())
    return Scored(
        solutions,
        scores,
        errors,
        within and not gives_rewards(spec),
        max((len(each.replies) for each in meters), default=0),
        sum(each.seconds for each in meters),
        sum(each.loading_s for each in meters),
    )


def _plain(spec: SourceSpec) -> SourceSpec:
    given = {name: value for name, value in _PLAIN.items() if hasattr(spec.keys, name)}
    return replace(spec, keys=replace(spec.keys, **given)) if given else spec


def _group(solution: Solution) -> Group:
    """Turn a solution into a group of one row, which no verifier has seen."""
    return Group(
        uid=solution.name,
        prompt="",  # no policy has read it
        question=solution.question,
        task="",
        answer="",
        row={},
        teachers=[],
        responses=["\n\n".join(solution.steps)],
        graded=[Graded(Verdict(0.0, 0.0, ""))],
        is_teacher=[False],
        truncated=[False],
        may_earn=[False],
        similarity=[math.nan],
        entropy=[math.nan],
        steps=[list(solution.steps)],
    )


def tuning_rows(solutions: Sequence[Solution], tune: float | None, seed: int) -> set[int]:
    """Return the rows of a share of the problems, to choose the threshold on; figures are of the others."""
    if tune is None:
        return set()
    rows = {row for row, each in enumerate(solutions) if is_apart(each, tune, seed, "threshold")}
    if not 0 < len(rows) < len(solutions):
        raise RecipeError(f"--tune {tune} leaves one part of {len(solutions)} solutions empty: give another share")
    return rows


def result(found: Scored, threshold: float | None, tuned: Collection[int]) -> dict[str, Any]:
    """Return all figures: of all solutions, per subset, per generator, of rules that read nothing, and the work.

    threshold: None for the middle of the scale. tuned: rows on which it is chosen, by the greatest F1, and which are
    in no figures.
    """
    if threshold is None:
        threshold = 0.5 if found.probabilities else 0.0
    scores_of = rivals([each.steps for each in found.solutions])
    compared = {
        name: replace(found, scores=list(scores), errors={}, probabilities=False) for name, scores in scores_of.items()
    }
    threshold = _chosen(found.of([*tuned])) if tuned else threshold
    shown = found.without(tuned)
    steps = sum(len(each.steps) for each in found.solutions)
    return {
        "threshold": threshold,
        "tuned_on": len(tuned),
        "all": shown.metrics(threshold, "all"),
        "subsets": _by(shown, threshold, lambda each: each.subset),
        "generators": _by(shown, threshold, lambda each: each.generator),
        "rivals": {
            name: each.without(tuned).metrics(_chosen(each.of([*tuned])) if tuned else math.nan, name)
            for name, each in compared.items()
        },
        "steps_per_second": steps / found.seconds if found.asked == len(found.solutions) else math.nan,
        "loading_s": found.loading_s,
    }


def _by(found: Scored, threshold: float, part_of: Callable[[Solution], str]) -> dict[str, Metrics]:
    """Return the metrics of each part that is named; none where there is only one."""
    parts: dict[str, list[int]] = {}
    for row, each in enumerate(found.solutions):
        parts.setdefault(part_of(each), []).append(row)
    named = sorted(name for name in parts if name)
    return {name: found.of(parts[name]).metrics(threshold, name) for name in named} if len(parts) > 1 else {}


def _chosen(found: Scored) -> float:
    known = [
        (error, scores)
        for each, scores in zip(found.solutions, found.scores, strict=True)
        if scores is not None and (error := first_error(each.labels)) is not None
    ]
    if not known:
        raise RecipeError("cannot choose a threshold: no solution of --tune has both scores and labels")
    return best_threshold([error for error, _ in known], [scores for _, scores in known])


def report(found: Scored, figures: Mapping[str, Any]) -> str:
    """Format the figures as a table, with notes below it."""
    rows = {"all": figures["all"]} | {f"  {name}": each for name, each in figures["subsets"].items()}
    rows |= {f"  by {name}": each for name, each in figures["generators"].items()}
    header = ["", "solutions", "erroneous", "found", "correct seen", "F1", "AUC of steps", "step accuracy",
              "calibration error"]  # fmt: skip
    lines = [header, *(_line(name, each) for name, each in rows.items())]
    lines += [_line(f"rule: {name}", each) for name, each in figures["rivals"].items()]
    how = f"chosen by the F1 of {figures['tuned_on']} other solutions" if figures["tuned_on"] else "given"
    notes = [
        f"threshold {figures['threshold']:.4g}, {how}; a step whose score is below it is bad",
        "found: share of erroneous solutions whose first bad step is predicted; correct seen: share of correct "
        "solutions without a predicted bad step; F1: their harmonic mean, with its 95 % interval over the problems",
    ]
    if not found.probabilities:
        notes.append("scores are rewards, not probabilities: they have no calibration")
    if len(figures["subsets"]) > 1:
        mean = sum(each["f1"] for each in figures["subsets"].values()) / len(figures["subsets"])
        notes.append(f"mean F1 of the {len(figures['subsets'])} subsets: {100 * mean:.1f}")
    if not math.isnan(figures["steps_per_second"]):
        notes.append(f"{figures['steps_per_second']:.1f} steps/s after {figures['loading_s']:.1f} s of loading")
    if found.errors:
        row, why = min(found.errors.items())
        notes.append(f"{len(found.errors)} solutions have no scores, the first {found.solutions[row].name}: {why}")
    return "\n".join([aligned(lines), "", *notes])


def _line(name: str, metrics: Metrics) -> list[str]:
    interval = ", ".join(map(_percent, metrics["intervals"].get("f1", [])))
    f1 = f"{_percent(metrics['f1'])} [{interval}]" if interval else "-"
    return [
        name,
        str(metrics["solutions"]),
        str(metrics["erroneous"]),
        _percent(metrics["accuracy_erroneous"]),
        _percent(metrics["accuracy_correct"]),
        f1,
        _three(metrics["auc"]),
        _percent(metrics["step_accuracy"]),
        _three(metrics["calibration_error"]),
    ]


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def _three(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.3f}"


def cases(found: Scored, tuned: Collection[int]) -> list[dict[str, Any]]:
    """List every solution with its labels and scores, as the file of results has it; tuned: rows on which the
    threshold was chosen."""
    return [
        {"solution": each.name, "labels": list(each.labels), "scores": scores, "tuned": row in tuned}
        | ({"error": found.errors[row]} if row in found.errors else {})
        for row, (each, scores) in enumerate(zip(found.solutions, found.scores, strict=True))
    ]


def dead(found: Scored) -> str | None:
    """Say how the PRM failed on every solution; None where one has scores."""
    count = len(found.solutions)
    if not count or len(found.errors) < count:
        return None
    return f"the PRM failed on all {count} solutions, first with: {found.errors[0]}"


def picture(found: Scored, path: Path) -> None:
    """Plot the share of good steps by their score; calibrated scores lie on the diagonal."""
    import matplotlib.pyplot as plt

    steps = [
        (label, score)
        for each, scores in zip(found.solutions, found.scores, strict=True)
        for label, score in zip(each.labels, scores or [math.nan] * len(each.labels), strict=True)
        if label is not None and math.isfinite(score)
    ]
    bins = reliability([label for label, _ in steps], [score for _, score in steps])
    figure, axes = plt.subplots(figsize=(4, 4), layout="constrained")
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    axes.scatter([score for score, *_ in bins], [share for _, share, _ in bins],
                 s=[10 + 200 * count / max(len(steps), 1) for *_, count in bins])  # fmt: skip
    axes.set(xlabel="score of steps, mean of a tenth", ylabel="share of good steps", xlim=(0, 1), ylim=(0, 1))
    figure.savefig(path, dpi=150)
    plt.close(figure)
