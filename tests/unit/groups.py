"""Groups of rows, as the sources of reward see them."""

from __future__ import annotations

import math
from typing import Any

from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.rewards.sources import Group


def group(
    rewards: list[float], *, errors: dict[int, str] | None = None, unreadable: bool = False, **facts: Any
) -> Group:
    """Rows with these verified rewards, right where they are 1; unreadable: errors are the reference answer's."""
    n = len(rewards)
    known = {
        "uid": "u", "prompt": "?", "question": "?", "task": "gsm8k", "answer": "42", "row": {}, "teachers": [],
        "responses": ["r"] * n, "is_teacher": [False] * n, "truncated": [False] * n, "may_earn": [True] * n,
        "similarity": [math.nan] * n, "entropy": [0.0] * n, "tokens": [1] * n, "log_prob": [-1.0] * n,
    }  # fmt: skip
    graded = [
        Graded(
            Verdict(reward, float(reward == 1), "", {"format": reward / 2}, solution="s" if reward == 1 else None),
            (errors or {}).get(row),
            unreadable=unreadable,
        )
        for row, reward in enumerate(rewards)
    ]
    return Group(**(known | {"graded": graded} | facts))
