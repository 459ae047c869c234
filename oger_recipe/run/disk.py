"""What a run writes on disks, by the shape of its policy and its settings, before anything is loaded.

Of a policy with N parameters, in bytes, without what is small beside it:

    final model      2 N      in ckpt.output_dir
    checkpoint      14 N      in ckpt.path: weights of 16 bits, weights and two moments of 32 bits; none of it with
                              ckpt.disable_ds; as much again of a critic
                     2 N      beside it with ckpt.save_hf
    supervised       2 N      in the run folder with oger.sft.epochs

Every run writes the final model, and the checkpoint of its last step. It keeps up to ckpt.max_num checkpoints
(ckpt.max_mem GB) and the best one, each with a newer one beside it until that is whole.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.run.memory import Shape

_GB = 1024**3  # as ckpt.max_mem counts


@dataclass(frozen=True)
class Written:
    """Bytes in one folder: what is surely written, and the most that will be there at once."""

    surely: float
    at_most: float


def checkpoint_bytes(value: Mapping[str, Any], policy: Shape, critic: Shape | None = None) -> float:
    """One checkpoint of the policy, and of the critic where there is one."""
    states = 0 if value["ckpt.disable_ds"] else 14
    weights = 2 if value["ckpt.save_hf"] else 0
    return policy.parameters * (states + weights) + (states * critic.parameters if critic else 0)


def written(value: Mapping[str, Any], policy: Shape, critic: Shape | None = None) -> dict[Path, Written]:
    """By folder, for a run that begins."""
    critic = critic if value["algo.advantage.estimator"] in CRITIC_ESTIMATORS else None
    one, limit = checkpoint_bytes(value, policy, critic), value["oger.total_training_steps"]
    trains = limit is None or limit > 0
    last = one if trains and not value["ckpt.disable_ds"] else 0
    most = _kept(value, one) * one if trains else 0
    model = 2.0 * policy.parameters
    folders = {
        "ckpt.path": Written(last, max(most, last)),
        "ckpt.output_dir": Written(model, model),
        "oger.run_dir": Written(model, model) if value["oger.sft.epochs"] else Written(0, 0),
    }
    return {Path(value[key]): each for key, each in folders.items() if each.at_most}


def _kept(value: Mapping[str, Any], one: float) -> float:
    """The most checkpoints that lie there at once."""
    every, limit = value["ckpt.save_steps"], value["oger.total_training_steps"]
    room = max(value["ckpt.max_mem"] * _GB / one, 1) if one else 1
    saves = 1 + (float("inf") if limit is None else limit // every) if every > 0 else 1
    evaluates = bool(value["eval.dataset"]) and value["eval.steps"] > 0 and value["ckpt.best_metric_key"] != "none"
    return min(saves, min(value["ckpt.max_num"], room) + 1) + (2 if evaluates else 0)


def by_disk(folders: Mapping[Path, Written]) -> dict[Path, Written]:
    """Adds up what the folders of one disk take; a disk is named by the nearest folder that exists."""
    disks: dict[int, tuple[Path, Written]] = {}
    for folder, each in folders.items():
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        device = os.stat(there).st_dev
        first, before = disks.get(device, (there, Written(0, 0)))
        disks[device] = first, Written(before.surely + each.surely, before.at_most + each.at_most)
    return dict(disks.values())
