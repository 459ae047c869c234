"""The reward function for OpenRLHF: ``--reward.remote_url /path/to/reward_func.py``.

OpenRLHF loads this file by its path, calls `reward_func` from worker threads with lists of one sample, and drops a
raised exception together with the sample's reward, which ends the run later with an unrelated error. So nothing is
raised here: a failure gives reward 0 and ``reward_error`` 1, is logged with its traceback, and is appended to
``$OGER_RUN_DIR/reward_errors.jsonl`` when that variable is set.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
from typing import Any

from oger_recipe.rewards.verifiers import verify

logger = logging.getLogger(__name__)

_ASSISTANT_TURN = "<|im_start|>assistant\n"


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """Grade responses.

    queries: decoded prompt and response, special tokens included; prompts: the templated prompts; labels: JSON
    documents ``{"uid", "answer", "task"}``, the answer being what the task's verifier reads.

    Returns rewards, scores (1 for right, else 0) and extra_logs (reward_format, reward_error): plain floats for one
    query, as OpenRLHF makes a tensor of each, and lists in the order of the queries for any other number of them.
    """
    samples = itertools.zip_longest(queries, prompts, labels)
    graded = [_grade(*sample) for sample in itertools.islice(samples, len(queries))]
    columns: dict[str, Any] = {
        key: [sample[key] for sample in graded] for key in ("reward", "score", "reward_format", "reward_error")
    }
    if len(graded) == 1:
        columns = graded[0]
    return {
        "rewards": columns["reward"],
        "scores": columns["score"],
        "extra_logs": {key: columns[key] for key in ("reward_format", "reward_error")},
    }


def _grade(query: str, prompt: str, label: str) -> dict[str, float]:
    try:
        return _verified(query, prompt, label)
    except Exception as error:
        uid = _uid_of(label)
        logger.error("reward of %s failed and counts as 0", uid or "a sample without uid", exc_info=True)
        _record(error, uid, query, label)
        return {"reward": 0.0, "score": 0.0, "reward_format": 0.0, "reward_error": 1.0}


def _verified(query: str, prompt: str, label: str) -> dict[str, float]:
    document = json.loads(label)
    verdict = verify(document["task"], _response_of(query, prompt), document["answer"])
    values = {
        "reward": float(verdict.reward),
        "score": float(verdict.score),
        "reward_format": float(verdict.components.get("format", 0.0)),
    }
    if not all(map(math.isfinite, values.values())):
        raise ValueError(f"the verifier of {document['task']!r} gave a non-finite value: {verdict}")
    return {**values, "reward_error": 0.0}


def _response_of(query: str, prompt: str) -> str:
    # A prompt cut from the left, or one that decoding does not give back exactly, is no prefix of the query.
    if query.startswith(prompt):
        return query[len(prompt) :]
    return query.rpartition(_ASSISTANT_TURN)[2]


def _uid_of(label: Any) -> str | None:
    try:
        return str(json.loads(label)["uid"])
    except Exception:
        return None


def _record(error: Exception, uid: str | None, query: Any, label: Any) -> None:
    run_dir = os.environ.get("OGER_RUN_DIR")
    if not run_dir:
        return
    try:
        entry = {"error": f"{type(error).__name__}: {error}", "uid": uid, "query": query, "label": label}
        line = json.dumps(entry, default=repr) + "\n"
        # Unbuffered, so that the lines of threads and processes do not interleave.
        with open(os.path.join(run_dir, "reward_errors.jsonl"), "ab", buffering=0) as file:
            file.write(line.encode())
    except Exception:
        logger.error("could not write reward_errors.jsonl in %s", run_dir, exc_info=True)
