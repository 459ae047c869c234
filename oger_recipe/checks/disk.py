"""What a run writes on disks, by the shape of its policy and its settings, before anything is loaded.

Of a policy with N parameters, in bytes, without what is small beside it:

    final model      2 N      in ckpt.output_dir
    checkpoint      14 N      in ckpt.path: weights of 16 bits, weights and two moments of 32 bits; none of it with
                              ckpt.disable_ds; as much again of a critic. With ds.lora.rank 2 N, and 14 of each
                              parameter of the adapters
                     4 N      in it with oger.grader average
                     2 N      beside it with ckpt.save_hf
                    12 L      beside it of a reward source that learns, with a model of L parameters: weights and two
                              moments of 32 bits
    supervised       2 N      in the run folder with oger.sft.epochs
    samples          4 T      in the run folder, of each step that oger.samples_steps has written: T tokens, of all its
                              rollouts at full length

Every run writes the final model, and the checkpoint of its last step. It keeps up to ckpt.max_num checkpoints
(ckpt.max_mem GB) and the best one, each with a newer one beside it until that is whole.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.base.files import nearest_existing
from oger_recipe.checks.memory import Shape, shape_of, trained_parameters
from oger_recipe.rewards.kinds.entries import sources_of
from oger_recipe.run_folder.records import writes_samples
from oger_recipe.settings.grades import AVERAGE

_GB = 1024**3  # as ckpt.max_mem counts


@dataclass(frozen=True)
class Written:
    """Bytes in one folder: what is surely written, and the most that will be there at once."""

    surely: float
    at_most: float


def checkpoint_bytes(value: Mapping[str, Any], policy: Shape, critic: Shape | None = None) -> float:
    """Count the bytes of a checkpoint: of policy, of critic where the estimator has one, and of sources that learn."""
    critic = critic if value["algo.advantage.estimator"] in CRITIC_ESTIMATORS else None
    states = 0 if value["ckpt.disable_ds"] else 14
    weights = 2 if value["ckpt.save_hf"] else 0
    frozen = 0 if value["ckpt.disable_ds"] or not value["ds.lora.rank"] else 2 * policy.parameters
    of_policy = weights * policy.parameters + states * trained_parameters(value, policy) + frozen
    average = 0 if value["ckpt.disable_ds"] or value["oger.grader"] != AVERAGE else 4 * policy.parameters
    return of_policy + average + (states * critic.parameters if critic else 0) + _of_sources(value)


def _of_sources(value: Mapping[str, Any]) -> float:
    """Count the bytes of what reward sources have learnt; 0 of a model whose shape is not known."""
    learning = [spec.keys.models[0].model for spec in sources_of(value["oger.reward.sources"]) if spec.keys.learns]
    return sum(12.0 * shape.parameters for shape in map(shape_of, learning) if shape)


def sizes(value: Mapping[str, Any]) -> dict[str, float]:
    """Estimate the bytes of a checkpoint and of the final model; nothing where the policy's shape is not known."""
    policy = shape_of(value["actor.model_name_or_path"])
    if policy is None:
        return {}
    critic = shape_of(value["critic.model_name_or_path"] or value["actor.model_name_or_path"])
    return {"checkpoint": checkpoint_bytes(value, policy, critic), "model": 2.0 * policy.parameters}


def written(
    value: Mapping[str, Any], policy: Shape, critic: Shape | None = None, steps: int | None = None
) -> dict[Path, Written]:
    """Estimate by folder what a run that begins writes; ``steps``: of the run, None: not known."""
    one, limit = checkpoint_bytes(value, policy, critic), _limit(value, steps)
    trains = limit > 0
    last = one if trains and not value["ckpt.disable_ds"] else 0
    most = kept(value, policy, critic, steps) * one if trains else 0
    model = 2.0 * policy.parameters
    supervised = model if value["oger.sft.epochs"] else 0
    folders = {
        "ckpt.path": Written(last, max(most, last)),
        "ckpt.output_dir": Written(model, model),
        "oger.run_dir": Written(supervised, supervised + samples(value, steps)),
    }
    return {Path(value[key]): each for key, each in folders.items() if each.at_most}


def saves(value: Mapping[str, Any], steps: int | None = None) -> float:
    """Count the checkpoints written in turn, without those of the best evaluation; inf: not known."""
    every, limit = value["ckpt.save_steps"], _limit(value, steps)
    if every <= 0:
        return 1
    return limit if limit == math.inf else max(-(-limit // every), 1)


def kept(value: Mapping[str, Any], policy: Shape, critic: Shape | None = None, steps: int | None = None) -> float:
    """Count the most checkpoints that lie on disk at once."""
    one = checkpoint_bytes(value, policy, critic)
    room = max(value["ckpt.max_mem"] * _GB / one, 1) if one else 1
    evaluates = bool(value["eval.dataset"]) and value["eval.steps"] > 0 and value["ckpt.best_metric_key"] != "none"
    return min(saves(value, steps), min(value["ckpt.max_num"], room) + 1) + (2 if evaluates else 0)


def samples(value: Mapping[str, Any], steps: int | None = None) -> float:
    """Estimate the most bytes that a run writes of its rollouts; 0 where its number of steps is not known."""
    limit = value["oger.total_training_steps"] if steps is None else steps
    tokens = value["rollout.max_new_tokens"] or value["data.max_len"]
    rows = value["rollout.batch_size"] * value["rollout.n_samples_per_prompt"]
    return (
        4.0
        * rows
        * tokens
        * sum(writes_samples(step, value["oger.samples_steps"]) for step in range(1, (limit or 0) + 1))
    )


def _limit(value: Mapping[str, Any], steps: int | None) -> float:
    """Return the number of steps of the run; inf where it is not known."""
    asked = value["oger.total_training_steps"] if steps is None else steps
    return math.inf if asked is None else asked


def by_disk(folders: Mapping[Path, Written]) -> dict[Path, Written]:
    """Add up what the folders on one disk take; a disk is named by the nearest folder that exists."""
    disks: dict[int, tuple[Path, Written]] = {}
    for folder, each in folders.items():
        there = nearest_existing(folder)
        device = os.stat(there).st_dev
        first, before = disks.get(device, (there, Written(0, 0)))
        disks[device] = first, Written(before.surely + each.surely, before.at_most + each.at_most)
    return dict(disks.values())
