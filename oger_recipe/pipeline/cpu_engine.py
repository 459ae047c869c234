"""What vLLM's engines are given on a machine without CUDA."""

import math
import os
from typing import Any

from transformers import AutoConfig

from oger_recipe.base.cpu import kv_bytes_per_token
from oger_recipe.base.remote_code import may_run

ROWS = 256  # at a time: twice the default; decoding tiny models costs by the step, not by the row
KV_BLOCK = 128  # tokens; vLLM's on CPUs
_TOKENS = 4096  # of prompts at a time, at least


def cpu_arguments(model: str, length: int, *, revision: str | None = None, float32: bool = False) -> dict[str, Any]:
    """Return an engine's arguments for sequences of up to ``length`` tokens; ``float32``: of keys and values."""
    return {
        # Seeded requests whose prompts are split over batches end the CPU engine: its generators cannot rewind.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(length, _TOKENS),
        "max_num_seqs": ROWS,
        "kv_cache_memory_bytes": kv_cache_bytes(model, ROWS, length, revision=revision, float32=float32),
    }


def kv_cache_bytes(model: str, rows: int, length: int, *, revision: str | None = None, float32: bool = False) -> int:
    """Return the bytes that ``rows`` sequences of ``length`` tokens take; at most VLLM_CPU_KVCACHE_SPACE (GiB).

    vLLM writes zeros to all of it when it starts, which can take two seconds a GiB, and keeps it.
    """
    limit = int(os.environ.pop("VLLM_CPU_KVCACHE_SPACE", 1)) * 2**30  # vLLM would take this in place of the argument
    config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=may_run()).get_text_config()
    blocks = rows * math.ceil(length / KV_BLOCK) + 1  # vLLM keeps one to itself
    return min(blocks * KV_BLOCK * kv_bytes_per_token(config) * (2 if float32 else 1), limit)
