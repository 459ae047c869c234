"""From evaluation rollouts to answer records and figures: the harness of ``oger eval`` inside a training run."""

import json
from dataclasses import dataclass
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.evaluation.records import verdict_fields
from oger_recipe.rewards.grading_pool import shared_pool


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the policy.

    records: one for each answer, as `oger eval` writes them; result: their figures by benchmark and on average;
    figures: the few that a person follows; logs: all of them, flat, for the trackers.
    """

    records: list[dict[str, Any]]
    result: dict[str, Any]
    figures: dict[str, float]
    logs: dict[str, float]


def evaluate_samples(samples: list[Experience], eval_dataloader, tokenizer, n: int) -> Evaluation:
    """Figures of the rollouts of ``generate_eval_samples``: n for each problem, one after the other."""
    benchmarks: dict[str, str] = {}
    for sources, _, labels, _ in eval_dataloader:
        benchmarks |= zip(labels, sources, strict=True)
    records = [_record(sample, benchmarks[sample.labels[0]], row % n) for row, sample in enumerate(samples)]
    responses = [sample.sequences[0, 1:][sample.action_mask[0].bool()] for sample in samples]
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    _grade(records, texts, [json.loads(sample.labels[0]) for sample in samples])
    result = evaluate_answers(records)
    problems = sum(benchmark["problems"] for benchmark in result["benchmarks"].values())
    average = result["average"]
    keys = dict.fromkeys((f"avg_at_{n}", f"pass_at_{n}", f"maj_at_{n}"))
    figures = {key: average[key] for key in keys if key in average} | {"n_problems": problems}
    return Evaluation(records, result, figures, _flat(result["benchmarks"] | {"average": average}))


def _record(sample: Experience, benchmark: str, number: int) -> dict[str, Any]:
    label = json.loads(sample.labels[0])
    return {
        "uid": label["uid"],
        "benchmark": benchmark,
        "sample": number,
        "prompt": sample.prompts[0],
        "answer": label["answer"],
        "response_length": int(sample.response_length[0]),
        "truncated": bool(sample.truncated[0]),
    }


def _grade(records: list[dict[str, Any]], texts: list[str], labels: list[dict[str, Any]]) -> None:
    """Adds text and verdict. Rollouts carry numbers alone; what was extracted and why is found by grading again."""
    answers = [
        (label["task"], text, label["answer"], label.get("options")) for label, text in zip(labels, texts, strict=True)
    ]
    for record, text, graded in zip(records, texts, shared_pool().grade_many(answers), strict=True):
        record |= {"text": text} | verdict_fields(graded)


def _flat(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """``eval_<benchmark>_<metric>``; intervals are left to the table."""
    return {
        f"eval_{benchmark}_{name}": float(value)
        for benchmark, values in figures.items()
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
