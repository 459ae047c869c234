"""How much memory a run will take, from sizes alone: an estimate before anything is loaded.

Of a policy with N parameters and the shape of its config.json, trained by P ranks, each in bytes:

    weights        2 N                            16 bits; over P with ds.zero_stage 3
    gradients      2 N                            4 N with ds.grad_accum_dtype fp32; over P from ds.zero_stage 2 on
    Adam           12 N                           32-bit weights and two moments; over P from ds.zero_stage 1 on;
                                                  in main memory with ds.adam_offload
    logits         8 C                            16 bits, 32 bits and their gradient, of the C = tokens x vocabulary
                                                  logits of a micro-batch; of at most CHUNK_LOGITS where
                                                  oger.chunked_token_stats makes them a few tokens at a time
    activations    34 tokens hidden layers        (Korthikanti et al., arXiv 2205.05198, without attention's matrices);
                                                  2 tokens hidden layers + 34 tokens hidden, one layer made again, with
                                                  actor.gradient_checkpointing_enable

    an engine      2 N / T + KV cache             T = vllm.tensor_parallel_size
    KV cache       4 layers kv_heads head_dim     a token: keys and values of 16 bits

A micro-batch has train.micro_batch_size rows of data.max_len tokens, or train.max_tokens_per_gpu tokens with
train.dynamic_batch_enable. What libraries and fragmentation add is not in it.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oger_recipe.kv_cache import kv_bytes_per_token
from oger_recipe.run import model_files
from oger_recipe.settings.machine import policy_ranks

GIB = 2**30
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Shape:
    """What of a model decides its memory."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    kv_bytes_per_token: int


def shape_of(model: str | None) -> Shape | None:
    """Of a model folder: config.json, and parameters by the weight files. None where these are not there, not whole,
    or do not say."""
    folder = Path(model or "")
    if not folder.is_dir() or model_files.fault(folder):
        return None
    try:
        config = json.loads((folder / "config.json").read_text())
        config |= config.get("text_config", {})  # models that also see
        width = _BYTES[config.get("dtype") or config.get("torch_dtype")]
        size = sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))
        return Shape(
            parameters=model_files.parameters(folder) or size // width,
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            vocabulary=config["vocab_size"],
            kv_bytes_per_token=kv_bytes_per_token(SimpleNamespace(**config)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True)
class Memory:
    """Bytes by what they are for: on each rank of the policy, beside it in main memory, and in each engine."""

    policy: dict[str, float]
    offloaded: float
    engine_weights: float
    kv_cache_per_token: float


def estimate(value: Mapping[str, Any], shape: Shape) -> Memory:
    """The module's formulas for a run with the settings ``value``."""
    from oger_recipe.algorithm.token_stats import CHUNK_LOGITS

    ranks, stage, count = policy_ranks(value), value["ds.zero_stage"], shape.parameters
    gradient = 4 if value["ds.grad_accum_dtype"] == "fp32" else 2
    adam = 12 * count / (ranks if stage >= 1 else 1)
    tokens = value["train.micro_batch_size"] * value["data.max_len"]
    if value["train.dynamic_batch_enable"]:
        tokens = max(value["train.max_tokens_per_gpu"], value["data.max_len"])
    logits = tokens * shape.vocabulary
    if value["oger.chunked_token_stats"]:
        logits = min(logits, CHUNK_LOGITS)
    layer = 34 * tokens * shape.hidden
    kept = 2 * tokens * shape.hidden * shape.layers
    checkpointed = value["actor.gradient_checkpointing_enable"]
    policy = {
        "weights": 2 * count / (ranks if stage == 3 else 1),
        "gradients": gradient * count / (ranks if stage >= 2 else 1),
        "Adam": 0 if value["ds.adam_offload"] else adam,
        "activations": kept + layer if checkpointed else layer * shape.layers,
        "logits": 8 * logits,
    }
    return Memory(
        policy=policy,
        offloaded=adam if value["ds.adam_offload"] else 0,
        engine_weights=2 * count / value["vllm.tensor_parallel_size"],
        kv_cache_per_token=shape.kv_bytes_per_token / value["vllm.tensor_parallel_size"],
    )


def in_main_memory(value: Mapping[str, Any], shape: Shape, gpus: Mapping[str, int]) -> float:
    """Of a run without CUDA, whose roles have so many processes each (`gpus_by_role`): all of it."""
    need = estimate(value, shape)
    policy = gpus["actor"] * (sum(need.policy.values()) + need.offloaded)
    return policy + gpus.get("reference", 0) * 2 * shape.parameters + gpus.get("vLLM engines", 0) * need.engine_weights


def surely_taken(value: Mapping[str, Any], shape: Shape) -> float:
    """Bytes on a rank of the policy that no setting and no library can do without: weights, and Adam's states."""
    policy = estimate(value, shape).policy
    return policy["weights"] + (policy["Adam"] if value["actor.optim"] == "adam" else 0)


def surely_in_main_memory(value: Mapping[str, Any], shape: Shape, gpus: Mapping[str, int]) -> float:
    """The same of a run without CUDA, with all copies of the weights; ``gpus`` see `in_main_memory`."""
    engines = gpus.get("vLLM engines", 0) * estimate(value, shape).engine_weights
    return gpus["actor"] * surely_taken(value, shape) + gpus.get("reference", 0) * 2 * shape.parameters + engines


def swap() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return 1024 * int(Path("/proc/meminfo").read_text().partition("SwapTotal:")[2].split()[0])
    return 0


def readable(size: float) -> str:
    """Bytes in the largest unit of which there is one."""
    for unit, scale in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"
