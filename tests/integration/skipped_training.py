"""One rank of a training in which a number is not finite: see test_skipped_updates.py.

``python skipped_training.py RANK RANKS PORT FOLDER`` trains FOLDER/policy in each of FOLDER/cases.json and writes, on
rank 0, FOLDER/results.pt: the parameters at first and after each step, what each step reported, and whether all ranks
have the same parameters.
"""

from __future__ import annotations

import os

from oger_recipe.base.cpu import CPU_ENVIRONMENT

os.environ.update(CPU_ENVIRONMENT | {"OMP_NUM_THREADS": "1"})

import functools
import math
from pathlib import Path
from typing import Any

from oger_recipe.pipeline.policy.trial import _masters, main, rows_of_step, trained_actor

# isort: split
import torch

SPOILT = 5  # a row of a rollout; with two ranks on the second


def _spoil(rows: list[Any], what: str) -> None:
    """Put a number that is not finite into one of the eight rows."""
    row = rows[SPOILT]
    last = (0, row.action_mask.shape[1] - 1)
    if what == "advantage":
        row.advantages[last] = math.nan
    elif what == "log-probability":
        row.action_log_probs[last] = math.nan
    elif what == "return":
        row.returns[last] = math.inf


def _train(case: dict[str, Any], rank: int, ranks: int, port: int, folder: Path) -> dict[str, Any]:
    role = case["role"]
    actor, module = trained_actor(case, rank, ranks, port, folder)
    weights, reports = [_masters(module, actor, role)], []
    for step, spoilt in case["steps"]:
        rows = rows_of_step(step)
        _spoil(rows, spoilt)
        factor = math.inf if spoilt == "gradient" and rank == ranks - 1 else 1.0
        mine = next(parameter for parameter in module.parameters() if parameter.requires_grad)
        hook = mine.register_hook(functools.partial(torch.mul, other=factor))
        for row in rows[rank::ranks]:
            actor.append(row)
        torch.manual_seed(0)  # of the order of the rows
        status = actor.fit()
        hook.remove()
        weights.append(_masters(module, actor, role))
        reports.append({name: float(value) for name, value in status.items()})
    whole = torch.cat([parameter.flatten() for parameter in weights[-1].values()])
    largest = whole.clone()
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
    return {"weights": weights, "reports": reports, "ranks_agree": torch.equal(whole, largest)}


if __name__ == "__main__":
    main(_train)
