"""Measures the page of a long run, 1,000 steps x 1,024 rollouts x 4,000 tokens by default: seconds, memory, size.

Texts are random words of four characters a token. --distinct files of samples are written; the other steps' are links
to them, so a run of 16 GB takes some hundred megabytes of disk. Reading one is no faster for that: the page reads each
of the files that it chooses whole or in part, and the disk's cache is as warm as the machine leaves it.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oger_recipe.base.files import write_jsonl
from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.report.page.write import write_page
from oger_recipe.run_folder import own_files, records

GROUP = 8
METRICS = 110
PROBLEMS = 500


def rows(step: int, rollouts: int, prompts: int, text: "Texts") -> Iterator[dict[str, Any]]:
    """Yield the lines of a step's samples; a few are truncated or failed, and a teacher enters each group."""
    for group in range(rollouts // GROUP):
        uid = f"math-{(step * rollouts // GROUP + group) % prompts}"
        shared = {"uid": uid, "prompt": text(100), "task": "math", "answer": "42"}
        for number in range(GROUP):
            score = float(text.lot.random() < 0.4)
            row = shared | {"truncated": text.lot.random() < 0.01, "text": text(), "off_policy": False}
            row |= {
                "response_length": text.tokens,
                "reward": score,
                "score": score,
                "extracted": "42",
                "reason": "right",
            }
            row |= {"components": {"format": 1.0}, "similarity": text.lot.random(), "divergence": text.lot.random()}
            row["graded"] = text.lot.random() > 0.0005
            trained = {"entropy": text.lot.random(), "sources": {"rule": score, "explore": text.lot.random()},
                       "total_reward": score, "advantage": text.lot.gauss(0, 1)}  # fmt: skip
            if number:
                yield row | {"bonus": text.lot.random(), "entropy_weight": text.lot.random()} | trained
            else:
                yield row | {"replaced": True}
                teacher = {"text": text(), "truncated": False, "source": "teacher", "off_policy": True, "score": 1.0}
                yield shared | teacher | trained


def answers(text: "Texts") -> list[dict[str, Any]]:
    return [
        {"uid": f"held-{problem}", "benchmark": "math500", "sample": sample, "prompt": text(100), "text": text(),
         "answer": "42", "score": float(text.lot.random() < 0.4), "reward": 0.0, "format": 1.0, "extracted": "42",
         "reason": "", "components": {}, "graded": True, "response_length": text.tokens, "truncated": False}
        for problem in range(PROBLEMS) for sample in range(GROUP)
    ]  # fmt: skip


class Texts:
    """Random texts of so many tokens, cut from a long one."""

    def __init__(self, tokens: int) -> None:
        self.lot, self.tokens = random.Random(0), tokens
        words = ["".join(self.lot.choices("etaoinshrdlu", k=self.lot.randint(2, 9))) for _ in range(3000)]
        weights = [1 / (rank + 2) for rank in range(len(words))]
        self._long = " ".join(self.lot.choices(words, weights, k=2_000_000))

    def __call__(self, tokens: int | None = None) -> str:
        length = 4 * (tokens or self.tokens)
        start = self.lot.randrange(len(self._long) - length)
        return self._long[start : start + length]


def write_run(folder: Path, steps: int, rollouts: int, tokens: int, distinct: int) -> None:
    text = Texts(tokens)
    own_files.begin(folder)
    for name in ("samples", "eval", "data"):
        (folder / name).mkdir()
    (folder / "recipe.yaml").write_text("rollout: {n_samples_per_prompt: 8}\n")
    (folder / own_files.COMMAND).write_text("oger train --recipe grpo\n")
    for step in range(1, steps + 1):
        path = folder / "samples" / f"step_{step:05d}.jsonl"
        if step <= distinct:
            write_jsonl(rows(step, rollouts, 10 * rollouts, text), path)
        else:
            os.link(folder / "samples" / f"step_{(step - 1) % distinct + 1:05d}.jsonl", path)
    values = [{f"metric/{name}": text.lot.random() for name in range(METRICS)} for _ in range(steps)]
    write_jsonl(({"step": step} | each for step, each in enumerate(values, start=1)), folder / "metrics.jsonl")
    records.event(folder, "ready", steps=steps, resumed_at=0, sources=["rule", "explore"])
    for when, step in (("before", 0), ("after", steps)):
        found = answers(text)
        result = evaluate_answers(found)
        records.write_evaluation(folder, step, found, result)
        records.event(folder, "evaluated", when=when, step=step, benchmarks=result["benchmarks"])
        for number in range(1, steps + 1 if when == "before" else 0):
            records.event(folder, "step", step=number, **values[number - 1])


def measure(folder: Path, queue: "multiprocessing.Queue[dict[str, float]]") -> None:
    before, began = peak_mb(), time.perf_counter()
    write_page([folder], folder / own_files.PAGE)
    seconds, size = time.perf_counter() - began, (folder / own_files.PAGE).stat().st_size
    queue.put({"seconds": seconds, "peak_mb": peak_mb(), "before_mb": before, "page_mb": size / 1e6})


def peak_mb() -> float:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rollouts", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--distinct", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="folder for the run, which stays (default: one that is removed)")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_run(folder, args.steps, args.rollouts, args.tokens, min(args.distinct, args.steps))
        written = sum(path.stat().st_size for path in (folder / "samples").iterdir())
        queue: multiprocessing.Queue[dict[str, float]] = multiprocessing.get_context("spawn").Queue()
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(folder, queue))
        process.start()
        found = {"samples_gb": written / 1e9} | queue.get()
        process.join()
    finally:
        if args.keep is None:
            shutil.rmtree(folder)
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    main()
