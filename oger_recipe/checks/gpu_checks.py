"""What `oger doctor --gpu` looks at: small functions, each of which returns its numbers.

A check raises Failed with a sentence, or Skipped with a reason; whatever else it raises is a failure, too. A new one
is a function in the module of its subject (gpu_numbers.py, gpu_models.py, whole runs here) and a line in CHECKS. All
of them take the device: on a CPU they run at a small size.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from oger_recipe.base.files import read_jsonl
from oger_recipe.checks.gpu_here import Here, Numbers, Skipped, packages
from oger_recipe.checks.gpu_models import agrees, dynamic_batches, packing, peak_memory, sleep, weight_sync
from oger_recipe.checks.gpu_numbers import loss, token_statistics


@dataclass(frozen=True)
class Check:
    """process: checks of one name share a process, and what it has loaded; cuda_only: why a CPU has to do without."""

    find: Callable[[Here], Numbers]
    process: str = "checks"
    cuda_only: str | None = None
    limit_s: float = 240


# What a recipe for CPUs needs on one GPU that all roles share.
ONE_GPU = (
    "--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.enforce_eager",
    "--vllm.gpu_memory_utilization", "0.3", "--actor.num_gpus_per_node", "1", "--ref.num_gpus_per_node", "1",
)  # fmt: skip
TWO_STEPS = (
    "--oger.total_training_steps", "2", "--rollout.batch_size", "4", "--train.batch_size", "32",
    "--train.micro_batch_size", "4", "--rollout.micro_batch_size", "4", "--no-oger.val_before_train",
    "--no-oger.val_after_train",
)  # fmt: skip


def run_flags(device: str, *more: str) -> list[str]:
    """Return the flags of the smoke recipe on this device."""
    return ["--recipe", "countdown_cpu_smoke", *(ONE_GPU if device == "cuda" else ()), *more]


def _run(here: Here, name: str, *more: str) -> Numbers:
    folder = here.folder / name
    places = ("--oger.run_dir", str(folder), "--ckpt.disable_ds")
    command = [sys.executable, "-m", "oger_recipe.cli.train", *run_flags(here.device, *places, *more)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    print(done.stderr, flush=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(" ".join([f"oger train exited with {done.returncode}", *said]))
    return figures(folder)


def figures(run: Path) -> Numbers:
    steps = read_jsonl(run / "metrics.jsonl")
    names = ("vllm_kl", "rollout/solve_rate", "timing/step_total")
    return {"steps": len(steps)} | {name: round(steps[-1][name], 5) for name in names}


def _smollm2(here: Here) -> Numbers:
    from oger_recipe.base import hub

    if not Path(here.smollm2).is_dir():
        try:
            refusal = hub.refusal("model", here.smollm2, None)
        except hub.Unreachable as error:
            refusal = f"the hub cannot be reached ({error})"
        if refusal and not hub.is_cached("model", here.smollm2):
            raise Skipped(f"{refusal}; give a folder by --smollm2")
    return _run(here, "smollm2", "--actor.model_name_or_path", here.smollm2, *TWO_STEPS)


def _speed(here: Here) -> Numbers:
    found: Numbers = {}
    for name in ("countdown", "smollm2"):
        if (metrics := here.folder / name / "metrics.jsonl").is_file():
            steps = read_jsonl(metrics)[1:]  # the first one compiles
            found[name] = round(statistics.median(step["tokens_per_second"] for step in steps))
    if not found:
        raise Skipped("no run finished")
    return found


_OF_CUDA = "vLLM's CPU build has neither CUDA graphs, nor the second runner, nor sleep"
_ENGINES = {
    f"engine {runner} {'eager' if eager else 'graphs'}": Check(
        partial(agrees, runner=runner, eager=eager),
        process=f"engine {runner} {eager}",
        cuda_only=None if (runner, eager) == ("V1", True) else _OF_CUDA,
    )
    for runner, eager in (("V1", False), ("V1", True), ("V2", False), ("V2", True))
}
_IN_RUNS = "engine V2 True"  # on GPUs
CHECKS: dict[str, Check] = {
    "packages and driver": Check(packages),
    "token statistics fp32": Check(partial(token_statistics, dtype=torch.float32)),
    "token statistics bf16": Check(partial(token_statistics, dtype=torch.bfloat16)),
    "loss": Check(loss),
    "packing": Check(packing),
    **_ENGINES,
    "dynamic batches": Check(dynamic_batches),
    "sleep and wake": Check(sleep, process=_IN_RUNS, cuda_only=_OF_CUDA),
    "weight sync": Check(weight_sync, process=_IN_RUNS),
    "Countdown run": Check(partial(_run, name="countdown"), limit_s=480),
    "SmolLM2 run": Check(_smollm2, limit_s=480),
    "peak memory": Check(peak_memory, cuda_only="torch measures the memory of tensors on CUDA only"),
    "tokens a second": Check(_speed),
}
