"""`oger convert`: the commands of OAT and Understand-R1-Zero as recipe files."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.checks.settings import check_run
from oger_recipe.convert.engine import Conversion, convert
from oger_recipe.convert.oat.commands import COUNTDOWN, PPO, R1_ZERO
from oger_recipe.convert.oat.dialect import OAT
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.recipe_file import read_recipe

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT.parent / "shared" / "seeds" / "001_118f06a180816084.txt"
SCRIPTS = {
    "run_ppo": "python -m oat.experiment.run_ppo",
    "run_math_rl": "deepspeed --module oat.experiment.run_math_rl",
    "r1_zero_math": "python examples/r1_zero_math.py",
    "r1_zero_countdown": "python ./examples/legacy/r1_zero_countdown.py",
    "train_zero_math": "torchrun --nproc_per_node 1 train_zero_math.py",
}
BENCHMARKS = ("aime", "amc", "math", "minerva", "olympiad_bench")

# What OAT takes where a command does not say it: when the page was written, and in the newest. One value: both.
LEFT_OUT: dict[str, Any] = {
    "critic_type": ("ppo", "drgrpo"), "num_ppo_epochs": (2, 1), "generate_max_length": (53, 512),
    "temperature": (0.7, 1.0), "eval_generate_max_length": (200, 512), "eval_top_p": (0.95, 1.0),
    "max_train": ("50000", "999999"), "gpus": 8, "num_gpus_per_actor": 1, "vllm_gpu_ratio": 0.25,
    "collocate": False, "beta": 0.1, "kl_penalty_coef": 0.0, "learning_rate": 5e-7, "critic_learning_rate": 9e-6,
    "lr_scheduler": "cosine_with_min_lr", "lr_warmup_ratio": 0.03, "max_norm": 1.0, "adam_beta_2": 0.95, "l2": 0.0,
    "cliprange": 0.2, "cliprange_value": 0.2, "gamma": 1.0, "lam": 1.0, "zero_stage": 2, "flash_attn": True,
    "bf16": True, "num_samples": 2, "top_p": 1.0, "top_k": -1, "num_prompt_epoch": 1, "prompt_max_length": 1024,
    "train_batch_size": 128, "train_batch_size_per_device": 1, "rollout_batch_size": 128,
    "rollout_batch_size_per_device": 16, "pi_buffer_maxlen_per_device": 16, "input_key": "prompt",
    "output_key": "output", "eval_steps": 20, "eval_n": 1, "eval_temperature": 0.0, "max_eval": 1000,
    "eval_split": "test", "save_steps": -1, "max_save_num": 5, "non_stop_penalty": 0, "non_stop_fixed_reward": None,
    "prompt_template": "qwen_math", "seed": 42, "reward_scale": 1.0, "tis_c": (None, 2.0),
}  # fmt: skip


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without the data of the commands."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture()
def converted(gpu_parser: argparse.ArgumentParser) -> Callable[..., Conversion]:
    return lambda text, **variables: convert(text, "train.sh", gpu_parser, variables)


@pytest.fixture()
def settings(
    converted: Callable[..., Conversion], gpu_parser: argparse.ArgumentParser, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """All settings of the recipe that a command becomes."""

    def values(text: str, **variables: str) -> dict[str, Any]:
        result = converted(text, **variables)
        assert not result.problems
        path = tmp_path / "recipe.yaml"
        path.write_text(result.text)
        return defaults(gpu_parser) | read_recipe(path, gpu_parser)

    return values


def script(base: dict[str, str] = COUNTDOWN, **changes: str | None) -> str:
    """A published command with some flags set otherwise; None: left out."""
    values = base | {name if name == "program" else f"--{name}": text for name, text in changes.items()}
    flags = {name: text for name, text in values.items() if text is not None and name != "program"}
    lines = [f"  {name.replace('_', '-')}{'' if text == 'on' else f' {text}'} \\" for name, text in flags.items()]
    return "\n".join([f"{SCRIPTS[values['program']]} \\", *lines, ""])


def differing(left: dict[str, Any], right: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (left[key], right[key]) for key in left if left[key] != right[key]}


def test_the_users_document_has_exactly_these_commands() -> None:
    if not DOCUMENT.exists():
        pytest.skip("the user's document is not here")
    text = DOCUMENT.read_text()
    places = [text.index(f"{SCRIPTS[command['program']]} \\") for command in (PPO, COUNTDOWN)]
    for command, part in ((PPO, text[places[0] : places[1]]), (COUNTDOWN, text[places[1] :])):
        found = re.findall(r"^ +--([\w-]+)(?: ([^\s\\]+))?", part, re.M)
        flags = {f"--{name.replace('-', '_')}": value or "on" for name, value in found}
        assert flags == {name: value for name, value in command.items() if name != "program"}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_command_leaves_out_has_the_default_of_its_time(name: str) -> None:
    page, newest = value if isinstance(value := LEFT_OUT[name], tuple) else (value, value)
    flag = OAT.flags[f"--{name}"]
    assert (flag.left_out({"program": "run_ppo"}.get), flag.left_out({"program": "run_math_rl"}.get)) == (page, newest)


# What a recipe file of ours says otherwise than the command that it was written from, and why.
OTHERWISE = {
    "oat_gsm8k_ppo": {
        "vllm.enable_prefix_caching": (False, True),  # speed alone
        "vllm.enforce_eager": (False, True),  # speed alone
        "data.max_len": (2024, 2048),  # room for the same prompt and response
        "oger.eval.input_key": ("question", None),  # None: that of the training data, which is the same
        "oger.eval.label_key": ("final_answer", None),
    },
    "oat_countdown_grpo": {
        "vllm.enable_prefix_caching": (False, True),  # speed alone
        "rollout.micro_batch_size": (2, 8),  # rows of a pass without gradients: speed alone
        "data.apply_chat_template": (False, None),  # None: to chats alone, and these prompts are texts
        "oger.eval.top_p": (0.95, None),  # evaluation is greedy
    },
}


@pytest.mark.parametrize(("name", "command"), [("oat_gsm8k_ppo", PPO), ("oat_countdown_grpo", COUNTDOWN)])
def test_the_recipe_files_are_what_the_commands_become(
    name: str, command: dict[str, str], settings: Callable, gpu_parser: argparse.ArgumentParser
) -> None:
    recipe = defaults(gpu_parser) | read_recipe(ROOT / "configs" / f"{name}.yaml", gpu_parser)
    assert differing(settings(script(command)), recipe) == OTHERWISE[name]


def test_understand_r1_zero_is_dr_grpo_on_five_benchmarks(settings: Callable, converted: Callable) -> None:
    found = settings(script(R1_ZERO))
    wanted = {
        "algo.advantage.estimator": "dr_grpo", "oger.loss_aggregation": "constant", "rollout.max_new_tokens": 3000,
        "algo.kl.use_loss": False, "algo.kl.init_coef": 0.0, "actor.lr_scheduler": "constant",
        "oger.prompt_template": "r1", "oger.task_name": "math", "oger.math_rule": "math_verify_think",
        "oger.math_extract": ("answer_tag",), "oger.non_stop_fixed_reward": 0.0, "oger.stop": (),
        "rollout.batch_size": 128, "train.batch_size": 128, "train.num_episodes": 20, "data.max_len": 4024,
        "oger.total_training_steps": None, "oger.eval.max_samples": None, "eval.split": "train",
        "eval.dataset": ",".join(f"./datasets/evaluation_suite/{name}" for name in BENCHMARKS),
        "oger.eval.input_key": "problem", "oger.eval.label_key": "answer", "oger.max_replace_num": 0,
    }  # fmt: skip
    assert {key: found[key] for key in wanted} == wanted
    result = converted(script(R1_ZERO))
    assert "reads the columns problem and answer" in result.without_effect["--eval_input_key=input"]
    assert {entry.split(": ")[0] for entry in result.to_do} == {"data.prompt_dataset", "eval.dataset"}
    assert result.differing.keys() == {"prompt templates", "grading"}


@pytest.mark.parametrize("base", [PPO, COUNTDOWN, R1_ZERO], ids=["ppo", "countdown", "r1_zero"])
def test_a_converted_recipe_would_start_and_no_flag_is_dropped(
    base: dict[str, str], settings: Callable, converted: Callable
) -> None:
    check_run(settings(script(base, prompt_data="owner/data", eval_data="owner/data", test_split="math")), cpu=False,
              gpus_here=None)  # fmt: skip
    result = converted(script(base))
    sources = {name for _, names, _ in result.settings.values() for name in names}
    without = {entry.partition("=")[0] for entry in result.without_effect}
    assert base.keys() <= sources | without


@pytest.mark.parametrize("program", SCRIPTS)
def test_every_form_of_a_program_is_read(program: str, converted: Callable) -> None:
    base = {"run_ppo": PPO, "run_math_rl": R1_ZERO, "train_zero_math": R1_ZERO}.get(program, COUNTDOWN)
    result = converted(f"See {program} for more.\n\n" + script(base, program=program))
    assert not result.problems
    corrects = "algo.advantage.is_correction_level" in result.settings  # what the newest OAT does by default
    assert corrects == (program == "run_math_rl")


# command, changes -> settings
TRANSLATED: list[tuple[dict, dict[str, str | None], dict[str, Any]]] = [
    (PPO, {"critic_type": "drgrpo", "beta": "0"}, {"algo.advantage.estimator": "dr_grpo", "algo.kl.init_coef": 0.0}),
    (PPO, {"beta": None}, {"algo.kl.init_coef": 0.1, "algo.kl.use_loss": True}),
    (PPO, {"num_ppo_epochs": None}, {"train.max_epochs": 2}),
    (PPO, {"beta": "0", "kl_penalty_coef": "0.02"},
     {"algo.kl.use_loss": False, "algo.kl.init_coef": 0.02, "algo.kl.estimator": "k1", "oger.kl_penalty_coef": 0.0}),
    (PPO, {"lr_scheduler": None, "critic_learning_rate": "4e-6"},
     {"critic.lr_scheduler": "cosine_with_min_lr", "critic.min_lr_ratio": 0.025}),  # a tenth of 1e-6 is a 40th of 4e-6
    (PPO, {"non_stop_fixed_reward": "-1", "non_stop_penalty": "-0.5"}, {"oger.non_stop_fixed_reward": -1.5}),
    (PPO, {"num_groups": "2", "rollout_batch_size": "128", "train_batch_size": "128",
           "num_gpus_per_actor": "2"},
     {"actor.num_nodes": 2, "critic.num_nodes": 2, "vllm.num_engines": 8, "vllm.tensor_parallel_size": 2}),
    # 64 prompts are 2 batches of 8 GPUs x 4; evaluation every 50 batches is every 25 steps, every 5: every 5 steps
    (PPO, {"rollout_batch_size_per_device": "4"}, {"rollout.batch_size": 64, "eval.steps": 25}),
    (PPO, {"rollout_batch_size_per_device": "4", "eval_steps": "5"}, {"eval.steps": 5}),
    # 60 prompts are 7 whole batches of 8 GPUs x 1
    (PPO, {"rollout_batch_size": "60", "rollout_batch_size_per_device": "1", "pi_buffer_maxlen_per_device": "56"},
     {"rollout.batch_size": 56}),
    (PPO, {"eval_steps": "-1"}, {"eval.steps": -1, "eval.dataset": None}),
    (PPO, {"debug": "on"}, {"oger.val_before_train": False}),
    (PPO, {"save_steps": "20", "max_save_num": None},
     {"ckpt.save_steps": 20, "ckpt.save_hf": True, "ckpt.max_num": 5}),
    (COUNTDOWN, {"remove_std_bias": "on"},
     {"algo.advantage.estimator": "dr_grpo", "oger.loss_aggregation": "sequence_mean"}),
    (COUNTDOWN, {"remove_len_bias": "on"},
     {"algo.advantage.estimator": "group_norm", "oger.loss_aggregation": "constant"}),
    (COUNTDOWN, {"pretrain": "meta-llama/Llama-3.2-3B"}, {"oger.stop": (), "oger.stop_token_ids": ()}),
    (COUNTDOWN, {"no_flash_attn": "on"}, {"ds.attn_implementation": "eager"}),
    # 128 x 8 = 1,024 rollouts a step: the run ends with the step that exceeds 3,000
    (COUNTDOWN, {"max_train": "3000"}, {"data.max_samples": 3000, "oger.total_training_steps": 3}),
    # in 2 batches of 64 prompts x 8: after the third batch of 512 it stops, and 1 step was trained
    (COUNTDOWN, {"max_train": "1024", "rollout_batch_size_per_device": "16"}, {"oger.total_training_steps": 1}),
    (COUNTDOWN, {"ref_pretrain": "Qwen/Qwen2.5-3B"}, {"ref.offload": True}),
    (COUNTDOWN, {"beta": None, "kl_penalty_coef": None}, {"ref.offload": True, "algo.kl.init_coef": 0.1}),
    (COUNTDOWN, {"beta": "0"}, {"ref.offload": False, "train.colocate_actor_ref": False}),
    (COUNTDOWN, {"max_queries": "1024"}, {"oger.total_training_steps": 2}),
    (R1_ZERO, {"program": "run_math_rl", "max_train": "3000"}, {"oger.total_training_steps": None}),
    (R1_ZERO, {"eval_generate_max_length": "4000"}, {"data.max_len": 5024}),
    (R1_ZERO, {"eval_generate_max_length": "4000", "eval_steps": "-1"}, {"data.max_len": 4024}),
    (R1_ZERO, {"eval_data": "./suite/", "test_split": "aime,math"}, {"eval.dataset": "./suite/aime,./suite/math"}),
    (R1_ZERO, {"test_split": "aime,math"},
     {"eval.dataset": "./datasets/evaluation_suite/aime,./datasets/evaluation_suite/math"}),
    (R1_ZERO, {"eval_data": "owner/suite", "test_split": "aime"},
     {"eval.dataset": "owner/suite", "eval.split": "aime"}),
    (R1_ZERO, {"prompt_template": "no"}, {"oger.prompt_template": "none", "oger.math_rule": "deepscaler_no_think"}),
    (R1_ZERO, {"prompt_template": "r1_distill_qwen"},
     {"oger.prompt_template": "r1_distill", "oger.math_rule": "deepscaler"}),
    (R1_ZERO, {"critic_type": None}, {"algo.advantage.estimator": "dr_grpo"}),
    (R1_ZERO, {"tis_c": "None"}, {"algo.advantage.is_correction_level": "off"}),
    (R1_ZERO, {"program": "run_math_rl", "tis_c": "None"}, {"algo.advantage.is_correction_level": "off"}),
    *(
        (R1_ZERO, changes,
         {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_mode": "clip",
          "algo.advantage.is_correction_gating": "ratio", "algo.advantage.is_correction_threshold": [bound]})
        for changes, bound in (
            ({"tis_c": "3"}, 3.0), ({"program": "run_math_rl"}, 2.0),
            ({"program": "run_math_rl", "tis_c": "1.5"}, 1.5),
        )
    ),
    (R1_ZERO, {"lora_rank": "32", "lora_alpha": "64", "target_modules": "q_proj"},
     {"ds.lora.rank": 32, "ds.lora.alpha": 64, "ds.lora.target_modules": ["q_proj"]}),
]  # fmt: skip


@pytest.mark.parametrize(("base", "changes", "wanted"), TRANSLATED)
def test_values_are_translated(base: dict, changes: dict, wanted: dict[str, Any], settings: Callable) -> None:
    found = settings(script(base, **changes))
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (PPO, {"critic_typ": "ppo"}, "unknown flag --critic_typ; did you mean --critic_type?"),
        (PPO, {"collocate": None}, "the critic has GPUs of its own here: add --collocate"),
        (COUNTDOWN, {"gpus": "7"}, "an odd number has no half: add --collocate"),
        (PPO, {"num_gpus_per_actor": "3"}, "8 GPUs do not divide into engines of 3"),
        (PPO, {"pi_buffer_maxlen_per_device": None}, "its default is 16: a step has 64 rollouts per learning GPU"),
        (PPO, {"pi_buffer_maxlen_per_device": "128"}, "trains on rollouts of earlier steps again: give 64"),
        (PPO, {"rollout_batch_size_per_device": "16"}, "128 prompts are sampled at once"),
        (PPO, {"mini_train_batch_size_per_device": "2"}, "give the same value to both"),
        (PPO, {"oracle": "owner/reward-model"}, "run_ppo is read with the rule gsm8k alone"),
        (PPO, {"ref_pretrain": "owner/other"}, "the reference is that of --pretrain"),
        (R1_ZERO, {"eval_data": "owner/suite"}, "of a data set on the Hub one split is evaluated here"),
        (R1_ZERO, {"dry_run": "on"}, "`oger train --dry-run`"),
        (R1_ZERO, {"max_train": "10,20"}, "one bound holds for all files here"),
        (R1_ZERO, {"prompt_template": "r2"}, "it is one of qwen_math, qwen3, no, r1,"),
        (R1_ZERO, {"sync_params_every": "4"}, "leave it out"),
        (R1_ZERO, {"gpus": "on"}, "--gpus has no value"),
        (R1_ZERO, {"no_bf16": "on"}, "add --fp16"),
        (COUNTDOWN, {"tis_c": "2"}, "give --tis_c None, or leave --top_p and --top_k out"),  # --top_p 0.9
        (R1_ZERO, {"program": "run_math_rl", "top_k": "50"}, "its default is 2.0: with --top_p below 1 or --top_k"),
        (R1_ZERO, {"tis_c": "two"}, "it takes a number"),
        (R1_ZERO, {"tis_c": "0.5"}, "is_correction_threshold 0.5 excludes 1"),
    ],
)
def test_what_cannot_be_honoured_is_refused(base: dict, changes: dict, said: str, converted: Callable) -> None:
    problems = converted(script(base, **changes)).problems
    assert any(said in problem for problem in problems), problems


def test_a_schedule_that_oat_plans_for_other_updates_is_to_be_known(converted: Callable) -> None:
    assert not converted(script(COUNTDOWN)).to_do  # <|im_end|> is nothing to fill in
    assert not [entry for entry in converted(script(PPO)).to_do if "lr_scheduler" in entry]
    (entry,) = converted(script(PPO, max_step_adjustment=None)).to_do
    assert "planned for 1 of 16 updates a prompt" in entry


LAUNCHER = """\
set -euo pipefail
for host in a b; do echo "$host"; done
GPUS=4
PROMPTS=64  # of a step
COMMON=(
    --gpus $GPUS --collocate      # all on one machine
    --critic-type=grpo --no-flash-attn
    --oracle countdown --beta 0
)
COMMON+=(--rollout-batch-size $PROMPTS --rollout_batch_size_per_device $((PROMPTS / GPUS)))
COMMON+=(--rnd-seed)
MODEL="${1:-Qwen/Qwen2.5-3B}"
MORE="--num-samples 4 --eval_steps -1
    --pi_buffer_maxlen_per_device $(( $PROMPTS * 4 / ${GPUS} )) --train_batch_size $((PROMPTS*4))
    --pretrain $MODEL"
for T in 0.6 1.0; do
    python examples/r1_zero_math.py "${COMMON[@]}" $MORE --temperature "$T" --seed $2 \\
        --prompt_data "data/$(date +%Y %m)" --wb-run-name "t-$T-$(basename "$MODEL")" > "log-$T.txt" 2>&1
done
"""


def test_a_launcher_with_arrays_sums_and_arguments(converted: Callable) -> None:
    result = converted(LAUNCHER, **{"T": "0.6", "1": "here/base-qwen", "2": "7"})
    assert not result.problems
    found = {key: value for key, (value, _, _) in result.settings.items()}
    wanted = {
        "actor.num_gpus_per_node": 4, "rollout.batch_size": 64, "train.batch_size": 256, "rollout.temperature": 0.6,
        "rollout.n_samples_per_prompt": 4, "train.seed": 7, "actor.model_name_or_path": "here/base-qwen",
        "ds.attn_implementation": "eager", "algo.advantage.estimator": "group_norm",
        "logger.wandb.run_name": "t-0.6-base-qwen", "data.prompt_dataset": "data/$(date +%Y %m)",
    }  # fmt: skip
    assert {key: found[key] for key in wanted} == wanted
    assert "set data.prompt_dataset, which is data/$(date +%Y %m)" in result.to_do


def test_a_sweep_is_converted_with_one_value(converted: Callable) -> None:
    problems = converted(LAUNCHER, **{"2": "7"}).problems
    assert problems[0] == (
        "line 16: the script loops over T: convert one value, with --set T=0.6, and train all with "
        "scripts/sweep.sh --rollout.temperature 0.6 1.0 --recipe FILE"
    )
    assert len([problem for problem in problems if "loops over" in problem]) == 1
    assert (
        "line 6: unknown flag --gpuz; did you mean --gpus?" in converted(LAUNCHER.replace("--gpus", "--gpuz")).problems
    )
    one_line = "for S in 1 2; do " + script(COUNTDOWN, seed="$S").replace("\\\n", " ").strip() + "; done\n"
    assert "scripts/sweep.sh --train.seed 1 2 " in converted(one_line).problems[0]
    assert not converted(one_line, S="2").problems


def test_two_commands_are_one_too_many(converted: Callable) -> None:
    (problem,) = converted(script(PPO) + "\n" + script(COUNTDOWN)).problems
    assert problem.startswith("there are 2 training commands (lines 1, ") and "leave one" in problem


@pytest.mark.parametrize(
    "command",
    [
        "python -m oat.experiment.main --algo SimPO --preference_oracle pairrm",
        "deepspeed --module oat.experiment.run_offline --algo SFT",
        "python evaluate_model.py --model_name owner/model --template r1",
    ],
)
def test_oats_other_programs_are_known(command: str, converted: Callable) -> None:
    (problem,) = converted(command).problems
    assert problem.startswith("this is OAT's preference learning") and "oger eval" in problem


def test_a_text_that_runs_a_script_names_it(converted: Callable) -> None:
    (problem,) = converted(
        "deepspeed --module openrlhf.cli.train_sft --lr 1\nthen: bash examples/zero.sh --x\n"
    ).problems
    assert "oger.sft.epochs" in problem and problem.endswith("The text runs examples/zero.sh: convert that file")


@pytest.mark.parametrize("base", [PPO, COUNTDOWN, R1_ZERO], ids=["ppo", "countdown", "r1_zero"])
def test_the_page_names_every_setting_that_a_flag_makes(settings_made: Callable, base: dict[str, str]) -> None:
    values = {name: "True" if value == "on" else value for name, value in base.items()}
    for flag, made in settings_made(OAT, values):
        assert made <= {name.strip() for name in flag.ours.split(",")}, flag.name
