"""How good a process reward model is: its scores of steps of reasoning against labels, by agreed definitions.

A label of a step is 1 (good), 0 (bad) or None (nobody said); a share above 0, as rollouts from a step give it, counts
as good. A score says how likely the step is good. ProcessBench (arXiv 2412.06559) asks for the first bad step of a
solution: its index from 0, or -1 where all steps are good. nan stands where nothing can be said.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oger_recipe.base.seeds import stable_seed
from oger_recipe.data.labelled_steps import Label
from oger_recipe.evaluation.metrics import bootstrap_means, interval
from oger_recipe.evaluation.scores import auc

Floats = NDArray[np.float64]
NO_ERROR = -1
BINS = 10  # of a reliability diagram
_NAMES = ("accuracy_erroneous", "accuracy_correct", "f1")


def first_error(labels: Sequence[Label]) -> int | None:
    """Return the index of the first bad step, NO_ERROR where every step is good, and None where a step before it has
    no label, so that nobody can tell."""
    for index, label in enumerate(labels):
        if not label:
            return None if label is None else index
    return NO_ERROR


def predicted_error(scores: Sequence[float], threshold: float) -> int:
    """Return the index of the first step whose score is below the threshold, or NO_ERROR."""
    return next((index for index, score in enumerate(scores) if score < threshold), NO_ERROR)


def harmonic_mean(one: float, other: float) -> float:
    return 2 * one * other / (one + other) if one + other else 0.0


def processbench(errors: Sequence[int], predicted: Sequence[int | None]) -> dict[str, float]:
    """Return the accuracy on solutions with an error (its index is found), the accuracy on solutions without one (none
    is found), and f1, their harmonic mean. predicted: None for a solution without scores, which counts as wrong."""
    right = [error == found for error, found in zip(errors, predicted, strict=True)]
    erroneous = [each for each, error in zip(right, errors, strict=True) if error != NO_ERROR]
    correct = [each for each, error in zip(right, errors, strict=True) if error == NO_ERROR]
    accuracies = [sum(each) / len(each) if each else math.nan for each in (erroneous, correct)]
    return dict(zip(_NAMES, [*accuracies, harmonic_mean(*accuracies)], strict=True))


def processbench_intervals(
    errors: Sequence[int], predicted: Sequence[int | None], problems: Sequence[Hashable], seed: int
) -> dict[str, list[float]]:
    """Return 95 % bootstrap intervals of what `processbench` returns. problems: whose solution each is; all solutions
    of a problem are drawn together."""
    place = {problem: number for number, problem in enumerate(dict.fromkeys(problems))}
    counts = np.zeros((len(place), 4))
    for error, found, problem in zip(errors, predicted, problems, strict=True):
        kind = 0 if error != NO_ERROR else 2
        counts[place[problem], kind] += error == found
        counts[place[problem], kind + 1] += 1
    if not place:
        return {}
    means = bootstrap_means(counts, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        erroneous, correct = means[:, 0] / means[:, 1], means[:, 2] / means[:, 3]
        f1 = np.where(erroneous + correct == 0, 0.0, 2 * erroneous * correct / (erroneous + correct))
    # A resample without solutions of a kind has no accuracy of that kind.
    drawn = [each[np.isfinite(each)] for each in (erroneous, correct, f1)]
    pairs = [interval(each[:, None])[0] if len(each) else [math.nan, math.nan] for each in drawn]
    return dict(zip(_NAMES, pairs, strict=True))


def best_threshold(errors: Sequence[int], scores: Sequence[Sequence[float]]) -> float:
    """Find the threshold with the greatest f1, between two scores or at the lowest; of equals the lowest."""
    known = np.unique(np.concatenate([np.asarray(each, dtype=float) for each in scores]))
    # The first error is where the least score so far falls below the threshold.
    lowest = [np.minimum.accumulate(np.asarray(each, dtype=float)) for each in scores]
    between = np.concatenate([[known[0]], (known[1:] + known[:-1]) / 2])
    found = [_values_of(errors, lowest, threshold) for threshold in between]
    return float(between[int(np.argmax(found))])


def _values_of(errors: Sequence[int], lowest: Sequence[Floats], threshold: float) -> float:
    predicted = [NO_ERROR if each[-1] >= threshold else int(np.argmax(each < threshold)) for each in lowest]
    return processbench(errors, predicted)["f1"]


def labelled_step_metrics(labels: Sequence[float], scores: Sequence[float], threshold: float) -> dict[str, float]:
    """Compare the scores of labelled steps with their labels: step_accuracy, the share of steps on the right side of
    the threshold; auc; and calibration_error (see `reliability`)."""
    good = [float(label > 0) for label in labels]
    right = sum((score >= threshold) == bool(label) for label, score in zip(good, scores, strict=True))
    return {
        "steps": len(good),
        "bad_steps": good.count(0.0),
        "step_accuracy": right / len(good) if good else math.nan,
        "auc": auc(good, scores),
        "calibration_error": calibration_error(reliability(good, scores)),
    }


def reliability(labels: Sequence[float], scores: Sequence[float], bins: int = BINS) -> list[tuple[float, float, int]]:
    """Sort steps by score into bins of equal width between 0 and 1. Return the mean score, the share of good steps and
    the number of steps of each bin that is not empty."""
    values, good = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float) > 0
    bin_of = np.clip((values * bins).astype(int), 0, bins - 1)
    return [
        (float(values[of].mean()), float(good[of].mean()), int(of.sum()))
        for of in (bin_of == number for number in range(bins))
        if of.any()
    ]


def calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """Return the expected calibration error: the distance of a bin's mean score from its share of good steps, weighted
    by its steps."""
    total = sum(count for *_, count in bins)
    return sum(count * abs(score - share) for score, share, count in bins) / total if total else math.nan


def solution_metrics(
    labels: Sequence[Sequence[Label]],
    scores: Sequence[Sequence[float] | None],
    problems: Sequence[Hashable],
    threshold: float,
    *,
    seed: str = "",
) -> dict[str, Any]:
    """Compute all metrics of solutions. scores: None where the model gave none, which counts as wrong in f1 and is
    left out of the metrics of steps. Solutions whose first error nobody can tell are left out of f1.

    ``intervals`` holds those of f1 and its two accuracies.
    """
    told = [row for row, each in enumerate(labels) if first_error(each) is not None]
    errors = [error for each in labels if (error := first_error(each)) is not None]
    predicted = [None if (each := scores[row]) is None else predicted_error(each, threshold) for row in told]
    steps = [
        (label, score)
        for of_labels, of_scores in zip(labels, scores, strict=True)
        if of_scores is not None
        for label, score in zip(of_labels, of_scores, strict=True)
        if label is not None
    ]
    intervals = processbench_intervals(errors, predicted, [problems[row] for row in told], stable_seed("prm", seed))
    return {
        "solutions": len(errors),
        "erroneous": sum(error != NO_ERROR for error in errors),
        "without_scores": sum(each is None for each in scores),
        **processbench(errors, predicted),
        "intervals": intervals,
        **labelled_step_metrics([label for label, _ in steps], [score for _, score in steps], threshold),
    }


def rivals(texts: Sequence[Sequence[str]]) -> dict[str, list[list[float]]]:
    """Score solutions by rules that read nothing, by name of the rule: a model has to be better than these."""
    return {
        "short steps good": [[1 / (1 + len(step)) for step in steps] for steps in texts],
        "early steps good": [[1 / (1 + index) for index in range(len(steps))] for steps in texts],
    }
