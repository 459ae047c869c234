"""How much memory a run will take: an estimate before anything is loaded.

Of a policy with N parameters, trained by P ranks, each in bytes, and no formula where it can be counted. With
ds.lora.rank, N is that of the adapters for all but weights, reference and engine:

    weights        2 N        16 bits; over P with ds.zero_stage 3
    gradients      2 N        over P from ds.zero_stage 2 on; with ds.grad_accum_dtype fp32 4 N / P at stage 3, and at
                              stage 1 both, 6 N
    Adam          12 N        32-bit weights and two moments; over P from ds.zero_stage 1 on; in main memory, with
                              gradients of 32 bits (4 N), under ds.adam_offload
    buffers        2 M        M = at most 500 million parameters whose gradients travel together (from stage 1 on;
                              twice with ds.overlap_comm at 1 and 2); and at most 1,000 million that stage 3 gathers
    activations    counted    what the forward pass of a micro-batch keeps (checks/activations.py)
    backward       counted    the largest of what comes and goes: the gradients of a layer, with what checkpointing
                              makes again; the output layer, of which oger.chunked_token_stats makes a few tokens at
                              a time; gradients of 32 bits in the update (4 N / P)

    a critic       the same, without an output layer
    the reference  2 N        over P with ds.zero_stage 3; there in main memory with ref.offload
    the grader     2 N        over P with ds.zero_stage 3, beside the policy: oger.grader initial; average: 6 N
    an engine      2 N / T + KV cache             T = vllm.tensor_parallel_size
    KV cache       4 layers kv_heads head_dim     a token: keys and values of 16 bits

A micro-batch has train.micro_batch_size rows of data.max_len tokens, or train.max_tokens_per_gpu tokens with
train.dynamic_batch_enable. What libraries and fragmentation add is not in it.
"""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.algorithm.token_stats import CHUNK_LOGITS, CHUNK_LOGITS_ON_GPU
from oger_recipe.base.cpu import kv_bytes_per_token
from oger_recipe.checks import model_files
from oger_recipe.checks.activations import Held, of_body, of_head
from oger_recipe.checks.machine import judge_engines, policy_ranks
from oger_recipe.settings.grades import AVERAGE, OWN_WEIGHTS
from oger_recipe.settings.oger import OgerSettings

GIB = 2**30
# DeepSpeed's own defaults, which OpenRLHF's "auto" comes to: parameters whose gradients it sends at a time, and that
# stage 3 has gathered at most.
BUCKET, LIVE = 500_000_000, 1_000_000_000
_ADAM = 12
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Shape:
    """What of a model decides its memory."""

    parameters: int
    hidden: int
    vocabulary: int
    kv_bytes_per_token: int
    folder: str = ""  # of its files


def shape_of(model: str | None) -> Shape | None:
    """Read a model's shape from config.json and the weight files in its folder. None where these are not there, not
    whole, or do not say."""
    folder = Path(model or "")
    if not folder.is_dir() or model_files.fault(folder):
        return None
    try:
        config = json.loads((folder / "config.json").read_text())
        config |= config.get("text_config", {})  # models that read images, too
        width = _BYTES[config.get("dtype") or config.get("torch_dtype")]
        size = sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))
        return Shape(
            parameters=model_files.parameters(folder) or size // width,
            hidden=config["hidden_size"],
            vocabulary=config["vocab_size"],
            kv_bytes_per_token=kv_bytes_per_token(SimpleNamespace(**config)),
            folder=str(folder.resolve()),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def parameters_of(model: str | None) -> int:
    """Count the parameters in a model folder's safetensors; 0 without any."""
    return model_files.parameters(Path(model)) or 0 if model else 0


@dataclass(frozen=True)
class Memory:
    """Bytes by what they are for: on each rank of the policy, and of the critic; of the reference on each of its GPUs
    and in main memory; of Adam in main memory beside each rank; in each engine."""

    policy: dict[str, float]
    critic: dict[str, float]
    reference: float
    offloaded_reference: float
    offloaded: float
    engine_weights: float
    kv_cache_per_token: float


def estimate(value: Mapping[str, Any], shape: Shape, critic: Shape | None = None, *, cpu: bool = False) -> Memory:
    """Estimate a run's memory by the module's table; activations are left out where they cannot be counted."""
    sharded = value["ds.zero_stage"] == 3
    has_reference, has_critic = value["algo.kl.init_coef"] > 0, value["algo.advantage.estimator"] in CRITIC_ESTIMATORS
    reference = has_reference * 2.0 * shape.parameters / (policy_ranks(value) if sharded else 1)
    return Memory(
        policy=_trained(value, shape, policy_ranks(value), _head(value, shape, cpu)) | _grader(value, shape),
        critic=_trained(value, critic or shape, _critic_ranks(value), 0) if has_critic else {},
        reference=0 if sharded and value["ref.offload"] else reference,
        offloaded_reference=reference if sharded and value["ref.offload"] else 0,
        offloaded=value["ds.adam_offload"]
        * (_ADAM + 4)
        * trained_parameters(value, shape)
        / _shards(value, policy_ranks(value)),
        engine_weights=2 * shape.parameters / value["vllm.tensor_parallel_size"],
        kv_cache_per_token=shape.kv_bytes_per_token / value["vllm.tensor_parallel_size"],
    )


def _grader(value: Mapping[str, Any], shape: Shape) -> dict[str, float]:
    """Estimate the bytes of the weights that grade in the policy's place, on each of its ranks."""
    if value["oger.grader"] not in OWN_WEIGHTS:
        return {}
    each = 2.0 + 4 * (value["oger.grader"] == AVERAGE)
    return {"grader": each * shape.parameters / (policy_ranks(value) if value["ds.zero_stage"] == 3 else 1)}


def _trained(value: Mapping[str, Any], shape: Shape, ranks: int, head: float) -> dict[str, float]:
    """Estimate the bytes of a trained model on each rank; ``head``: those of the output layer."""
    stage, fp32 = value["ds.zero_stage"], value["ds.grad_accum_dtype"] == "fp32"
    count, trained = shape.parameters, trained_parameters(value, shape)
    gradient = {1: 6, 3: 4}.get(stage, 2) if fp32 else 2
    buckets = 0 if stage == 0 else 2 if stage < 3 and value["ds.overlap_comm"] else 1
    gathered = min(count, LIVE) if stage == 3 else 0
    held = _held(value, shape)
    return {
        "weights": 2 * count / (ranks if stage == 3 else 1),
        "gradients": gradient * trained / (ranks if stage >= 2 else 1),
        "Adam": 0 if value["ds.adam_offload"] else _ADAM * trained / _shards(value, ranks),
        "buffers": 2 * (buckets * min(trained, BUCKET) + gathered),
        **({"activations": held.kept} if held else {}),
        "backward": max(held.passing if held else 0, head, 4 * trained / _shards(value, ranks)),
    }


def trained_parameters(value: Mapping[str, Any], shape: Shape) -> int:
    """Count the parameters that have gradients: all, or those of adapters (ds.lora.rank), where files tell."""
    rank = value["ds.lora.rank"]
    return model_files.adapter_parameters(Path(shape.folder), rank) if rank and shape.folder else shape.parameters


def _shards(value: Mapping[str, Any], ranks: int) -> int:
    return ranks if value["ds.zero_stage"] >= 1 else 1


def _critic_ranks(value: Mapping[str, Any]) -> int:
    gpus = value["critic.num_nodes"] * value["critic.num_gpus_per_node"]
    return max(gpus // (value["ds.ring_attn_size"] * value["ds.tensor_parallel_size"]), 1)


def _tokens(value: Mapping[str, Any]) -> int:
    """Return how many tokens a micro-batch has at most."""
    if value["train.dynamic_batch_enable"]:
        return int(max(value["train.max_tokens_per_gpu"], value["data.max_len"]))
    return int(value["train.micro_batch_size"] * value["data.max_len"])


def _held(value: Mapping[str, Any], shape: Shape) -> Held | None:
    """Count what a micro-batch holds in a model. Eager attention alone depends on how it is cut into rows."""
    if not shape.folder:
        return None
    tokens, length, eager = _tokens(value), value["data.max_len"], value["ds.attn_implementation"] == "eager"
    rows, length = (-(-tokens // length), length) if eager else (1, tokens)
    return of_body(shape.folder, rows, length, eager=eager, checkpointing=value["actor.gradient_checkpointing_enable"])


def _head(value: Mapping[str, Any], shape: Shape, cpu: bool) -> float:
    tokens = _tokens(value)
    if not value["oger.chunked_token_stats"]:  # logits of 16 bits, of 32, and their gradient
        return 8.0 * tokens * shape.vocabulary
    logits = CHUNK_LOGITS if cpu else CHUNK_LOGITS_ON_GPU
    return of_head(shape.vocabulary, shape.hidden, tokens, max(logits // shape.vocabulary, 1))


def shared_gpu(value: Mapping[str, Any], need: Memory) -> dict[str, tuple[float, float]]:
    """Estimate each turn of a GPU shared by train.colocate_all: bytes, and the share that the engine has besides."""
    engine = value["vllm.gpu_memory_utilization"]
    rest = need.reference + beside(value).get("encoder", 0) * (value["oger.embedding_num_gpus"] > 0)
    trained = [need.policy, need.critic]
    turns = [sum(one.values()) + sum(_resting(value, other)) for one, other in (trained, trained[::-1])]
    if not value["ds.enable_sleep"]:  # OpenRLHF trains them at once
        turns = [sum(map(sum, (each.values() for each in trained)))]
    resting = sum(sum(_resting(value, each)) for each in trained)
    return {
        "training": (max(turns) + rest, 0 if value["vllm.enable_sleep"] else engine),
        "sampling": (resting + rest, engine),
    }


def _resting(value: Mapping[str, Any], parts: Mapping[str, float]) -> Iterator[float]:
    """Yield the bytes that a trained model keeps while others work; DeepSpeed's sleep keeps weights and buffers."""
    sleeps = value["ds.enable_sleep"] and not value["ds.adam_offload"]
    stay = ("weights", "grader", "buffers") if sleeps else ("weights", "grader", "buffers", "gradients", "Adam")
    return (size for part, size in parts.items() if part in stay)


def room_for_tokens(value: Mapping[str, Any], need: Memory, gpu: float) -> int:
    """Count the tokens of each rollout of a step that fit an engine's key-value cache, on GPUs of ``gpu`` bytes."""
    cache = value["vllm.gpu_memory_utilization"] * gpu - need.engine_weights
    sequences = value["rollout.batch_size"] * value["rollout.n_samples_per_prompt"] / value["vllm.num_engines"]
    return max(int(cache / need.kv_cache_per_token / sequences), 0)


def beside(value: Mapping[str, Any], *, cpu: bool = False) -> dict[str, float]:
    """Return the bytes of the weights of other models whose files are here, each on one GPU or in one process: the
    similarity's encoder, and the reward's models by the names of their sources."""
    settings = OgerSettings.of(value)
    found = {"encoder": parameters_of(value["oger.embedding_model"]) * 4.0} if settings.embeds else {}
    for name, keys in settings.models:
        width = _BYTES.get(keys.dtype, 4 if cpu or keys.runs_on == "in_process" else 2)
        if keys.runs_on != "server":
            found[name] = parameters_of(keys.model) * width / keys.tensor_parallel_size
    return {name: size for name, size in found.items() if size}


def in_main_memory(
    value: Mapping[str, Any], shape: Shape, gpus: Mapping[str, int], critic: Shape | None = None
) -> float:
    """Add up the memory of a run without CUDA, whose roles have ``gpus`` processes each (`gpus_by_role`)."""
    need = estimate(value, shape, critic, cpu=True)
    policy = gpus["actor"] * (sum(need.policy.values()) + need.offloaded)
    engines = gpus.get("vLLM engines", 0) * need.engine_weights
    return (
        policy
        + gpus.get("critic", 0) * sum(need.critic.values())
        + gpus.get("reference", 0) * 2 * shape.parameters
        + engines
        + _judges_in_main_memory(value)
    )


def _judges_in_main_memory(value: Mapping[str, Any]) -> float:
    """Add up other models' bytes. One engine works at a time; the rest keep up to oger.reward.engine_memory_gb."""
    sizes, engines = beside(value, cpu=True), {name for name, _ in judge_engines(value)}
    others = sum(size for name, size in sizes.items() if name not in engines)
    largest = max((size for name, size in sizes.items() if name in engines), default=0)
    kept = sum(size for name, size in sizes.items() if name in engines) - largest
    return others + largest + min(kept, (value["oger.reward.engine_memory_gb"] or 0) * GIB)


def surely_taken(value: Mapping[str, Any], shape: Shape) -> float:
    """Return the least bytes on a policy rank, whatever settings and libraries do: weights, also those that
    grade, and Adam's states of a policy that is trained whole."""
    ranks, stage = policy_ranks(value), value["ds.zero_stage"]
    is_elsewhere = value["ds.adam_offload"] or value["actor.optim"] != "adam" or value["ds.lora.rank"]
    adam = 0 if is_elsewhere else _ADAM / _shards(value, ranks)
    return shape.parameters * (2 / (ranks if stage == 3 else 1) + adam) + sum(_grader(value, shape).values())


def surely_in_main_memory(value: Mapping[str, Any], shape: Shape, gpus: Mapping[str, int]) -> float:
    """Return the least bytes of a run without CUDA, with all copies of the weights; ``gpus`` see `in_main_memory`."""
    copies = gpus.get("reference", 0) + gpus.get("vLLM engines", 0) / value["vllm.tensor_parallel_size"]
    return gpus["actor"] * surely_taken(value, shape) + 2 * copies * shape.parameters


def of_a_gpu() -> int | None:
    """Return the bytes of this machine's first GPU; None without one."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


def swap() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return 1024 * int(Path("/proc/meminfo").read_text().partition("SwapTotal:")[2].split()[0])
    return 0


def readable(size: float) -> str:
    """Format bytes in the largest unit of which there is one."""
    if size == math.inf:
        return "an unlimited amount"
    for unit, scale in (("TiB", 2**40), ("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"
