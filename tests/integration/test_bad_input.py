"""What a user can get wrong is refused by the real command in one message, before anything is started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forks import Forks
from hang import HANG_S

from oger_recipe.algorithm.credit import ESTIMATORS, group_estimators
from oger_recipe.cli import train, train_ppo_ray
from oger_recipe.rewards.kinds import KINDS
from oger_recipe.run_folder import own_files
from oger_recipe.settings.derived import in_prompts
from oger_recipe.settings.parser import build_parser
from oger_recipe.settings.recipe_file import read_recipe

ROW = {
    "uid": "p-1",
    "prompt": "Make 96 of 3, 5, 12.",
    "answer": '{"numbers":[3,5,12],"target":96}',
    "task": "countdown",
}
TEACHER = {"source": "a", "text": "<answer>(3+5)*12</answer>", "correct": True}


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without CUDA, where Ray cannot be started even if a check lets something through."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "oger_recipe.pipeline.driver.launch", None)  # importing it fails
    monkeypatch.chdir(tmp_path)


@pytest.fixture()
def recipe(tmp_path: Path, policy_folder: Path) -> Path:
    """A recipe that would run: two prompts of four rollouts a step."""
    rows = [ROW | {"teachers": [TEACHER]}, ROW | {"uid": "p-2"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "oger": {"run_dir": str(tmp_path / "run"), "data_cache": str(tmp_path / "cache")},
        "actor": {"model_name_or_path": str(policy_folder)},
        "data": {"prompt_dataset": str(tmp_path / "rows.jsonl"), "max_len": 256},
        "rollout": {"batch_size": 2, "n_samples_per_prompt": 4, "max_new_tokens": 64, "micro_batch_size": 1},
        "train": {"batch_size": 8, "micro_batch_size": 1},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture()
def refused(recipe: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The message with which ``oger train`` ends; the interpreter prints it to stderr and exits with 1."""

    def message(*flags: str, file: Path = recipe) -> str:
        with pytest.raises(SystemExit) as stop:
            train.main(["--recipe", str(file), *flags])
        assert isinstance(stop.value.code, str)
        assert capsys.readouterr().err == ""
        name = "oger train: "
        assert stop.value.code.startswith(name)
        return stop.value.code.removeprefix(name)

    return message


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _problems(*sentences: str) -> str:
    return "\n  - ".join(["this recipe cannot run:", *sentences])


def test_command_sh_is_what_was_typed(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run here, with a program in the place of oger that says how it was called."""
    program = tmp_path / "a program" / "oger"
    program.parent.mkdir()
    says = "import json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv[1:]]))\n"
    program.write_text(f"#!/usr/bin/env python3\n{says}")
    program.chmod(0o755)
    words = ["--recipe", "recipe.yaml", "--oger.stop", "a 'b'\nrm $HOME"]
    monkeypatch.setattr(sys, "argv", [str(program), "train", *words])
    with pytest.raises(ModuleNotFoundError, match="oger_recipe.pipeline.driver.launch"):
        train.main(words)
    command = ["bash", str(tmp_path / "run" / "command.sh")]
    said = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == [str(tmp_path), "train", *words]


def test_the_recipe_of_these_tests_has_nothing_to_refuse(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="oger_recipe.pipeline.driver.launch"):
        train.main(["--recipe", str(recipe)])
    assert json.loads((tmp_path / "run" / "data" / "counts.json").read_text()) == {
        "prompts": 2, "prompts_without_teacher": 1, "teachers": 1,
    }  # fmt: skip


_UPDATES_AGAIN = (
    "more than one optimizer step on a batch of rollouts (train.max_epochs, train.batch_size): the ratio would be 1 "
    "in all"
)
_ONE = ["--rollout.n_samples_per_prompt", "1", "--train.batch_size", "2", "--oger.max_replace_num", "0"]


def _with_prm(more: dict[str, Any]) -> str:
    """The flag of sources with a process reward model that has these keys."""
    prm = {"name": "prm", "kind": "process", "model": "org/prm", "format": "math_shepherd", **more}
    return "--oger.reward.sources=" + json.dumps([{"name": "rule", "kind": "verifier"}, prm])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--train.batch_size", "3"],
            "rollout.batch_size 2 x n_samples_per_prompt 4 = 8 rollouts do not divide into optimizer steps of "
            "train.batch_size 3: use 2 or 4",
        ),
        (["--train.micro_batch_size", "3"], "8 rows do not divide into train.micro_batch_size 3 x 1 policy ranks"),
        (
            ["--rollout.micro_batch_size", "4", "--actor.num_gpus_per_node", "4"],
            "8 rows do not divide into rollout.micro_batch_size 4 x 4 policy ranks",
        ),
        (
            ["--train.dynamic_batch_enable", "--train.batch_size", "4", "--actor.num_gpus_per_node", "3"],
            "train.batch_size 4 does not divide among 3 policy ranks: the remaining rows would not be trained",
        ),
        (
            ["--oger.logical_gpus", "1"],
            "actor 1 + vLLM engines 1 = 2 GPUs are needed, but 1 are declared (oger.logical_gpus); "
            "Ray would wait forever",
        ),
        (
            ["--oger.logical_gpus", "3", "--algo.kl.init_coef", "0.1", "--vllm.num_engines", "2"],
            "actor 1 + reference 1 + vLLM engines 2 = 4 GPUs are needed, but 3 are declared (oger.logical_gpus); "
            "Ray would wait forever",
        ),
        (
            ["--rollout.n_samples_per_prompt", "1", "--train.batch_size", "2"],
            "rollout.n_samples_per_prompt is 1: dr_grpo compares the rollouts of a group: use 2 or more",
        ),
        (["--oger.max_replace_num", "4"], "oger.max_replace_num 4 leaves no rollout in a group of 4"),
        (["--oger.max_replace_num", "-1"], "oger.max_replace_num is -1: it must be 0 or more"),
        (["--data.max_len", "64"], "rollout.max_new_tokens 64 leaves no room for a prompt within data.max_len 64"),
        (["--vllm.num_engines", "0"], "vllm.num_engines is 0: it must be 1 or more"),
        (
            ["--train.async_enable"],
            "train.async_enable True is not supported: asynchronous training would sample with older "
            "weights than the loss assumes; leave it off",
        ),
        (
            ["--actor.policy_loss_type", "gspo"],
            "actor.policy_loss_type gspo is not supported: the hybrid loss is a loss of tokens; leave it at ppo",
        ),
        (
            ["--vllm.enable_sleep"],
            "vllm.enable_sleep True is not supported on a machine without CUDA: vLLM's CPU build cannot sleep; "
            "leave it off",
        ),
        (
            ["--ds.adam_offload"],
            "ds.adam_offload True is not supported on a machine without CUDA: the optimizer is already in main "
            "memory; leave it off",
        ),
        (
            ["--ds.deepcompile"],
            "ds.deepcompile True is not supported on a machine without CUDA: nothing is compiled there; leave it off",
        ),
        (
            ["--ds.ring_attn_size", "2"],
            "ds.ring_attn_size 2 is not supported on a machine without CUDA: ring attention needs flash attention; "
            "use 1",
        ),
        (
            ["--ds.attn_implementation", "flash_attention_2"],
            "ds.attn_implementation flash_attention_2 needs CUDA: use sdpa or eager",
        ),
        (["--data.prompt_dataset", "here.jsonl"], "data.prompt_dataset: here.jsonl: no such file"),
        (["--eval.dataset", "rows.jsonl,there.jsonl"], "eval.dataset: there.jsonl: no such file"),
        (
            ["--actor.model_name_or_path", "./model"],
            "actor.model_name_or_path: ./model: no such model folder",
        ),
        (
            ["--oger.task.name", "countdown", "--actor.model_name_or_path", "./model"],
            "actor.model_name_or_path: ./model: no such model folder",
        ),
        (["--oger.embedding_model", "./encoder"], "oger.embedding_model: ./encoder: no such model folder"),
        (
            ["--oger.similarity_reranker", "a/model", "--oger.similarity_centred"],
            "oger.similarity_centred subtracts embeddings, and oger.similarity_reranker has none: leave one of them "
            "out",
        ),
        (["--rollout.batch_size", "0"], "rollout.batch_size is 0: it must be 1 or more"),
        (["--train.batch_size", "0"], "train.batch_size is 0: it must be 1 or more"),
        (["--train.micro_batch_size", "0"], "train.micro_batch_size is 0: it must be 1 or more"),
        (["--rollout.max_new_tokens", "-1"], "rollout.max_new_tokens is -1: it must be 1 or more"),
        (
            ["--oger.eval.max_new_tokens", "256"],
            "oger.eval.max_new_tokens 256 leaves no room for a prompt within data.max_len 256",
        ),
        (["--oger.eval.max_samples", "0"], "oger.eval.max_samples is 0: it must be 1 or more"),
        (["--algo.kl.target", "0"], "algo.kl.target is 0.0: it must be above 0"),
        (
            ["--algo.kl.target", "0.1"],
            "algo.kl.target 0.1 multiplies the coefficient, and algo.kl.init_coef is 0: set it above 0",
        ),
        (
            ["--algo.kl.init_coef", "1", "--algo.kl.target", "0.1", "--algo.kl.horizon", "1"],
            "algo.kl.horizon 1 is too short for the 8 rollouts of a step: with a KL far below "
            "algo.kl.target one step would bring the coefficient to 0; use more than 1, e.g. 80",
        ),
        (["--oger.max_prompt_length", "0"], "oger.max_prompt_length is 0: it must be 1 or more"),
        (["--oger.grading_workers", "0"], "oger.grading_workers is 0: it must be 1 or more"),
        (["--oger.grading_time_limit", "0"], "oger.grading_time_limit is 0.0: it must be above 0"),
        (["--oger.top_k", "0"], "oger.top_k is 0: it must be -1 (all tokens) or 1 or more"),
        (["--oger.eval.top_k", "-2"], "oger.eval.top_k is -2: it must be -1 (all tokens) or 1 or more"),
        (["--rollout.top_p", "0"], "rollout.top_p is 0.0: it must be above 0 and at most 1"),
        (["--oger.eval.top_p", "90"], "oger.eval.top_p is 90.0: it must be above 0 and at most 1"),
        (["--data.input_key", ""], "data.input_key is empty: name the column of the prompts"),
        (
            ["--data.label_key", ""],
            "data.label_key is empty: without the reference answer every reward would be 0; name its column",
        ),
        (
            ["--oger.math_extract"],
            "oger.math_extract is empty: name the places to look for a math answer, e.g. boxed",
        ),
        (
            ["--oger.prompt_template", "r1", "--data.apply_chat_template"],
            "choose one of oger.prompt_template r1 and data.apply_chat_template or data.input_template",
        ),
        (
            ["--oger.prompt_template", "none", "--data.input_template", "Q: {}"],
            "choose one of oger.prompt_template none and data.apply_chat_template or data.input_template",
        ),
        (
            ["--actor.lr_scheduler", "polynomial", "--actor.adam.lr", "1e-7"],
            "actor.adam.lr 1e-07 is not above 1e-07, where the polynomial schedule ends",
        ),
        (
            ["--critic.lr_scheduler", "polynomial", "--critic.adam.lr", "5e-8"],
            "critic.adam.lr 5e-08 is not above 1e-07, where the polynomial schedule ends",
        ),
        (
            ["--oger.kl_penalty_coef=-0.1"],
            "oger.kl_penalty_coef is -0.1: it must be 0 or more",
        ),
        (
            ["--oger.non_stop_fixed_reward", "0", "--oger.non_stop_penalty=-1"],
            "oger.non_stop_fixed_reward and oger.non_stop_penalty both change truncated rollouts; choose one",
        ),
        (
            ["--oger.non_stop_penalty=-1", "--reward.stop_properly_penalty_coef", "0"],
            "reward.stop_properly_penalty_coef and oger.non_stop_* both change the reward of truncated rollouts; "
            "choose one",
        ),
        (
            ["--oger.non_stop_fixed_reward", "0", "--reward.stop_properly_penalty_coef", "0"],
            "reward.stop_properly_penalty_coef and oger.non_stop_* both change the reward of truncated rollouts; "
            "choose one",
        ),
        (["--oger.verifiers", "mine"], "oger.verifiers: 'mine' is not task=package.module:function"),
        (
            [
                "--rollout.n_samples_per_prompt",
                "1",
                "--train.batch_size",
                "2",
                "--algo.advantage.estimator",
                "reinforce",
            ],
            "oger.max_replace_num 1 leaves no rollout in a group of 1",
        ),
        (
            ["--data.prompt_dataset", "main@openai/gsm8k", "--eval.dataset", "main@openai/gsm8k"],
            "eval.dataset and data.prompt_dataset are the same split 'train': set eval.split",
        ),
        (
            ["--oger.task.name", "countdown", "--actor.model_name_or_path=", "--oger.task.hidden_size", "48"],
            "oger.task.hidden_size is 48: it must be a multiple of 32, the width of one attention head",
        ),
        (
            ["--oger.task.name", "countdown", "--actor.model_name_or_path=", "--oger.task.warm_start_steps", "0"],
            "oger.task.warm_start_steps is 0: it must be 1 or more",
        ),
        (
            ["--ds.grad_accum_dtype", "fp32", "--ds.zero_stage", "0"],
            "ds.grad_accum_dtype fp32 is not supported by DeepSpeed without ZeRO (ds.zero_stage 0): use "
            "ds.zero_stage 1, 2 or 3",
        ),
        (
            ["--train.enable_ema", "--ds.zero_stage", "3"],
            "train.enable_ema with ds.zero_stage 3: OpenRLHF's average then stays at the initial weights, "
            "and they would be saved as the trained model; use ds.zero_stage 2, or leave it off\n"
            "  - train.enable_ema True is not supported on a machine without CUDA: OpenRLHF keeps the average on a "
            "GPU; leave it off",
        ),
        (
            ["--oger.n_prefix", "2"],
            "oger.n_prefix and oger.max_replace_num both bring teachers into a group, and teachers would "
            "replace the rollouts with a prefix first: set oger.max_replace_num 0, or oger.n_prefix 0",
        ),
        (
            ["--oger.n_prefix", "2", "--oger.max_replace_num", "0", "--oger.hint_share", "0.5"],
            "oger.hint_share and oger.n_prefix both give a rollout the beginning of a teacher trajectory, in its "
            "prompt and in its response: set one of them to 0",
        ),
        *(
            (
                ["--oger.hint_share", "0.5", "--oger.shown_template", template],
                f"oger.shown_template has {{question}} {questions} times and {{teacher}} {teachers} times: it is the "
                "text of a prompt that shows a teacher trajectory, and needs the first, and the second once",
            )
            for template, questions, teachers in (
                ("{question}", 1, 0),
                ("{teacher}", 0, 1),
                ("{question}" + 2 * "{teacher}", 1, 2),
            )
        ),
        (
            ["--oger.n_prefix", "2", "--oger.max_replace_num", "0", "--oger.all_correct_group", "skip"],
            "oger.all_correct_group skip keeps teachers out of solved groups, but with oger.n_prefix or "
            "without oger.replace_after_rm they enter before grading: use keep or clip",
        ),
        (
            ["--no-oger.replace_after_rm", "--oger.replace_mode", "random", "--oger.all_correct_group", "online"],
            "oger.all_correct_group online keeps teachers out of solved groups, but with oger.n_prefix or "
            "without oger.replace_after_rm they enter before grading: use keep or clip",
        ),
        *(
            (
                ["--oger.off_policy_loss", "sft", "--oger.sft_loss_mixture", f"--oger.{key}", "1.5"],
                f"oger.{key} 1.5 with oger.sft_loss_mixture is a share: use 0 to 1",
            )
            for key in ("sft_loss_coef", "sft_loss_coef_end")
        ),
        (
            ["--oger.rollout_advantage", "sign_exp_entropy", "--algo.advantage.estimator", "rloo"],
            f"oger.rollout_advantage sign_exp_entropy is for {_listed([*ESTIMATORS])}, not rloo",
        ),
        (
            ["--oger.taught_group", "teachers", "--algo.advantage.estimator", "gae"],
            "oger.taught_group teachers leaves rollouts out, from which the critic of gae learns: use hybrid, or an "
            "estimator without a critic",
        ),
        (
            ["--oger.teacher_gate", "0.25", "--oger.teacher_gate_low", "0.5"],
            "oger.teacher_gate_low 0.5 is above oger.teacher_gate 0.25",
        ),
        (
            ["--oger.task.warm_start_numbers", "3=0.5,4=0.5"],
            "oger.task.warm_start_numbers: a problem has 2 to 6 numbers, not '3=0.5,4'; write words, e.g. 3=0.5 4=0.5",
        ),
        (
            ["--oger.task.warm_start_numbers", "3"],
            "oger.task.warm_start_numbers: '3' is not name=weight with a weight of 0 or more",
        ),
        (
            ["--oger.teacher_draw", "lowest_entropy"],
            "oger.teacher_draw lowest_entropy goes by the policy's entropy when it sampled a teacher, which only its "
            "own earlier rollouts have: set oger.history_enters, or use shortest",
        ),
        *(
            (
                ["--oger.teacher_draw", "likeliest_answer", *flags],
                "oger.teacher_draw likeliest_answer asks the policy about the teachers of groups that are graded, and "
                f"{name} draws teachers elsewhere: leave it out, or use another oger.teacher_draw",
            )
            for name, flags in (
                ("oger.n_prefix", ["--oger.n_prefix", "1", "--oger.max_replace_num", "0"]),
                ("--no-oger.replace_after_rm", ["--no-oger.replace_after_rm", "--oger.replace_mode", "random"]),
                ("oger.hint_share", ["--oger.hint_share", "0.5", "--rollout.max_new_tokens", "8"]),
                ("oger.grader self", ["--oger.grader", "self"]),
            )
        ),
        *(
            (
                [*flags, "--oger.use_history_samples", "--oger.history_enters", "--no-oger.replace_after_rm"]
                + ["--oger.replace_mode", "random"],
                "oger.history_enters with oger.n_prefix or without oger.replace_after_rm: the engine knows the end "
                "of an earlier rollout by its end-of-sequence token, and oger.stop, oger.stop_token_ids or the prompt "
                "template ends rollouts before it: use oger.replace_after_rm and oger.n_prefix 0, or leave these out",
            )
            for flags in (["--oger.stop", "so"], ["--oger.stop_token_ids", "5"])
        ),
        (
            ["--oger.n_prefix", "2", "--oger.max_replace_num", "0", "--oger.teacher_gate_low", "0.5"],
            "oger.teacher_gate_low 0.5 goes by the graded rollouts of a group, but with oger.n_prefix or without "
            "oger.replace_after_rm teachers enter before grading: use oger.teacher_gate_low 0, or oger.n_prefix 0 and "
            "oger.replace_after_rm",
        ),
        *(
            (
                [*flags, "--oger.teacher_gate", "0.5"],
                "oger.teacher_gate 0.5 goes by the graded rollouts of a group, but with oger.n_prefix or without "
                "oger.replace_after_rm teachers enter before grading: use oger.teacher_gate 1, or oger.n_prefix 0 and "
                "oger.replace_after_rm",
            )
            for flags in (
                ["--oger.n_prefix", "2", "--oger.max_replace_num", "0"],
                ["--no-oger.replace_after_rm", "--oger.replace_mode", "random"],
            )
        ),
        *(
            (
                [
                    "--oger.n_prefix",
                    every,
                    "--oger.max_replace_num",
                    "0",
                    "--oger.advantage_baseline",
                    "rollouts",
                ],
                f"oger.advantage_baseline rollouts with oger.n_prefix {every}: every rollout begins with a "
                "teacher, so none sets the baseline; use oger.advantage_baseline group, or a smaller oger.n_prefix",
            )
            for every in ("-1", "4")
        ),
        *(
            (
                ["--oger.all_correct_group", "clip", "--algo.advantage.estimator", estimator],
                f"oger.all_correct_group clip is for {_listed([*ESTIMATORS])}, not "
                f"{estimator}: use keep, online or skip",
            )
            for estimator in ("rloo", "gae")
        ),
        (
            ["--oger.advantage_baseline", "rollouts", "--algo.advantage.estimator", "group_norm"],
            "oger.advantage_baseline rollouts with group_norm and a bonus: right rollouts differ by the bonus alone, "
            "and dividing by so small a std gives a right teacher an advantage of -10; use "
            "algo.advantage.estimator dr_grpo, oger.advantage_baseline group, or oger.bonus_weight 0",
        ),
        *(
            (
                ["--oger.reward.on_error", "drop_group", "--algo.advantage.estimator", estimator],
                f"oger.reward.on_error drop_group is for {_listed([*group_estimators(), 'rloo'])}, not "
                f"{estimator}, which compares groups with each other, or trains a critic on all of them: use zero, "
                "neutral or stop",
            )
            for estimator in ("gae", "reinforce_baseline", "gdpo", "appo", "tppo", "process_grpo_batch")
        ),
        *(
            (
                ["--oger.ratio_level", "step", "--algo.advantage.estimator", estimator],
                "oger.ratio_level step needs one advantage for each step of reasoning, and "
                f"algo.advantage.estimator {estimator} gives one for each token: use appo, or oger.ratio_level token",
            )
            for estimator in ("gae", "tppo")
        ),
        *(
            (
                ["--oger.ratio_level", "step", f"--oger.{key}={setting}"],
                f"oger.{key} goes by the probability of single tokens, but oger.ratio_level step weighs each step of "
                "a rollout as a whole: leave it out, or use oger.ratio_level token",
            )
            for key, setting in (("on_policy_reshape", "pow"), ("all_max_clip", "0.9"))
        ),
        *(
            (["--ds.lora.rank", "8", *flags], f"ds.lora.rank 8 cannot be used with {why}")
            for flags, why in (
                (
                    ["--algo.advantage.estimator", "gae"],
                    "algo.advantage.estimator gae: of the critic's new head only an adapter would be trained; choose "
                    "an estimator without a critic",
                ),
                (
                    ["--ds.lora.target_modules", "q_proj", "lm_head"],
                    "ds.lora.target_modules lm_head: input and output layer are trained whole or not at all",
                ),
            )
        ),
        *(
            (
                ["--oger.old_log_probs", "of_update", *flags],
                f"oger.old_log_probs of_update cannot be used with {reader}: use oger.old_log_probs before_update",
            )
            for reader, flags in (
                (_UPDATES_AGAIN, ["--train.max_epochs", "2"]),
                (_UPDATES_AGAIN, ["--train.batch_size", "1", "--train.micro_batch_size", "1"]),
                ("algo.kl.init_coef above 0", ["--algo.kl.init_coef", "0.1"]),
                ("algo.advantage.is_correction_level", ["--algo.advantage.is_correction_level", "token"]),
                ("the critic of algo.advantage.estimator gae", ["--algo.advantage.estimator", "gae"]),
                ("oger.grader self", ["--oger.grader", "self"]),
                ("oger.history_enters", ["--oger.use_history_samples", "--oger.history_enters"]),
                (
                    "oger.rollout_advantage sign_exp_entropy",
                    ["--oger.rollout_advantage", "sign_exp_entropy", "--algo.advantage.estimator", "dr_grpo"],
                ),
                (
                    "the source 'rare' of oger.reward.sources",
                    ["--oger.reward.sources", '[{"name": "rare", "kind": "unlikeliness"}]'],
                ),
            )
        ),
        (["--oger.critic.hidden_sizes", "64", "0"], "oger.critic.hidden_sizes is 0: it must be 1 or more"),
        (["--oger.kl_stop", "0"], "oger.kl_stop is 0.0: it must be above 0"),
        *(
            (
                [_with_prm(more), "--algo.advantage.estimator", estimator],
                "oger.reward.sources: 'prm' pays each step of reasoning, and such rewards can only be added as "
                "they are: leave its combine and normalize out, or choose an algo.advantage.estimator that does not "
                "go by steps",
            )
            for estimator in ("appo", "process_rloo")
            for more in ({"combine": "mul"}, {"normalize": "group"})
        ),
        *(
            (
                ["--oger.advantage_baseline", "rollouts", "--algo.advantage.estimator", estimator],
                f"oger.advantage_baseline rollouts is for {_listed(group_estimators())}, not {estimator}",
            )
            for estimator in ("tppo", "process_grpo_batch")
        ),
        *(
            (
                [*_ONE, "--algo.advantage.estimator", estimator],
                f"rollout.n_samples_per_prompt is 1: {estimator} compares the rollouts of a group: use 2 or more",
            )
            for estimator in ("process_grpo", "process_rloo")
        ),
        (
            ["--algo.advantage.estimator", "appo", "--critic.num_gpus_per_node", "2", "--oger.logical_gpus", "3"],
            "actor 1 + vLLM engines 1 + critic 2 = 4 GPUs are needed, but 3 are declared (oger.logical_gpus); Ray "
            "would wait forever",
        ),
        *(
            ([f"--{flag}={number}"], f"{flag} is {number}: it must be a finite number")
            for flag in ("oger.bonus_weight", "oger.non_stop_penalty", "oger.sft.lr")
            for number in ("nan", "inf")
        ),
        (["--actor.adam.lr=nan"], "actor.adam.lr is nan: it must be a finite number"),
        (["--actor.adam.betas", "0.9", "nan"], "actor.adam.betas is nan: it must be a finite number"),
        *(
            ([f"--{flag}=-0.5"], f"{flag} is -0.5: it must be 0 or more")
            for flag in ("oger.bonus_weight", "oger.prefix_reward_weight_alpha", "oger.sft_loss_coef")
        ),
        (["--actor.adam.lr=-1"], "actor.adam.lr is -1.0: it must be 0 to 1"),
        (["--actor.adam.lr=1e6"], "actor.adam.lr is 1000000.0: it must be 0 to 1"),
        (["--rollout.temperature=0"], "rollout.temperature is 0.0: it must be above 0 and at most 10"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_impossible_combination_is_refused_with_its_reason(
    refused: Callable[..., str], tmp_path: Path, flags: list[str], sentence: str
) -> None:
    assert refused(*flags) == _problems(sentence)
    assert not (tmp_path / "run").exists()


def test_a_saved_critic_says_how_wide_its_head_is(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "critic").mkdir()
    (tmp_path / "critic" / "config.json").write_text('{"value_head_hidden_sizes": [24, 12]}')
    flags = ["--critic.model_name_or_path", str(tmp_path / "critic"), "--algo.advantage.estimator", "appo"]
    assert refused(*flags, "--oger.critic.hidden_sizes", "64") == _problems(
        "oger.critic.hidden_sizes is 64, but the value head of critic.model_name_or_path has 24 12: "
        "leave it out, or give the same"
    )
    for text in ("[]", "{", "\0"):
        (tmp_path / "critic" / "config.json").write_text(text)
        assert "config.json cannot be read: " in refused(*flags)
    missing = tmp_path / "nowhere"
    flags[1] = str(missing)
    assert refused(*flags) == _problems(f"critic.model_name_or_path: {missing}: no such model folder")


SOURCES = """\
oger:
  reward:
    sources:
      - {name: rule, kind: verifier}
      - {name: short, kind: "lengths_of_mine:short", weight: 0.5, gate: rule_equal_1}
      - {name: judge, kind: oracle, model: org/judge}
"""


def test_sources_of_reward_are_refused_with_their_place_and_the_nearest_name(
    refused: Callable[..., str], recipe: Path, tmp_path: Path
) -> None:
    """In the recipe file, beside which the user's module lies; it is there, and so nothing is said of it."""
    (tmp_path / "lengths_of_mine.py").write_text("def short(group):\n    return [0.0] * len(group.responses)\n")
    (tmp_path / "child.yaml").write_text(f"extends: {recipe.name}\n{SOURCES}")
    where = "oger.reward.sources, entry"
    assert refused(file=tmp_path / "child.yaml") == _problems(
        f"{where} 2: gate 'rule_equal_1' is unknown; did you mean 'rule_equals_1'? known: always, rule_nonzero, "
        "rule_equals_1",
        f"{where} 3: kind 'oracle' is unknown; known: {', '.join(KINDS)}, or package.module:name of a function or "
        "class of your own",
    )


def test_sources_of_reward_that_are_right_start(recipe: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "words_of_mine.py").write_text("def few(group):\n    return [0.0] * len(group.responses)\n")
    listed = [{"name": "rule", "kind": "verifier"}, {"name": "few", "kind": "words_of_mine:few", "weight": 0.5}]
    with pytest.raises(ModuleNotFoundError, match="oger_recipe.pipeline.driver.launch"):
        train.main(["--recipe", str(recipe), f"--oger.reward.sources={json.dumps(listed)}"])
    # The bonus is not listed: the run says so of nothing that is at its default, and keeps the list.
    resolved = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert resolved["oger"]["reward"]["sources"] == listed


def test_an_unknown_loss_shape_is_refused_with_those_that_exist(refused: Callable[..., str], tmp_path: Path) -> None:
    message = refused("--oger.off_policy_reshape", "p_div")
    assert message.startswith(_problems("oger.off_policy_reshape: "))
    assert "p_div_p" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags", [[], ["--algo.kl.use_loss"], ["--algo.kl.init_coef", "0.1"]])
def test_an_in_reward_kl_needs_a_loss_side_one_beside_it(refused: Callable[..., str], flags: list[str]) -> None:
    message = refused("--oger.kl_penalty_coef", "0.1", *flags)
    assert "oger.kl_penalty_coef adds an in-reward KL to a loss-side one: set algo.kl.use_loss, and" in message
    assert "\n  - " in message


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--oger.task_name", "gsm8"], "oger.task_name: no verifier for task 'gsm8'; known: "),
        (
            ["--oger.task_name", "nowhere:grade"],
            "oger.task_name: task 'nowhere:grade' is not a verifier: No module named",
        ),
        (
            ["--oger.verifiers", "mine=json:grade"],
            "oger.verifiers: task 'json:grade' is not a verifier: module 'json'",
        ),
    ],
)
def test_a_verifier_that_does_not_exist_is_refused(refused: Callable[..., str], flags: list[str], reason: str) -> None:
    assert refused(*flags).startswith(_problems(reason))


def test_what_is_wrong_with_a_verifiers_file_is_said_once(refused: Callable[..., str], tmp_path: Path) -> None:
    """However many verifiers are in it and settings name them; what else is wrong is still said."""
    (tmp_path / "broken.py").write_text("def grade(response, answer) return 1")
    (tmp_path / "sound.py").write_text("def grade(response, answer): return 1")
    own = ["mine=broken:grade", "other=broken:another", "third=sound:nothing", "fourth=sound:none"]
    flags = ["--oger.verifiers", *own, "--oger.task_name", "mine"]
    assert refused(*flags) == _problems(
        "oger.verifiers: task 'broken:grade' is not a verifier: SyntaxError: expected ':' (broken.py, line 1)",
        "oger.verifiers: task 'sound:nothing' is not a verifier: module 'sound' has no attribute 'nothing'",
        "oger.verifiers: task 'sound:none' is not a verifier: module 'sound' has no attribute 'none'",
    )


OWN_METHOD = """
import torch
from oger_recipe.algorithm.credit import Estimator

number = 3
by_spread = Estimator(lambda rewards, baseline: rewards - rewards.mean(1, keepdim=True), scale_invariant=True)
def good(rewards, baseline): return rewards - rewards.mean(1, keepdim=True)
def naive(rewards, baseline): return rewards / rewards.mean(1, keepdim=True) - 1
def alone(rewards): return rewards
def mean(rewards, baseline): return rewards.mean(1)
def whole(rewards, baseline): return rewards.long()
def listed(rewards, baseline): return rewards.tolist()
def writing(rewards, baseline): return rewards.sub_(1)
def weight(entropy): return 1 / entropy
def shaping(measure): return measure
"""
_ESTIMATOR, _CALLED = "--algo.advantage.estimator", "when it is called with (rewards, baseline)"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([_ESTIMATOR, "own_wrong:none"], "own_wrong:none' cannot be imported: AttributeError: module 'own_wrong' has"),
        ([_ESTIMATOR, "nowhere:none"], "'nowhere:none' cannot be imported: ModuleNotFoundError: No module named"),
        ([_ESTIMATOR, "own_wrong:number"], f"fails {_CALLED}: TypeError: 'int' object is not callable"),
        ([_ESTIMATOR, "own_wrong:alone"], f"fails {_CALLED}: TypeError: alone() takes 1 positional argument but 2"),
        ([_ESTIMATOR, "own_wrong:mean"], f"returns a tensor [2] of torch.float32 {_CALLED}, not a tensor [2, 4] of"),
        ([_ESTIMATOR, "own_wrong:whole"], f"returns a tensor [2, 4] of torch.int64 {_CALLED}, not a tensor [2, 4] of"),
        ([_ESTIMATOR, "own_wrong:listed"], f"returns list {_CALLED}, not a tensor [2, 4] of floating-point numbers"),
        ([_ESTIMATOR, "own_wrong:writing"], f"writes into its first argument {_CALLED}: return a new tensor"),
        (
            [_ESTIMATOR, "own_wrong:naive"],
            "[nan, nan, nan, nan]] when it is called with (rewards, baseline) where the",
        ),
        (["--oger.last_token_enp_reward", "own_wrong:weight"], "reward: 'own_wrong:weight' returns [inf, 2.0, 0.5, "),
        (["--oger.similarity_shaping", "own_wrong:shaping"], "with (measure, counted): TypeError: shaping() takes 1"),
    ],
)
def test_a_function_of_the_users_own_that_cannot_be_used_is_refused(
    refused: Callable[..., str], tmp_path: Path, flags: list[str], reason: str
) -> None:
    (tmp_path / "own_wrong.py").write_text(OWN_METHOD)
    message = refused(*flags)
    assert message.startswith(_problems(f"{flags[0].removeprefix('--')}: '")) and reason in message


def test_checks_of_an_estimator_hold_for_one_of_the_users_own(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "own_wrong.py").write_text(OWN_METHOD)
    assert "own_wrong:good compares the rollouts of a group" in refused(*_ONE, _ESTIMATOR, "own_wrong:good")
    rollouts = ["--oger.advantage_baseline", "rollouts", _ESTIMATOR]
    assert "rollouts with own_wrong:by_spread and a bonus: right" in refused(*rollouts, "own_wrong:by_spread")


@pytest.mark.parametrize("estimator", ["gae", "reinforce", "flash_reinforce", "appo", "tppo", "process_grpo_batch"])
def test_groups_of_one_train_where_nothing_is_compared_within_them(recipe: Path, estimator: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="oger_recipe.pipeline.driver.launch"):
        train.main(["--recipe", str(recipe), *_ONE, "--algo.advantage.estimator", estimator])


@pytest.mark.parametrize(
    ("flags", "notes"),
    [
        ([], []),
        (
            ["--algo.kl.init_coef", "0.1", "--ref.num_gpus_per_node", "2"],
            ["KL is on (algo.kl.init_coef 0.1): a reference model takes 2 GPUs"],
        ),
        (
            ["--algo.kl.init_coef", "0.1", "--train.colocate_actor_ref"],
            ["KL is on (algo.kl.init_coef 0.1): a reference model shares the policy's GPUs"],
        ),
        (["--rollout.top_p", "0.9"], ["rollouts are sampled from a part of the vocabulary"]),
        (["--oger.top_k", "20"], ["rollouts are sampled from a part of the vocabulary"]),
        (
            ["--oger.similarity_shaping", "group_rank", "--oger.bonus_weight", "0.5"],
            ["oger.similarity_shaping group_rank spreads the bonus of a group's right rollouts over 0 to 0.5,"],
        ),
        (["--oger.similarity_shaping", "group_minmax", "--oger.all_correct_group", "skip"], []),
        (["--oger.similarity_shaping", "ratio"], []),
        (
            ["--ckpt.save_steps", "-1", "--eval.steps", "5", "--eval.dataset", "rows.jsonl"],
            [
                "ckpt.save_steps -1 saves only the last step: a run that ends early must start over",
                "even with ckpt.save_steps -1 each new best evaluation writes a checkpoint with",
            ],
        ),
        *(
            (["--ckpt.save_steps", "-1", "--eval.steps", "5", "--eval.dataset", "rows.jsonl", *alone], notes)
            for alone, notes in (
                (["--ckpt.disable_ds", "--ckpt.save_hf"], []),
                (["--ckpt.best_metric_key", "none"], ["ckpt.save_steps -1 saves only the last step"]),
            )
        ),
        (
            ["--algo.advantage.estimator", "process_rloo"],
            [
                "algo.advantage.estimator process_rloo credits steps of reasoning, but no source of "
                "oger.reward.sources scores steps, so all rewards are at the last step; add a source of kind process "
                "to score them"
            ],
        ),
        (
            ["--oger.off_policy_loss", "sft", "--oger.off_policy_reshape", "logp", "--oger.history_size", "2"],
            [
                "oger.history_size has no effect: it needs oger.use_history_samples",
                "oger.off_policy_reshape has no effect: it needs oger.off_policy_loss reshape",
            ],
        ),
    ],
)
def test_what_is_easily_not_meant_is_noted_before_the_start(
    recipe: Path, capsys: pytest.CaptureFixture[str], flags: list[str], notes: list[str]
) -> None:
    with pytest.raises(ModuleNotFoundError, match="oger_recipe.pipeline.driver.launch"):
        train.main(["--recipe", str(recipe), "--ckpt.save_steps", "10", *flags])
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(printed) == len(notes)
    assert all(line.startswith(f"note: {note}") for line, note in zip(printed, notes, strict=True))


def test_a_model_folder_without_config_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    message = refused("--actor.model_name_or_path", "weights")
    assert message == _problems("actor.model_name_or_path: weights is not a model folder: it has no config.json")
    assert not (tmp_path / "run").exists()


def test_all_problems_are_said_at_once(refused: Callable[..., str]) -> None:
    message = refused("--vllm.enable_sleep", "--eval.dataset", "no.jsonl", "--oger.logical_gpus", "1")
    assert message.count("\n  - ") == 3


def test_neither_task_nor_model_nor_data_is_said_in_two_sentences(refused: Callable[..., str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("rollout: {max_new_tokens: 64}\n")
    hint = "(or set oger.task.name to build data and policy)"
    assert refused(file=empty) == _problems(
        f"actor.model_name_or_path is not set {hint}", f"data.prompt_dataset is not set {hint}"
    )
    assert not (tmp_path / "runs").exists()


def test_more_gpus_than_a_cuda_machine_has_are_refused(recipe: Path) -> None:
    from oger_recipe.base.errors import RecipeError
    from oger_recipe.checks.settings import check_run
    from oger_recipe.settings.recipe_file import read_recipe

    parser = train_ppo_ray.build_parser(cpu=False)
    settings = train_ppo_ray.parse(parser, ["--actor.num_gpus_per_node", "8"], read_recipe(recipe, parser))
    check_run(settings, cpu=False, gpus_here=9)
    check_run(settings, cpu=False, gpus_here=None)
    with pytest.raises(
        RecipeError, match=r"actor 8 \+ vLLM engines 1 = 9 .* 8 are declared \(found on this machine\)"
    ):
        check_run(settings, cpu=False, gpus_here=8)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("oger: {bonus_wieght: 2}", "unknown setting 'oger.bonus_wieght'; did you mean 'oger.bonus_weight'?"),
        ("train: {batch_size: eight}", "'train.batch_size' takes int, found 'eight'"),
    ],
)
def test_a_wrong_line_of_the_recipe_is_refused(
    refused: Callable[..., str], tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(f"# a recipe\n{line}\n")
    assert refused(file=path) == f"{path}:2: {message}"
    assert {entry.name for entry in tmp_path.iterdir()} == {"recipe.yaml", "rows.jsonl", "wrong.yaml"}


def test_a_number_out_of_its_range_is_named_with_the_file_and_line_that_set_it(
    refused: Callable[..., str], recipe: Path, tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text("extends: recipe.yaml\nrollout: {temperature: 0}\nactor.adam.lr: 3\n")
    child = tmp_path / "child.yaml"
    child.write_text("# ours\nextends: base.yaml\noger:\n  bonus_weight: .nan\n")
    assert refused("--actor.adam.lr=2", "--train.micro_batch_size=0", file=child) == _problems(
        "train.micro_batch_size is 0: it must be 1 or more",
        f"rollout.temperature is 0.0: it must be above 0 and at most 10 ({tmp_path / 'base.yaml'}:2)",
        "actor.adam.lr is 2.0: it must be 0 to 1",
        f"oger.bonus_weight is nan: it must be a finite number ({child}:4)",
    )


def test_a_missing_recipe_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    assert refused(file=tmp_path / "none.yaml") == f"{tmp_path / 'none.yaml'}: no such recipe file"


def test_no_recipe_at_all_is_refused() -> None:
    with pytest.raises(SystemExit, match="--recipe FILE is missing"):
        train.main(["--oger.verbose"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--oger.bonus_wieght", "2"], "unknown flag '--oger.bonus_wieght'; did you mean '--oger.bonus_weight'?"),
        (
            ["--oger.val_before_train", "false"],
            "unknown argument 'false': --oger.val_before_train takes no value, and --no-oger.val_before_train "
            "switches it off",
        ),
        (["--actor.adam.lr", "1", "2"], "unknown argument '2'"),
        (["--actor.adam.lrr=1e-6"], "unknown flag '--actor.adam.lrr=1e-6'; did you mean '--actor.adam.lr'?"),
        (["--zzz"], "unknown flag '--zzz'"),
        (["--actor.adam.lr", "fast"], "argument --actor.adam.lr: invalid float value: 'fast'"),
        (["--eval.dataset"], "argument --eval.dataset: expected one argument"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line(refused: Callable[..., str], flags: list[str], message: str) -> None:
    assert refused(*flags) == message


def test_the_nearer_of_two_sizes_of_a_step_counts_and_is_named_with_its_place(
    refused: Callable[..., str], recipe: Path, tmp_path: Path
) -> None:
    settings = yaml.safe_load(recipe.read_text())
    del settings["train"]["batch_size"]
    settings["oger"]["prompts_per_update"] = 2
    recipe.write_text(yaml.safe_dump(settings))
    child = tmp_path / "child.yaml"

    def of(text: str, *flags: str) -> tuple[Any, Any]:
        child.write_text(f"extends: recipe.yaml\n{text}\n")
        parser = build_parser(cpu=True)
        value = in_prompts(train_ppo_ray.parse(parser, flags, read_recipe(child, parser)))
        return value["train.batch_size"], value["oger.prompts_per_update"]

    assert of("") == (8, 2)
    assert of("train: {batch_size: 4}") == (4, None)
    assert of("", "--train.batch_size", "4") == (4, None)
    assert of("train: {batch_size: 4}", "--oger.prompts_per_update=2") == (8, 2)
    assert of("oger: {prompts_per_update: null}")[1] is None
    child.write_text("extends: recipe.yaml\ntrain: {batch_size: 3}\n")
    assert "optimizer steps of train.batch_size 3 (" in refused(file=child) and "child.yaml:2)" in refused(file=child)
    child.write_text("extends: recipe.yaml\noger: {prompts_per_update: 3}\n")
    said = refused(file=child)
    assert (
        "optimizer steps of oger.prompts_per_update 3 x 4 = train.batch_size 12 (" in said and "child.yaml:2)" in said
    )
    child.write_text("extends: recipe.yaml\noger: {prompts_per_update: 1}\ntrain: {batch_size: 8}\n")
    two = "train.batch_size 8 and oger.prompts_per_update 1 (4 rollouts) are two sizes of an optimizer step: "
    two += "leave one out"
    assert refused(file=child) == two
    assert refused("--oger.prompts_per_update", "1", "--train.batch_size", "8") == two


def test_all_mistakes_in_flags_are_said_at_once(refused: Callable[..., str]) -> None:
    """What argparse says of one, numbers below their range in scientific notation, flags that there are not."""
    flags = ["--actor.adam.lr", "-1e-6", "--oger.bonus_wieght", "2", "--train.max_epochs", "two"]
    flags += ["--oger.max_replace_num=-1", "--eval.dataset"]
    flags += ["--reward.clip_range", "-inf", "5", "--ds.zero_stage", "4"]
    assert refused(*flags) == "\n  - ".join([
        "7 mistakes in the settings:",
        "unknown flag '--oger.bonus_wieght'; did you mean '--oger.bonus_weight'?",
        "argument --train.max_epochs: invalid int value: 'two'",
        "argument --eval.dataset: expected one argument",
        "ds.zero_stage is 4: it must be 0, 1, 2 or 3",
        "reward.clip_range is -inf: it must be a finite number",
        "actor.adam.lr is -1e-06: it must be 0 to 1",
        "oger.max_replace_num is -1: it must be 0 or more",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the dataset has no rows"),
        ("\n\n", ": the dataset has no rows"),
        (json.dumps(ROW) + '\n{"uid": "p-2", "prompt"\n', ":2: not valid JSON: Expecting ':' delimiter"),
        (
            json.dumps({"prompt": "", "answer": "96", "task": "countdown", "teachers": [TEACHER, TEACHER]}),
            ":1: 2 teachers for no problem: 'prompt' is missing",
        ),
    ],
)
def test_a_wrong_dataset_is_refused_with_its_line(
    refused: Callable[..., str], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text(text)
    assert refused("--data.prompt_dataset", str(path)).startswith(f"{path}{message}")


def test_an_evaluation_set_is_checked_like_the_training_set(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text(json.dumps(ROW | {"task": "chess"}))
    assert refused("--eval.dataset", str(path)).startswith(f"{path}:1: unknown task 'chess'; known: ")


def test_fewer_prompts_than_one_step_needs_are_refused(refused: Callable[..., str]) -> None:
    message = refused("--rollout.batch_size", "4", "--train.batch_size", "16")
    assert message == "2 prompts do not fill one step of rollout.batch_size 4"


def test_a_second_run_does_not_write_into_the_folder_of_the_first(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    own_files.begin(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    assert "holds an earlier run; choose another folder, resume it with --ckpt.load_enable, or remove" in refused()
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == {"metrics.jsonl", own_files.MARKER}


@pytest.mark.parametrize(
    ("changes", "rows", "message"),
    [
        (
            {"oger": {"run_dir": "run", "max_replace_mun": 1}},
            json.dumps(ROW),
            "oger train: recipe.yaml:7: unknown setting 'oger.max_replace_mun'; did you mean 'oger.max_replace_num'?",
        ),
        (
            {"train": {"batch_size": 3, "micro_batch_size": 1}},
            json.dumps(ROW),
            "oger train: this recipe cannot run:\n  - rollout.batch_size 2 x n_samples_per_prompt 4 = 8 rollouts do "
            "not divide into optimizer steps of train.batch_size 3 (recipe.yaml:14): use 2 or 4",
        ),
        (
            {},
            json.dumps(ROW) + "\nnot a row\n",
            "oger train: rows.jsonl:2: not valid JSON: Expecting value: line 1 column 1 (char 0)",
        ),
    ],
    ids=["misspelt key", "batch that does not divide", "malformed row"],
)
def test_the_command_says_one_thing_on_stderr_and_fails(
    recipe: Path, tmp_path: Path, changes: dict[str, Any], rows: str, message: str, forks: Forks
) -> None:
    settings = yaml.safe_load(recipe.read_text()) | {"oger": {"run_dir": "run"}} | changes
    settings["data"]["prompt_dataset"] = "rows.jsonl"
    recipe.write_text(yaml.safe_dump(settings))
    (tmp_path / "rows.jsonl").write_text(rows)
    done = forks.run("-m", "oger_recipe.cli.train", "--recipe", "recipe.yaml", cwd=tmp_path, timeout=HANG_S)
    assert done.returncode == 1
    assert done.stderr.rstrip("\n") == message
