"""The group that carries weights from the policy to the vLLM workers speaks gloo instead of NCCL.

Upstream: openrlhf.utils.distributed_util.stateless_init_process_group (bound by name in ppo_actor.py on the policy's
side, imported at call time in vllm_worker_wrap.py on the engine's side).
Why: upstream builds a PyNccl communicator, which needs CUDA on both sides.
Checked: openrlhf 0.11.2, torch 2.13.0. Needed for as long as upstream has no transport for tensors on the CPU.
"""

import functools
from datetime import timedelta
from typing import Any

import torch

from oger_recipe.patches.guard import require_source
from oger_recipe.patches.torch_store_address import store

SOURCE_SHA256 = "38c247412bdf7891ac9e64073b5c3cbf0bbbaa64721c1ada483e76a61ae54d64"
JOIN_TIMEOUT = timedelta(minutes=10)


class GlooWeightGroup:
    """Broadcasts tensors of any dtype between processes that share no default process group."""

    def __init__(self, master_address: str, master_port: int, rank: int, world_size: int) -> None:
        shared = store(master_address, master_port, world_size, is_master=rank == 0, timeout=JOIN_TIMEOUT)
        prefixed = torch.distributed.PrefixStore("oger_weights", shared)
        self.rank = rank
        self.group: Any = torch.distributed.ProcessGroupGloo(prefixed, rank, world_size, JOIN_TIMEOUT)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        """Overwrite ``tensor`` (any dtype and shape) with rank ``src``'s; ``stream`` has no meaning here.

        Raises:
            ValueError: this rank receives, and ``tensor`` is not contiguous.
        """
        if self.rank != src and not tensor.is_contiguous():
            raise ValueError(
                f"rank {self.rank} cannot receive into a tensor of shape {list(tensor.shape)} that is not contiguous: "
                "a copy of it would be filled; receive into a contiguous tensor and copy_() from that"
            )
        options = torch.distributed.BroadcastOptions()
        options.rootRank = src
        # As bytes: gloo does not know bfloat16.
        self.group.broadcast([tensor.detach().contiguous().flatten().view(torch.uint8)], options).wait()


def _init_gloo_weight_group(
    master_address: str, master_port: int, rank: int, world_size: int, device: Any
) -> GlooWeightGroup:
    return GlooWeightGroup(master_address, master_port, rank, world_size)


@functools.cache
def apply() -> None:
    """Replace the constructor of the weight-sync group; must run before ppo_actor is imported."""
    from openrlhf.utils import distributed_util

    require_source(
        distributed_util.stateless_init_process_group,
        SOURCE_SHA256,
        package="openrlhf",
        checked="0.11.2",
        patch=__name__,
    )
    distributed_util.stateless_init_process_group = _init_gloo_weight_group
