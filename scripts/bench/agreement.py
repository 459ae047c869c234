"""Measures how far the verifiers agree with data of known truth: ``python scripts/bench/agreement.py --data FOLDER``.

FOLDER holds gsm8k/{train,test,example_model_solutions}.jsonl and bench/math500.jsonl, as their authors publish them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.verifiers import verify


@dataclass
class Check:
    """Answers that should all be graded alike, and those that were not."""

    name: str
    goal: float
    answers: int = 0
    misses: list[dict[str, Any]] = field(default_factory=list)

    @property
    def agreement(self) -> float:
        return 1 - len(self.misses) / max(self.answers, 1)


def lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def own_answers(pool: GradingPool, name: str, task: str, pairs: list[tuple[str, str]], goal: float) -> Check:
    """Grades reference solutions against their own answers: all right."""
    return graded(pool, Check(name, goal), task, [(text, answer, 1.0) for text, answer in pairs])


def foreign_answers(pool: GradingPool, name: str, task: str, pairs: list[tuple[str, str]], goal: float) -> Check:
    """Grades reference solutions against the answer of a later problem in the list: all wrong.

    Where the two answers are the same, the next problem's is taken.
    """
    foreign, count = [], len(pairs)
    for position, (text, answer) in enumerate(pairs):
        others = (pairs[(position + step) % count][1] for step in range(count // 2, count))
        foreign.append((text, next(other for other in others if not same(task, answer, other)), 0.0))
    return graded(pool, Check(name, goal), task, foreign)


def same(task: str, answer: str, other: str) -> bool:
    """Tells whether two reference answers are one, as far as the verifier can see."""
    response = f"\\boxed{{{answer}}}" if task == "math" else answer
    return answer == other or verify(task, response, other).score == 1.0


def graded(pool: GradingPool, check: Check, task: str, triples: list[tuple[str, str, float]]) -> Check:
    results = pool.grade_many([(task, text, answer, None) for text, answer, _ in triples], progress=True)
    for number, ((text, answer, expected), result) in enumerate(zip(triples, results, strict=True)):
        check.answers += 1
        if result.verdict.score != expected:
            found = {"index": number, "score": result.verdict.score, "reason": result.verdict.reason, "answer": answer}
            check.misses.append(found | {"end": text[-120:]})
    return check


def model_solutions(path: Path) -> Iterator[dict[str, Any]]:
    """Yields (question index, model, solution, mark, ground truth) of the four models' sampled solutions."""
    for index, row in enumerate(lines(path)):
        for model, sample in row.items():
            if isinstance(sample, dict):
                yield {
                    "index": index,
                    "model": model,
                    "answer": row["ground_truth"].rpartition("A:")[2].strip(),
                } | sample


def marks(path: Path, goal: float) -> Check:
    """Grades the four models' solutions against their authors' marks."""
    check = Check("GSM8K: four models' solutions and their marks", goal)
    for sample in tqdm(list(model_solutions(path)), desc="marks"):
        verdict = verify("gsm8k", sample["solution"], sample["answer"])
        check.answers += 1
        if bool(verdict.score) != sample["is_correct"]:
            kept = {key: sample[key] for key in ("index", "model", "is_correct", "answer")}
            check.misses.append(kept | {"found": verdict.extracted, "end": sample["solution"][-120:]})
    return check


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="JSON file for the figures and every disagreement")
    args = parser.parse_args()
    gsm8k, bench = args.data / "gsm8k", args.data / "bench"
    train, test = (
        [(row["answer"], row["answer"]) for row in lines(gsm8k / f"{name}.jsonl")] for name in ("train", "test")
    )
    math500 = [(row["solution"], row["answer"]) for row in lines(bench / "math500.jsonl")]
    with GradingPool(GradingSettings(time_limit_s=10, preload=("math",))) as pool:
        checks = [
            own_answers(pool, "GSM8K train: own answer", "gsm8k", train, 0.995),
            own_answers(pool, "GSM8K test: own answer", "gsm8k", test, 0.995),
            foreign_answers(pool, "GSM8K test: another problem's answer", "gsm8k", test, 0.995),
            own_answers(pool, "MATH-500: own answer", "math", math500, 0.99),
            foreign_answers(pool, "MATH-500: another problem's answer", "math", math500, 0.995),
        ]
    checks.append(marks(gsm8k / "example_model_solutions.jsonl", 0.99))
    for check in checks:
        for miss in check.misses:
            print(json.dumps({"check": check.name} | miss, ensure_ascii=False))
    print(f"\n{'check':50} {'answers':>8} {'agree':>9} {'goal':>7}")
    for check in checks:
        print(f"{check.name:50} {check.answers:8} {check.agreement:9.2%} {check.goal:7.1%}")
    if args.out:
        args.out.write_text(json.dumps([vars(check) | {"agreement": check.agreement} for check in checks], indent=2))


if __name__ == "__main__":
    main()
