"""What of a run this machine cannot do: it lacks CUDA, or has fewer GPUs than are asked for."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.base.machine import ENCODER_SHARE, cluster_address, machine
from oger_recipe.models.keys import ModelKeys
from oger_recipe.settings.grades import GRADE_MODEL
from oger_recipe.settings.oger import OgerSettings


def machine_problems(value: Mapping[str, Any], *, cpu: bool, gpus_here: int | None) -> list[str]:
    """Return what this machine cannot do of a recipe that is right.

    ``cpu``: it has no CUDA; ``gpus_here``: the GPUs that Ray will find, None where they are not known, or where a run
    on CPUs declares them to Ray.
    """
    special = _unsupported_on_cpu(value) if cpu else _judges_on_gpus(value)
    return [*_layout(value, cpu, gpus_here), *special]


def gpus_found(value: Mapping[str, Any]) -> int | None:
    """Count the GPUs that Ray will find: those of the cluster that the run joins, or this node's times the number of
    nodes, taken for equals. See machine_problems."""
    here = machine()
    return here.gpus if here.gpus is None or here.cluster else here.gpus * int(value["actor.num_nodes"])


def gpus_by_role(value: Mapping[str, Any]) -> dict[str, int]:
    """Count the GPUs that Ray has to have free, by role, in OpenRLHF's arithmetic."""

    def group(role: str) -> int:
        return value[f"{role}.num_nodes"] * value[f"{role}.num_gpus_per_node"]

    asked = {"actor": group("actor")}
    has_reference = value["algo.kl.init_coef"] > 0
    if has_reference and not (value["train.colocate_actor_ref"] or value["train.colocate_all"]):
        asked["reference"] = group("ref")
    if not value["train.colocate_all"]:
        asked["vLLM engines"] = (value["vllm.num_engines"] or 0) * value["vllm.tensor_parallel_size"]
    if value["algo.advantage.estimator"] in CRITIC_ESTIMATORS and not value["train.colocate_all"]:
        asked["critic"] = group("critic")
    if not value["train.colocate_all"]:
        asked |= {role: gpus for role, gpus in _beside_openrlhfs(value).items() if gpus}
    return asked


def _beside_openrlhfs(value: Mapping[str, Any]) -> dict[str, int]:
    """Count the GPUs of the recipe's own roles. Engines of reward models work in turn: all share what the largest
    needs."""
    sizes = [keys.tensor_parallel_size for _, keys in judge_engines(value)]
    share = value["oger.embedding_num_gpus"] if OgerSettings.of(value).embeds else 0.0
    return {"judges": max(sizes, default=0), "encoder": math.ceil(share)}


def judge_engines(value: Mapping[str, Any]) -> list[tuple[str, ModelKeys]]:
    """Return the models of the reward and of grades that run in engines of the run's own, each with the name of its
    source, or its setting."""
    return [(name, keys) for name, keys in OgerSettings.of(value).models if keys.runs_on == "engine"]


def where_named(name: str) -> str:
    """Say where a recipe names the model of this name (`OgerSettings.models`)."""
    return name if name == GRADE_MODEL else f"oger.reward.sources, {name}"


def policy_ranks(value: Mapping[str, Any]) -> int:
    """Count the copies of the policy that share the rows of a step."""
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
    """Yield a sentence for every flag of ``table`` that is set to anything but the value that works."""
    for key, (works, instead) in table.items():
        found = value[key]
        if found != works:
            yield f"{key} {found} is not supported{where}: {instead}"


def _unsupported_on_cpu(value: Mapping[str, Any]) -> Iterator[str]:
    yield from refused(value, _UNSUPPORTED_ON_CPU, " on a machine without CUDA")
    attention = value["ds.attn_implementation"]
    if "flash" in attention:
        yield f"ds.attn_implementation {attention} needs CUDA: use sdpa or eager"
    for name, keys in judge_engines(value):
        if keys.tensor_parallel_size > 1:
            yield (
                f"{where_named(name)}: tensor_parallel_size {keys.tensor_parallel_size} is not supported on a "
                "machine without CUDA: use 1"
            )


def _judges_on_gpus(value: Mapping[str, Any]) -> Iterator[str]:
    if value["oger.reward.engine_memory_gb"]:
        yield (
            "oger.reward.engine_memory_gb is for machines without CUDA; engines sleep between turns here: leave it out"
        )
    engines, policys = judge_engines(value), value["vllm.gpu_memory_utilization"]
    for name, keys in engines if value["train.colocate_all"] and not value["vllm.enable_sleep"] else ():
        if policys + keys.gpu_memory_utilization > 1:
            yield (
                f"{where_named(name)}: gpu_memory_utilization {keys.gpu_memory_utilization} and "
                f"vllm.gpu_memory_utilization {policys} exceed the GPU that both share (train.colocate_all): "
                "set vllm.enable_sleep, or make them smaller"
            )


def _layout(value: Mapping[str, Any], cpu: bool, gpus_here: int | None) -> Iterator[str]:
    asked = gpus_by_role(value)
    says_it = cpu and gpus_here is None
    declared = (value["oger.logical_gpus"] or sum(asked.values())) if says_it else gpus_here
    if declared is not None and sum(asked.values()) > declared:
        roles = " + ".join(f"{role} {count}" for role, count in asked.items())
        there = "on this machine" if cluster_address() is None else "in the Ray cluster at RAY_ADDRESS"
        source = "oger.logical_gpus" if says_it else f"found {there}"
        total = sum(asked.values())
        yield f"{roles} = {total} GPUs are needed, but {declared} are declared ({source}); Ray would wait forever"
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
    if value["train.colocate_all"]:
        yield from _on_the_policys_gpus(value, asked["actor"])


def _on_the_policys_gpus(value: Mapping[str, Any], gpus: int) -> Iterator[str]:
    for name, keys in judge_engines(value):
        if keys.tensor_parallel_size > gpus:
            yield (
                f"{where_named(name)}: tensor_parallel_size {keys.tensor_parallel_size} is more than the "
                f"policy's {gpus} GPUs, which train.colocate_all shares"
            )
    if OgerSettings.of(value).embeds and value["oger.embedding_num_gpus"] > ENCODER_SHARE:
        yield (
            f"oger.embedding_num_gpus {value['oger.embedding_num_gpus']:g}: with train.colocate_all the encoder "
            f"shares a GPU with the policy: set {ENCODER_SHARE} at most"
        )
