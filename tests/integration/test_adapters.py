"""A policy with adapters is, for engines and for users, the plain model with W + (alpha / r) B A in place of W."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from oger_recipe.checks.settings import recipe_problems
from oger_recipe.cli.train_ppo_ray import build_parser, parse
from oger_recipe.lab.tiny_policy import build_model, build_tokenizer
from oger_recipe.pipeline.policy import adapters, policy_actor, policy_trainer

RANK, ALPHA = 4, 12
TOKENS = torch.arange(24).view(2, 12) % 7 + 3


def _policy(tied: bool, targets: str | list[str] = "all-linear") -> tuple[Any, PeftModel]:
    """A plain model, and the same with an adapter that has learnt something."""
    tokenizer, models = build_tokenizer(["1 + 2 = 3"], vocab_size=300), []
    for _ in range(2):
        torch.manual_seed(0)
        config = build_model(tokenizer, hidden_size=32, num_layers=2).config
        config.tie_word_embeddings = tied
        torch.manual_seed(0)
        models.append(AutoModelForCausalLM.from_config(config).eval())
    adapted = get_peft_model(
        models[1], LoraConfig(task_type=TaskType.CAUSAL_LM, r=RANK, lora_alpha=ALPHA, target_modules=targets)
    )
    for name, parameter in adapted.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return models[0], adapted.eval()


class Trainer(policy_trainer.OgerActorPPOTrainer):
    """What of it sends weights."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.actor = SimpleNamespace(model=SimpleNamespace(module=module))


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
@pytest.mark.parametrize("tied", [True, False])
def test_the_merged_model_has_plain_names_and_says_what_the_adapted_one_says(tied: bool, targets: Any) -> None:
    plain, adapted = _policy(tied, targets)
    with torch.no_grad():
        expected, before = adapted(TOKENS).logits, plain(TOKENS).logits
    merged = dict(adapters.merged_parameters(adapted))
    assert list(merged) == [name for name, _ in plain.named_parameters()]
    for name, parameter in plain.named_parameters():
        parameter.data.copy_(merged[name])
    with torch.no_grad():
        assert torch.allclose(plain(TOKENS).logits, expected, atol=1e-5)
    assert not torch.allclose(before, expected, atol=1e-2)


def test_merging_is_the_equation_and_leaves_the_policy_as_it_was() -> None:
    _, adapted = _policy(tied=True)
    before = {name: value.clone() for name, value in adapted.state_dict().items()}
    merged = dict(adapters.merged_parameters(adapted))["model.layers.1.self_attn.v_proj.weight"]
    layer = "base_model.model.model.layers.1.self_attn.v_proj."
    weight, down, up = (before[f"{layer}{name}.weight"] for name in ("base_layer", "lora_A.default", "lora_B.default"))
    assert torch.allclose(merged, weight + ALPHA / RANK * up @ down, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in adapted.state_dict().items())


def test_a_merged_weight_has_the_weights_precision() -> None:
    _, adapted = _policy(tied=True)
    merged = dict(adapters.merged_parameters(adapted.to(torch.bfloat16)))
    assert {parameter.dtype for parameter in merged.values()} == {torch.bfloat16}


def test_a_saved_policy_is_the_plain_model_and_its_adapter_lies_beside_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(adapters, "torch_dist_barrier_and_cuda_sync", lambda: None)  # one process
    plain, adapted = _policy(tied=True)
    tokenizer = build_tokenizer(["1 + 2 = 3"], vocab_size=300)
    adapters.save_merged(adapted, tokenizer, str(tmp_path / "other_rank"), writes=False)
    assert not (tmp_path / "other_rank").exists()
    adapters.save_merged(adapted, tokenizer, str(tmp_path / "model"), writes=True)
    again = PeftModel.from_pretrained(plain, tmp_path / "model" / adapters.ADAPTER)
    with torch.no_grad():
        expected = adapted(TOKENS).logits
        for each in (AutoModelForCausalLM.from_pretrained(tmp_path / "model"), again):
            assert torch.allclose(each(TOKENS).logits, expected, atol=1e-5)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "model")) == len(tokenizer)


def test_the_policys_process_saves_the_merged_model_where_it_has_an_adapter(
    nested, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(adapters, "torch_dist_barrier_and_cuda_sync", lambda: None)  # one process
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # written by the actor's constructor
    monkeypatch.setattr(policy_actor, "UpdateHealth", lambda *_: None)
    monkeypatch.setattr(policy_actor.ppo_actor, "Actor", None)  # it puts the chunked one there
    plain, adapted = _policy(tied=True)
    tokenizer = build_tokenizer(["1 + 2 = 3"], vocab_size=300)

    def upstream(actor: Any, strategy: Any, *_: Any) -> None:
        actor.strategy, actor.actor = strategy, SimpleNamespace(model=SimpleNamespace(module=adapted))

    base = policy_actor.OgerPolicyModelActor.__bases__[-1]  # OpenRLHF's
    monkeypatch.setattr(base, "init_model_from_pretrained", upstream)
    for rank in (0, RANK):
        strategy = SimpleNamespace(args=nested(f"--ds.lora.rank={rank}"), save_model=None, is_rank_0=lambda: True)
        actor = policy_actor.OgerPolicyModelActor(1, 0, "127.0.0.1", 1)
        actor.init_model_from_pretrained(strategy, "a/model")
        assert (strategy.save_model is None) == (rank == 0)
    strategy.save_model(actor.actor, tokenizer, str(tmp_path))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.allclose(saved(TOKENS).logits, adapted(TOKENS).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--ds.load_in_4bit"], "ds.load_in_4bit: weights of 4 bits cannot take up the adapter"),
        (["--train.enable_ema"], "train.enable_ema: OpenRLHF's average has no adapters"),
        (["--ds.tensor_parallel_size=2"], "ds.tensor_parallel_size above 1: its layers would be split"),
    ],
)
def test_what_cannot_be_merged_is_refused(flags: list[str], why: str) -> None:
    asked = ["--actor.model_name_or_path=m", "--data.prompt_dataset=d", "--ds.lora.rank=8"]
    refusal = f"ds.lora.rank 8 cannot be used with {why}"
    parser = build_parser(cpu=False)
    assert refusal in recipe_problems(parse(parser, [*asked, *flags]))
    assert refusal not in recipe_problems(parse(parser, asked))


def test_every_weight_is_sent_once_by_its_plain_name(monkeypatch) -> None:
    """OpenRLHF's own function sends what it finds where it looks for the policy's parameters."""
    sent: dict[str, torch.Tensor] = {}

    def upstream(trainer: Any) -> None:
        for name, parameter in trainer.actor.model.module.named_parameters():
            assert name not in sent and not getattr(trainer.actor, "is_vlm", False)
            sent[name] = parameter

    monkeypatch.setattr(policy_trainer.OgerActorPPOTrainer.__base__, "broadcast_to_vllm", upstream)
    plain, adapted = _policy(tied=True)
    for module in (adapted, plain):
        trainer = Trainer(module)
        actor = trainer.actor
        sent.clear()
        trainer.broadcast_to_vllm()
        assert trainer.actor is actor and list(sent) == [name for name, _ in plain.named_parameters()]
        changed = {name for name, parameter in plain.named_parameters() if not torch.equal(sent[name], parameter)}
        linear = {name for name in sent if "proj" in name}
        assert changed == (linear if module is adapted else set())


@pytest.mark.parametrize(("at_a_time", "calls"), [(2**30, 1), (1, 10), (900, 4), (10_000, 1)])
def test_weights_are_sent_some_at_a_time(monkeypatch, at_a_time: int, calls: int) -> None:
    """Ten parameters of 300 bytes: of 900 bytes come 3, 3, 3 and 1."""
    sent: list[list[str]] = []

    def upstream() -> None:
        sent.append([name for name, _ in trainer.actor.model.module.named_parameters()])

    named = [(f"w{number}", torch.nn.Parameter(torch.zeros(75))) for number in range(10)]
    monkeypatch.setattr(adapters, "merged_parameters", lambda model: iter(named))
    monkeypatch.setattr(adapters, "AT_A_TIME", at_a_time)
    trainer = SimpleNamespace(actor=SimpleNamespace(model=SimpleNamespace(module=None)))
    adapters.send_merged(upstream, trainer)
    assert len(sent) == calls and [name for some in sent for name in some] == [name for name, _ in named]
