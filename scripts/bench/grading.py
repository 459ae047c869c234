"""Measures answers per second of the grading pool, beside bare processes with the same verifier and no limit.

``python scripts/bench/grading.py --data FOLDER``: FOLDER holds bench/math500.jsonl. Both sides run in turn, several
rounds; medians with the lowest and the highest. Grading a second time shows the pool's cache.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile_answers import HOSTILE

from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.verifiers import verify

PROCESSES = 2
FILLER = "Let us look at the next step of this solution, where we simplify and check what was found. "


def bare(item: tuple[str, str]) -> float:
    return verify("math", item[0], item[1]).score


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def pool_of(limit_s: float) -> GradingPool:
    pool = GradingPool(GradingSettings(workers=PROCESSES, time_limit_s=limit_s, preload=("math",)))
    pool.grade_many([("math", rf"\boxed{{{n}}}", "1", None) for n in range(64)])  # workers are up
    return pool


def compare(items: list[tuple[str, str]], rounds: int) -> dict[str, list[float]]:
    """Returns answers per second of each side, by round."""
    speeds: dict[str, list[float]] = {"bare processes": [], "pool": [], "pool, again": []}
    answers = [("math", text, answer, None) for text, answer in items]
    for _ in range(rounds):
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as processes:
            processes.map(bare, [(rf"\boxed{{{n}}}", "1") for n in range(64)])
            speeds["bare processes"].append(len(items) / seconds(lambda p=processes: p.map(bare, items, chunksize=16)))
        with pool_of(5.0) as pool:
            speeds["pool"].append(len(items) / seconds(lambda p=pool: p.grade_many(answers)))
            speeds["pool, again"].append(len(items) / seconds(lambda p=pool: p.grade_many(answers)))
    return speeds


def hostile_share(items: list[tuple[str, str]], share: float, limit_s: float) -> dict[str, float]:
    """Times answers with and without a share that never ends, and returns the most that this may cost."""
    endless = dict(HOSTILE)["tower of powers"]
    count = max(1, round(share * len(items)))
    mixed = [("math", text, answer, None) for text, answer in items]
    for number in range(count):
        mixed.insert(number * len(items) // count, ("math", f"{number} {endless}", "7", None))
    with pool_of(limit_s) as pool:
        plain = seconds(lambda: pool.grade_many([("math", text, answer, None) for text, answer in items]))
    with pool_of(limit_s) as pool:
        hostile = seconds(lambda: pool.grade_many(mixed))
    return {"answers": len(items), "hostile": count, "plain_s": plain, "hostile_s": hostile,
            "allowed_s": plain + count * limit_s / PROCESSES}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    rows = [json.loads(line) for line in (args.data / "bench" / "math500.jsonl").open(encoding="utf-8")]
    # Answers that are no texts of the reference: equal texts are compared without mathematics.
    short = [(f"so \\boxed{{{row['answer']}+0}}", row["answer"]) for row in rows]
    long = [(FILLER * 350 + text, answer) for text, answer in short]
    result: dict[str, Any] = {}
    print(f"{'answers':22} {'side':16} {'per second':>11} {'lowest':>9} {'highest':>9} {'of bare':>8}")
    for name, items in (("short", short), ("8k tokens", long)):
        result[name] = speeds = compare(items, args.rounds)
        base = statistics.median(speeds["bare processes"])
        for side, values in speeds.items():
            middle = statistics.median(values)
            print(f"{name:22} {side:16} {middle:11.1f} {min(values):9.1f} {max(values):9.1f} {middle / base:8.2f}")
    for name, items in (("short", short * 2), ("8k tokens", long * 2)):
        result[f"{name}, hostile"] = facts = hostile_share(items, 0.01, 1.0)
        print(
            f"\n{facts['answers']} answers ({name}) in {facts['plain_s']:.1f} s; with {facts['hostile']} endless ones "
            f"(limit 1 s) in {facts['hostile_s']:.1f} s, where limit x share allows {facts['allowed_s']:.1f} s"
        )
    if args.out:
        args.out.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
