"""Compares runs by their last evaluations: differences with intervals, paired where the problems are the same."""

from collections.abc import Sequence
from itertools import combinations, count
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from oger_recipe.base.seeds import stable_seed
from oger_recipe.evaluation.metrics import Floats, bootstrap_means, interval
from oger_recipe.report.page.problems import Scores, read_scores

Record = dict[str, Any]


def names_of(run_dirs: Sequence[Path]) -> list[str]:
    """Name runs by their folders, with as many of the folders above as it takes to tell them apart.

    scripts/sweep.sh writes a value with a slash as a folder's name by quoting it.
    """
    paths = [run_dir.resolve() for run_dir in run_dirs]
    most = max(len(path.parts) for path in paths)
    for length in range(1, most + 1):
        names = [unquote("/".join(path.parts[-length:])) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    seen: dict[str, count[int]] = {}
    times = [next(seen.setdefault(name, count(1))) for name in names]
    return [name if time == 1 else f"{name} ({time})" for name, time in zip(names, times, strict=True)]


def comparisons(run_dirs: Sequence[Path], last: Sequence[int | None]) -> list[Record]:
    """Compare each pair of runs. ``last``: the step of each one's last evaluation, None of a run that has none."""
    if len(run_dirs) < 2:
        return []
    runs = [{} if step is None else read_scores(run_dir, step) for run_dir, step in zip(run_dirs, last, strict=True)]
    benchmarks = dict.fromkeys(name for scores in runs for name in scores)
    return [row for name in benchmarks for row in _benchmark(name, [scores.get(name) for scores in runs])]


def _benchmark(name: str, runs: Sequence[Scores | None]) -> list[Record]:
    """Compare the runs that were evaluated on a benchmark.

    Runs whose problems are the same are resampled by the same draws, so the difference of their means is that of a
    paired bootstrap.
    """
    there = {number: scores for number, scores in enumerate(runs) if scores is not None}
    means = {number: _resampled(name, scores) for number, scores in there.items()}
    rows = []
    for i, j in combinations(there, 2):
        first, second = there[i], there[j]
        paired = first.problems == second.problems
        others = means[j] if paired else _resampled(f"{name}, other problems", second)
        for metric in [metric for metric in first.metrics if metric in second.metrics]:
            [low_high] = interval((others[metric] - means[i][metric])[:, None])
            difference = float(second.metrics[metric].mean() - first.metrics[metric].mean())
            problems = min(len(first.problems), len(second.problems))
            rows.append({"runs": [i, j], "benchmark": name, "metric": metric, "difference": difference,
                         "interval": low_high, "paired": paired, "problems": problems})  # fmt: skip
    return rows


def _resampled(seed: str, scores: Scores) -> dict[str, Floats]:
    """Return by metric the means over problems drawn with replacement."""
    names = list(scores.metrics)
    return dict(zip(names, bootstrap_means(scores.stacked(names), stable_seed("bootstrap", seed)).T, strict=True))
