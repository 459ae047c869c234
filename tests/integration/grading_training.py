"""One rank of a training beside weights that grade in the policy's place: see test_grading_weights.py.

``python grading_training.py RANK RANKS PORT FOLDER`` trains FOLDER/policy in each of FOLDER/cases.json and writes, on
rank 0, FOLDER/results.pt: what policy and grader say of the same rows at first and after each step. Of a grader that
is an average: the weights of the policy at first and after each update, and those of the grader; a second run resumes
in the middle.
"""

from __future__ import annotations

import os

from oger_recipe.base.cpu import CPU_ENVIRONMENT

os.environ.update(CPU_ENVIRONMENT | {"OMP_NUM_THREADS": "1"})

from pathlib import Path
from typing import Any

from oger_recipe.pipeline.policy.trial import main, rows_of_step, trained_actor

# isort: split
import torch


def _weights(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.model.module.parameters()]


def _fit(actor: Any, steps: tuple[int, ...], rank: int, ranks: int) -> list[list[torch.Tensor]]:
    """Train, and return the policy's weights after each update."""
    engine, step, found = actor.actor.model, actor.strategy.optimizer_step, []

    def watched(*args: Any, **settings: Any) -> None:
        before = engine.global_steps
        step(*args, **settings)
        if engine.global_steps > before:
            found.append(_weights(actor.actor))

    actor.strategy.optimizer_step = watched
    for number in steps:
        for row in rows_of_step(number)[rank::ranks]:
            actor.append(row)
        actor.fit()
    actor.strategy.optimizer_step = step
    return found


def _averaged(case: dict[str, Any], rank: int, ranks: int, port: int, folder: Path) -> dict[str, Any]:
    actor, _ = trained_actor(case, rank, ranks, port, folder)
    found: dict[str, Any] = {"start": _weights(actor.actor), "graders": [_weights(actor.grader)]}
    found["updates"] = _fit(actor, (0, 1), rank, ranks)
    found["graders"].append(_weights(actor.grader))
    actor.save_checkpoint("global_step2")
    found["updates"] += _fit(actor, (1, 0), rank, ranks)
    found["graders"].append(_weights(actor.grader))
    resumed, _ = trained_actor(
        case | {"settings": case["settings"] | {"ckpt.load_enable": True}}, rank, ranks, port, folder
    )
    found["resumed"] = [_weights(resumed.grader)]
    _fit(resumed, (1, 0), rank, ranks)
    found["resumed"].append(_weights(resumed.grader))
    return found


def _train(case: dict[str, Any], rank: int, ranks: int, port: int, folder: Path) -> dict[str, Any]:
    if case["settings"]["oger.grader"] == "average":
        return _averaged(case, rank, ranks, port, folder)
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
