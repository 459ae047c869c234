"""The recipe files of the methods, and their twins for one CPU machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from oger_recipe.base.machine import ENCODER_SHARE
from oger_recipe.checks.combinations import combination_problems
from oger_recipe.checks.plan import describe
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.settings.recipe_file import read_recipe

CONFIGS = Path(__file__).parents[2] / "configs"
TWINS = sorted(
    path.stem.removesuffix("_cpu")
    for path in CONFIGS.glob("*_cpu.yaml")
    if path.with_stem(path.stem.removesuffix("_cpu")).exists()
)
# What a small model on other data may change: model, data, sizes with the learning rates that go with them, machine.
FREE = (
    *("oger.task.", "oger.task_name", "oger.stop", "oger.eval.", "oger.prompts_per_update", "oger.max_prompt_length"),
    *("oger.sft_loss_warmup_steps", "oger.sft_loss_schedule_steps", "oger.prefix_steps"),
    *("oger.total_training_steps", "oger.sft.batch_size", "oger.sft.micro_batch_size", "oger.sft.lr"),
    *("actor.model_name_or_path", "actor.adam.lr", "actor.num_", "actor.gradient_checkpointing", "critic.adam.lr"),
    *("critic.num_", "ref.", "data.prompt_dataset", "data.input_key", "data.label_key", "data.max_len"),
    *("rollout.batch_size", "rollout.micro_batch_size", "rollout.max_new_tokens", "rollout.max_tokens_per_gpu"),
    *("reward.overlong_buffer_len", "oger.grade_model"),
    *("train.batch_size", "train.micro_batch_size", "train.dynamic_batch_enable", "train.num_episodes"),
    *("oger.embedding_model", "train.colocate_", "eval.dataset", "eval.steps", "eval.n_samples_per_prompt"),
    *("ckpt.", "vllm.", "ds.", "oger.embedding_num_gpus"),
)
# And how that data asks and reasons.
FREE_OF_STEPS = ("oger.prompt_template", "oger.steps.delimiters", "oger.critic.hidden_sizes", "logger.wandb.run_name")
# Of a source of the reward what its model is and reads may differ, and where that runs.
METHOD = (
    *("name", "kind", "weight", "combine", "gate", "normalize", "floor", "temperature"),
    *("scale", "credit", "aggregate"),
)


def settings(name: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    return defaults(parser) | read_recipe(CONFIGS / f"{name}.yaml", parser)


def without_models(value: dict[str, Any]) -> dict[str, Any]:
    sources = [{key: source[key] for key in METHOD if key in source} for source in value["oger.reward.sources"]]
    return value | {"oger.reward.sources": sources}


def test_every_method_has_a_twin() -> None:
    methods = {"oger_paper", "oger", "luffy", "grpo", "sft_then_rl", "hpt", "chord", "srft", "questa"}
    methods |= {"oat_gsm8k_ppo", "oat_countdown_grpo", "uft", "prefix_rft", "exgrpo", "rlep", "ampo"}
    methods |= {"self_distillation", "distillation"}
    of_steps = {"openr_math_appo", "openr_math_grpo", "openr_math_tppo", "process_rloo"}
    assert methods | of_steps | {"grm_multi_rm"} <= set(TWINS)
    assert {"maxrl", "passk", "dapo", "uniqueness"} <= set(TWINS)


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_changes_model_data_sizes_and_machine_alone(name: str, parser: argparse.ArgumentParser) -> None:
    assert yaml.safe_load((CONFIGS / f"{name}_cpu.yaml").read_text())["extends"] == f"{name}.yaml"
    full, twin = without_models(settings(name, parser)), without_models(settings(f"{name}_cpu", parser))
    assert twin["oger.task.name"] == (None if name == "own_data" else "countdown")
    assert not [key for key in full if full[key] != twin[key] and not key.startswith((*FREE, *FREE_OF_STEPS))]


def test_the_twins_of_the_methods_compare_at_equal_sizes(parser: argparse.ArgumentParser) -> None:
    names = ("oger_paper", "oger", "luffy", "grpo", "sft_then_rl")
    first, *others = (settings(f"{name}_cpu", parser) for name in names)
    sizes = [key for key in first if key.startswith(FREE) and not key.startswith("oger.sft.")]
    for other in others:
        assert {key: other[key] for key in sizes} == {key: first[key] for key in sizes}


def test_what_the_methods_differ_in(parser: argparse.ArgumentParser) -> None:
    keys = ("oger.max_replace_num", "oger.n_prefix", "oger.bonus_weight", "oger.loss_remove_clip", "oger.sft.epochs")
    methods = {
        "oger_paper": (1, 0, 1.0, True, 0),
        "oger": (1, 0, 1.0, False, 0),
        "luffy": (0, 1, 0.0, True, 0),
        "grpo": (0, 0, 0.0, False, 0),
        "sft_then_rl": (0, 0, 0.0, False, 3),
    }
    for name, values in methods.items():
        found = settings(name, parser)
        assert tuple(found[key] for key in keys) == values, name
        of_loss = (found["algo.advantage.estimator"], found["oger.loss_aggregation"])
        assert of_loss == ("dr_grpo", "constant"), name  # grpo.yaml is Dr. GRPO's loss, as LUFFY's baseline is
    luffy = settings("luffy", parser)
    assert luffy["oger.min_prefix_ratio"] == luffy["oger.max_prefix_ratio"] == 1


def test_maxrl_passk_and_dapo_differ_in_advantages_clip_filter_and_length(parser: argparse.ArgumentParser) -> None:
    keys = (
        "algo.advantage.estimator",
        "actor.eps_clip_low_high",
        "algo.dynamic_filtering_enable",
        "algo.kl.init_coef",
    )
    methods = {
        "maxrl": ("max_rl", None, False, 0.0),
        "passk": ("pass_at_k", None, False, 0.0),
        "dapo": ("group_norm", [0.2, 0.28], True, 0.0),
    }
    found = {name: settings(name, parser) for name in methods}
    assert {name: tuple(each[key] for key in keys) for name, each in found.items()} == methods
    assert {each["oger.loss_aggregation"] for each in found.values()} == {"token_mean"}
    assert not any(each["oger.max_replace_num"] or each["oger.bonus_weight"] for each in found.values())
    n, (low, high) = (found["dapo"][key] for key in ("rollout.n_samples_per_prompt", "algo.dynamic_filtering_range"))
    assert 0 < low < 1 / n and 1 - 1 / n < high < 1  # groups of both kinds stay, and they alone


def test_uniqueness_is_oats_countdown_with_one_more_source(parser: argparse.ArgumentParser) -> None:
    found, plain = settings("uniqueness", parser), settings("oat_countdown_grpo", parser)
    differs = {
        "oger.bonus_weight", "oger.reward.sources", "algo.advantage.estimator", "rollout.top_p", "eval.temperature",
        "eval.n_samples_per_prompt", "logger.wandb.run_name",
    }  # fmt: skip
    assert {key for key in found if found[key] != plain[key]} == differs
    assert found["oger.reward.sources"] == (
        {"name": "rule", "kind": "verifier"},
        {"name": "rare", "kind": "uniqueness", "weight": 0.25},
    )
    assert found["algo.advantage.estimator"] == "dr_grpo"


@pytest.mark.parametrize("name", ["maxrl", "passk", "dapo"])
def test_their_settings_go_together_and_with_teachers(name: str, parser: argparse.ArgumentParser) -> None:
    for each in (name, f"{name}_cpu"):
        assert not [*combination_problems(settings(each, parser))]
    taught = settings("luffy", parser) | {
        "algo.advantage.estimator": settings(name, parser)["algo.advantage.estimator"]
    }
    assert not [*combination_problems(taught)]


@pytest.mark.parametrize(("name", "teachers"), [("oger", 128), ("luffy", 128), ("grpo", 0)])
def test_a_plan_counts_teachers_however_they_enter(name: str, teachers: int, parser: argparse.ArgumentParser) -> None:
    """128 prompts x 8 rollouts: one of each group makes room for a teacher, or is one from its start."""
    value = settings(name, parser)
    assert f"8 rollouts = 1024 rows, at most {teachers} with teachers' tokens" in describe(value, None, None)


def test_a_plan_counts_every_rollout_where_teachers_begin_all(parser: argparse.ArgumentParser) -> None:
    value = settings("luffy", parser) | {"oger.n_prefix": -1}
    assert "at most 1024 with teachers' tokens" in describe(value, None, None)


ON_GPUS = sorted(path.stem for path in CONFIGS.glob("*.yaml") if not path.stem.endswith(("_cpu", "_smoke")))


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_recipe_for_gpus_begins_with_what_was_chosen(name: str, gpu_parser: argparse.ArgumentParser) -> None:
    """As docs/recipes.md explains; a recipe that does otherwise says why in its file, and here."""
    value = settings(name, gpu_parser)
    sleeps = value["train.colocate_all"] and value["vllm.enable_sleep"]
    assert value["vllm.enforce_eager"] is sleeps  # CUDA graphs stay where engines have GPUs of their own
    asks_again = value["rollout.n_samples_per_prompt"] > 1 or value["oger.steps.sample_by_step"]
    assert value["vllm.enable_prefix_caching"] is asks_again
    embeds = OgerSettings.of(value).embeds
    assert value["oger.embedding_num_gpus"] == (ENCODER_SHARE if embeds and value["train.colocate_all"] else 0.0)
    of_a_large_model = value["actor.num_gpus_per_node"] > 1
    assert value["actor.gradient_checkpointing_enable"] is of_a_large_model
    assert value["ds.param_dtype"] == "bf16" and "flash" in value["ds.attn_implementation"]
    assert not value["ds.use_liger_kernel"] and not value["train.async_enable"]
    if value["train.colocate_all"]:
        assert value["vllm.enable_sleep"] and value["ds.enable_sleep"]
        assert value["vllm.gpu_memory_utilization"] <= 0.8
        gpus = value["actor.num_nodes"] * value["actor.num_gpus_per_node"]
        assert value["vllm.num_engines"] * value["vllm.tensor_parallel_size"] == gpus


@pytest.mark.parametrize("path", [CONFIGS / f"{name}.yaml" for name in ON_GPUS], ids=lambda path: path.stem)
def test_where_graphs_are_off_a_line_says_how_to_go_faster(path: Path) -> None:
    eager = [line for line in path.read_text().splitlines() if "enforce_eager: true" in line]
    assert all("--no-vllm.enforce_eager" in line for line in eager)


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_keeps_a_few_checkpoints(path: Path, parser: argparse.ArgumentParser) -> None:
    """One of a 7B policy takes 99 GiB."""
    assert (defaults(parser) | read_recipe(path, parser))["ckpt.max_num"] <= 3
