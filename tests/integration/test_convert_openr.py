"""`oger convert`: OpenR's command as a recipe file."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.checks.settings import check_run
from oger_recipe.convert.engine import Conversion, convert
from oger_recipe.convert.openr.dialect import OPENR, PUBLISHED
from oger_recipe.convert.values import UNSET
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.recipe_file import read_recipe

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT.parent / "shared" / "seeds" / "002_d2a2def5971df1bb.txt"
FLAGS = OPENR.flags
SOURCES = "oger.reward.sources"

# What OpenR's parser holds (train/mat/config.py and train_math.py): a switch that is off or on, or the default's type
# and value. None: no default.
PARSER: dict[str, tuple[type, Any]] = {
    "algorithm_name": (str, "ERL"), "experiment_name": (str, "check"), "seed": (int, 1), "cuda": (bool, True),
    "cuda_deterministic": (bool, True), "n_training_threads": (int, 16), "n_rollout_threads": (int, 32),
    "n_eval_rollout_threads": (int, 1), "n_render_rollout_threads": (int, 1), "num_env_steps": (int, 10_000_000),
    "user_name": (str, "xxx"), "use_wandb": (bool, False), "use_obs_instead_of_state": (bool, False),
    "episode_length": (int, 200), "share_policy": (bool, True), "use_centralized_V": (bool, True),
    "stacked_frames": (int, 1), "use_stacked_frames": (bool, False), "hidden_size": (int, 64), "layer_N": (int, 2),
    "use_ReLU": (bool, True), "use_popart": (bool, False), "use_valuenorm": (bool, True),
    "use_feature_normalization": (bool, True), "use_orthogonal": (bool, True), "gain": (float, 0.01),
    "use_naive_recurrent_policy": (bool, False), "use_recurrent_policy": (bool, False), "recurrent_N": (int, 1),
    "data_chunk_length": (int, 10), "lr": (float, 5e-4), "critic_lr": (float, 5e-4), "opti_eps": (float, 1e-5),
    "weight_decay": (float, 0.0), "num_accumulation_steps": (int, 1), "ppo_epoch": (int, 5),
    "use_clipped_value_loss": (bool, True), "clip_param": (float, 0.2), "num_mini_batch": (int, 4),
    "entropy_coef": (float, 0.01), "value_loss_coef": (float, 1.0), "use_max_grad_norm": (bool, True),
    "max_grad_norm": (float, 0.5), "use_gae": (bool, True), "gamma": (float, 0.95), "gae_lambda": (float, 0.95),
    "use_proper_time_limits": (bool, False), "use_huber_loss": (bool, True), "use_value_active_masks": (bool, True),
    "use_policy_active_masks": (bool, True), "huber_delta": (float, 10.0), "use_linear_lr_decay": (bool, False),
    "save_interval": (int, 200), "log_interval": (int, 1), "use_eval": (bool, False), "eval_interval": (int, 5),
    "eval_episodes": (int, 10), "model_dir": (str, None), "dataset_name": (str, "prealgebra"),
    "dataset_path": (str, None), "model_name_or_path": (str, None), "prm_type": (str, "MS"),
    "prm_model_name_or_path": (str, ""), "prm_checkpoint_path": (str, ""), "max_new_tokens": (int, 96),
    "vacab_size": (int, 151936), "gradient_cp_steps": (int, 2),
}  # fmt: skip
# What its code sets after parsing.
OVERWRITTEN = {"num_env_steps": 50000, "episode_length": 8, "n_rollout_threads": 4, "log_interval": 1, "lr": 1e-6}
OVERWRITTEN |= {"critic_lr": 5e-5}
# Left out, these are not what the parser holds: their reasons are in the table.
NOT_CARRIED = {"episode_length", "hidden_size", "layer_N", "eval_interval", "user_name"}


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with models and problems, as the user has them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "math_500.jsonl").write_text('{"problem": "1+1?", "final_answer": "2"}\n' * 8)
    for name in ("Qwen2.5-Math-1.5B", "Qwen2.5-Math-7B-Instruct", "shepherd", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")


@pytest.fixture()
def converted(gpu_parser: argparse.ArgumentParser) -> Callable[..., Conversion]:
    return lambda text, **variables: convert(text, "train.sh", gpu_parser, variables)


PAGE = "python -u train_math.py \\\n" + "".join(
    f'    {name} "{value}" \\{" " * (number == 1) * 9}\n' for number, (name, value) in enumerate(PUBLISHED.items())
)


def script(**changes: str | bool | None) -> str:
    """The page's command with Math-Shepherd's model, and some flags set otherwise; True: a switch, None: left out."""
    given = {name[2:]: value for name, value in PUBLISHED.items()} | {"prm_model_name_or_path": "./shepherd"} | changes
    words = {name: "" if value is True else f" {value}" for name, value in given.items() if value is not None}
    lines = [f"  --{name}{value} \\" for name, value in words.items()]
    return "\n".join(["CUDA_VISIBLE_DEVICES=0 python -u train_math.py \\", *lines, ""])


def found(result: Conversion) -> dict[str, Any]:
    assert not result.problems
    return {key: value for key, (value, _, _) in result.settings.items()}


def test_the_table_has_every_flag_of_the_parser_and_of_the_page() -> None:
    assert {name[2:] for name in FLAGS} == PARSER.keys()
    if DOCUMENT.exists():
        page = DOCUMENT.read_text()
        assert set(re.findall(r"--\w+", page)) <= FLAGS.keys()
        command = page[page.index("python -u") : page.index("Supported Algorithms")]
        assert dict(re.findall(r'(--\w+) "?([^"\s]+)', command)) == PUBLISHED


@pytest.mark.parametrize("name", PARSER)
def test_a_flag_has_the_type_and_what_is_run_with_there(name: str) -> None:
    kind, default = PARSER[name]
    flag = FLAGS[f"--{name}"]
    assert flag.value_type() in (kind, None) and (flag.value_type() is kind or default is None)
    if name in NOT_CARRIED:
        assert flag.default is UNSET
    elif default is None:
        assert flag.default in (UNSET, None)
    else:
        assert flag.default == OVERWRITTEN.get(name, default)


def test_the_pages_command(converted: Callable[..., Conversion]) -> None:
    """With the spaces behind a backslash that the page has, and its model that is no process reward model."""
    for text in [PAGE, *([DOCUMENT.read_text()] if DOCUMENT.exists() else [])]:
        result = converted(text)
        settings = found(result)
        assert settings["actor.model_name_or_path"] == "./Qwen2.5-Math-1.5B"
        assert settings[SOURCES] == [
            {"name": "prm", "kind": "process", "model": "./Qwen2.5-Math-7B-Instruct", "format": "math_shepherd"}
        ]
        (warning,) = result.to_do
        assert "that trainer gives every step the reward 1" in warning and "--prm_type Qwen" in warning
        assert not result.without_effect and not result.remarks
        assert settings["train.max_epochs"] == 1


def test_what_a_command_trains(converted: Callable[..., Conversion]) -> None:
    settings = found(converted(script()))
    method = ("oger.", "rollout.", "train.", "algo.", "data.")
    assert {key: settings[key] for key in settings if key.startswith(method)} == {
        "oger.run_dir": "runs/check/prealgebra/APPO", "oger.total_training_steps": 1562, "oger.task_name": "math",
        "oger.prompt_template": "steps", "oger.top_k": 50, "oger.max_replace_num": 0,
        "oger.steps.delimiters": ["\n"], "oger.steps.max_step_tokens": 96, "oger.steps.max_steps": 10,
        "oger.steps.last_step_text": "answer", "oger.steps.sample_by_step": True,
        SOURCES: [{"name": "prm", "kind": "process", "model": "./shepherd", "format": "math_shepherd"}],
        "oger.loss_aggregation": "token_mean", "oger.ratio_level": "step", "oger.kl_stop": 0.02,
        "oger.critic.hidden_sizes": [1024, 512], "oger.critic.huber_delta": 10.0, "oger.critic.head_only": True,
        "algo.advantage.estimator": "appo", "algo.advantage.gamma": 0.95, "algo.advantage.lambd": 0.95,
        "data.prompt_dataset": "./math_500.jsonl", "data.input_key": "problem", "data.label_key": "final_answer",
        "data.max_len": 3008,
        "rollout.batch_size": 4, "rollout.micro_batch_size": 4, "rollout.n_samples_per_prompt": 1,
        "rollout.max_new_tokens": 960, "rollout.temperature": 0.5,
        "train.batch_size": 1, "train.micro_batch_size": 1, "train.max_epochs": 1, "train.num_episodes": 1562,
        "train.seed": 1,
        "train.colocate_all": True,
    }  # fmt: skip
    for role, rate in (("actor", 1e-6), ("critic", 5e-5)):
        adam = {key: settings.get(f"{role}.adam.{key}") for key in ("lr", "betas", "eps")}
        assert adam | {"lr": settings.get(f"{role}.adam.lr", 1e-6)} == {"lr": rate, "betas": [0.9, 0.999], "eps": 1e-5}
        assert (settings[f"{role}.max_norm"], settings[f"{role}.lr_scheduler"]) == (0.5, "constant")
        assert settings[f"{role}.lr_warmup_ratio"] == 0 and settings[f"{role}.num_gpus_per_node"] == 1
    assert settings["actor.entropy_coef"] == 0.01 and settings["critic.value_clip"] == 0.2
    assert settings["ckpt.save_steps"] == 200 and "eval.dataset" not in settings


@pytest.mark.parametrize("algorithm", ["APPO", "GRPO", "TPPO"])
def test_a_converted_recipe_would_start(
    algorithm: str, converted: Callable[..., Conversion], gpu_parser: argparse.ArgumentParser
) -> None:
    result = converted(script(algorithm_name=algorithm))
    assert not result.problems and not result.to_do
    Path("recipe.yaml").write_text(result.text)
    settings = defaults(gpu_parser) | read_recipe(Path("recipe.yaml"), gpu_parser)
    check_run(settings, cpu=False, gpus_here=1)
    assert [line for line in result.text.splitlines() if len(line) > 130] == []
    assert ("critic.adam.lr" in found(result)) == (algorithm != "GRPO")


@pytest.mark.parametrize("algorithm", ["APPO", "GRPO", "TPPO"])
def test_the_recipe_files_are_what_the_command_becomes(
    algorithm: str, converted: Callable[..., Conversion], gpu_parser: argparse.ArgumentParser
) -> None:
    Path("recipe.yaml").write_text(converted(script(algorithm_name=algorithm)).text)
    become = defaults(gpu_parser) | read_recipe(Path("recipe.yaml"), gpu_parser)
    file = ROOT / "configs" / f"openr_math_{algorithm.lower()}.yaml"
    shipped = defaults(gpu_parser) | read_recipe(file, gpu_parser)
    for settings in (become, shipped):
        for entry in settings[SOURCES]:
            entry.pop("model")
    assert {key for key in become if become[key] != shipped[key]} == {
        "actor.model_name_or_path", "data.prompt_dataset", "data.label_key", "eval.dataset", "eval.steps",
        "eval.temperature", "eval.n_samples_per_prompt", "oger.eval.top_k", "oger.run_dir", "logger.wandb.run_name",
    }  # fmt: skip


QWEN = {"prm_type": "Qwen", "prm_checkpoint_path": "./adapter"}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"algorithm_name": "TPPO"}, {"algo.advantage.estimator": "tppo"}),
        ({"algorithm_name": "GRPO"}, {"algo.advantage.estimator": "process_grpo_batch", "oger.ratio_level": "step"}),
        (QWEN, {SOURCES: [{"name": "prm", "kind": "process", "model": "./shepherd", "format": "openr_qwen",
                           "adapter": "./adapter"}]}),
        # What OpenR's code overwrites counts.
        ({"lr": "2e-6", "critic_lr": "1e-4"}, {"actor.adam.lr": 2e-6, "critic.adam.lr": 1e-4}),
        ({"n_rollout_threads": "32"}, {"rollout.batch_size": 32, "train.batch_size": 8, "train.micro_batch_size": 4,
                                       "rollout.micro_batch_size": 16, "oger.total_training_steps": 195}),
        ({"num_env_steps": "6400"}, {"oger.total_training_steps": 200, "train.num_episodes": 200}),
        ({"episode_length": "5"}, {"oger.steps.max_steps": 5, "rollout.max_new_tokens": 480, "data.max_len": 2528,
                                   "rollout.batch_size": 4, "oger.total_training_steps": 2500}),
        ({"episode_length": "25"}, {"oger.steps.max_steps": 10, "rollout.batch_size": 12, "train.batch_size": 3,
                                    "oger.total_training_steps": 500}),
        ({"log_interval": "5"}, {"logger.logging_steps": 5}),
        # What nothing reads there does what its name says.
        ({"hidden_size": "256"}, {"oger.critic.hidden_sizes": [256, 256]}),
        ({"layer_N": "3"}, {"oger.critic.hidden_sizes": [64, 64, 64]}),
        ({"layer_N": "1", "hidden_size": "32"}, {"oger.critic.hidden_sizes": [32]}),
        ({"layer_N": "0"}, {"oger.critic.hidden_sizes": []}),
        ({"weight_decay": "0.1"}, {"actor.adam.weight_decay": 0.1, "critic.adam.weight_decay": 0.1}),
        ({"opti_eps": "1e-6"}, {"actor.adam.eps": 1e-6, "critic.adam.eps": 1e-6}),
        ({"use_linear_lr_decay": True}, {"actor.lr_scheduler": "linear", "critic.lr_scheduler": "linear"}),
        ({"use_clipped_value_loss": True, "clip_param": "0.1"}, {"actor.eps_clip": 0.1, "critic.value_clip": 1e6}),
        ({"user_name": "me"}, {"logger.wandb.org": "me"}),
        ({"eval_interval": "20"}, {"eval.steps": 20, "eval.dataset": "./math_500.jsonl", "eval.temperature": 0.5,
                                   "oger.eval.top_k": 50, "oger.eval.max_samples": 10}),
        ({"use_eval": True, "eval_episodes": "30"}, {"eval.steps": 5, "oger.eval.max_samples": 30}),
        # The rest
        ({"max_new_tokens": "64"}, {"oger.steps.max_step_tokens": 64, "rollout.max_new_tokens": 640}),
        ({"num_mini_batch": "2"}, {"train.batch_size": 2, "train.micro_batch_size": 1}),
        ({"num_mini_batch": "1", "gradient_cp_steps": "1"}, {"train.batch_size": 4, "train.micro_batch_size": 4}),
        ({"ppo_epoch": None}, {"train.max_epochs": 5}),
        ({"clip_param": "0.1"}, {"actor.eps_clip": 0.1, "critic.value_clip": 0.1}),
        ({"entropy_coef": "0"}, {"actor.entropy_coef": 0.0}),
        ({"gamma": "1", "gae_lambda": "0.9"}, {"algo.advantage.lambd": 0.9}),
        ({"max_grad_norm": "1.5"}, {"actor.max_norm": 1.5, "critic.max_norm": 1.5}),
        ({"use_max_grad_norm": True}, {"actor.max_norm": 0.0, "critic.max_norm": 0.0}),
        ({"use_huber_loss": True}, {"oger.critic.huber_delta": None}),
        ({"huber_delta": "1.5"}, {"oger.critic.huber_delta": 1.5}),
        ({"seed": "10"}, {"train.seed": 10}),
        ({"save_interval": "50"}, {"ckpt.save_steps": 50, "ckpt.save_hf": True}),
        ({"experiment_name": "ms_single", "dataset_name": "algebra"}, {"oger.run_dir": "runs/ms_single/algebra/APPO",
                                                                       "logger.wandb.run_name": "ms_single"}),
    ],
    ids=lambda value: " ".join(value),
)  # fmt: skip
def test_values_are_translated(
    changes: dict[str, Any], wanted: dict[str, Any], converted: Callable, gpu_parser: argparse.ArgumentParser
) -> None:
    settings = defaults(gpu_parser) | found(converted(script(**changes)))
    assert {key: settings[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_recurrent_policy": True}, "a transformer reads the whole text again, and has no recurrent state"),
        ({"use_naive_recurrent_policy": True}, "has no recurrent state"),
        ({"recurrent_N": "2"}, "line 8: --recurrent_N=2: a transformer"),
        ({"stacked_frames": "4"}, "frames are of games"),
        ({"share_policy": True}, "there is one agent"),
        ({"use_centralized_V": True}, "there is one agent"),
        ({"use_popart": True}, "values are learnt as they are"),
        ({"use_ReLU": True}, "the value head has ReLU"),
        ({"use_gae": True}, "advantages are GAE's, there with or without it: for sums of rewards give --gae_lambda 1"),
        ({"use_policy_active_masks": True}, "only tokens that were sampled are trained on"),
        ({"value_loss_coef": "0.5"}, "Adam divides such a factor out: use --critic_lr"),
        ({"num_accumulation_steps": "2"}, "for larger ones lower --num_mini_batch"),
        ({"cuda": True}, "it is a recipe for GPUs"),
        ({"model_dir": "old"}, "give the folder as --model_name_or_path"),
        ({"algorithm_name": "PPO"}, "it is one of APPO, TPPO, GRPO; did you mean"),
        ({"algorithm_name": None}, "--algorithm_name is not given, and its default is ERL: it is one of APPO"),
        ({"prm_model_name_or_path": None}, "the only reward is that of a process reward model: name it"),
        ({"prm_type": "Shepherd"}, "it is one of MS, Qwen"),
        ({"prm_type": "Qwen"}, "is a model with an adapter, without which that trainer stops: name it"),
        ({"num_mini_batch": "3"}, "the 4 responses of an update do not divide into 3 mini-batches"),
        ({"num_mini_batch": "0"}, "do not divide into 0 mini-batches"),
        ({"n_rollout_threads": "6"}, "--num_mini_batch=4: the 6 responses of an update do not divide"),
        ({"n_rollout_threads": "0"}, "it is 1 or more"),
        ({"num_env_steps": "20"}, "that is not one update"),
        ({"num_env_steps": "10e6"}, "it takes a whole number"),
        ({"gradient_cp_steps": "0"}, "it is 1 or more"),
        ({"hidden_size": "0"}, "it is 1 or more"),
        ({"seed": "--lr 1"}, "line 8: --seed has no value"),
        ({"use_eval": "True"}, "'True' is not the value of a flag: the switch --use_eval takes no value"),
        ({"alg0rithm_name": "GRPO"}, "unknown flag --alg0rithm_name; did you mean --algorithm_name?"),
        ({"gamma": "1.5"}, "the recipe would be refused: algo.advantage.gamma"),
        ({"seed": "$SEED"}, "the variable has no value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_honoured_is_refused_by_its_line(
    changes: dict[str, Any], message: str, converted: Callable[..., Conversion]
) -> None:
    result = converted(script(**changes))
    assert not result.text and any(message in problem for problem in result.problems), result.problems


@pytest.mark.parametrize(
    ("changes", "flag", "reason"),
    [
        ({"prm_checkpoint_path": "./adapter"}, "--prm_checkpoint_path=./adapter", "prm_type MS loads no adapter"),
        ({"use_wandb": True}, "--use_wandb=True", "WANDB_API_KEY"),
        ({"vacab_size": "5"}, "--vacab_size=5", "the model has its own"),
        ({"eval_episodes": "5"}, "--eval_episodes=5", "nothing is evaluated without --use_eval or --eval_interval"),
        ({"algorithm_name": "GRPO", "critic_lr": "1e-4"}, "--critic_lr=0.0001", "GRPO has no critic"),
        ({"algorithm_name": "GRPO", "hidden_size": "8"}, "--hidden_size=8", "GRPO has no critic"),
        ({"recurrent_N": "1"}, "--recurrent_N=1", "no recurrent state"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_has_no_effect_is_said(
    changes: dict[str, Any], flag: str, reason: str, converted: Callable[..., Conversion]
) -> None:
    result = converted(script(**changes))
    assert not result.problems and reason in result.without_effect[flag] and f"  {flag}: " in result.text


def test_what_is_overwritten_there_is_said_where_it_is_given(converted: Callable[..., Conversion]) -> None:
    said = converted(script(lr="2e-6")).differing
    assert "its code sets it to 1e-06, whatever the command says; here it counts" in said["--lr"]
    assert "--critic_lr" not in said


def test_an_evaluation_on_the_training_file_is_to_be_changed(converted: Callable[..., Conversion]) -> None:
    (left,) = converted(script(use_eval=True)).to_do
    assert left == "eval.dataset is the training file, as it is there: name a held-out one"


def test_what_its_script_leaves_to_the_user_is_to_be_set(converted: Callable[..., Conversion]) -> None:
    """With a flag in the first line, and an adapter that Math-Shepherd's class does not load."""
    paths = {"model_name_or_path": "MODEL_PATH", "prm_model_name_or_path": "PRM_PATH", "prm_type": "MS"}
    text = script(**paths, prm_checkpoint_path="CHECKPOINT_PATH").replace("train_math.py", "train_math.py --seed 10")
    result = converted(text)
    assert found(result)["train.seed"] == 10
    assert sorted(result.to_do) == [
        "set actor.model_name_or_path, which is MODEL_PATH",
        "set oger.reward.sources, which is PRM_PATH",
    ]
    assert result.without_effect.keys() == {"CUDA_VISIBLE_DEVICES=0", "--prm_checkpoint_path=CHECKPOINT_PATH"}


def test_a_line_behind_a_missing_backslash_is_found(converted: Callable[..., Conversion]) -> None:
    text = script().replace("APPO \\", "APPO")
    problems = converted(text).problems
    assert [problem.partition(" comes after")[0] for problem in problems] == ["line 6: --num_mini_batch"]


def test_values_may_be_joined_to_their_flags(converted: Callable[..., Conversion]) -> None:
    joined = re.sub(r"(--\w+) (\S+) \\", r"\1=\2 \\", script(gamma="0.9"))
    assert found(converted(joined)) == found(converted(script(gamma="0.9")))


@pytest.mark.parametrize("program", ["python test_math.py --model_peft_path p", "python finetune_qwen.py --x y"])
def test_openrs_other_programs_are_known(program: str, converted: Callable[..., Conversion]) -> None:
    (problem,) = converted(program).problems
    assert "`oger eval`" in problem and "`oger prm train`" in problem


@pytest.mark.parametrize("changes", [{}, {"--algorithm_name": "GRPO"}, {"--use_eval": "True"}])
def test_the_page_names_every_setting_that_a_flag_makes(settings_made: Callable, changes: dict[str, str]) -> None:
    values = PUBLISHED | changes
    for flag, made in settings_made(OPENR, values):
        assert made <= {name.strip() for name in flag.ours.split(",")}, flag.name
