"""Measures each hostile answer's cost and checks its neighbours' grades: ``python scripts/bench/hostile.py``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from hostile_answers import HOSTILE

from oger_recipe.base.cpu import CORES
from oger_recipe.grading.pool import GradingPool, GradingSettings

TRACE = Path("/tmp/oger_was_here")  # what the injected commands would leave


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time_limit", type=float, default=2.0, help="seconds an answer may take")
    parser.add_argument("--workers", type=int, default=CORES)
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    TRACE.unlink(missing_ok=True)
    settings = GradingSettings(workers=args.workers, time_limit_s=args.time_limit, preload=("math",))
    with GradingPool(settings) as pool:
        pool.grade("math", r"\boxed{1}", "1")
        rows = []
        for name, text in HOSTILE:
            started = time.monotonic()
            graded = pool.grade("math", text, "7")
            seconds = time.monotonic() - started
            row = {"answer": name, "seconds": round(seconds, 3), "score": graded.verdict.score}
            rows.append(row | {"what": graded.error or graded.verdict.reason[:60]})
        mixed, expected = [], []
        for number, (_, text) in enumerate(HOSTILE):  # a neighbour, right or wrong in turn, before each of them
            mixed += [("math", rf"so \boxed{{{number}}}", str(number + number % 2), None), ("math", text, "8", None)]
            expected.append(float(number % 2 == 0))
        found = [graded.verdict.score for graded in pool.grade_many(mixed)[::2]]
    right = sum(score == wanted for score, wanted in zip(found, expected, strict=True))
    print(f"{'hostile answer':26} {'seconds':>8}  what")
    for row in rows:
        print(f"{row['answer']:26} {row['seconds']:8.3f}  {row['what']!r}")
    worst = max(row["seconds"] for row in rows)
    wrong = [row["answer"] for row in rows if row["score"]]
    print(f"\n{len(rows)} hostile answers, limit {args.time_limit} s: the slowest took {worst:.2f} s")
    print(f"graded as right: {', '.join(wrong) or 'none'}; injected commands that ran: {int(TRACE.exists())}")
    print(f"neighbours in between: {right} of {len(expected)} graded as they should be")
    if args.out:
        facts = {"limit_s": args.time_limit, "answers": rows, "neighbours": [right, len(expected)]}
        args.out.write_text(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
