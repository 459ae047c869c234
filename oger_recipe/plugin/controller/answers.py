"""From evaluation rollouts to answer records and figures: the harness of ``oger eval`` inside a training run."""

import json
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.evaluation.records import verdict_fields
from oger_recipe.rewards.grading.pool import shared_pool
from oger_recipe.rewards.rules import labelled_answer


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


def evaluate_samples(samples: list[Experience], eval_dataloader, tokenizer) -> Evaluation:
    """Figures of the rollouts of ``generate_eval_samples``: those of a problem come one after the other."""
    benchmarks: dict[str, str] = {}
    for sources, _, labels, _ in eval_dataloader:
        benchmarks |= zip(labels, sources, strict=True)
    records: list[dict[str, Any]] = []
    for label, group in groupby(samples, key=lambda sample: sample.labels[0]):
        records += [_record(sample, benchmarks[label], number) for number, sample in enumerate(group)]
    responses = [sample.sequences[0, 1:][sample.action_mask[0].bool()] for sample in samples]
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    verdicts = [getattr(sample, "verdict", None) for sample in samples]
    _grade(records, texts, [json.loads(sample.labels[0]) for sample in samples], verdicts)
    result = evaluate_answers(records)
    problems = sum(benchmark["problems"] for benchmark in result["benchmarks"].values())
    average = result["average"]
    n = average.get("n", "n")
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


def _grade(
    records: list[dict[str, Any]],
    texts: list[str],
    labels: list[dict[str, Any]],
    verdicts: list[dict[str, Any] | None],
) -> None:
    """Adds text and verdict. What a service or the user's own function rewarded has none: it is graded here."""
    ungraded = [row for row, verdict in enumerate(verdicts) if verdict is None]
    answers = [labelled_answer(labels[row], texts[row]) for row in ungraded]
    found = dict(zip(ungraded, map(verdict_fields, shared_pool().grade_many(answers)), strict=True)) if answers else {}
    for row, (record, text) in enumerate(zip(records, texts, strict=True)):
        record |= {"text": text} | (verdicts[row] or found[row])


def _flat(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """``eval_<benchmark>_<metric>``; intervals are left to the table."""
    return {
        f"eval_{benchmark}_{name}": float(value)
        for benchmark, values in figures.items()
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
