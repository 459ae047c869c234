"""The evaluated problems of a run: their answers before and after, and their scores for comparisons."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oger_recipe.evaluation.metrics import Floats, metrics_by_problem
from oger_recipe.report.page.rollouts import READ_BYTES, read_again, read_lines
from oger_recipe.report.page.sampling import Candidate

Record = dict[str, Any]

_OF_PROBLEM = ("uid", "prompt", "answer", "benchmark")
_OF_SCORE = ("uid", "benchmark", "sample", "score", "extracted", "answer")


@dataclass
class _Answers:
    """Where a problem's answers lie in the file of an evaluation, and their scores."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


def answers_path(run_dir: Path, step: int) -> Path:
    return run_dir / "eval" / f"step_{step:05d}.jsonl"


def find_problems(run_dir: Path, steps: Sequence[int]) -> list[Candidate]:
    """List the problems of one or two evaluations, by their steps; of long files as far as READ_BYTES go."""
    found: dict[tuple[str, str], list[_Answers]] = defaultdict(lambda: [_Answers() for _ in steps])
    for number, step in enumerate(steps):
        for line in read_lines(answers_path(run_dir, step)):
            answers = found[line.row.get("benchmark", ""), line.row.get("uid", "")][number]
            answers.spans.append((line.start, line.size))
            answers.scores.append(line.row.get("score") or 0.0)
            if line.start > READ_BYTES // len(steps):
                break
    return [
        Candidate(0, f"{benchmark}/{uid}", sum(size for each in both for _, size in each.spans), _kinds(both), both)
        for (benchmark, uid), both in found.items()
    ]


def _kinds(both: Sequence[_Answers]) -> frozenset[str]:
    """Say what became of a problem: won, lost, or neither with right answers or without."""
    shares = [sum(each.scores) / len(each.scores) for each in both if each.scores]
    change = shares[-1] - shares[0] if shares else 0.0
    return frozenset({"won" if change > 0 else "lost" if change < 0 else "right" if any(shares) else "wrong"})


def read_problems(run_dir: Path, steps: Sequence[int], chosen: Sequence[Candidate]) -> list[Record]:
    """Read the answers of the chosen problems before and after; a single evaluation counts as the one before."""
    problems = []
    for candidate in chosen:
        answers = [
            [row for rows in read_again(answers_path(run_dir, step), each.spans) for row in rows]
            for step, each in zip(steps, candidate.place, strict=True)
        ]
        of_problem = next(row for rows in answers for row in rows)
        problem: Record = {name: of_problem.get(name) for name in _OF_PROBLEM} | {"before": None, "after": None}
        for moment, step, rows in zip(("before", "after"), steps, answers, strict=False):
            kept = [{name: value for name, value in row.items() if name not in _OF_PROBLEM} for row in rows]
            problem[moment] = {"step": step, "answers": kept} if rows else None
        problems.append(problem)
    return problems


@dataclass(frozen=True)
class Scores:
    """A benchmark's problems in one evaluation, by uid and reference answer, and each metric's value for each."""

    problems: tuple[tuple[str, str], ...]
    metrics: dict[str, Floats]

    def stacked(self, metrics: Sequence[str]) -> Floats:
        return np.stack([self.metrics[name] for name in metrics], axis=1)


def read_scores(run_dir: Path, step: int) -> dict[str, Scores]:
    """Read the scores of an evaluation by benchmark; none where its answers are missing or not whole."""
    records = [{name: line.row.get(name) for name in _OF_SCORE} for line in read_lines(answers_path(run_dir, step))]
    answers = {(record["benchmark"], record["uid"]): str(record["answer"]) for record in records}
    try:
        by_benchmark = metrics_by_problem(records)
    except ValueError:  # a file that was torn has problems with fewer samples than others
        return {}
    return {
        name: Scores(tuple((uid, answers[name, uid]) for uid in uids), metrics)
        for name, (uids, metrics) in by_benchmark.items()
    }
