"""Weights on their way from the policy to vLLM: after every update the engine must sample from the new ones.

Real parts throughout: Ray as the launcher starts it, OpenRLHF's function that creates the engines, vLLM's CPU build.
A stale engine is seen because every update changes the log-probabilities a lot.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
import torch
from hang import HANG_S
from peft import LoraConfig, get_peft_model
from vllm.v1.engine.exceptions import EngineDeadError

from oger_recipe.algorithm.engine_agreement import Agreement
from oger_recipe.base.cpu import CPU_ENVIRONMENT
from oger_recipe.lab.tiny_policy import build_model, build_tokenizer, renew
from oger_recipe.pipeline.driver.start_ray import start_ray
from oger_recipe.pipeline.driver.trial import PROMPTS, EngineTrial, Samples
from oger_recipe.pipeline.policy.adapters import merged_parameters

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's weight sync; CUDA has OpenRLHF's own")

LEARNING_RATE = 1e-3  # of the recipes' supervised stage on CPUs
ADAPTER_RATE = 3e-3  # of configs/self_distillation_cpu.yaml
UPDATES = 3
KINDS: dict[str, dict[str, Any]] = {"tied": {}, "untied": {"tied": False}, "large vocabulary": {"vocab_size": 49_152}}


def _trial(folder: Path, *, tied: bool = True, vocab_size: int | None = None) -> EngineTrial:
    tokenizer = build_tokenizer(PROMPTS, vocab_size=300)
    return EngineTrial(folder, _untrained(tokenizer, tied, vocab_size), tokenizer)


def _untrained(tokenizer: Any, tied: bool, vocab_size: int | None) -> Any:
    torch.manual_seed(0)
    model = build_model(tokenizer, hidden_size=64, num_layers=2)
    config = model.config
    config.tie_word_embeddings = tied
    config.vocab_size = vocab_size or config.vocab_size
    model = type(model)(config)
    return model.to(torch.bfloat16).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def senders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EngineTrial]]:
    """Policies of several kinds by name; their engines start at the same time."""
    folder = tmp_path_factory.mktemp("weight_sync")
    # The paths of Ray's sockets have to be short, and what it writes there at its end is no matter.
    temporary = tempfile.TemporaryDirectory(prefix="w", dir="/tmp", ignore_cleanup_errors=True)
    with temporary, pytest.MonkeyPatch.context() as environment:
        for name, value in CPU_ENVIRONMENT.items():
            environment.setenv(name, value)
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("OGER_RUN_DIR", str(folder))
        from oger_recipe.pipeline.driver.install import install

        _keep_names(environment)
        start_ray(CPU_ENVIRONMENT | {"OGER_RUN_DIR": str(folder)}, True, len(KINDS), False, Path(temporary.name))
        started: dict[str, EngineTrial] = {}
        try:
            install()
            for name, kind in KINDS.items():
                started[name] = _trial(folder / name.replace(" ", "_"), **kind)
            for sender in started.values():
                sender.connect()
            yield started
        finally:
            for sender in started.values():
                ray.kill(sender.engine)
            ray.shutdown()


def _keep_names(environment: pytest.MonkeyPatch) -> None:
    """What install() rebinds in this process is put back with the environment."""
    import openrlhf.utils
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic, vllm_engine

    for module, name in (
        (ppo_trainer, "PPOTrainer"),
        (ppo_actor, "PolicyModelActor"),
        (vllm_engine, "RolloutRayActor"),
        (launcher, "ReferenceModelActor"),
        (launcher, "RewardModelActor"),
        (ppo_critic, "CriticModelActor"),
        (openrlhf.utils, "get_strategy"),
    ):
        environment.setattr(module, name, getattr(module, name))


@pytest.mark.parametrize("tied", [True, False])
def test_after_every_update_the_engines_log_probabilities_are_the_policys(senders, tied):
    sender = senders["tied" if tied else "untied"]
    names = dict(sender.model.named_parameters())
    assert ("lm_head.weight" in names) == (not tied)
    for update in range(UPDATES):
        before = {name: weight.clone() for name, weight in sender.model.state_dict().items()}
        renew(sender.model, seed=10 * update + tied)
        sender.send()
        samples = sender.sample()
        engine = [value for _, values in samples for value in values]
        assert len(engine) >= 8 * len(samples)
        new = sender.agreement(samples).difference
        current = {name: weight.clone() for name, weight in sender.model.state_dict().items()}
        sender.model.load_state_dict(before)
        old = sender.agreement(samples).difference
        sender.model.load_state_dict(current)
        print(f"tied={tied} update {update + 1}: new weights {new:.4f}, old weights {old:.4f} per token")
        assert new < 0.02
        assert old > 0.2


def _train_once(model: Any, samples: Samples, rate: float, seed: int) -> None:
    """One optimizer step of a policy gradient with advantages of 1 and -1: Adam moves weights by about `rate`, those
    of adapters alone where there are any."""
    generator = torch.Generator().manual_seed(seed)
    trained = {name: weight for name, weight in model.named_parameters() if ".lora_" in name}
    trained = trained or dict(model.named_parameters())
    masters = {name: weight.detach().float().requires_grad_() for name, weight in trained.items()}
    optimizer = torch.optim.AdamW(masters.values(), lr=rate, weight_decay=0.0)
    for tokens, engine in samples:
        output = torch.func.functional_call(model.float(), masters, torch.tensor([tokens])).logits[0, :-1]
        chosen = output.log_softmax(dim=-1).gather(1, torch.tensor(tokens[1:]).unsqueeze(1))[-len(engine) :]
        advantage = 1.0 if torch.rand(1, generator=generator) < 0.5 else -1.0
        (-advantage * chosen.sum() / len(samples)).backward()
    optimizer.step()
    model.to(torch.bfloat16)
    for name, weight in model.named_parameters():
        if name in masters:
            weight.data.copy_(masters[name].detach())


def _agreement(sender: EngineTrial) -> tuple[Agreement, Samples]:
    samples = [sample for _ in range(4) for sample in sender.sample()]
    return sender.agreement(samples), samples


@pytest.mark.parametrize("kind", ["tied", pytest.param("large vocabulary", marks=pytest.mark.full)])
def test_an_engine_that_missed_one_update_is_told_from_one_that_has_them_all(senders, kind):
    sender = senders[kind]
    sender.model.load_state_dict(_untrained(sender.tokenizer, True, KINDS[kind].get("vocab_size")).state_dict())
    renew(sender.model, seed=1)
    sender.send()
    first, samples = _agreement(sender)
    limit = first.limit()
    assert not first.is_stale(None)
    for update in range(UPDATES):
        _train_once(sender.model, samples, rate=LEARNING_RATE, seed=update)
        stale, _ = _agreement(sender)
        sender.send()
        healthy, samples = _agreement(sender)
        print(f"{kind}, update {update + 1}: limit {limit:.4f}, one behind {stale}, up to date {healthy}")
        assert stale.is_stale(limit)
        assert not healthy.is_stale(limit)


def test_ray_listens_on_loopback(senders: dict[str, EngineTrial]) -> None:
    assert ray.nodes()[0]["NodeManagerAddress"] == "127.0.0.1"


def test_an_engine_says_what_vllm_chose_for_this_machine(senders):
    """environment.json of a run has it; here that is the CPU, which has neither graphs nor NCCL."""
    assert ray.get(senders["tied"].engine.engine_facts.remote()) == {
        "model_runner": "V1",
        "attention_backends": ["CPU_ATTN"],
        "enforce_eager": True,
        "cuda_graphs": "NONE",
        "nccl": None,
    }


def test_an_engine_that_stays_on_the_base_weights_is_noticed_after_one_step_of_an_adapter(
    senders: dict[str, EngineTrial],
) -> None:
    sender = senders["untied"]
    sender.model.load_state_dict(_untrained(sender.tokenizer, False, None).state_dict())
    sender.send()
    first, samples = _agreement(sender)
    adapted = get_peft_model(copy.deepcopy(sender.model), LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    plain, sender.model = sender.model, adapted
    _train_once(adapted, samples, rate=ADAPTER_RATE, seed=0)
    stale, _ = _agreement(sender)
    sender.model = SimpleNamespace(named_parameters=lambda: merged_parameters(adapted))
    sender.send()
    sender.model = adapted
    merged, _ = _agreement(sender)
    sender.model = plain
    print(
        f"per token: first {first.difference:.4f}, base weights {stale.difference:.4f}, merged {merged.difference:.4f}"
    )
    assert stale.is_stale(first.limit()) and not merged.is_stale(first.limit())


def test_an_engine_that_dies_before_it_answers_is_an_error(senders: dict[str, EngineTrial]) -> None:
    """The last test: its engine is gone. Nobody sends the weight that it waits for."""
    engine, weight = senders["large vocabulary"].engine, next(senders["large vocabulary"].model.named_parameters())
    waiting = engine.update_weight.remote(weight[0], dtype=weight[1].dtype, shape=weight[1].shape)
    ray.get(engine.__ray_ready__.remote())
    actor = ray.get(engine.__ray_call__.remote(lambda _: os.getpid()))
    (core,) = [child for child in psutil.Process(actor).children() if child.name().startswith("VLLM::EngineCor")]
    core.kill()
    with pytest.raises(EngineDeadError):
        ray.get(waiting, timeout=HANG_S)
