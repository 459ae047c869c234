"""`oger convert`: VeRL-with-RMs' two commands as recipe files."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from oger_recipe.checks.settings import check_run
from oger_recipe.convert.engine import Conversion, convert
from oger_recipe.convert.verl_rms.commands import MULTI_NODE, SINGLE_NODE
from oger_recipe.convert.verl_rms.dialect import VERL_RMS
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.recipe_file import read_recipe

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "verl_rms"  # those of the user's document, with shorter paths
DOCUMENT = ROOT.parent / "shared" / "seeds" / "003_decoded.md"
FLAGS = VERL_RMS.flags
RM, ENGINE, ACTOR = "reward_model.", "reward_model.reward_vllm_rollout.", "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
CLUSTER = {"GPUS_PER_NODE": "8", "NNODES": "2", "WORKDIR": "/work"}
PLUGIN = "def rm_preprocess(prompts, responses, tokenizer):\n    return responses\n\n\n"
PLUGIN += "def rm_postprocess(results):\n    return [float(result) for result in results]\n"
# Values of variables, where a command is made of the table.
VARIABLES = {
    "TRAIN_FILE": "rows.parquet", "MODEL_PATH": "m/model", "REWARD_FUCTION1": "rider_reward",
    "REWARD_FUCTION2": "consistency_reward", "REWARD_MODEL_PATH1": "m/one", "REWARD_MODEL_PATH2": "m/two",
}  # fmt: skip


@pytest.fixture(scope="module")
def quick_processes() -> None:
    """Plugins that need no tokenizer start as quickly by themselves."""


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the two plugins and the rows, as the user has them."""
    monkeypatch.chdir(tmp_path)
    for name in ("rider_reward", "consistency_reward"):
        (tmp_path / f"{name}.py").write_text(PLUGIN)
    (tmp_path / "rows.parquet").touch()


@pytest.fixture()
def converted(gpu_parser: argparse.ArgumentParser) -> Callable[..., Conversion]:
    def result(text: str, **variables: str) -> Conversion:
        return convert(text, "train.sh", gpu_parser, variables)

    return result


def script(changes: dict[str, str | None] | None = None, flags: dict[str, str] = SINGLE_NODE) -> str:
    """A command of the branch's page with some flags set otherwise, or (None) left out."""
    given = {name: value for name, value in (flags | (changes or {})).items() if value is not None}
    words = [f" {name}={shlex.quote(value) if ' ' in value else value} \\" for name, value in given.items()]
    lines = [f"{name}={value}" for name, value in VARIABLES.items()]
    return "\n".join([*lines, "python3 -m verl.trainer.main_ppo \\", *words, "2>&1 | tee log", ""])


def found(result: Conversion) -> dict[str, Any]:
    assert not result.problems
    return {key: value for key, (value, _, _) in result.settings.items()}


def sources(result: Conversion) -> list[dict[str, Any]]:
    return found(result)["oger.reward.sources"]


@pytest.mark.parametrize(
    ("name", "table", "variables"),
    [("single_node.sh", SINGLE_NODE, {}), ("multi_node.sh", MULTI_NODE, CLUSTER)],
)
def test_the_table_has_the_commands_of_the_scripts(name: str, table: dict[str, str], variables: dict) -> None:
    texts = [(SCRIPTS / name).read_text()]
    if DOCUMENT.exists():
        texts.append(re.findall(r"```bash\n(.*?)```", DOCUMENT.read_text(), re.S)[name == "multi_node.sh"])
    for text in texts:
        lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        assert dict(re.findall(r"^ +([a-z_]+\.[\w.]+)=(\S*?)(?: ?\\| 2>&1.*|)$", lines, re.M)) == table


JUDGE = {
    "kind": "judge", "model": "/models/longcat_18b", "combine": "add", "gate": "rule_equals_1",
    "temperature": 0.7, "max_new_tokens": 4096, "max_model_len": 8192, "tensor_parallel_size": 4,
    "gpu_memory_utilization": 0.8,
}  # fmt: skip
SOURCES = [
    {"name": "rule", "kind": "verifier"},
    {"name": "similar", "kind": "similarity", "weight": 0.5, "combine": "add", "gate": "rule_equals_1", "floor": 0.37},
    JUDGE | {"name": "rider", "plugin": "rider_reward.py", "weight": 0.3, "prompt_column": "rm_prompt_0"},
    JUDGE | {"name": "consistency", "plugin": "consistency_reward.py", "weight": 0.5, "prompt_column": "rm_prompt_1"},
]


def test_the_single_node_script(converted: Callable[..., Conversion]) -> None:
    result = converted((SCRIPTS / "single_node.sh").read_text())
    settings = found(result)
    wanted = {
        "oger.reward.sources": SOURCES, "oger.embedding_model": "BAAI/bge-large-zh-v1.5", "oger.max_replace_num": 0,
        "algo.advantage.estimator": "reinforce", "rollout.batch_size": 32, "rollout.n_samples_per_prompt": 4,
        "oger.prompts_per_update": 8, "oger.max_prompt_length": 6144, "oger.overlong_prompts": "drop",
        "rollout.max_new_tokens": 2048, "data.max_len": 8192, "vllm.num_engines": 2, "vllm.tensor_parallel_size": 4,
        "vllm.gpu_memory_utilization": 0.6, "train.dynamic_batch_enable": True, "ds.adam_offload": True,
        "train.num_episodes": 15, "eval.steps": 1_000_000, "ckpt.save_steps": 30, "oger.val_before_train": False,
        "eval.temperature": 0.0, "actor.adam.lr": 1e-6, "data.prompt_dataset": "/data/data/rider_v4/train_2.parquet",
    }  # fmt: skip
    assert {key: settings[key] for key in wanted} == wanted
    assert "algo.kl.init_coef" not in settings, "kl_coef is read by nothing there"
    no_effect = "use_kl_in_reward is False, there the default: nothing else reads it"
    assert result.without_effect["algorithm.kl_ctrl.kl_coef=0.001"] == no_effect
    assert result.remarks == [
        "line 13: bge_sim.py is not needed: the source `similar` asks the run's own encoder (oger.embedding_model)"
    ]
    assert [re.split(", which|:", entry)[0] for entry in result.to_do] == [
        "copy the files of reward_model.reward_function (verl/workers/reward_function/*.py) beside the recipe",
        "set oger.task_name", "actor.model_name_or_path", "data.prompt_dataset", "eval.dataset",
        "oger.reward.sources, rider", "oger.reward.sources, consistency",  # whose models are not here
    ]  # fmt: skip


def test_plugins_are_looked_for_beside_the_recipe_that_is_written(
    gpu_parser: argparse.ArgumentParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def missing(out: Path) -> list[str]:
        return [each for each in convert(script(), "train.sh", gpu_parser, {}, out).to_do if "no such file in" in each]

    assert not any("plugin" in each for each in missing(tmp_path / "mine.yaml"))
    assert [re.findall(r"plugin '(\w+)", each) for each in missing(Path("mine.yaml"))] == [
        ["rider_reward"], ["consistency_reward"],
    ]  # fmt: skip


def test_the_multi_node_script(converted: Callable[..., Conversion]) -> None:
    text = (SCRIPTS / "multi_node.sh").read_text()
    unset = converted(text).problems
    assert [re.sub(r"line (\d+): (\S+)=.*", r"\1 \2", problem) for problem in unset] == [
        "124 trainer.n_gpus_per_node", "125 trainer.nnodes",
    ]  # fmt: skip
    result = converted(text, **CLUSTER)
    settings = found(result)
    wanted = {
        "oger.reward.sources": SOURCES, "rollout.batch_size": 128, "oger.prompts_per_update": 64,
        "algo.kl.init_coef": 1e-4, "algo.kl.use_loss": True, "algo.kl.estimator": "k3", "actor.entropy_coef": 0.0,
        "ref.offload": True, "ref.num_nodes": 2, "actor.num_nodes": 2, "vllm.num_engines": 4,
        "rollout.temperature": 0.8, "vllm.gpu_memory_utilization": 0.8, "ds.packing_samples": True,
        "train.num_episodes": 20, "oger.overlong_prompts": "drop",
        "logger.wandb.run_name": "zrl_grm_longcat_w03_add-add",
    }  # fmt: skip
    assert {key: settings[key] for key in wanted} == wanted
    assert settings["oger.run_dir"].startswith("/work/results/checkpoint/")
    assert [(remark.split(":")[0], remark.split("`")[1]) for remark in result.remarks if "`" in remark] == [
        ("line 7", "oger train"), ("line 39", "similar"), ("line 59", "oger train"), ("line 66", "oger train"),
        ("line 136", "oger train"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "script_name", "variables"),
    [("grm_multi_rm", "single_node.sh", {}), ("grm_multi_rm_multinode", "multi_node.sh", CLUSTER)],
)
def test_the_recipe_files_are_what_the_scripts_become(
    name: str, script_name: str, variables: dict, converted: Callable, gpu_parser: argparse.ArgumentParser
) -> None:
    result = converted((SCRIPTS / script_name).read_text(), **variables)
    Path("recipe.yaml").write_text(result.text)
    become = defaults(gpu_parser) | read_recipe(Path("recipe.yaml"), gpu_parser)
    shipped = defaults(gpu_parser) | read_recipe(ROOT / "configs" / f"{name}.yaml", gpu_parser)
    for settings in (become, shipped):
        for entry in settings["oger.reward.sources"]:
            entry.pop("model", None)
            entry.pop("combine", None)  # add is the default
    assert {key for key in become if become[key] != shipped[key]} <= {
        "actor.model_name_or_path", "data.prompt_dataset", "eval.dataset", "oger.task_name", "oger.run_dir",
        "logger.wandb.project", "logger.wandb.run_name", "oger.eval.top_p", "eval.steps",
        "ckpt.max_num",  # the command keeps all
    }  # fmt: skip


def test_a_converted_recipe_would_start_once_its_rule_is_named(
    converted: Callable[..., Conversion], gpu_parser: argparse.ArgumentParser
) -> None:
    result = converted(script({"data.val_files": "rows.parquet"}))
    assert len(result.to_do) == 2 and result.to_do[1] == "set oger.task_name, which is <your rule>"
    Path("recipe.yaml").write_text(result.text.replace("<your rule>", "gsm8k"))
    settings = defaults(gpu_parser) | read_recipe(Path("recipe.yaml"), gpu_parser)
    check_run(settings, cpu=False, gpus_here=8)
    assert yaml.safe_load(result.text)["oger"]["reward"]["sources"] == sources(result)
    assert [line for line in result.text.splitlines() if len(line) > 130] == []


@pytest.mark.parametrize(("flags"), [SINGLE_NODE, MULTI_NODE], ids=["single", "multi"])
def test_no_flag_is_dropped(flags: dict[str, str], converted: Callable[..., Conversion]) -> None:
    variables = CLUSTER | {"DATAPATH": "d", "VALDATAPATH": "d", "PRETRAIN_DIR": "m/model", "LR_ACTOR": "1e-6"}
    variables |= {"n_samples_per_prompt": "4", "experiment_name": "e", "SAVE_DIR": "s", "NUM_EPISODES": "20"}
    result = converted(script(flags=flags), **variables)
    assert not result.problems
    mapped = {name for _, names, _ in result.settings.values() for name in names}
    silent = {flag.partition("=")[0] for flag in result.without_effect}
    assert flags.keys() <= mapped | silent and not mapped & silent


def entries(*indices: int, **values: Any) -> Callable[[list[dict[str, Any]]], bool]:
    """Whether these entries of the list have these values."""
    return lambda found: all(found[index] | values == found[index] for index in indices)


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({RM + "use_bge": "False"}, lambda found: [each["name"] for each in found]
         == ["rule", "rider", "consistency"]),
        ({RM + "bge_weight": "0.2"}, entries(1, weight=0.2)),
        ({RM + "reward_combine_func": "['add','mul']"}, lambda found: [found[2]["combine"], found[3]["combine"]]
         == ["add", "mul"]),
        ({ENGINE + "temperature": "0.2"}, entries(2, 3, temperature=0.2)),  # one number is for all
        ({ENGINE + "temperature": "[0.1,0.9]"}, lambda found: [found[2]["temperature"], found[3]["temperature"]]
         == [0.1, 0.9]),
        ({ENGINE + "rollout_response_length": "512"}, entries(2, 3, max_new_tokens=512)),
        ({ENGINE + "max_model_len": "20000"}, entries(2, 3, max_model_len=20000)),
        ({ENGINE + "prompt_length": "7000"}, entries(2, 3, max_model_len=9048)),
        ({ENGINE + "top_p": "0.9"}, entries(2, 3, top_p=0.9)),
        ({RM + "reward_function": "[a,a]"}, lambda found: [each["name"] for each in found[2:]] == ["a_0", "a_1"]),
    ],
)  # fmt: skip
def test_sources(changes: dict[str, str], right: Callable[[Any], bool], converted: Callable) -> None:
    Path("a.py").write_text(PLUGIN)
    assert right(sources(converted(script(changes))))


ONE = {RM + "reward_function": "[rider_reward]", RM + "model.path": "[m/one]", RM + "reward_weight": "[0.3]"}
ONE |= {ENGINE + "temperature": None, ENGINE + "gpu_memory_utilization": None, RM + "reward_combine_func": None}


def test_what_the_command_leaves_out_has_the_default_of_there(converted: Callable) -> None:
    """One judge by lists of one entry."""
    (*_, judge) = sources(converted(script(ONE | {RM + "reward_model_type": None})))
    assert (judge["temperature"], judge["gpu_memory_utilization"], judge["combine"]) == (0.6, 0.8, "add")
    bare = {name: None for name in SINGLE_NODE if not name.startswith(RM)} | ONE | {"algorithm.adv_estimator": "grpo"}
    bare |= {ROLLOUT + "n": "4", ACTOR + "use_dynamic_bsz": "True"}
    settings = found(converted(script(bare)))
    assert settings["algo.advantage.estimator"] == "group_norm" and settings["oger.prompts_per_update"] == 256
    assert settings["oger.overlong_prompts"] == "refuse" and settings["vllm.num_engines"] == 8
    assert settings["ckpt.max_num"] == 1_000_000 and "algo.kl.init_coef" not in settings


LORA, TARGETS = "actor_rollout_ref.model.lora_", "actor_rollout_ref.model.target_modules"
KL_IN_REWARD = {"algorithm.use_kl_in_reward": "True"}
KL_IN_LOSS = {ACTOR + "use_kl_loss": "True"}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
         {"algo.advantage.estimator": "reinforce_baseline"}),
        ({"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": "False"},
         {"algo.advantage.estimator": "dr_grpo"}),
        ({"algorithm.gamma": "0.9"}, {"algo.advantage.gamma": 0.9}),
        (KL_IN_REWARD, {"algo.kl.init_coef": 0.001, "algo.kl.use_loss": False, "algo.kl.estimator": "k1"}),
        (KL_IN_REWARD | {"algorithm.kl_penalty": "abs"}, {"algo.kl.estimator": "abs"}),
        (KL_IN_REWARD | {"algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.target_kl": "0.2"},
         {"algo.kl.target": 0.2, "algo.kl.horizon": 10000}),
        (KL_IN_LOSS | {ACTOR + "kl_loss_type": "mse"}, {"algo.kl.estimator": "k2", "algo.kl.use_loss": True}),
        (KL_IN_LOSS | KL_IN_REWARD | {"algorithm.kl_ctrl.kl_coef": "0.02"},
         {"algo.kl.init_coef": 0.001, "algo.kl.use_loss": True, "oger.kl_penalty_coef": 0.02}),
        (KL_IN_LOSS | KL_IN_REWARD | {ACTOR + "kl_loss_coef": "0"},
         {"algo.kl.init_coef": 0.001, "algo.kl.use_loss": False, "algo.kl.estimator": "k1"}),
        (KL_IN_LOSS | {ACTOR + "kl_loss_coef": "0"}, {"algo.kl.init_coef": 0.0}),
        ({ACTOR + "loss_agg_mode": "seq-mean-token-mean"}, {"oger.loss_aggregation": "sequence_mean"}),
        ({ACTOR + "clip_ratio_high": "0.28"}, {"actor.eps_clip": 0.2, "actor.eps_clip_low_high": [0.2, 0.28]}),
        ({ACTOR + "clip_ratio": "0.1", ACTOR + "clip_ratio_low": "null"},
         {"actor.eps_clip": 0.1, "actor.eps_clip_low_high": [0.1, 0.2]}),
        ({ACTOR + "use_dynamic_bsz": "False", ACTOR + "ppo_micro_batch_size_per_gpu": "2"},
         {"train.micro_batch_size": 2, "rollout.micro_batch_size": 4}),
        ({"data.filter_overlong_prompts": None}, {"oger.overlong_prompts": "refuse"}),
        ({ROLLOUT + "val_kwargs.do_sample": "True", ROLLOUT + "val_kwargs.temperature": "0.6"},
         {"eval.temperature": 0.6}),
        ({ROLLOUT + "val_kwargs.temperature": "0.6"}, {"eval.temperature": 0.0}),
        ({"trainer.max_actor_ckpt_to_keep": "3"}, {"ckpt.max_num": 3}),
        ({LORA + "rank": "32", LORA + "alpha": "64", TARGETS: "[q_proj,v_proj]"},
         {"ds.lora.rank": 32, "ds.lora.alpha": 64, "ds.lora.target_modules": ["q_proj", "v_proj"]}),
        ({LORA + "rank": "8", TARGETS: "q_proj"}, {"ds.lora.rank": 8, "ds.lora.target_modules": ["q_proj"]}),
        ({LORA + "rank": "8", TARGETS: "all-linear"}, {"ds.lora.rank": 8}),
    ],
)  # fmt: skip
def test_values_are_translated(changes: dict[str, str], wanted: dict[str, Any], converted: Callable) -> None:
    settings = found(converted(script(changes)))
    assert {key: settings[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({RM + "reward_weight": "[0.3]"}, "reward_function 2, model.path 2, reward_weight 1, reward_combine_func 2"),
        ({ENGINE + "temperature": None}, "one that is left out has one entry: reward_function 2, model.path 2"),
        ({RM + "combine_reward": "False"}, "counts only where the rule gave 1: leave it True, or write"),
        ({RM + "enable": "False"}, "that trainer stops at its first step"),
        ({RM + "enable": None}, "reward_model.enable is not given, and its default is False"),
        ({RM + "reward_model_type": "BT"}, "here it is a source of kind classifier"),
        ({RM + "reward_model_type": "cloud"}, "here it is a source of kind judge with a url"),
        ({RM + "reward_model_type": "gmr"}, "did you mean grm?"),
        ({RM + "reward_combine_func": "[add,max]"}, "it is one of add, mul"),
        ({ENGINE + "tensor_model_parallel_size": "2"}, "weights are cut by the one and the engine by the other"),
        (
            {RM + "reward_weight": "[-1,0.5]", RM + "reward_combine_func": "[mul,add]"},
            "the recipe would be refused: oger.reward.sources, entry 3: combine mul with weight -1",
        ),
        ({RM + "reward_manager": "dapo"}, "write it as a verifier (oger.verifiers)"),
        ({"custom_reward_function.path": "mine.py"}, "give the function as oger.verifiers mytask=module:function"),
        ({"data.filter_overlong_prompts": "False", "data.truncation": "left"}, "prompts are not cut: use error"),
        (KL_IN_REWARD | {"algorithm.kl_penalty": "full"}, "it is one of kl, abs, mse, low_var_kl"),
        (KL_IN_REWARD | KL_IN_LOSS | {"algorithm.kl_ctrl.type": "adaptive"}, "is k1 with a fixed coefficient"),
        (KL_IN_REWARD | {"algorithm.kl_ctrl.type": "adaptative"}, "did you mean adaptive?"),
        ({"algorithm.adv_estimator": "remax"}, "it is one of grpo, reinforce_plus_plus"),
        ({ACTOR + "use_dynamic_bsz": "False"}, "it is needed without use_dynamic_bsz, there as well"),
        ({ACTOR + "loss_agg_mode": "seq-mean-token-sum"}, "sums of tokens are divided by rollout.max_new_tokens here"),
        ({"actor_rollout_ref.model.is_custome_model": "True"}, "write chat_template into tokenizer_config.json"),
        (
            {LORA + "rank": "8", "algorithm.adv_estimator": "gae"},
            "ds.lora.rank 8 cannot be used with algo.advantage.estimator gae",
        ),
        ({RM + "reward_functon": "[a]"}, "did you mean reward_model.reward_function?"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_line(
    changes: dict[str, str | None], message: str, converted: Callable[..., Conversion]
) -> None:
    result = converted(script(changes))
    assert not result.text and any(message in problem for problem in result.problems), result.problems


def test_a_command_of_verl_itself_is_none_of_these(converted: Callable[..., Conversion]) -> None:
    plain = {name: None for name in SINGLE_NODE if name.startswith(RM)}
    (problem,) = converted(script(plain)).problems
    assert "this is a command of verl itself" in problem


def test_a_page_with_both_commands_is_told_to_leave_one(converted: Callable[..., Conversion]) -> None:
    both = "".join((SCRIPTS / name).read_text() for name in ("single_node.sh", "multi_node.sh"))
    (problem,) = converted(both).problems
    assert re.search(r"there are 2 training commands \(lines 16, \d+\): leave one", problem)


@pytest.mark.parametrize("changes", [{}, KL_IN_REWARD, KL_IN_LOSS, {"algorithm.adv_estimator": "gae"}])
def test_the_page_names_every_setting_that_a_flag_makes(settings_made: Callable, changes: dict[str, str]) -> None:
    values = SINGLE_NODE | changes
    for flag, made in settings_made(VERL_RMS, values):
        family = {name.strip() for name in flag.ours.split(",")}
        if "algo.kl.init_coef" in family or "algo.kl.estimator" in family:
            family |= {"algo.kl.init_coef", "algo.kl.use_loss", "algo.kl.estimator"}
        shared = {"vllm.tensor_parallel_size", "train.max_tokens_per_gpu", "actor.lr_warmup_ratio"}
        assert made - shared <= family, flag.name
