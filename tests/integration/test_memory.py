"""The estimate of memory against what is there: models that run on this machine, and DeepSpeed's engines."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import Forks
from torch import Tensor
from transformers import AutoModel, GPT2Config, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3MoeConfig

from oger_recipe.algorithm.token_stats import token_log_probs_and_entropy
from oger_recipe.checks.activations import Live, body_held, of_body, of_head
from oger_recipe.checks.memory import BUCKET, LIVE, Shape, estimate

ROWS, LENGTH, WIDTH, DEPTH = 2, 24, 64, 5
# The proportions of models that people train, small.
CONFIGS: dict[str, PretrainedConfig] = {
    "Qwen2.5": Qwen2Config(
        hidden_size=WIDTH, intermediate_size=336, num_hidden_layers=DEPTH, num_attention_heads=4,
        num_key_value_heads=1, vocab_size=97,
    ),
    "Llama 3": LlamaConfig(
        hidden_size=WIDTH, intermediate_size=224, num_hidden_layers=DEPTH, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=97,
    ),
    "SmolLM2": LlamaConfig(
        hidden_size=WIDTH, intermediate_size=170, num_hidden_layers=DEPTH, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=97, tie_word_embeddings=True,
    ),
}  # fmt: skip


def _folder(config: PretrainedConfig, folder: Path) -> str:
    config.save_pretrained(folder)
    return str(folder)


def _model(config: PretrainedConfig, checkpointing: bool, attention: str) -> Any:
    """One that computes, on this machine."""
    model = AutoModel.from_config(config, attn_implementation=attention, dtype=torch.bfloat16).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _saved(model: Any) -> int:
    """Bytes that autograd keeps of a forward pass, with its result, and without weights and tokens."""
    tokens = torch.ones(ROWS, LENGTH, dtype=torch.long)
    known = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers(), tokens)}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        keep(model(tokens, use_cache=False)[0])
    return sum(each.untyped_storage().nbytes() for place, each in kept.items() if place not in known)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_activations_are_those_of_a_model_that_runs(
    name: str, checkpointing: bool, attention: str, tmp_path: Path
) -> None:
    """Exactly: by autograd's own account after the forward pass, and operation by operation to the peak."""
    folder = _folder(CONFIGS[name], tmp_path)
    found = of_body(folder, ROWS, LENGTH, eager=attention == "eager", checkpointing=checkpointing)
    model = _model(CONFIGS[name], checkpointing, attention)
    # Which checkpoints hold besides, and all share: two numbers of 16 bits a place in a head, and a position.
    shared = LENGTH * (2 * 2 * WIDTH // 4 + 8) if checkpointing else 0
    assert found is not None and found.kept == _saved(model) + shared
    there = body_held(model, ROWS, LENGTH)
    # In eager attention the mask comes and goes.
    assert found == there if attention == "sdpa" else found.passing == pytest.approx(there.passing, rel=0.1)


@pytest.mark.parametrize("config", [GPT2Config(n_layer=4), Qwen3MoeConfig(num_hidden_layers=4, num_experts=8)])
def test_an_architecture_of_another_kind_is_counted_by_its_own_code(config: PretrainedConfig, tmp_path: Path) -> None:
    plain = of_body(_folder(config, tmp_path), 1, 64, eager=False, checkpointing=False)
    less = of_body(_folder(config, tmp_path), 1, 64, eager=False, checkpointing=True)
    assert plain is not None and less is not None and less.kept < plain.kept / 5


def test_a_model_that_cannot_be_counted_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nobody_knows", "num_hidden_layers": 2}')
    assert of_body(str(tmp_path), 1, 8, eager=False, checkpointing=False) is None


def test_tensors_count_while_they_are_there() -> None:
    own = torch.ones(100)
    with Live([own]) as live:
        first = own * 2  # 400 bytes
        second = first.double()  # 800
        del first
        third = second.view(10, 10)  # the same storage
    assert (live.now, live.peak) == (800, 1200)
    del second, third
    assert live.now == 0


@pytest.mark.parametrize("rows", [8, 31])  # one chunk, and several
def test_the_output_layer_is_counted_as_it_runs(rows: int) -> None:
    vocabulary, width, chunk = 300, 32, 8
    hidden = torch.randn(rows, width, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(vocabulary, width, dtype=torch.bfloat16, requires_grad=True)
    with Live([hidden, weight]) as live:
        stats = token_log_probs_and_entropy(hidden, weight, torch.zeros(rows, dtype=torch.long), chunk_size=chunk)
        (stats[0] + stats[1]).sum().backward()
    found = of_head(vocabulary, width, rows, chunk)
    assert found == pytest.approx(live.peak, rel=0.01)  # some numbers a token beside the logits
    # Its weight's gradient in 32 bits, and logits of a chunk in 32 bits twice.
    assert found > 4 * vocabulary * width + 8 * chunk * vocabulary


def test_states_of_training_are_those_that_deepspeed_holds(parser: argparse.ArgumentParser, forks: Forks) -> None:
    """By stage, in bytes a parameter of one of four ranks."""
    script = Path(__file__).with_name("memory_counted.py")
    path = {"PYTHONPATH": str(script.parents[2])}
    done = forks.run(str(script), env=os.environ | path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["bucket"], found["live"]) == (BUCKET, LIVE)
    assert len(found["counted"]) == 7
    for stage, gradients, size in found["counted"]:
        flags = ["--actor.num_gpus_per_node", "4", "--ds.zero_stage", str(stage)]
        flags += ["--ds.grad_accum_dtype", gradients] if gradients else []
        parts = estimate(vars(parser.parse_args(flags)), Shape(1000, 10, 100, 80)).policy
        held = sum(parts[part] for part in ("weights", "gradients", "Adam")) / 1000
        assert held == pytest.approx(size, rel=0.03), (stage, gradients)
