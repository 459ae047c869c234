"""The reward function for OpenRLHF: ``--reward.remote_url /path/to/reward_func.py``.

OpenRLHF loads this file by its path, calls `reward_func` from worker threads with lists of one sample, and drops a
raised exception together with the sample's reward, which ends the run later with an unrelated error. So nothing is
raised here (see samples.py).
"""

from __future__ import annotations

import itertools
from typing import Any

from oger_recipe.grading.samples import answer_of, grade_samples


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """Grade responses.

    queries: decoded prompt and response, special tokens included; prompts: the templated prompts; labels: JSON
    documents ``{"uid", "answer", "task"}``, the answer being what the task's verifier reads, and optionally
    ``"options"``, keyword arguments of the verifier, ``"cut"`` and ``"strip"`` (see graded_text).

    Returns rewards, scores (1 for right, else 0) and extra_logs (reward_format; reward_error: 1 for what could not be
    graded; reward_timeout: 1 where a timeout was why): plain floats for one query, as OpenRLHF makes a tensor of each,
    and lists in the order of the queries for any other number of them.
    """
    samples = list(itertools.islice(itertools.zip_longest(queries, prompts, labels), len(queries)))
    return answer_of(grade_samples(samples))
