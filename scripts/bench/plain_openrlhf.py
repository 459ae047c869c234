"""Runs OpenRLHF's own trainer, policy and sampling on the recipe's machine patches, for comparison.

``python scripts/bench/plain_openrlhf.py RUN_DIR TOKENS...``: the resolved flags of a run of the recipe, whose data
folder the environment's PREPARED_DATA names.
"""

from oger_recipe.base.cpu import is_without_cuda
from oger_recipe.base.imports import without_garbage_collection
from oger_recipe.patches import apply_model_patches

with without_garbage_collection():
    apply_model_patches()  # of the policy, too: without them a CPU without bfloat16 multiplies number by number

import contextlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ray
import torch
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ray import ppo_actor, vllm_engine

from oger_recipe.pipeline import undecorated
from oger_recipe.run_folder import records as run_folder


class PlainPPOTrainer(undecorated(ppo_trainer.PPOTrainer)):  # type: ignore[misc]
    """OpenRLHF's, with a line for the time after every step."""

    def __init__(self, *args, **kwargs) -> None:  # without one here, the actor ends in a TypeError of super()
        super().__init__(*args, **kwargs)

    def fit(self, *args, **kwargs) -> None:
        self._record("training")
        super().fit(*args, **kwargs)

    def save_logs_and_checkpoints(self, global_step, logs_dict=None, client_states=None) -> None:
        self._record("step", **{key: value for key, value in logs_dict.items() if key.startswith("timing/")})
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)

    def _record(self, event: str, **facts: float) -> None:
        run_folder.event(Path(self.args.oger.run_dir), event, **facts)


class PlainPolicyModelActor(undecorated(ppo_actor.PolicyModelActor)):  # type: ignore[misc]
    """OpenRLHF's; exists so that the worker imports this module first."""


class PlainRolloutActor(undecorated(vllm_engine.RolloutRayActor)):  # type: ignore[misc]
    """OpenRLHF's on GPUs; on a CPU the engine as the recipe starts it, without what the recipe asks of it."""

    async def __init__(self, *args, **kwargs) -> None:
        if is_without_cuda():
            kwargs["worker_extension_cls"] = "oger_recipe.pipeline.engine.engine_worker.CpuWorkerWrap"
            kwargs.update(enable_chunked_prefill=False, max_num_batched_tokens=max(kwargs["max_model_len"], 4096))
        await super().__init__(*args, **kwargs)


def install() -> None:
    ppo_trainer.PPOTrainer = ray.remote(PlainPPOTrainer)
    ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(PlainPolicyModelActor)
    vllm_engine.RolloutRayActor = ray.remote(PlainRolloutActor)


def no_template(*_: Any) -> contextlib.nullcontext:
    return contextlib.nullcontext()


def main() -> None:
    # launch() puts in place whatever classes install() does; the recipe's are neither imported nor forked.
    for module, stand_in in {"install": install, "template": no_template}.items():
        name = f"oger_recipe.pipeline.driver.{module}"
        sys.modules[name] = ModuleType(name)
        setattr(sys.modules[name], module, stand_in)
    from oger_recipe.grading.pool import GradingSettings
    from oger_recipe.pipeline.driver.launch import launch
    from oger_recipe.run_folder.attempt import locked

    run_dir, flags = Path(sys.argv[1]), sys.argv[2:]
    (run_dir / "logs").mkdir(parents=True)
    prepared = Path(os.environ["PREPARED_DATA"])
    data = ["--data.prompt_dataset", str(prepared / "train.jsonl"), "--data.input_key", "prompt"]
    data += ["--eval.dataset", str(prepared / "eval.jsonl"), "--eval.split", "train"]
    data += ["--data.label_key", "label", "--data.prompt_split", "train"]
    outputs = ["--oger.run_dir", str(run_dir), "--ckpt.path", str(run_dir / "checkpoints")]
    outputs += ["--ckpt.output_dir", str(run_dir / "model"), "--logger.tensorboard_dir", str(run_dir / "tensorboard")]
    grading = GradingSettings().to_json()
    cpu = is_without_cuda()
    gpus = 2 if cpu else torch.cuda.device_count()
    settings = {"cpu": cpu, "logical_gpus": gpus, "verbose": False, "environment": {"OGER_GRADING": grading}}
    with locked(run_dir) as lock:
        launch([*flags, *data, *outputs], run_dir, held=(lock,), **settings)


if __name__ == "__main__":
    import plain_openrlhf  # by its own name, so that workers can import the classes

    plain_openrlhf.main()
