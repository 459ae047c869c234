"""Answer records: one JSON line for each sampled answer, the same from `oger eval` and from a training run.

Keys: uid, benchmark, sample (0 to n-1), prompt (as sent), text (without special tokens), answer (the reference),
score, reward, format, extracted, reason, response_length (tokens), truncated, graded (false when the grader failed).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oger_recipe.rewards.grading_pool import Graded

Record = dict[str, Any]


def verdict_fields(graded: Graded) -> Record:
    """The part of a record that grading gives. An answer whose grader failed counts as wrong."""
    verdict = graded.verdict
    return {
        "score": verdict.score,
        "reward": verdict.reward,
        "format": verdict.components.get("format", 0.0),
        "extracted": verdict.extracted,
        "reason": verdict.reason,
        "graded": graded.error is None,
    }


def write_answers(path: Path, records: Iterable[Record]) -> None:
    """Writes the file whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    os.replace(partial, path)


def read_answers(path: Path) -> list[Record]:
    """The records of a file; none where it does not exist."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
