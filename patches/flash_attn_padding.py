"""A stand-in for the padding helpers of flash_attn, in torch, where flash_attn is not installed.

Upstream: openrlhf.models.ring_attn_utils imports flash_attn.bert_padding and flash_attn.utils.distributed at import.
Why: flash-attn builds only with CUDA, and without these names ``openrlhf.models`` cannot be imported at all.
The attention kernels are not replaced: transformers decides by the distribution's name, so it goes on using SDPA.
Checked: openrlhf 0.11.2. Needed for as long as openrlhf.models imports flash_attn unconditionally.
"""

import importlib.machinery
import importlib.util
import sys
import types

import torch


def _index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return rows ``indices`` [total] of ``tensor`` [rows, ...]."""
    return tensor[indices]


def _unpad_input(
    tensor: torch.Tensor, attention_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Return attended ``tensor`` [B, T, ...] as [total, ...], indices, cumulative lengths, longest length, lengths."""
    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    cumulative = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return tensor.flatten(0, 1)[indices], indices, cumulative, int(lengths.max()), lengths


def _pad_input(tensor: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Undo ``_unpad_input``: put [total, ...] back into [batch, length, ...], zeros elsewhere."""
    padded = tensor.new_zeros(batch * length, *tensor.shape[1:])
    return padded.index_copy(0, indices, tensor).unflatten(0, (batch, length))


def _module(name: str, **members: object) -> types.ModuleType:
    module = types.ModuleType(name)
    # importlib.util.find_spec raises on a module without a spec, and others probe for flash_attn with it.
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def apply() -> None:
    """Register the stand-in in this process unless the real package is installed."""
    if "flash_attn" in sys.modules or importlib.util.find_spec("flash_attn") is not None:
        return
    from einops import rearrange

    _module("flash_attn")
    _module(
        "flash_attn.bert_padding",
        index_first_axis=_index_first_axis,
        pad_input=_pad_input,
        rearrange=rearrange,
        unpad_input=_unpad_input,
    )
    _module("flash_attn.utils")
    _module("flash_attn.utils.distributed", all_gather=None)
