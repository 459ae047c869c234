"""What a forward and a backward pass hold beside the weights, counted and not computed: on the `meta` device tensors
have shapes and storages, and no numbers.

The model's own code is run for it, of any architecture that transformers has; each storage counts once, from the
operation that makes it until nobody holds it. What DeepSpeed does around the passes is not in it. The kernels of flash
attention do not run without a GPU: one of torch's stands in for them, and for sdpa. It keeps what they keep, which is
queries, keys, values, their result, and a number for each token and head.
"""

import functools
import sys
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_DTYPE = torch.bfloat16  # float16 takes as much
_MEASURED = 3  # layers of a model whose layers are all alike: the others hold as much


class Held(NamedTuple):
    """Bytes held when the forward pass is over, and what the backward pass adds to them at its peak."""

    kept: float
    passing: float


class Live(TorchDispatchMode):
    """A count of the bytes of the tensors that operations make, while they live; those of ``own`` are not counted."""

    def __init__(self, own: list[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = weakref.WeakSet(tensor.untyped_storage() for tensor in own)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and (storage := leaf.untyped_storage()) not in self._known:
                self._known.add(storage)
                self._count(storage.nbytes())
                weakref.finalize(storage, self._count, -storage.nbytes()).atexit = False
        return result

    def _count(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


@functools.cache
def of_body(folder: str, rows: int, length: int, *, eager: bool, checkpointing: bool) -> Held | None:
    """Count what training holds in a model without its output layer; None where its code needs weights to run."""
    try:
        model = _body(folder, eager, checkpointing)
        whole, layers = model.config.num_hidden_layers, _layers(model)
        if layers is None or whole <= _MEASURED:
            return body_held(model, rows, length)
        del layers[_MEASURED:]
        more = body_held(model, rows, length)
        del layers[_MEASURED - 1 :]
        fewer = body_held(model, rows, length)
    except Exception:  # whatever a model's code does with tensors that have no numbers
        return None
    return Held(more.kept + (whole - _MEASURED) * (more.kept - fewer.kept), more.passing)


def body_held(model: torch.nn.Module, rows: int, length: int) -> Held:
    """Count what a training pass over tokens [rows, length] holds. A parameter's gradient goes once it is made."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: setattr(each, "grad", None))
    device = next(model.parameters()).device
    tokens = torch.zeros(rows, length, dtype=torch.long, device=device)
    with Live([*model.parameters(), *model.buffers()]) as live:
        hidden = model(tokens, use_cache=False)[0]
        kept = live.now
        hidden.backward(hidden.detach())
    return Held(kept, live.peak - kept)


@functools.cache
def of_head(vocabulary: int, hidden: int, tokens: int, chunk_size: int) -> float:
    """Count the peak bytes of an output layer [vocabulary, hidden] that takes ``chunk_size`` tokens at a time
    (algorithm/token_stats.py)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from oger_recipe.algorithm.token_stats import token_log_probs_and_entropy

    with FakeTensorMode():
        rows = torch.empty(min(tokens, 3 * chunk_size), hidden, dtype=_DTYPE, requires_grad=True)
        weight = torch.empty(vocabulary, hidden, dtype=_DTYPE, requires_grad=True)
        labels = torch.empty(len(rows), dtype=torch.long)
        with Live([rows, weight]) as live:
            log_probs, entropy = token_log_probs_and_entropy(rows, weight, labels, chunk_size=chunk_size)
            (log_probs + entropy).sum().backward()
    unseen = tokens - len(rows)  # their hidden states have gradients, too
    return live.peak + unseen * hidden * _DTYPE.itemsize


def _body(folder: str, eager: bool, checkpointing: bool) -> Any:
    from transformers import AttentionInterface, AutoConfig, AutoModel

    AttentionInterface.register("oger_counted", _eager if eager else _fused)
    config = AutoConfig.from_pretrained(folder).get_text_config()
    with torch.device("meta"):
        model = AutoModel.from_config(config, attn_implementation="oger_counted", dtype=_DTYPE)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _layers(model: Any) -> torch.nn.ModuleList | None:
    """Return the model's layers if all are alike, or None."""
    count = model.config.num_hidden_layers
    kinds = getattr(model.config, "layer_types", None) or [None]
    found = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == count]
    alike = len(found) == 1 and len({*map(repr, found[0])}) == len({*kinds}) == 1
    return found[0] if alike else None


def _fused(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: Any = None, **other: Any
) -> Any:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, True, scale=scaling)[0].transpose(1, 2).contiguous(), None


def _eager(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **other: Any) -> Any:
    """Call the model's own eager attention with an unfilled mask: to fill it takes numbers."""
    own = sys.modules[type(module).__module__].eager_attention_forward
    return own(module, query, key, value, query.new_empty(1, 1, query.shape[2], key.shape[2]), **other)
