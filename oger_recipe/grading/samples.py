"""Samples as OpenRLHF sends them, graded: query, prompt and label to a verdict, and to the numbers that it reads.

Nothing is raised here: a failure gives reward 0 and ``reward_error`` 1, is logged with its traceback, and is appended
to ``$OGER_RUN_DIR/reward_errors.jsonl`` when that variable is set.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import cut, kind_of
from oger_recipe.base.files import read_jsonl, to_json
from oger_recipe.base.secrets import redacted, said_by
from oger_recipe.grading.pool import shared_pool
from oger_recipe.grading.processes import Answer
from oger_recipe.grading.rules import labelled_answer
from oger_recipe.grading.verdict import Graded

logger = logging.getLogger(__name__)

ERRORS = "reward_errors.jsonl"
_ASSISTANT_TURN = "<|im_start|>assistant\n"

Sample = tuple[Any, Any, Any]  # query, prompt, label, as they come


def answer_of(graded: Sequence[Graded]) -> dict[str, Any]:
    """Make what OpenRLHF reads: plain numbers for one sample, because it makes a tensor of each, else lists."""

    def column(values: list[float]) -> float | list[float]:
        return values[0] if len(values) == 1 else values

    return {
        "rewards": column([each.verdict.reward for each in graded]),
        "scores": column([each.verdict.score for each in graded]),
        "extra_logs": {
            "reward_format": column([each.verdict.components.get("format", 0.0) for each in graded]),
            "reward_error": column([float(each.error is not None) for each in graded]),
            "reward_timeout": column([float(each.timed_out) for each in graded]),
        },
    }


def grade_samples(samples: Sequence[Sample]) -> list[Graded]:
    """Grade samples in order. What one of them does wrong is never its neighbours' error."""
    results: dict[int, Graded] = {}
    answers: dict[int, Answer] = {}
    for position, (query, prompt, label) in enumerate(samples):
        try:
            answers[position] = _answer(query, prompt, label)
        except Exception as error:
            results[position] = failed(error, samples[position])
    try:
        graded = shared_pool().grade_many(list(answers.values()))
    except Exception as error:  # the pool itself: none of its answers was graded
        return [results.get(position) or failed(error, sample) for position, sample in enumerate(samples)]
    for position, each in zip(answers, graded, strict=True):
        if each.error is not None:
            _report(each, samples[position])
        results[position] = each
    return [results[position] for position in range(len(samples))]


def _answer(query: str, prompt: str, label: str) -> Answer:
    answer: Answer = labelled_answer(json.loads(label), _response_of(query, prompt))
    if not all(isinstance(text, str) for text in answer[:3]) or not isinstance(answer[3], dict):
        raise ValueError("task, answer and response must be texts, options an object")
    return answer


def failed(error: Exception | str, sample: Sample) -> Graded:
    """Log, record and return a sample's failed grading."""
    reason = redacted(error) if isinstance(error, str) else cut(said_by(error), 1000)
    graded = Graded.failed(reason)
    _report(graded, sample, error if isinstance(error, Exception) else None)
    return graded


def _report(graded: Graded, sample: Sample, raised: Exception | None = None) -> None:
    query, _, label = sample
    uid = _uid_of(label)
    logger.error(
        "reward of %s failed and counts as 0: %s", uid or "a sample without uid", graded.error, exc_info=raised
    )
    _record({"error": graded.error, "uid": uid, "seconds": round(graded.seconds, 3), "query": query, "label": label})


def _response_of(query: str, prompt: str) -> str:
    if query.startswith(prompt):
        return query[len(prompt) :]
    # A prompt that was cut from the left, or that decoding did not give back exactly, is no prefix of the query.
    before, turn, response = query.rpartition(_ASSISTANT_TURN)
    if not turn:  # a prompt that is graded as well may hold the answer
        raise ValueError("the query does not begin with its prompt, so the start of the response is unknown")
    return response


def _uid_of(label: Any) -> str | None:
    try:
        return str(json.loads(label)["uid"])
    except Exception:
        return None


def _record(entry: dict[str, Any]) -> None:
    run_dir = os.environ.get("OGER_RUN_DIR")
    if not run_dir:
        return
    try:
        line = to_json(entry, default=repr, ensure_ascii=True) + "\n"
        # Unbuffered, so that the lines of threads and processes do not interleave.
        with open(os.path.join(run_dir, ERRORS), "ab", buffering=0) as file:
            file.write(line.encode())
    except Exception:
        logger.error("could not write %s in %s", ERRORS, run_dir, exc_info=True)


def worst_examples(run_dir: str | os.PathLike[str], n: int = 3) -> list[str]:
    """Say `n` recorded failures in a line each: different errors first, among them those that took longest."""
    try:
        entries = read_jsonl(Path(run_dir) / ERRORS)
    except OSError:
        return []
    entries.sort(key=lambda entry: entry["seconds"], reverse=True)
    kinds = {kind_of(entry["error"]): entry for entry in reversed(entries)}
    chosen = sorted(kinds.values(), key=lambda entry: entry["seconds"], reverse=True)
    chosen += [entry for entry in entries if entry not in chosen]
    return [
        f"{entry['uid']}: {entry['error'][:200]} ({entry['seconds']} s), ending in {str(entry['query'])[-160:]!r}"
        for entry in chosen[:n]
    ]
