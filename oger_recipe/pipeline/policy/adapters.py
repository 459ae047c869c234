"""A policy with adapters (LoRA, arXiv 2106.09685) as the plain model that engines sample from and users load.

An adapter changes a weight W of the model to W + (alpha / r) B A. OpenRLHF sends and saves the parameters as PEFT
holds them: W under a name that vLLM does not know, and A and B beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

_PREFIX, _OF_BASE = "base_model.model.", ".base_layer."
ALL_LINEAR = "all-linear"  # of ds.lora.target_modules
ADAPTER = "adapter"  # the folder of it beside the saved model
AT_A_TIME = 2**30  # bytes of parameters that are sent at a time


def merged_parameters(model: PeftModel) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of the plain model by their names there; those that an adapter changes are copies.

    The policy's own weights stay as they are: to add the adapter and take it away again would round them each time.
    Under ZeRO 3 a copy is whole on every rank, and the others are the shards that they were. Every rank has to take
    all of them.
    """
    layers: dict[str, Any] = {name: each for name, each in model.named_modules() if isinstance(each, LoraLayer)}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        of_layer, _, field = name.rpartition(_OF_BASE)
        if of_layer in layers and field == "weight":
            parameter = _merged(layers[of_layer])
        yield name.removeprefix(_PREFIX).replace(_OF_BASE, "."), parameter


@torch.no_grad()
def _merged(layer: Any) -> nn.Parameter:
    """Return W + (alpha / r) B A of a PEFT layer, added in float32, in W's precision."""
    sharded = [part for part in layer.parameters() if hasattr(part, "ds_id")]
    with deepspeed.zero.GatheredParameters(sharded, enabled=len(sharded) > 0):
        weight, (adapter,) = layer.get_base_layer().weight, layer.active_adapters
        merged = nn.Parameter((weight.float() + layer.get_delta_weight(adapter).float()).to(weight.dtype), False)
    vars(merged)["ds_shape"] = merged.shape  # which OpenRLHF reads of a weight under ZeRO 3
    return merged


def send_merged(send: Callable[[], None], trainer: Any) -> None:
    """Call OpenRLHF's ``broadcast_to_vllm`` of a policy trainer for the parameters of the plain model.

    Some at a time, so that the copies take little memory; each call empties caches, so that they are not one each.
    """
    actor = trainer.actor
    try:
        for some in _cut(merged_parameters(actor.model.module), AT_A_TIME):
            module = SimpleNamespace(named_parameters=lambda some=some: some)
            trainer.actor = SimpleNamespace(model=SimpleNamespace(module=module))
            send()
            some.clear()  # before the next are made
    finally:
        trainer.actor = actor


def _cut(named: Iterable[tuple[str, nn.Parameter]], size: int) -> Iterator[list[tuple[str, nn.Parameter]]]:
    """Yield lists of parameters that end with the first that makes them ``size`` bytes or more."""
    some, held = [], 0
    for name, parameter in named:
        some.append((name, parameter))
        held += parameter.nbytes
        if held >= size:
            yield some
            some, held = [], 0
    if some:
        yield some


def save_merged(model: PeftModel, tokenizer: Any, folder: str, *, writes: bool) -> None:
    """Write the plain model and the tokenizer, and the adapter into ``folder``/adapter.

    It takes the place of the strategy's ``save_model``. Every rank calls it; the one that ``writes`` does.
    """
    plain = _gathered(merged_parameters(model), writes)
    adapter = _gathered(((name, part) for name, part in model.named_parameters() if ".lora_" in name), writes)
    if writes:
        base: Any = model.get_base_model()
        base.save_pretrained(folder, state_dict=plain)
        tokenizer.save_pretrained(folder)
        model.save_pretrained(f"{folder}/{ADAPTER}", state_dict=adapter)
    torch_dist_barrier_and_cuda_sync()


def _gathered(parameters: Iterable[tuple[str, nn.Parameter]], keeps: bool) -> dict[str, Tensor]:
    """Copy parameters to the CPU, where ``keeps``; shards of them are put together one at a time."""
    found = {}
    for name, parameter in parameters:
        sharded = [parameter] if hasattr(parameter, "ds_id") else []
        with deepspeed.zero.GatheredParameters(sharded, enabled=len(sharded) > 0):
            if keeps:
                found[name] = parameter.detach().cpu().clone()
    return found
