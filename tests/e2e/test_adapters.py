"""A policy with LoRA adapters through the pipeline: supervised start, steps corrected for the engine, the model."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel
from runs import SMALL, lines, train
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.full


def test_the_engine_follows_a_policy_with_adapters_and_the_saved_model_is_plain(tmp_path: Path, cache: Path) -> None:
    run_dir, rate = tmp_path / "run", "0.003"  # under which the second step would show the first's base weights
    adapted = ["--ds.lora.rank", "8", "--ds.lora.alpha", "32", "--actor.adam.lr", rate]
    first = ["--oger.sft.epochs", "1", "--oger.sft.lr", rate, "--oger.sft.max_samples", "64"]
    first += ["--oger.sft.batch_size", "32", "--oger.sft.micro_batch_size", "32"]
    corrected = [
        "--algo.advantage.is_correction_level",
        "token",
        "--algo.advantage.is_correction_threshold",
        "0.5",
        "2",
    ]
    done = train(run_dir, cache, *SMALL, *adapted, *first, *corrected)
    assert done.returncode == 0, done.stderr
    steps = lines(run_dir / "metrics.jsonl")
    assert len(steps) == 2 and all(step["vllm_logprob_difference"] < 0.02 for step in steps)
    for step in steps:  # the ratios' mean lies as near to 1 as log-probabilities to each other, and few are cut
        assert 0 < abs(step["vllm_ratio"] - 1) < 0.02 and step["vllm_ratio_max"] > 1
        assert step["vllm_filtered_tokens"] < 0.01
    folder = yaml.safe_load((run_dir / "recipe.yaml").read_text())["actor"]["model_name_or_path"]
    folders = (folder, run_dir / "supervised_model", run_dir / "model")
    models = [AutoModelForCausalLM.from_pretrained(each).eval() for each in folders]
    for before, after in pairwise(dict(model.named_parameters()) for model in models):
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed and all("proj" in name for name in changed)
    _, start, trained = models
    tokens = torch.arange(3, 23).unsqueeze(0)
    with torch.no_grad():
        expected = trained(tokens).logits
        apart = (start(tokens).logits - expected).abs().max()
        adapted = PeftModel.from_pretrained(start, run_dir / "model" / "adapter")(tokens).logits
    assert (adapted - expected).abs().max() < 0.2 * apart  # bfloat16
