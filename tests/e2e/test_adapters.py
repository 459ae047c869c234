"""A policy with LoRA adapters through the whole pipeline."""

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
    done = train(run_dir, cache, *SMALL, "--ds.lora.rank", "8", "--ds.lora.alpha", "32", "--actor.adam.lr", rate)
    assert done.returncode == 0, done.stderr
    steps = lines(run_dir / "metrics.jsonl")
    assert len(steps) == 2 and all(step["vllm_logprob_difference"] < 0.02 for step in steps)
    folder = yaml.safe_load((run_dir / "recipe.yaml").read_text())["actor"]["model_name_or_path"]
    start, trained = (AutoModelForCausalLM.from_pretrained(each).eval() for each in (folder, run_dir / "model"))
    before, after = (dict(model.named_parameters()) for model in (start, trained))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("proj" in name for name in changed)
    tokens = torch.arange(3, 23).unsqueeze(0)
    with torch.no_grad():
        expected = trained(tokens).logits
        apart = (start(tokens).logits - expected).abs().max()
        adapted = PeftModel.from_pretrained(start, run_dir / "model" / "adapter")(tokens).logits
    assert (adapted - expected).abs().max() < 0.2 * apart  # bfloat16
