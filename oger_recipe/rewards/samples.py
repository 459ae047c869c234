"""Samples as OpenRLHF sends them, graded: query, prompt and label to numbers, with the whole verdict beside them.

Nothing is raised here: a failure gives reward 0 and ``reward_error`` 1, is logged with its traceback, and is appended
to ``$OGER_RUN_DIR/reward_errors.jsonl`` when that variable is set.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import Any

from oger_recipe.rewards.grading.pool import Answer, Graded, shared_pool
from oger_recipe.rewards.rules import labelled_answer

logger = logging.getLogger(__name__)

ERRORS = "reward_errors.jsonl"
_ASSISTANT_TURN = "<|im_start|>assistant\n"
_KEYS = ("reward", "score", "reward_format", "reward_error", "reward_timeout")


def answer_of(graded: list[dict[str, float]]) -> dict[str, Any]:
    """The values of samples in the form that OpenRLHF reads."""
    columns: dict[str, Any] = {key: [sample[key] for sample in graded] for key in _KEYS}
    if len(graded) == 1:
        columns = graded[0]
    return {
        "rewards": columns["reward"],
        "scores": columns["score"],
        "extra_logs": {key: columns[key] for key in ("reward_format", "reward_error", "reward_timeout")},
    }


@dataclass(frozen=True)
class GradedSample:
    """The numbers of a sample that OpenRLHF takes; the whole verdict (None: the sample itself could not be read); and
    why it was not graded (None: it was)."""

    values: dict[str, float]
    graded: Graded | None
    error: str | None


def grade_samples(samples: list[tuple[Any, Any, Any]]) -> list[GradedSample]:
    """Of (query, prompt, label). What a sample does wrong is its own error, never its neighbours'."""
    values: list[GradedSample | None] = [None] * len(samples)
    answers: dict[int, Answer] = {}
    for position, (query, prompt, label) in enumerate(samples):
        try:
            answers[position] = _answer(query, prompt, label)
        except Exception as error:
            values[position] = GradedSample(failed(error, samples[position]), None, _reason(error))
    try:
        verdicts = shared_pool().grade_many(list(answers.values()))
        for position, graded in zip(answers, verdicts, strict=True):
            values[position] = GradedSample(_values(graded, samples[position]), graded, graded.error)
    except Exception as error:  # the pool itself: none of its answers was graded
        for position in answers:
            values[position] = GradedSample(failed(error, samples[position]), None, _reason(error))
    return [value for value in values if value is not None]


def _answer(query: str, prompt: str, label: str) -> Answer:
    answer: Answer = labelled_answer(json.loads(label), _response_of(query, prompt))
    if not all(isinstance(text, str) for text in answer[:3]) or not isinstance(answer[3], dict):
        raise ValueError("task, answer and response have to be texts, options an object")
    return answer


def _values(graded: Graded, sample: tuple[Any, Any, Any]) -> dict[str, float]:
    verdict = graded.verdict
    values = {
        "reward": verdict.reward,
        "score": verdict.score,
        "reward_format": float(verdict.components.get("format", 0.0)),
    }
    if graded.error is not None:
        return failed(graded.error, sample, timed_out=graded.timed_out, seconds=graded.seconds)
    return {**values, "reward_error": 0.0, "reward_timeout": 0.0}


def failed(
    error: Exception | str, sample: tuple[Any, Any, Any], *, timed_out: bool = False, seconds: float = 0.0
) -> dict[str, float]:
    """The values of a sample that could not be graded, after it was logged and recorded."""
    query, _, label = sample
    uid = _uid_of(label)
    reason = _reason(error)
    logger.error(
        "reward of %s failed and counts as 0: %s", uid or "a sample without uid", reason,
        exc_info=error if isinstance(error, Exception) else None,
    )  # fmt: skip
    _record({"error": reason, "uid": uid, "seconds": round(seconds, 3), "query": query, "label": label})
    return {
        "reward": 0.0, "score": 0.0, "reward_format": 0.0, "reward_error": 1.0, "reward_timeout": float(timed_out),
    }  # fmt: skip


def _reason(error: Exception | str) -> str:
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"


def _response_of(query: str, prompt: str) -> str:
    if query.startswith(prompt):
        return query[len(prompt) :]
    # A prompt that was cut from the left, or that decoding did not give back exactly, is no prefix of the query.
    before, turn, response = query.rpartition(_ASSISTANT_TURN)
    if not turn:  # a prompt that is graded as well may hold the answer
        raise ValueError("the query does not begin with its prompt: where the response begins cannot be told")
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
        line = json.dumps(entry, default=repr) + "\n"
        # Unbuffered, so that the lines of threads and processes do not interleave.
        with open(os.path.join(run_dir, ERRORS), "ab", buffering=0) as file:
            file.write(line.encode())
    except Exception:
        logger.error("could not write %s in %s", ERRORS, run_dir, exc_info=True)


def worst_examples(run_dir: str | os.PathLike[str], n: int = 3) -> list[str]:
    """One line for each of `n` recorded failures: different errors first, among them those that took longest."""
    try:
        with open(os.path.join(run_dir, ERRORS), encoding="utf-8", errors="replace") as file:
            entries = [json.loads(line) for line in file]
    except OSError:
        return []
    entries.sort(key=lambda entry: entry["seconds"], reverse=True)
    kinds = {entry["error"]: entry for entry in reversed(entries)}
    chosen = sorted(kinds.values(), key=lambda entry: entry["seconds"], reverse=True)
    chosen += [entry for entry in entries if entry not in chosen]
    return [
        f"{entry['uid']}: {entry['error'][:200]} ({entry['seconds']} s), ending in {str(entry['query'])[-160:]!r}"
        for entry in chosen[:n]
    ]
