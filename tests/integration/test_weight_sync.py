"""Weights on their way from the policy to vLLM: after every update the engine must sample from the new ones.

Real parts throughout: Ray as the launcher starts it, OpenRLHF's function that creates the engines, vLLM's CPU build.
A stale engine is seen because every update changes the log-probabilities a lot.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from oger_recipe.algorithm.engine_check import Agreement
from oger_recipe.cpu import CPU_ENVIRONMENT
from oger_recipe.plugin.driver.start_ray import start_ray
from oger_recipe.tasks.tiny_policy import build_model, build_tokenizer

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's weight sync; CUDA has OpenRLHF's own")

PROMPTS = ["Using the numbers [3, 5, 12], make 96.", "12*(3+5)=96", "Answer:"]
MAX_LEN = 64
LEARNING_RATE = 1e-3  # of the recipes' supervised stage on CPUs
UPDATES = 3
KINDS: dict[str, dict[str, Any]] = {"tied": {}, "untied": {"tied": False}, "large vocabulary": {"vocab_size": 49_152}}


class Sender:
    """One policy, its engine, and the group between them with the policy as rank 0 (as ActorPPOTrainer has it)."""

    def __init__(self, folder: Path, *, tied: bool = True, vocab_size: int | None = None) -> None:
        from openrlhf.trainer.ray import vllm_engine

        self.tokenizer = build_tokenizer(PROMPTS, vocab_size=300)
        self.model = _untrained(self.tokenizer, tied, vocab_size)
        self.tokenizer.save_pretrained(folder)
        self.model.save_pretrained(folder)
        [self.engine] = vllm_engine.create_vllm_engines(
            num_engines=1,
            tensor_parallel_size=1,
            pretrain=str(folder),
            seed=1,
            full_determinism=False,
            enable_prefix_caching=False,
            enforce_eager=True,
            max_model_len=MAX_LEN,
            gpu_memory_utilization=0.1,
        )

    def connect(self) -> None:
        """After OpenRLHF's ActorPPOTrainer._init_vllm_sync_group."""
        import socket

        from openrlhf.trainer.ray import ppo_actor

        address = ray._private.services.get_node_ip_address()
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        joined = self.engine.init_process_group.remote(address, port, 1, 2, "openrlhf", backend="gloo", use_ray=False)
        self.group = ppo_actor.stateless_init_process_group(address, port, 0, 2, torch.cuda.current_device())
        ray.get(joined)

    def send(self) -> None:
        """After OpenRLHF's ActorPPOTrainer.broadcast_to_vllm."""
        for name, weight in self.model.named_parameters():
            loaded = self.engine.update_weight.remote(name, dtype=weight.dtype, shape=weight.shape, empty_cache=False)
            self.group.broadcast(weight.data, src=0, stream=torch.cuda.current_stream())
            ray.get(loaded)

    def sample(self) -> list[tuple[list[int], list[float]]]:
        """A few answers: the tokens with those of the prompt, and the engine's log-probability of each sampled one."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=1.0, max_tokens=24, min_tokens=8, skip_special_tokens=False)
        arguments = dict(label="", sampling_params=sampling, max_length=MAX_LEN, hf_tokenizer=self.tokenizer)
        references = [self.engine.generate_responses.remote(prompt=p, num_samples=4, **arguments) for p in PROMPTS]
        answers = [answer for group in ray.get(references) for answer in group]
        return [
            (answer["observation_tokens"], answer["rollout_log_probs"][start:])
            for answer in answers
            for start, _ in answer["action_ranges"]
        ]


def _untrained(tokenizer: Any, tied: bool, vocab_size: int | None) -> Any:
    torch.manual_seed(0)
    model = build_model(tokenizer, hidden_size=64, num_layers=2)
    config = model.config
    config.tie_word_embeddings = tied
    config.vocab_size = vocab_size or config.vocab_size
    model = type(model)(config)
    return model.to(torch.bfloat16).eval().requires_grad_(False)


def _renew(model: Any, seed: int) -> None:
    """Other values in every parameter: norms around one, everything else noise."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.copy_(1 + 0.2 * noise if weight.ndim == 1 else 0.12 * noise)


def _log_probs(model: Any, samples: list[tuple[list[int], list[float]]]) -> list[float]:
    """The policy's log-probabilities of the sampled tokens."""
    chosen = []
    for tokens, engine in samples:
        logits = model(torch.tensor([tokens])).logits[0, :-1].float()
        picked = logits.log_softmax(dim=-1).gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
        chosen += picked[-len(engine) :].tolist()
    return chosen


def _difference(first: list[float], second: list[float]) -> float:
    """Mean absolute difference per token."""
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)


@pytest.fixture(scope="module")
def senders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Sender]]:
    """Policies of several kinds by name; their engines start at the same time."""
    folder = tmp_path_factory.mktemp("weight_sync")
    # The paths of Ray's sockets have to be short, and what it writes there at its end is no matter.
    temporary = tempfile.TemporaryDirectory(prefix="w", dir="/tmp", ignore_cleanup_errors=True)
    with temporary, pytest.MonkeyPatch.context() as environment:
        for name, value in CPU_ENVIRONMENT.items():
            environment.setenv(name, value)
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("OGER_RUN_DIR", str(folder))
        from oger_recipe.plugin.driver.install import install

        _keep_names(environment)
        start_ray(CPU_ENVIRONMENT | {"OGER_RUN_DIR": str(folder)}, True, len(KINDS), False, Path(temporary.name))
        started: dict[str, Sender] = {}
        try:
            install()
            for name, kind in KINDS.items():
                started[name] = Sender(folder / name.replace(" ", "_"), **kind)
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
        _renew(sender.model, seed=10 * update + tied)
        sender.send()
        samples = sender.sample()
        engine = [value for _, values in samples for value in values]
        assert len(engine) >= 8 * len(samples)
        new = _difference(engine, _log_probs(sender.model, samples))
        current = {name: weight.clone() for name, weight in sender.model.state_dict().items()}
        sender.model.load_state_dict(before)
        old = _difference(engine, _log_probs(sender.model, samples))
        sender.model.load_state_dict(current)
        print(f"tied={tied} update {update + 1}: new weights {new:.4f}, old weights {old:.4f} per token")
        assert new < 0.02
        assert old > 0.2


def _train_once(model: Any, samples: list[tuple[list[int], list[float]]], rate: float, seed: int) -> None:
    """One optimizer step of a policy gradient with advantages of 1 and -1: Adam moves weights by about `rate`."""
    generator = torch.Generator().manual_seed(seed)
    masters = {name: weight.float().requires_grad_() for name, weight in model.named_parameters()}
    optimizer = torch.optim.AdamW(masters.values(), lr=rate, weight_decay=0.0)
    for tokens, engine in samples:
        output = torch.func.functional_call(model.float(), masters, torch.tensor([tokens])).logits[0, :-1]
        chosen = output.log_softmax(dim=-1).gather(1, torch.tensor(tokens[1:]).unsqueeze(1))[-len(engine) :]
        advantage = 1.0 if torch.rand(1, generator=generator) < 0.5 else -1.0
        (-advantage * chosen.sum() / len(samples)).backward()
    optimizer.step()
    model.to(torch.bfloat16)
    for name, weight in model.named_parameters():
        weight.data.copy_(masters[name].detach())


def _agreement(sender: Sender, times: int = 4) -> tuple[Agreement, list[tuple[list[int], list[float]]]]:
    samples = [sample for _ in range(times) for sample in sender.sample()]
    engine = torch.tensor([value for _, values in samples for value in values])
    return Agreement.of(engine - torch.tensor(_log_probs(sender.model, samples)), top_p=1.0, top_k=-1), samples


@pytest.mark.parametrize("kind", ["tied", "large vocabulary"])
def test_an_engine_that_missed_one_update_is_told_from_one_that_has_them_all(senders, kind):
    sender = senders[kind]
    sender.model.load_state_dict(_untrained(sender.tokenizer, True, KINDS[kind].get("vocab_size")).state_dict())
    _renew(sender.model, seed=1)
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


def test_ray_listens_on_loopback(senders: dict[str, Sender]) -> None:
    assert ray.nodes()[0]["NodeManagerAddress"] == "127.0.0.1"
