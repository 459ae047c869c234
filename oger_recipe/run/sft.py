"""Supervised training on the run's teacher trajectories before its first step, by OpenRLHF's own train_sft."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from oger_recipe.base.cpu import CPU_ENVIRONMENT, ON_LOOPBACK
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import to_json
from oger_recipe.base.signals import end_with
from oger_recipe.checks.job import Job
from oger_recipe.data.disk_list import DiskList
from oger_recipe.settings.run import SftSettings
from oger_recipe.teachers.store import TeacherStore


def supervise(job: Job) -> Path:
    """Train actor.model_name_or_path on the prepared teachers; return its folder, which a resumed run reuses.

    Runs on this node's policy GPUs (actor.num_gpus_per_node) by torchrun; its output goes to logs/supervised.log.
    Raises:
        RecipeError: the training failed.
    """
    run_dir, settings = job.run_dir, SftSettings.of(job.value)
    model = run_dir / "supervised_model"
    if (model / "config.json").exists():
        return model
    data = run_dir / "data" / "supervised.jsonl"
    count = _write_examples(job.value, run_dir / "data", data)
    log = run_dir / "logs" / "supervised.log"
    print(f"supervised training: {count} teacher trajectories, {settings.epochs} epochs; log: {log}", flush=True)
    processes = 1 if job.cpu else job.value["actor.num_gpus_per_node"]
    environment = os.environ | (CPU_ENVIRONMENT if job.cpu else ON_LOOPBACK)
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # rank 0 has the store, which our patch binds
    with tempfile.TemporaryDirectory(prefix="oger-") as folder, log.open("w") as output:
        command = [*_torchrun(processes, Path(folder) / "meeting"), "-m", "oger_recipe.pipeline.policy.sft"]
        command += _flags(job.value, data, model)
        code = _run(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    if code or not (model / "config.json").exists():
        lines = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
        raise RecipeError(f"supervised training failed: {lines[-1] if lines else f'exit code {code}'}\n  log: {log}")
    return model


def _run(command: list[str], **settings: Any) -> int:
    """Run torchrun; return its exit code.

    However the run ends, torchrun gets SIGTERM and then stops its training processes. They have sessions of their own,
    and would go on if torchrun were killed.
    """
    below = partial(end_with, os.getpid(), signal.SIGTERM)
    with subprocess.Popen(command, preexec_fn=below, **settings) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            raise


def _torchrun(processes: int, meeting: Path) -> list[str]:
    """Return the words that start a program in several processes of this machine. They meet by a file, which must be
    new: torchrun's own store listens on every address."""
    words = ["--nnodes", "1", "--nproc_per_node", str(processes), "--local_addr", "127.0.0.1", "--rdzv_id", "one"]
    words += ["--rdzv_backend", "c10d", "--rdzv_endpoint", str(meeting), "--rdzv_conf", "store_type=file"]
    return [sys.executable, "-m", "torch.distributed.run", *words]


def _write_examples(value: Mapping[str, Any], folder: Path, path: Path) -> int:
    """Write and count lines of teacher trajectories, {"prompt": tokens, "response": tokens}, in a seeded order.

    The tokens are those of a rollout's prompt and of the store: a trajectory that was cut has no end here either.
    """
    from oger_recipe.run.inputs import preparation

    prepared = preparation(value)
    tokenizer, prompt_format = prepared["tokenizer"], prepared["prompt_format"]
    store, examples = TeacherStore(folder / "teachers.arrow"), DiskList[str]()
    with (folder / "train.jsonl").open(encoding="utf-8") as rows:
        for row in map(json.loads, rows):
            # A named template is in the prompt already; OpenRLHF's two are applied here, once.
            prompt = row["prompt"] if prompt_format.template else prompt_format.text(row["prompt"], tokenizer)
            tokens = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            for teacher in store[json.loads(row["label"])["uid"]]:
                examples.append(to_json({"prompt": tokens, "response": teacher.tokens}) + "\n")
    order = list(range(len(examples)))
    random.Random(value["train.seed"]).shuffle(order)
    order = order[: value["oger.sft.max_samples"]]
    with path.open("w", encoding="utf-8") as file:
        file.writelines(examples[place] for place in order)
    return len(order)


def _flags(value: Mapping[str, Any], data: Path, model: Path) -> list[str]:
    settings = SftSettings.of(value)
    flags = {
        "model.model_name_or_path": value["actor.model_name_or_path"],
        "data.dataset": data,
        "data.max_len": value["data.max_len"],
        "train.max_epochs": settings.epochs,
        "train.batch_size": settings.batch_size,
        "train.micro_batch_size": settings.micro_batch_size,
        "train.seed": value["train.seed"],
        "adam.lr": settings.lr,
        "ckpt.output_dir": model,
        "ckpt.path": model.with_name("supervised_checkpoints"),
        "ds.zero_stage": value["ds.zero_stage"],
        "ds.attn_implementation": value["ds.attn_implementation"],
        "max_norm": value["actor.max_norm"],
    }
    switches = {
        "ckpt.disable_ds": True,
        "model.gradient_checkpointing_enable": value["actor.gradient_checkpointing_enable"],
        "ds.packing_samples": value["ds.packing_samples"],
        "ds.adam_offload": value["ds.adam_offload"],
        "ds.use_liger_kernel": value["ds.use_liger_kernel"],
    }
    given = [f"--{key}={setting}" for key, setting in flags.items()] + [
        f"--{key}" for key in switches if switches[key]
    ]
    return given + _adapter_flags(value)


def _adapter_flags(value: Mapping[str, Any]) -> list[str]:
    if not value["ds.lora.rank"]:
        return []
    flags = [f"--ds.lora.{name}={value[f'ds.lora.{name}']}" for name in ("rank", "alpha", "dropout")]
    targets = value["ds.lora.target_modules"]
    if targets in ("all-linear", ["all-linear"]):  # the default there; named, it would be a list, which PEFT knows not
        return flags
    return [*flags, "--ds.lora.target_modules", *([targets] if isinstance(targets, str) else targets)]
