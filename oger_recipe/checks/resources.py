"""Check what this machine has for a run: GPUs, memory, disks, folders and ports."""

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oger_recipe.base.cpu import main_memory
from oger_recipe.base.files import ray_folder
from oger_recipe.base.machine import cluster_address, is_on_loopback, machine
from oger_recipe.checks.disk import by_disk, written
from oger_recipe.checks.job import OK, PROBLEM, WARNING, Finding, Found, Job
from oger_recipe.checks.machine import gpus_by_role
from oger_recipe.checks.memory import (
    Memory,
    estimate,
    in_main_memory,
    of_a_gpu,
    readable,
    shape_of,
    shared_gpu,
    surely_in_main_memory,
    surely_taken,
    swap,
)

_NO_TOKEN = (
    "whoever reaches its ports can run code as its user; start it with RAY_AUTH_MODE=token and one RAY_AUTH_TOKEN "
    "on every node, and set both here"
)


def gpus(job: Job) -> Found:
    import torch

    here = machine()
    if here.silent:
        yield Finding(PROBLEM, here.no_answer)
    elif here.cluster:
        yield Finding(OK, f"those of {here}; runs use {'the CPU' if here.cpu else 'GPUs'}")
        if os.environ.get("RAY_AUTH_MODE") != "token" and not is_on_loopback(here.cluster):
            yield Finding(WARNING, f"the Ray cluster at {here.cluster} asks for no token: {_NO_TOKEN}")
    elif job.cpu:
        cores = len(os.sched_getaffinity(0))
        yield Finding(OK, f"none; runs use the CPU: {cores} cores and {readable(main_memory())}")
    else:
        there = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        yield Finding(OK, ", ".join(f"{each.name} with {readable(each.total_memory)}" for each in there))


_SHARED_MEMORY = 512 * 2**20  # bytes: Ray's object store on a CPU


def shared_memory(job: Job) -> Found:
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    if free >= _SHARED_MEMORY:
        yield Finding(OK, f"{readable(free)} free in /dev/shm")
    else:
        enough = "in a container set --shm-size=2g"
        yield Finding(
            WARNING, f"{readable(free)} free in /dev/shm, so Ray falls back to the disk, which is slow: {enough}"
        )


_TEMPORARY = 2 * 2**30  # bytes
_FULL = 0.95  # where Ray stops using a disk
# Of a socket's path, below the folder: Linux takes 107 bytes.
_LONGEST = 107 - len("/oger-abcdefgh/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")


def temporary_files(job: Job) -> Found:
    folder = ray_folder()
    if cluster_address() is None:
        if not str(folder.absolute()).isascii():
            yield Finding(PROBLEM, f"{folder}: Ray takes only ASCII paths: set RAY_TMPDIR to one")
            return
        if (length := len(str(folder.absolute()))) > _LONGEST:
            yield Finding(
                PROBLEM,
                f"{folder} has {length} characters, and Ray's sockets leave room for {_LONGEST}: set "
                "RAY_TMPDIR to a shorter path",
            )
            return
    reason = _cannot_write(folder)
    if reason:
        yield Finding(PROBLEM, f"{folder}, where Ray keeps its files, {reason}: set RAY_TMPDIR to another folder")
        return
    usage = shutil.disk_usage(folder)
    text = f"{readable(usage.free)} of {readable(usage.total)} free in {folder}"
    if usage.free < _TEMPORARY or usage.used > _FULL * usage.total:
        yield Finding(WARNING, f"{text}; Ray stops using a disk that is 95% full: free some, or set RAY_TMPDIR")
    else:
        yield Finding(OK, text)


def loopback(job: Job) -> Found:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            yield Finding(OK, "ports can be opened on 127.0.0.1")
    except OSError as error:
        yield Finding(PROBLEM, f"no port can be opened on 127.0.0.1 ({error}); Ray's processes need some")


def memory(job: Job) -> Found:
    """Check memory: what is surely taken has to be there; the rest is an estimate, to which libraries add."""
    shape = shape_of(job.value["actor.model_name_or_path"])
    if shape is None or cluster_address() is not None:
        return
    critic = shape_of(job.value["critic.model_name_or_path"])
    if job.cpu:
        gpus, there, more = gpus_by_role(job.value), main_memory(), swap()
        needed = in_main_memory(job.value, shape, gpus, critic)
        surely = surely_in_main_memory(job.value, shape, gpus)
        where = "main memory"
    else:
        there, more = of_a_gpu() or 0, 0
        needed, surely = (
            _on_a_gpu(job.value, estimate(job.value, shape, critic), there),
            surely_taken(job.value, shape),
        )
        where = "a GPU's memory for a policy rank"
    text = f"about {readable(needed)} of {where} needed, {readable(there)} available"
    if surely > there + more:
        yield Finding(
            PROBLEM,
            f"weights and Adam's states alone take {readable(surely)} of {where}, but only {readable(there)} are "
            "available: train a smaller model, or spread it over more (ds.zero_stage 3, ds.adam_offload on GPUs, "
            "vllm.num_engines)",
        )
    elif needed > there:
        yield Finding(WARNING, f"{text}; `oger train --dry-run` shows the parts")
    else:
        yield Finding(OK, text)


def _on_a_gpu(value: Mapping[str, Any], need: Memory, there: float) -> float:
    """Return a GPU's bytes at its fullest, with what shares it."""
    if value["train.colocate_all"]:
        return max(taken + engine * there for taken, engine in shared_gpu(value, need).values())
    return sum(need.policy.values()) + value["train.colocate_actor_ref"] * need.reference


def supervised(job: Job) -> Found:
    """Check this machine's GPUs for the supervised stage, also where the run joins a cluster."""
    import torch

    if not job.value["oger.sft.epochs"] or job.cpu:
        return
    there, asked = torch.cuda.device_count(), job.value["actor.num_gpus_per_node"]
    if there >= asked:
        yield Finding(OK, f"{asked} of this machine's {there} GPUs")
    else:
        yield Finding(
            PROBLEM,
            f"it needs {asked} GPUs of this machine (actor.num_gpus_per_node), which has {there}: start the run on a "
            "node that has them, or leave oger.sft out",
        )


_LITTLE = 2**28  # bytes


def run_folder(job: Job) -> Found:
    folder = next(each for each in (job.run_dir, *job.run_dir.parents) if os.path.exists(each))
    reason = _cannot_write(folder)
    if reason:
        yield Finding(PROBLEM, f"{job.run_dir}: {folder} {reason}: set oger.run_dir to another folder")
        return
    free = shutil.disk_usage(folder).free
    if free < _LITTLE:
        yield Finding(WARNING, f"{readable(free)} free in {folder}: free some, or set oger.run_dir elsewhere")
    else:
        yield Finding(OK, f"{job.run_dir}, {readable(free)} free")


def disks(job: Job) -> Found:
    """Check that disks have room for models and checkpoints; a resumed run, which has some, is only warned."""
    value = job.value
    shape = shape_of(value["actor.model_name_or_path"])
    if shape is None:
        return
    critic = shape_of(value["critic.model_name_or_path"] or value["actor.model_name_or_path"])
    for folder, each in by_disk(written(value, shape, critic)).items():
        free = shutil.disk_usage(folder).free
        advice = "free some, set oger.run_dir, ckpt.path or ckpt.output_dir elsewhere, or leave"
        if free < each.surely and not job.resumes:
            yield Finding(
                PROBLEM,
                f"{readable(free)} free in {folder}, and the final model with the checkpoint of the last step takes "
                f"{readable(each.surely)}: {advice} the optimizer's states out (ckpt.disable_ds)",
            )
        elif free < each.at_most:
            yield Finding(
                WARNING,
                f"{readable(free)} free in {folder}; models and checkpoints may take {readable(each.at_most)}: "
                f"{advice} out what you do not need (ckpt.max_num, ckpt.best_metric_key none, ckpt.disable_ds)",
            )
        else:
            yield Finding(OK, f"{readable(free)} free in {folder}, {readable(each.at_most)} needed at most")


def _cannot_write(folder: Path) -> str | None:
    if not folder.is_dir():
        return "is a file" if folder.exists() else "does not exist"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"cannot be written ({error.strerror})"
