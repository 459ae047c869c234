"""The recipe files of OAT's two commands have the commands' values."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from oger_recipe.settings.flags import defaults
from oger_recipe.settings.recipe_file import read_recipe

ROOT = Path(__file__).parents[2]

# What the page says of the two commands, in the values of the recipe files.
PPO_VALUES = {
    "actor.adam.lr": 1e-6,
    "critic.adam.lr": 1e-6,
    "actor.lr_scheduler": "polynomial",
    "critic.lr_scheduler": "polynomial",
    "oger.kl_penalty_coef": 0.0,
    "algo.kl.init_coef": 1e-4,
    "algo.kl.estimator": "k3",
    "algo.kl.use_loss": True,
    "train.max_epochs": 2,
    "oger.non_stop_penalty": 0.0,
    "oger.task_name": "gsm8k",
    "train.num_episodes": 6,
    "oger.max_prompt_length": 1000,
    "rollout.n_samples_per_prompt": 8,
    "rollout.temperature": 1.2,
    "rollout.top_p": 0.9,
    "rollout.max_new_tokens": 1024,
    "train.batch_size": 64,
    "train.micro_batch_size": 8,
    "rollout.batch_size": 64,
    "oger.eval.max_samples": 1500,
    "eval.steps": 50,
    "eval.temperature": 0.35,
    "oger.eval.top_p": 0.9,
    "eval.n_samples_per_prompt": 16,
    "eval.split": "test",
    "data.input_key": "question",
    "data.label_key": "final_answer",
    "algo.advantage.estimator": "gae",
    "oger.loss_aggregation": "sequence_mean",
    "oger.max_replace_num": 0,
    "ds.zero_stage": 2,
    "train.colocate_all": True,
    "ckpt.save_steps": -1,
}
GRPO_VALUES = {
    "actor.adam.lr": 1e-6,
    "actor.lr_warmup_ratio": 1e-7,
    "algo.kl.init_coef": 1e-3,
    "algo.kl.use_loss": True,
    "train.max_epochs": 1,
    "oger.task_name": "countdown",
    "oger.max_prompt_length": 256,
    "rollout.temperature": 1.0,
    "rollout.top_p": 0.9,
    "rollout.max_new_tokens": 1024,
    "train.batch_size": 128,
    "train.micro_batch_size": 2,
    "rollout.batch_size": 128,
    "eval.steps": 8,
    "oger.eval.max_samples": 1000,
    "eval.temperature": 0.0,
    "eval.split": "test",
    "train.num_episodes": 1,
    "data.input_key": "input",
    "data.label_key": "gt_answer",
    "algo.advantage.estimator": "group_norm",
    "oger.loss_aggregation": "sequence_mean",
    "vllm.gpu_memory_utilization": 0.7,
    "ref.offload": True,
}


@pytest.mark.parametrize(("name", "values"), [("oat_gsm8k_ppo", PPO_VALUES), ("oat_countdown_grpo", GRPO_VALUES)])
def test_the_recipe_files_have_the_commands_values(name: str, values: dict, parser: argparse.ArgumentParser) -> None:
    settings = defaults(parser) | read_recipe(ROOT / "configs" / f"{name}.yaml", parser)
    assert {key: settings[key] for key in values} == values


def test_the_twins_differ_in_model_data_sizes_and_machine_alone(parser: argparse.ArgumentParser) -> None:
    method = ("algo.", "actor.lr_s", "critic.lr_s", "actor.eps", "critic.value", "rollout.temp", "rollout.top_p")
    method += ("rollout.n_samples", "train.max_epochs", "oger.loss", "oger.kl", "oger.non_stop", "oger.max_replace")
    for name in ("oat_gsm8k_ppo", "oat_countdown_grpo"):
        files = (ROOT / "configs" / f"{name}{suffix}.yaml" for suffix in ("", "_cpu"))
        full, twin = (defaults(parser) | read_recipe(file, parser) for file in files)
        assert twin["oger.task.name"] == "countdown"
        assert not [key for key in full if key.startswith(method) and full[key] != twin[key]]
