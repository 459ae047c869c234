"""Policy, loss and critic at the shapes of Qwen2.5-Math-7B on ``meta``, the stand-in for a GPU: no tensor has values,
and one that is made on the CPU cannot be joined with another.

What such tensors cannot do is stubbed: torch.autocast does not know the device, a comparison has no answer, and the
places of a mask are taken to be all of it. So a packed row, whose length is read, is not to be had here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.fx.experimental._config
from openrlhf.models import model as openrlhf_model
from openrlhf.trainer.ppo_utils.experience import Experience
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from oger_recipe.algorithm.batches import RATIO_LEVELS
from oger_recipe.algorithm.policy_loss import TEACHER_LOSSES
from oger_recipe.algorithm.token_stats import ENTROPY_POSITIONS, response_entropy
from oger_recipe.pipeline.experiences import teachers_tokens
from oger_recipe.pipeline.policy.chunked_actor import ChunkedActor
from oger_recipe.pipeline.policy.critic_actor import CountingValueLoss
from oger_recipe.pipeline.policy.kl_stop import KlStop
from oger_recipe.pipeline.policy.loss import Given, HybridPolicyLoss
from oger_recipe.pipeline.policy.value_head import ValueHead

ROWS, LENGTH, ACTIONS = 4, 4096, 3072
# Two of its 28 layers, which are alike.
CONFIG = {
    "hidden_size": 3584, "num_hidden_layers": 2, "num_attention_heads": 28, "num_key_value_heads": 4,
    "intermediate_size": 18944, "vocab_size": 152_064, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def stubs(monkeypatch) -> Iterator[None]:
    autocast, equal = torch.autocast, torch.equal

    def without_meta(device: str, *how: Any, **more: Any) -> Any:
        return contextlib.nullcontext() if device == "meta" else autocast(device, *how, **more)

    monkeypatch.setattr(torch, "autocast", without_meta)
    monkeypatch.setattr(torch, "equal", lambda a, b: (a.is_meta and b.is_meta and a.shape == b.shape) or equal(a, b))
    with torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True):
        yield


@pytest.fixture()
def batch() -> Experience:
    """As ``Experience.to_device`` leaves it."""
    tokens, of_tokens = torch.empty(ROWS, LENGTH, device="meta", dtype=torch.long), {}
    mask = torch.empty(ROWS, ACTIONS, device="meta", dtype=torch.long)
    for name in (
        "action_log_probs", "base_action_log_probs", "engine_weights", "teacher_log_probs", "values", "returns",
        "advantages",
    ):  # fmt: skip
        of_tokens[name] = torch.empty(ROWS, ACTIONS, device="meta")
    return Experience(
        sequences=tokens, attention_mask=tokens, action_mask=mask, step_index=mask, **of_tokens,
        info={"off_policy_tokens": torch.empty(ROWS, device="meta")},
    )  # fmt: skip


TOTALS = {name: torch.empty((), device="meta") for name in ("batch_num_tokens", "global_batch_size")} | {"dp_size": 8}


@pytest.mark.parametrize("level", RATIO_LEVELS)
@pytest.mark.parametrize("teacher_loss", TEACHER_LOSSES)
def test_the_loss_of_a_policy(nested, batch, teacher_loss: str, level: str) -> None:
    flags = ("--oger.all_max_clip=0.9", "--oger.off_policy_max_clip=2", "--rollout.max_new_tokens=3072")
    loss_of = HybridPolicyLoss(nested(f"--oger.off_policy_loss={teacher_loss}", f"--oger.ratio_level={level}", *flags))
    loss_of.given = Given(teachers_tokens(batch), batch.step_index, batch.engine_weights, batch.teacher_log_probs)
    log_probs = torch.empty(ROWS, ACTIONS, device="meta", requires_grad=True)
    loss, *_ = loss_of(log_probs, batch.action_log_probs, batch.advantages, batch.action_mask, None, **TOTALS)
    loss.backward()
    assert {loss.device.type, log_probs.grad.device.type} == {"meta"}
    assert {metric.device.type for metric in loss_of.metrics.values()} == {"meta"}
    stop = KlStop(0.1, None)
    stop.trained(loss_of.metrics["approx_kl"], loss_of.metrics["rollout_tokens"], ends_step=False)


def test_a_policy(batch) -> None:
    with torch.device("meta"):
        actor = ChunkedActor(
            AutoModelForCausalLM.from_config(Qwen2Config(**CONFIG), dtype=torch.bfloat16, attn_implementation="eager")
        )
    actor.packing_samples = False
    log_probs, output = actor(batch.sequences, batch.action_mask, batch.attention_mask, return_output=True)
    (log_probs.sum() + output.entropy.sum()).backward()
    assert log_probs.shape == (ROWS, ACTIONS) and log_probs.dtype == torch.float32
    for position in ENTROPY_POSITIONS:
        found = response_entropy(output.entropy[:, -ACTIONS:], batch.action_mask, position=position)
        assert found.shape == (ROWS,) and found.is_meta
    assert all(parameter.grad.is_meta for parameter in actor.parameters())


@pytest.mark.parametrize("hidden_sizes", [[], [1024, 512]], ids=["linear", "hidden"])
@pytest.mark.parametrize("huber_delta", [None, 0.5])
def test_a_critic(batch, hidden_sizes: list[int], huber_delta: float | None) -> None:
    config = Qwen2Config(**CONFIG, normalize_reward=False, attn_implementation="eager", dtype=torch.bfloat16)
    with torch.device("meta"):
        critic = openrlhf_model._get_critic_model(Qwen2PreTrainedModel, Qwen2Model)(config).bfloat16()
        if hidden_sizes:
            critic.score = ValueHead(config.hidden_size, hidden_sizes).bfloat16()
    values = critic(batch.sequences, batch.action_mask, batch.attention_mask, return_output=True)[0]
    loss_of = CountingValueLoss(0.2, huber_delta)
    loss_of(values, batch.values, batch.returns, batch.action_mask, **TOTALS).backward()
    assert loss_of.clipped.is_meta and all(each.grad.is_meta for each in critic.score.parameters())
