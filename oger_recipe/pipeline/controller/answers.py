"""From evaluation rollouts to answer records and metrics, as `oger eval` makes them."""

import json
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.evaluation.tables import main_metrics
from oger_recipe.grading.verdict import verdict_fields
from oger_recipe.pipeline.controller.hybrid_batch import texts_of


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the policy.

    records: one for each answer, as `oger eval` writes them; result: their metrics by benchmark and on average;
    metrics: the few that a person follows; logs: all of them, flat, for the trackers.
    """

    records: list[dict[str, Any]]
    result: dict[str, Any]
    metrics: dict[str, float]
    logs: dict[str, float]


def evaluate_samples(samples: list[Experience], eval_dataloader, tokenizer) -> Evaluation:
    """Evaluate the rollouts of ``generate_eval_samples``, in which those of a problem come one after the other."""
    benchmarks: dict[str, str] = {}
    for sources, _, labels, _ in eval_dataloader:
        benchmarks |= zip(labels, sources, strict=True)
    texts = iter(texts_of(samples, tokenizer))
    records = [
        _record(sample, benchmarks[label], number, next(texts))
        for label, group in groupby(samples, key=lambda sample: sample.labels[0])
        for number, sample in enumerate(group)
    ]
    result = evaluate_answers(records)
    problems = sum(benchmark["problems"] for benchmark in result["benchmarks"].values())
    average = result["average"]
    metrics = {key: average[key] for key in main_metrics(average.get("n")) if key in average}
    metrics |= {"n_problems": problems}
    return Evaluation(records, result, metrics, logs_of(result))


def _record(sample: Experience, benchmark: str, number: int, text: str) -> dict[str, Any]:
    label = json.loads(sample.labels[0])
    return {
        "uid": label["uid"],
        "benchmark": benchmark,
        "sample": number,
        "prompt": sample.prompts[0],
        "text": text,
        "answer": label["answer"],
        **verdict_fields(sample.graded),
        "response_length": int(sample.response_length[0]),
        "truncated": bool(sample.truncated[0]),
    }


def logs_of(result: dict[str, Any]) -> dict[str, float]:
    """Name the metrics of an evaluation ``eval_<benchmark>_<metric>``; intervals are left to the table."""
    return {
        f"eval_{benchmark}_{name}": float(value)
        for benchmark, values in (result["benchmarks"] | {"average": result["average"]}).items()
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
