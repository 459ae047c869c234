"""Answer records: one JSON line for each sampled answer, the same from `oger eval` and from a training run.

Keys: uid, benchmark, sample (0 to n-1), prompt (as sent), text (without special tokens), answer (the reference),
score, reward, format, extracted, reason, components, response_length (tokens), truncated, graded (false: the grader
failed).
"""

from __future__ import annotations

from typing import Any

from oger_recipe.grading.verdict import Graded, verdict_columns

Record = dict[str, Any]


def verdict_fields(graded: Graded) -> Record:
    """Return the part of a record that grading gives. An answer whose grader failed counts as wrong."""
    verdict = graded.verdict
    return {
        "score": verdict.score,
        "reward": verdict.reward,
        "format": verdict.components.get("format", 0.0),
        **verdict_columns(graded),
        "graded": graded.error is None,
    }
