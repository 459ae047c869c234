"""One rank of a training beside weights that grade in the policy's place: see test_grading_weights.py.

``python grading_training.py RANK RANKS PORT FOLDER`` trains FOLDER/policy in each of FOLDER/cases.json and writes, on
rank 0, FOLDER/results.pt: what policy and grader say of the same rows at first and after each step.
"""

from __future__ import annotations

import os

from oger_recipe.base.cpu import CPU_ENVIRONMENT

os.environ.update(CPU_ENVIRONMENT | {"OMP_NUM_THREADS": "1"})

from pathlib import Path
from typing import Any

from oger_recipe.pipeline.policy.trial import main, rows_of_step, trained_actor


def _train(case: dict[str, Any], rank: int, ranks: int, port: int, folder: Path) -> dict[str, Any]:
    actor, _ = trained_actor(case, rank, ranks, port, folder)

    def said(method: str) -> list[Any]:
        rows = rows_of_step(0)
        return [getattr(actor, method)(row.sequences, row.action_mask, row.attention_mask)[0] for row in rows]

    policy, grader = [said("forward")], [said("forward_grader")]
    for step in (0, 1):
        for row in rows_of_step(step)[rank::ranks]:
            actor.append(row)
        actor.fit()
        policy.append(said("forward"))
        grader.append(said("forward_grader"))
    return {"policy": policy, "grader": grader}


if __name__ == "__main__":
    main(_train)
