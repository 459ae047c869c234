"""Cores, threads and main memory, and what processes and vLLM's engines are given on a machine without CUDA."""

import contextlib
import math
import os
from pathlib import Path
from typing import Any

from oger_recipe.base.remote_code import may_run

CORES = len(os.sched_getaffinity(0))  # that this process may use; a scheduler may give it fewer than there are
_ASKED = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # further numbers are for nested loops
THREADS = int(_ASKED) if _ASKED.isdigit() and int(_ASKED) else CORES  # of one process in one operation

ON_GPUS = "OGER_ON_GPUS"  # in the environment of all processes of a run: whether it is on GPUs

ON_LOOPBACK = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}

CPU_ENVIRONMENT = {
    ON_GPUS: "0",
    "DS_ACCELERATOR": "cpu",
    "TORCH_COMPILE_DISABLE": "1",  # OpenRLHF compiles its entropy: that needs a C++ compiler
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "0",  # on a CPU .to(device) does not copy: edits would reach shared memory
    "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),  # GiB, at most
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process less: the worker lives in the engine's
    **ON_LOOPBACK,
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # an empty CUDA_VISIBLE_DEVICES confuses vLLM
    "OMP_NUM_THREADS": str(THREADS),  # else Ray gives every actor one thread
}


# A container's files (cgroup 2, cgroup 1) of limit, usage and statistics, and the name in these of reclaimable cache.
_CONTAINER = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def main_memory(root: Path = Path("/")) -> int:
    """Return the bytes that processes here may have: the machine's, or the container's where it has less."""
    there = [1024 * _field(root / "proc/meminfo", "MemTotal:")]
    for limit, *_ in _CONTAINER:
        with contextlib.suppress(OSError, ValueError):  # "max": none
            there.append(int((root / "sys/fs/cgroup" / limit).read_text()))
    return min(there)


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that processes here may still take: of the machine, or of the container where it has less."""
    free = [1024 * _field(root / "proc/meminfo", "MemAvailable:")]
    for names in _CONTAINER:
        limit, taken, facts = (root / "sys/fs/cgroup" / name for name in names[:3])
        with contextlib.suppress(OSError, ValueError):
            free.append(int(limit.read_text()) - int(taken.read_text()) + _field(facts, names[3]))
    return min(free)


def _field(file: Path, name: str) -> int:
    """Return the number behind a name that begins a line. Raises ValueError where there is none."""
    fields = (line.split() for line in file.read_text().splitlines())
    for found, number, *_ in fields:
        if found == name:
            return int(number)
    raise ValueError(f"{file} has no {name}")


def is_without_cuda() -> bool:
    """Say whether this process is to do without CUDA.

    In a run the driver has decided that: an actor without a GPU of its own sees none, even on a machine that has some,
    and the driver itself may be on a node without.
    """
    if said := os.environ.get(ON_GPUS):
        return said == "0"
    import torch  # not above: this module is for commands that load nothing, too

    return not torch.cuda.is_available()


# Of a vLLM engine at a time, on GPUs as well: twice the default. Decoding small models costs by the step, not by the
# row: an H100 took 18 s for each half of 256 rollouts of a 0.6 B model.
ROWS = 256
KV_BLOCK = 128  # tokens; vLLM's on CPUs
_TOKENS = 4096  # of prompts at a time, at least


def engine_arguments(model: str, length: int, *, revision: str | None = None, float32: bool = False) -> dict[str, Any]:
    """Return a vLLM engine's arguments for sequences of up to ``length`` tokens; ``float32``: of keys and values."""
    return {
        # Seeded requests whose prompts are split over batches end the CPU engine: its generators cannot rewind.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(length, _TOKENS),
        "max_num_seqs": ROWS,
        "kv_cache_memory_bytes": kv_cache_bytes(model, ROWS, length, revision=revision, float32=float32),
    }


def kv_cache_bytes(model: str, rows: int, length: int, *, revision: str | None = None, float32: bool = False) -> int:
    """Return the KV cache's bytes for ``rows`` sequences of ``length`` tokens; at most VLLM_CPU_KVCACHE_SPACE (GiB).

    vLLM writes zeros to all of it when it starts, which can take two seconds a GiB, and keeps it.
    """
    from transformers import AutoConfig

    limit = int(float(os.environ.pop("VLLM_CPU_KVCACHE_SPACE", 1)) * 2**30)  # vLLM would prefer it to the argument
    config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=may_run()).get_text_config()
    blocks = rows * math.ceil(length / KV_BLOCK) + 1  # vLLM keeps one to itself
    return min(blocks * KV_BLOCK * kv_bytes_per_token(config) * (2 if float32 else 1), limit)


def kv_bytes_per_token(config: Any) -> int:
    """Return the bytes of a token's 16-bit keys and values; ``config``: with transformers' names of attributes."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 2 * int(config.num_hidden_layers) * int(heads) * int(width)
