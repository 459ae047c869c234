"""avg@n, pass@k and maj@k on 0/1 scores, distinct@k on classes of solutions, with bootstrap intervals over problems.

Numbers of two evaluations compare only under the same sampling settings, prompt and grader. Papers of this field
report avg@n at temperature 0.6: avg@32 on AIME and AMC, whose few problems leave wide intervals, and often avg@1 on
larger sets; all of them estimate the same expectation. The average gives every benchmark the same weight.

Scores are [problems, n]: one row a problem, one column a sample.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oger_recipe.base.seeds import stable_seed

Floats = NDArray[np.float64]
Record = dict[str, Any]

RESAMPLES = 10_000
_CHUNK = 4_000_000  # problems drawn at once by the bootstrap: bounds its memory to some tens of MB


def powers_up_to(n: int) -> list[int]:
    """Return the k of the curves: 1, 2, 4, ... below n, and n."""
    return [2**power for power in range(n.bit_length()) if 2**power < n] + [n]


def avg_at_n(scores: Floats) -> Floats:
    """Return the share of right samples: [problems, n] -> [problems]."""
    return scores.mean(axis=1)


def pass_at_k(scores: Floats, k: int) -> Floats:
    """Estimate, without bias, the chance that one of k samples is right: scores [problems, n] -> [problems].

    1 - C(n-c, k) / C(n, k), where c of n samples are right (Chen et al., arXiv 2107.03374, equation 1). Raises
    ValueError unless 1 <= k <= n.
    """
    n = scores.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} samples a problem and k of 1 or more, found n = {n}")
    by_right = np.array([1 - math.comb(n - right, k) / math.comb(n, k) for right in range(n + 1)])
    return by_right[np.rint(scores.sum(axis=1)).astype(int)]


def maj_at_k(extracted: Sequence[Sequence[str | None]], scores: Floats, k: int) -> Floats:
    """Return the score of the most frequent answer of k samples: [problems, n] -> [problems].

    It is the mean over the n // k consecutive blocks of k. Samples without an answer do not vote. Several most
    frequent answers count in equal parts, so the order within a block does not matter. Raises ValueError unless 1 <= k
    <= n.
    """
    n = scores.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} needs at least {k} samples a problem and k of 1 or more, found n = {n}")
    starts = range(0, n - k + 1, k)
    rows = zip(extracted, scores, strict=True)
    return np.array(
        [np.mean([_majority(row[at : at + k], score[at : at + k]) for at in starts]) for row, score in rows]
    )


def _majority(answers: Sequence[str | None], scores: Floats) -> float:
    votes = Counter(answer for answer in answers if answer is not None)
    most = max(votes.values(), default=0)
    winners = [answer for answer, count in votes.items() if count == most]
    by_answer: dict[str | None, list[float]] = defaultdict(list)
    for answer, score in zip(answers, scores, strict=True):
        by_answer[answer].append(float(score))
    return float(np.mean([np.mean(by_answer[answer]) for answer in winners])) if winners else 0.0


def distinct_at_k(solutions: Sequence[Sequence[str | None]], k: int) -> Floats:
    """Estimate, without bias, how many different right solutions k samples have: [problems][n] -> [problems].

    The sum over classes of 1 - C(n-s, k) / C(n, k), where s of the n samples are of the class: its chance to be among
    k drawn without replacement. None is no right solution. Raises ValueError unless 1 <= k <= n.
    """
    n = min(map(len, solutions), default=k)
    if not 1 <= k <= n:
        raise ValueError(f"distinct@{k} needs at least {k} samples a problem and k of 1 or more, found n = {n}")
    return np.array([sum(_chances(row, k)) for row in solutions], dtype=np.float64)


def _chances(solutions: Sequence[str | None], k: int) -> Iterator[float]:
    """Yield for each class the chance that k samples hold it."""
    n = len(solutions)
    for size in Counter(each for each in solutions if each is not None).values():
        yield 1 - math.comb(n - size, k) / math.comb(n, k)


def bootstrap_means(values: Floats, seed: int, resamples: int = RESAMPLES) -> Floats:
    """Average over problems drawn with replacement: values [problems, m] -> [resamples, m]."""
    problems = len(values)
    generator = np.random.default_rng(seed)
    rows = max(1, min(resamples, _CHUNK // problems))
    means = []
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn = generator.integers(0, problems, size=(count, problems), dtype=np.int32)
        drawn += np.arange(count, dtype=np.int32)[:, None] * problems
        times = np.bincount(drawn.ravel(), minlength=count * problems).reshape(count, problems)
        means.append(times.astype(np.float64) @ values / problems)
    return np.concatenate(means)


def interval(means: Floats) -> list[list[float]]:
    """Return the 95 % percentile intervals of bootstrapped means [resamples, m], as m pairs."""
    return np.percentile(means, [2.5, 97.5], axis=0).T.tolist()


def evaluate_answers(records: Sequence[Record]) -> dict[str, Any]:
    """Compute all metrics of an evaluation: ``{"benchmarks": {name: metrics}, "average": metrics}``.

    records: one for each sampled answer, in any order, with the keys uid, benchmark, sample (0 to n-1), score,
    extracted, format, response_length (tokens), truncated and graded, and solution where the verifier says one.
    Metrics: problems, n, avg_at_<n>, pass_at_<k>, maj_at_<k>, distinct_at_<k>, each with its ``_interval`` [low,
    high]; the means response_length, truncated and format; the counts ungraded (answers that count as wrong because
    their grader failed) and no_room (problems whose prompt left no room for an answer: they have empty, truncated
    answers). maj@k is left out where right answers come without an extracted form, as no votes can be counted then;
    distinct@k unless all right answers, and at least one, have a solution. The average is the unweighted mean over
    benchmarks of the metrics that all of them have; where their n differ, its avg_at_n is the mean of each one's own.

    Raises ValueError for no records, and for problems of one benchmark with different numbers of samples.
    """
    if not records:
        raise ValueError("no answers to evaluate")
    metrics: dict[str, dict[str, Any]] = {}
    means: dict[str, dict[str, Floats]] = {}
    for name, problems in _by_benchmark(records).items():
        metrics[name], means[name] = _benchmark(name, problems)
    return {"benchmarks": metrics, "average": _average(list(metrics.values()), list(means.values()))}


def metrics_by_problem(records: Sequence[Record]) -> dict[str, tuple[list[str], dict[str, Floats]]]:
    """Return for each benchmark the uids of its problems, sorted, and each metric's value for each of them.

    records: as for `evaluate_answers`, of which uid, benchmark, sample, score, extracted and solution are read. Raises
    ValueError for problems of one benchmark with different numbers of samples.
    """
    return {
        name: ([answers[0]["uid"] for answers in problems], _curves(problems, _scores(problems)))
        for name, problems in _by_benchmark(records).items()
    }


def _by_benchmark(records: Sequence[Record]) -> dict[str, list[list[Record]]]:
    by_benchmark: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_benchmark[record["benchmark"]].append(record)
    return {name: _problems(name, answers) for name, answers in by_benchmark.items()}


def _problems(name: str, records: list[Record]) -> list[list[Record]]:
    """Group the answers by problem, sorted by uid and sample: no metric depends on the order of the records."""
    by_uid: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_uid[record["uid"]].append(record)
    problems = [sorted(by_uid[uid], key=lambda record: record["sample"]) for uid in sorted(by_uid)]
    for problem in problems:
        numbers = [record["sample"] for record in problem]
        if numbers != list(range(len(problems[0]))):
            raise ValueError(
                f"{name}: problem {problem[0]['uid']!r} has the samples {numbers}, others have {len(problems[0])}"
            )
    return problems


def _benchmark(name: str, problems: list[list[Record]]) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Return a benchmark's metrics, and the bootstrapped means of those with an interval."""
    answers = [record for problem in problems for record in problem]
    scores = _scores(problems)
    curves = _curves(problems, scores)
    values = np.stack(list(curves.values()), axis=1)
    means = bootstrap_means(values, stable_seed("bootstrap", name))
    metrics: dict[str, Any] = {"problems": len(problems), "n": scores.shape[1]}
    for key, value, pair in zip(curves, values.mean(axis=0), interval(means), strict=True):
        metrics |= {key: float(value), f"{key}_interval": pair}
    for key in ("response_length", "truncated", "format"):
        metrics[key] = float(np.mean([float(record[key]) for record in answers]))
    metrics["ungraded"] = sum(not record["graded"] for record in answers)
    metrics["no_room"] = sum(record["truncated"] and not record["response_length"] for record, *_ in problems)
    return metrics, dict(zip(curves, means.T, strict=True))


def _scores(problems: list[list[Record]]) -> Floats:
    return np.array([[float(record["score"]) for record in problem] for problem in problems])


def _curves(problems: list[list[Record]], scores: Floats) -> dict[str, Floats]:
    """Return every metric's value for each problem, [problems]."""
    n = scores.shape[1]
    curves = {f"avg_at_{n}": avg_at_n(scores)}
    curves |= {f"pass_at_{k}": pass_at_k(scores, k) for k in powers_up_to(n)}
    if all(record["extracted"] is not None for problem in problems for record in problem if record["score"]):
        extracted = [[record["extracted"] for record in problem] for problem in problems]
        curves |= {f"maj_at_{k}": maj_at_k(extracted, scores, k) for k in powers_up_to(n) if k > 1}
    solutions = [[record.get("solution") if record["score"] else None for record in problem] for problem in problems]
    if scores.any() and sum(each is not None for row in solutions for each in row) == np.count_nonzero(scores):
        curves |= {f"distinct_at_{k}": distinct_at_k(solutions, k) for k in powers_up_to(n) if k > 1}
    return curves


def _average(metrics: list[dict[str, Any]], means: list[dict[str, Floats]]) -> dict[str, Any]:
    """Average over benchmarks; resample problems within each."""
    average: dict[str, Any] = {"problems": sum(each["problems"] for each in metrics)}
    if len({each["n"] for each in metrics}) == 1:
        average["n"] = metrics[0]["n"]
    for key in means[0]:
        if all(key in each for each in means):
            average[key] = float(np.mean([each[key] for each in metrics]))
            [average[f"{key}_interval"]] = interval(np.mean([each[key] for each in means], axis=0)[:, None])
    if "n" not in average:  # each benchmark's avg@n, whatever its n: pass@1 is the same number
        average |= {f"avg_at_n{suffix}": average[f"pass_at_1{suffix}"] for suffix in ("", "_interval")}
    for key in ("response_length", "truncated", "format"):
        average[key] = float(np.mean([each[key] for each in metrics]))
    return average | {key: sum(each[key] for each in metrics) for key in ("ungraded", "no_room")}
