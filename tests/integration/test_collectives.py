"""Sums over ranks get tensors of the policy's device: NCCL serves GPUs alone, while gloo, which CPUs have, takes any.

The stand-in for a GPU is torch's meta device, and for NCCL a group that serves no other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from doubles import Strategy
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_actor
from torch.testing._internal.distributed.fake_pg import FakeStore

import oger_recipe
from oger_recipe.plugin.policy.trainer import OgerActorPPOTrainer

# Where the package sums over ranks, and what brings the tensor to the device there.
SUMS = {
    "plugin/policy/trainer.py: get_loss_batch_info": "the mask: the micro-batch's, or moved to its device",
    "plugin/policy/critic_actor.py: get_loss_batch_info": "no sum: totals of the buffer, which it made on the device",
    "plugin/policy/kl_stop.py: all_reduce": "the strategy's: it moves what lies on the CPU",
    "plugin/policy/critic_actor.py: all_reduce": "the strategy's",
    "plugin/policy/updates.py: all_reduce": "the strategy's",
    "plugin/engine/engine_worker.py: broadcast": "vLLM's weight, made on the engine's device",
}
_NAMES = {"get_loss_batch_info", "all_reduce", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list"}


@pytest.fixture()
def nccl_of_meta() -> Iterator[None]:
    dist.init_process_group("meta:fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_the_stand_in_refuses_what_lies_on_the_cpu(nccl_of_meta) -> None:
    dist.all_reduce(torch.ones(2, device="meta"))
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))


@pytest.mark.parametrize("level", ["token", "step"])
def test_totals_of_a_dynamic_step_are_summed_on_the_policys_device(
    nested, nccl_of_meta, level: str, monkeypatch
) -> None:
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)  # NCCL's barrier needs a GPU
    args = nested("--train.dynamic_batch_enable", f"--oger.ratio_level={level}", "--oger.max_replace_num=0")
    trainer = OgerActorPPOTrainer(
        Strategy(args), torch.nn.Linear(1, 1), None, None, SimpleNamespace(), dataloader_pin_memory=False
    )
    buffer = trainer.replay_buffer
    trainer.replay_buffer.append(_rows())
    buffer.dynamic_indices, buffer.dynamic_optimizer_step = [[1], [0]], [0, 1]
    trainer._set_totals_of_dynamic_step(0, torch.device("meta"))
    for name in trainer._kinds:
        assert getattr(trainer.actor_loss_fn, name).tokens.device.type == "meta"


def _rows() -> Experience:
    mask = torch.ones(2, 3, dtype=torch.long)
    return Experience(
        sequences=torch.ones(2, 4, dtype=torch.long), attention_mask=torch.ones(2, 4, dtype=torch.long),
        action_mask=mask, step_index=mask, total_length=torch.full((2,), 4.0),
        info={"off_policy_tokens": torch.zeros(2)},
    )  # fmt: skip


def test_every_sum_over_ranks_is_known_here() -> None:
    found = set()
    package = Path(oger_recipe.__file__).parent
    for path in package.rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in _NAMES:
                found.add(f"{path.relative_to(package)}: {name}")
    assert found == SUMS.keys()
