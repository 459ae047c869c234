"""Estimators of steps that need a critic get one from OpenRLHF's command line, which knows of its own gae alone."""

from __future__ import annotations

from typing import Any

import openrlhf.utils
import openrlhf.utils.config
import pytest
import ray
import torch
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic, vllm_engine

from oger_recipe.pipeline.driver import launch
from oger_recipe.pipeline.policy.value_head import ValueHead

REBOUND = (
    (ppo_trainer, "PPOTrainer"), (ppo_actor, "PolicyModelActor"), (vllm_engine, "RolloutRayActor"),
    (launcher, "ReferenceModelActor"), (launcher, "RewardModelActor"), (ppo_critic, "CriticModelActor"),
    (openrlhf.utils.config, "hierarchize"),
)  # fmt: skip


class _Started(Exception):
    def __init__(self, args: Any) -> None:
        self.args_of_run = args


@pytest.fixture()
def started(monkeypatch: pytest.MonkeyPatch):
    """Runs OpenRLHF's command line up to where it would start its models; returns the settings it would start with."""
    for module, name in REBOUND:
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)

    def get_strategy(args: Any) -> None:
        raise _Started(args)

    def run(*flags: str) -> Any:
        monkeypatch.setattr(openrlhf.utils, "get_strategy", get_strategy)
        given = ["--actor.model_name_or_path=a/policy", "--data.prompt_dataset=a/file", "--train.batch_size=8"]
        given += ["--rollout.batch_size=8", "--rollout.micro_batch_size=1", "--train.micro_batch_size=1"]
        with pytest.raises(_Started) as found:
            launch._run_openrlhf([*given, *flags])
        return found.value.args_of_run

    return run


@pytest.mark.parametrize(
    ("flags", "critic"),
    [
        (["--algo.advantage.estimator=appo"], "a/policy"),
        (["--algo.advantage.estimator=tppo", "--critic.model_name_or_path=a/critic"], "a/critic"),
        (["--algo.advantage.estimator=gae", "--critic.model_name_or_path=a/critic"], "a/critic"),
        (["--algo.advantage.estimator=process_rloo", "--critic.model_name_or_path=a/critic"], None),
        (["--algo.advantage.estimator=dr_grpo"], None),
    ],
)
def test_a_critic_is_there_where_the_estimator_needs_one(started, flags: list[str], critic: str | None) -> None:
    assert started(*flags).critic.model_name_or_path == critic


def test_a_run_after_another_one_has_its_own_critic(started) -> None:
    assert started("--algo.advantage.estimator=appo", "--critic.model_name_or_path=a/critic")
    assert started("--algo.advantage.estimator=appo").critic.model_name_or_path == "a/policy"


def test_a_head_is_linear_layers_with_relu_between_and_begins_as_they_should() -> None:
    torch.manual_seed(0)
    head = ValueHead(300, [200, 100])
    head.reset()
    (w1, b1, w2, b2, w3) = (each.detach() for each in head.parameters())
    states = torch.randn(5, 300)
    hidden = ((states @ w1.T + b1).clamp(min=0) @ w2.T + b2).clamp(min=0)
    assert torch.allclose(head(states), hidden @ w3.T, atol=1e-6)
    assert not b1.any() and not b2.any() and head.weight is head[-1].weight
    # A standard deviation of n numbers has a standard error of 1 / sqrt(2 n): 0.07 of the last 100.
    for weights, std in ((w1, (2 / 300) ** 0.5), (w2, (2 / 200) ** 0.5), (w3, 1 / 101)):
        assert weights.std().item() == pytest.approx(std, rel=0.25)
