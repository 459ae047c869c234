"""What of a run this machine cannot do: it lacks CUDA, or has fewer GPUs than are asked for."""

import os
from collections.abc import Iterator, Mapping
from typing import Any


def machine_problems(value: Mapping[str, Any], *, cpu: bool, gpus_here: int | None) -> list[str]:
    """What this machine cannot do of a recipe that is right.

    ``cpu``: it has no CUDA; ``gpus_here``: the GPUs that Ray will find, None where that is not known yet (a running
    cluster).
    """
    return [*_layout(value, cpu, gpus_here), *(_unsupported_on_cpu(value) if cpu else ())]


def gpus_found(value: Mapping[str, Any]) -> int | None:
    """GPUs that Ray will find, taking the other nodes for equals of this one; None for a cluster that runs already."""
    import torch

    if "RAY_ADDRESS" in os.environ or not torch.cuda.is_available():
        return None
    return torch.cuda.device_count() * int(value["actor.num_nodes"])


def gpus_by_role(value: Mapping[str, Any]) -> dict[str, int]:
    """GPUs that Ray has to have free, by role, in OpenRLHF's arithmetic."""

    def group(role: str) -> int:
        return value[f"{role}.num_nodes"] * value[f"{role}.num_gpus_per_node"]

    asked = {"actor": group("actor")}
    has_reference = value["algo.kl.init_coef"] > 0
    if has_reference and not (value["train.colocate_actor_ref"] or value["train.colocate_all"]):
        asked["reference"] = group("ref")
    if not value["train.colocate_all"]:
        asked["vLLM engines"] = (value["vllm.num_engines"] or 0) * value["vllm.tensor_parallel_size"]
    if value["algo.advantage.estimator"] == "gae" and not value["train.colocate_all"]:
        asked["critic"] = group("critic")
    return asked


def policy_ranks(value: Mapping[str, Any]) -> int:
    """Copies of the policy that share the rows of a step between them."""
    gpus = value["actor.num_nodes"] * value["actor.num_gpus_per_node"]
    return max(gpus // (value["ds.ring_attn_size"] * value["ds.tensor_parallel_size"]), 1)


# flag -> (value that works, what to do instead)
_UNSUPPORTED_ON_CPU = {
    "vllm.enable_sleep": (False, "vLLM's CPU build cannot sleep; leave it off"),
    "ds.enable_sleep": (False, "there is no GPU memory to free; leave it off"),
    "ds.adam_offload": (False, "the optimizer is already in main memory; leave it off"),
    "ref.offload": (False, "the reference is already in main memory; leave it off"),
    "reward.offload": (False, "the reward model is already in main memory; leave it off"),
    "ds.load_in_4bit": (False, "4-bit weights need CUDA; leave it off"),
    "ds.use_liger_kernel": (False, "Liger's kernels need a GPU; leave it off"),
    "ds.deepcompile": (False, "nothing is compiled there; leave it off"),
    "ds.ring_attn_size": (1, "ring attention needs flash attention; use 1"),
    "ds.tensor_parallel_size": (1, "use 1; several policy ranks (actor.num_gpus_per_node) work"),
    "vllm.tensor_parallel_size": (1, "use 1; several engines (vllm.num_engines) work"),
    "train.enable_ema": (False, "OpenRLHF keeps the average on a GPU; leave it off"),
    "vllm.sync_with_ray": (False, "Ray's collectives do not reach vLLM's processes; leave it off"),
    "vllm.sync_backend": ("gloo", "NCCL needs CUDA; use gloo"),
    "ds.param_dtype": ("bf16", "use bf16"),
    "actor.optim": ("adam", "use adam"),
}


def refused(value: Mapping[str, Any], table: Mapping[str, tuple[Any, str]], where: str) -> Iterator[str]:
    """A sentence for every flag of ``table`` that is set to anything but the value that works."""
    for key, (works, instead) in table.items():
        found = value[key]
        if found != works:
            yield f"{key} {found} is not supported{where}: {instead}"


def _unsupported_on_cpu(value: Mapping[str, Any]) -> Iterator[str]:
    yield from refused(value, _UNSUPPORTED_ON_CPU, " on a machine without CUDA")
    attention = value["ds.attn_implementation"]
    if "flash" in attention:
        yield f"ds.attn_implementation {attention} needs CUDA: use sdpa or eager"


def _layout(value: Mapping[str, Any], cpu: bool, gpus_here: int | None) -> Iterator[str]:
    asked = gpus_by_role(value)
    declared = (value["oger.logical_gpus"] or sum(asked.values())) if cpu else gpus_here
    if declared is not None and sum(asked.values()) > declared:
        roles = " + ".join(f"{role} {count}" for role, count in asked.items())
        source = "oger.logical_gpus" if cpu else "found on this machine"
        total = sum(asked.values())
        yield f"{roles} = {total} GPUs are asked for, but {declared} are declared ({source}); Ray would wait for ever"
    actor, reference = ((value[f"{role}.num_nodes"], value[f"{role}.num_gpus_per_node"]) for role in ("actor", "ref"))
    shared = "train.colocate_all" if value["train.colocate_all"] else "train.colocate_actor_ref"
    if value[shared] and value["algo.kl.init_coef"] > 0 and actor != reference:
        yield (
            f"{shared} puts the reference on the policy's GPUs, but actor.num_nodes and .num_gpus_per_node are "
            f"{actor[0]} x {actor[1]}, those of ref {reference[0]} x {reference[1]}: make them equal"
        )
    engines = value["vllm.num_engines"] * value["vllm.tensor_parallel_size"]
    if value["train.colocate_all"] and engines != asked["actor"]:
        yield (
            f"train.colocate_all puts the engines on the policy's {asked['actor']} GPUs, but vllm.num_engines x "
            f"vllm.tensor_parallel_size is {engines}: make them equal"
        )
