"""What a run refuses before anything starts its dry run refuses too, in the same sentence and with the same status."""

from __future__ import annotations

import ast
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import write_jsonl
from oger_recipe.checks import disk, model_files
from oger_recipe.checks.disk import Written, written
from oger_recipe.checks.memory import Shape, readable, shape_of
from oger_recipe.cli import train

PACKAGE = Path(model_files.__file__).parents[1]
ROWS = [
    {"uid": f"p-{number}", "prompt": "Make 96.", "answer": '{"numbers":[3,5,12],"target":96}', "task": "countdown",
     "teachers": [{"source": "a", "text": "<answer>(3+5)*12</answer>", "correct": True}]}
    for number in range(2)
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without CUDA and without the hub, where Ray cannot be started."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "oger_recipe.pipeline.driver.launch", None)
    monkeypatch.setitem(sys.modules, "trackio", None)  # not installed
    monkeypatch.setattr("oger_recipe.base.hub.is_offline", lambda: True)
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAY_TMPDIR", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture()
def desk(tmp_path: Path, policy_folder: Path) -> SimpleNamespace:
    """A recipe that would run: two prompts a step, each with a right teacher; and a model to break."""
    shutil.copytree(policy_folder, tmp_path / "policy")
    write_jsonl(ROWS, tmp_path / "rows.jsonl")
    settings = {
        "oger": {"run_dir": "run", "data_cache": "cache"},
        "actor": {"model_name_or_path": "policy"},
        "data": {"prompt_dataset": "rows.jsonl", "max_len": 256},
        "rollout": {"batch_size": 2, "n_samples_per_prompt": 4, "max_new_tokens": 64, "micro_batch_size": 1},
        "train": {"batch_size": 8, "micro_batch_size": 1},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
    return SimpleNamespace(folder=tmp_path, policy=tmp_path / "policy", run=tmp_path / "run")


def _train(*flags: str) -> SystemExit | None:
    """How `oger train` ends; None where nothing is refused: its dry run succeeds, and the run comes to the start."""
    try:
        train.main(["--recipe", "recipe.yaml", *flags])
    except SystemExit as stop:
        return stop
    except ModuleNotFoundError as error:
        assert error.name == "oger_recipe.pipeline.driver.launch"
    return None


def _config(desk: SimpleNamespace, **changes: Any) -> None:
    path = desk.policy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _checkpoint(desk: SimpleNamespace) -> None:
    """A run that began with the recipe as it is, and has a checkpoint."""
    from oger_recipe.run_folder import checkpoints, own_files

    assert _train() is None
    (desk.run / "checkpoints" / "_actor" / "global_step4").mkdir(parents=True)
    (desk.run / "checkpoints" / "_actor" / "global_step4" / "states").write_text("x")
    checkpoints.seal(desk.run / "checkpoints", 4)
    write_jsonl([{"step": 4}], desk.run / "metrics.jsonl")
    assert own_files.is_marked(desk.run)


def _of_the_run(desk: SimpleNamespace) -> None:
    """Rows where an earlier run keeps its evaluation data."""
    _checkpoint(desk)
    shutil.copy("rows.jsonl", desk.run / "data" / "eval.jsonl")


def _shard(desk: SimpleNamespace) -> None:
    (desk.policy / "model.safetensors").rename(desk.policy / "model-00001-of-00002.safetensors")
    named = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (desk.policy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))


def _sources(**entry: Any) -> list[str]:
    return ["--oger.reward.sources", json.dumps([{"name": "rule", "kind": "verifier"}, {"name": "j"} | entry])]


def _held(desk: SimpleNamespace) -> None:
    from oger_recipe.run_folder.attempt import locked

    desk.held = locked(desk.run)
    desk.held.__enter__()


def _nothing(desk: SimpleNamespace) -> None:
    pass


def _rows(*changes: dict[str, Any]) -> Callable[[SimpleNamespace], None]:
    return lambda desk: write_jsonl([row | more for row, more in zip(ROWS, changes, strict=True)], Path("rows.jsonl"))


def _write(name: str, text: str) -> Callable[[SimpleNamespace], None]:
    return lambda desk: (desk.folder / name).parent.mkdir(exist_ok=True) or (desk.folder / name).write_text(text)


def _mine(desk: SimpleNamespace) -> None:
    (desk.run / "data").mkdir(parents=True)
    (desk.run / "data" / "train.jsonl").write_text("mine")


def _long(desk: SimpleNamespace) -> None:
    desk.run.mkdir()
    os.environ["RAY_TMPDIR"] = str(desk.folder / ("x" * 100))


WRONG = {"teachers": [{"source": "a", "text": "<answer>3+5</answer>", "correct": None}]}
LONG = {"prompt": "x" * 900}
CHAT = {"prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Make 96."}]}
SYSTEM = {"prompt": [{"role": "system", "content": "Make 96."}]}
TWICE = "{% for turn in messages %}{{ turn.content }} {{ turn.content }}{% endfor %}"
CORRECTED = ["--algo.advantage.is_correction_level", "seq"]
RESUME = ["--ckpt.load_enable"]
# What is wrong -> how it comes about, flags, and a part of the sentence.
REFUSALS: dict[str, tuple[Callable[[SimpleNamespace], Any], list[str], str]] = {
    # settings, and this machine
    "a setting out of range": (_nothing, ["--rollout.temperature", "0"], "it must be above 0"),
    "both overwrite and resume": (_nothing, ["--overwrite", *RESUME], "choose one"),
    "too many GPUs": (_nothing, ["--oger.logical_gpus", "1"], "GPUs are needed"),
    "CUDA is missing": (_nothing, ["--vllm.enable_sleep"], "on a machine without CUDA"),
    "a part of a step is generated": (_nothing, ["--rollout.vllm_generate_batch_size", "1"], "lack rollouts"),
    "more than a step is generated": (_nothing, ["--rollout.vllm_generate_batch_size", "4"], "more would need"),
    "partial rollouts": (_nothing, ["--train.partial_rollout_enable"], "needs asynchronous training"),
    # the correction for the engine
    "an engine correction under a nucleus": (
        _nothing, [*CORRECTED, "--rollout.top_p", "0.9"], "use rollout.top_p 1, or leave the correction off",
    ),
    "an engine correction under top-k": (
        _nothing, [*CORRECTED, "--oger.top_k", "50"], "use oger.top_k -1, or leave the correction off",
    ),
    "an engine correction of steps": (
        _nothing, [*CORRECTED, "--oger.ratio_level", "step", "--oger.steps.delimiters", "."], "use oger.ratio_level",
    ),
    "a clip of sequences": (
        _nothing, [*CORRECTED, "--algo.advantage.is_correction_mode", "clip"], "or use is_correction_mode mask",
    ),
    "a distance with a lower bound": (
        _nothing, [*CORRECTED, "--algo.advantage.is_correction_gating", "tv"], "give one number, such as 0.05",
    ),
    "bounds that leave out engines that agree": (
        _nothing, [*CORRECTED, "--algo.advantage.is_correction_threshold", "0.05"], "0.05 excludes 1, the ratio of a",
    ),
    "three bounds": (
        _nothing, [*CORRECTED, "--algo.advantage.is_correction_threshold", "0.5", "2", "5"], "has 3 numbers: give LOW",
    ),
    # files of models
    "an unknown kind of model": (lambda desk: _config(desk, model_type="qwen9"), [], "model_type 'qwen9', which"),
    "an unknown architecture": (
        lambda desk: _config(desk, architectures=["Qwen9ForCausalLM"]), [], "architecture 'Qwen9ForCausalLM', which",
    ),
    "no architecture": (lambda desk: _config(desk, architectures=None), [], "names no architectures"),
    "a broken config.json": (_write("policy/config.json", '{"model_type"'), [], "config.json cannot be read"),
    "a config.json that is a list": (_write("policy/config.json", "[]"), [], "config.json is a list"),
    "half a file of weights": (
        lambda desk: os.truncate(desk.policy / "model.safetensors", 20_000), [], "has 20,000 of ",
    ),
    "a pointer in place of weights": (
        _write("policy/model.safetensors", "version https://git-lfs.github.com/spec/v1"), [], "is not a complete",
    ),
    "no weights": (lambda desk: (desk.policy / "model.safetensors").unlink(), [], "it has no weights"),
    "a missing shard": (_shard, [], "model-00002-of-00002.safetensors is missing"),
    "a critic without weights": (
        lambda desk: shutil.copytree(desk.policy, "critic", ignore=shutil.ignore_patterns("*.safetensors")),
        ["--algo.advantage.estimator", "gae", "--critic.model_name_or_path", "critic"], "critic cannot be loaded",
    ),
    "a broken tokenizer": (_write("policy/tokenizer.json", "{"), [], "cannot load a tokenizer from policy"),
    "no chat template": (
        lambda desk: (desk.policy / "chat_template.jinja").unlink(), ["--data.apply_chat_template"], "has none: set",
    ),
    # around the run
    "a folder for Ray beyond ASCII": (
        lambda desk: os.environ.update(RAY_TMPDIR="/tmp/größe"), [], "Ray takes only ASCII paths",
    ),
    "a folder for Ray that is too long": (_long, [], "and Ray's sockets leave room"),
    "no folder for Ray": (lambda desk: os.environ.update(RAY_TMPDIR="/nowhere"), [], "does not exist: set RAY_TMPDIR"),
    "a run folder below a file": (_write("file", ""), ["--oger.run_dir", "file/run"], "is a file: set oger.run_dir"),
    "a model of the hub": (_nothing, ["--actor.model_name_or_path", "me/policy"], "HF_HUB_OFFLINE is set, and me/p"),
    "data of the hub": (_nothing, ["--data.prompt_dataset", "me/rows"], "HF_HUB_OFFLINE is set, and me/rows"),
    "no key of Weights & Biases": (_nothing, ["--logger.wandb.key", "env"], "Weights & Biases: "),
    "a tracker that is not installed": (
        _nothing, ["--oger.trackers", "trackio"], "oger.trackers has trackio, which is not installed: pip install",
    ),
    # the folder
    "a folder with another run": (_checkpoint, [], "holds an earlier run"),
    "checkpoints elsewhere": (
        _checkpoint, ["--oger.run_dir", "other", "--ckpt.path", "run/checkpoints"], "holds checkpoints of an earlier",
    ),
    "somebody's files": (_mine, [], "the run would overwrite files in oger.run_dir"),
    "a folder that is not a run's to overwrite": (_write("run/notes", ""), ["--overwrite"], "is not a run's folder"),
    "a run that is going on": (_held, [], "another run is active in"),
    "nothing to go on with": (_nothing, RESUME, "there is no checkpoint to resume from"),
    "other settings than it began with": (
        _checkpoint, [*RESUME, "--train.seed", "7"], "train.seed was 42 -> is 7",
    ),
    "checkpoints of a run whose records are elsewhere": (
        _checkpoint,
        [*RESUME, "--oger.run_dir", "other", "--ckpt.path", "run/checkpoints", "--oger.use_history_samples"],
        "lacks the records of steps 1 to 4, which oger.use_history_samples",
    ),
    "a source that learns, unknown to the checkpoint": (
        _checkpoint,
        [*RESUME, *_sources(kind="process", scorer="implicit", model="policy", learning_rate=1e-6)],
        "lacks what reward source j",
    ),
    # data
    "a line that is no row": (_write("rows.jsonl", "no row\n"), [], "not valid JSON"),
    "a saved folder that is none": (
        lambda desk: Path("saved").mkdir(), ["--data.prompt_dataset", "saved"], "datasets.save_to_disk",
    ),
    "a wrong row to evaluate on": (_write("test.jsonl", "{}\n"), ["--eval.dataset", "test.jsonl"], "test.jsonl:1: "),
    "all prompts too long": (_rows(LONG, LONG), [], "all 2 prompts are longer than"),
    "all problems too long": (
        lambda desk: write_jsonl([ROWS[0] | LONG], Path("test.jsonl")), ["--eval.dataset", "test.jsonl"], "all 1 prom",
    ),
    "a prompt too long, refused": (_rows({}, LONG), ["--oger.overlong_prompts", "refuse"], "1 of 2 prompts are"),
    "too few prompts are left": (_rows({}, LONG), [], "1 prompts do not fill one step of rollout.batch_size 2"),
    "too few prompts": (
        _nothing, ["--data.max_samples", "1"], "1 prompts do not fill one step of rollout.batch_size 2",
    ),
    "no teachers": (_rows({"teachers": []}, {"teachers": None}), [], "none of the 2 rows of rows.jsonl has one"),
    "all teachers wrong": (_rows(WRONG, WRONG), [], "none can be used (2 wrong)"),
    "too few teachers to supervise": (_nothing, ["--oger.sft.epochs", "1"], "2 teacher trajectories do not fill one"),
    "probabilities of other tokens": (
        _rows({"teachers": [{"source": "a", "text": "4", "correct": None, "probs": [0.5]}]}, {}), [], "1 token prob",
    ),
    "two files with the same uids": (
        lambda desk: shutil.copy("rows.jsonl", "more.jsonl"),
        ["--data.prompt_dataset", "rows.jsonl,more.jsonl"], "give every problem its own uid",
    ),
    "chats without a template": (_rows(CHAT, CHAT), [], "prompts are chat messages"),
    "chats without a user": (
        _rows(SYSTEM, SYSTEM), ["--oger.hint_share", "0.5", "--data.apply_chat_template"],
        "without a message of the user",
    ),
    "a chat template that says things twice": (
        lambda desk: (desk.policy / "chat_template.jinja").write_text(TWICE),
        ["--oger.hint_share", "0.5", "--data.apply_chat_template"], "does not write the last message of the user once",
    ),
    "chats for a template of questions": (_rows(CHAT, CHAT), ["--oger.prompt_template", "r1"], "takes a question"),
    "a column that a source reads": (_nothing, _sources(kind="similarity", reference="ask"), "no column 'ask'"),
    "a source that counts what the verifier does not name": (
        _rows({}, {"task": "gsm8k", "answer": "96"}), _sources(kind="uniqueness"), "of task 'gsm8k' names none",
    ),
    "data of the run that goes": (
        _of_the_run, ["--overwrite", "--data.prompt_dataset", "run/data/eval.jsonl"], "belongs to the earlier run",
    ),
    # the built-in task
    "an impossible task": (
        _nothing,
        ["--data.prompt_dataset", "", "--oger.task.name", "countdown", "--oger.task.max_number", "2",
         "--oger.task.cache", "tasks"], "oger.task: ",
    ),
    # steps of reasoning
    "a delimiter that is no token": (
        _nothing, ["--algo.advantage.estimator", "appo", "--oger.steps.delimiter_token_ids", "99999"], "99999",
    ),
}  # fmt: skip


@pytest.fixture()
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")


@pytest.mark.parametrize("cause", REFUSALS)
def test_a_dry_run_refuses_what_the_run_refuses_in_the_same_sentence(
    desk: SimpleNamespace, environment: None, capsys: pytest.CaptureFixture[str], cause: str
) -> None:
    breaks, flags, part = REFUSALS[cause]
    breaks(desk)
    before = _everything(desk.folder)
    dry = _train("--dry-run", *flags)
    assert dry is not None, capsys.readouterr().out
    assert _everything(desk.folder) == before  # a dry run leaves everything as it was, but for caches
    real = _train(*flags)
    assert real is not None and isinstance(real.code, str) and part in real.code, real
    lines, said = real.code.splitlines(), str(dry.code).splitlines()
    assert said[: len(lines)] == lines
    assert said[len(lines) :] in ([], ["  The plan is above; the run would not start here."])
    error = real.__context__
    assert isinstance(error, RecipeError) and error.__traceback__ is not None
    trace = error.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    module = Path(trace.tb_frame.f_code.co_filename).relative_to(PACKAGE).with_suffix("")
    RAISED[cause] = f"{module}.{trace.tb_frame.f_code.co_name}"


RAISED: dict[str, str] = {}  # cause -> module and function that refused
ON_THE_WAY = (
    *(f"run/{name}" for name in ("training", "inputs", "rows", "resume", "sft")),
    *(f"checks/{name}" for name in ("preflight", "settings", "shortage", "job")),
    "run_folder/attempt", "data/train_files", "lab/build",
)  # fmt: skip
NOT_HERE = {
    "run/training._plan": "says the refusals of others",
    "run/training._check_here": "asks the hub: tests of remote code have a server for it",
    "checks/settings.require_loadable": "of other commands than oger train",
    "run_folder/attempt.begin_again": "of a restart, for which --max-restarts asks the same first",
    "run/sft.supervise": "its training failed, which a dry run does not do",
}


def test_every_function_that_refuses_before_the_start_has_a_row() -> None:
    if RAISED.keys() != REFUSALS.keys():
        pytest.skip("not all rows were run by this process")
    there = set()
    for name in ON_THE_WAY:
        for node in ast.walk(ast.parse((PACKAGE / f"{name}.py").read_text())):
            if isinstance(node, ast.FunctionDef) and any(_refuses(inside) for inside in ast.walk(node)):
                there.add(f"{name}.{node.name}")
    assert there - {*RAISED.values()} == {*NOT_HERE}


def _refuses(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) and node.exc is not None and "RecipeError" in ast.unparse(node.exc)


def test_a_run_that_would_start_is_not_refused(desk: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert _train("--dry-run") is None
    assert capsys.readouterr().out.endswith("on this machine:\n  the run can start\n")
    assert not desk.run.exists() and _train() is None


def test_weights_that_are_pickle_alone_get_a_warning(
    desk: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train("--dry-run") is None
    assert "are pickle files" not in capsys.readouterr().out
    torch.save(load_file(desk.policy / "model.safetensors"), desk.policy / "pytorch_model.bin")
    assert _train("--dry-run") is None
    assert "are pickle files" not in capsys.readouterr().out  # safetensors is read where both are
    (desk.policy / "model.safetensors").unlink()
    assert _train("--dry-run") is None
    assert "actor.model_name_or_path: the weights of policy are pickle files (.bin)" in capsys.readouterr().out


def test_an_earlier_run_goes_only_where_the_next_has_data_to_train_on(desk: SimpleNamespace) -> None:
    _checkpoint(desk)
    before = _everything(desk.run / "checkpoints")
    write_jsonl([row | LONG for row in ROWS], desk.folder / "rows.jsonl")
    refused = _train("--overwrite")
    assert refused is not None and "all 2 prompts are longer than 192 tokens" in str(refused)
    assert before and _everything(desk.run / "checkpoints") == before and (desk.run / "metrics.jsonl").exists()
    write_jsonl(ROWS, desk.folder / "rows.jsonl")
    assert _train("--overwrite") is None and not (desk.run / "metrics.jsonl").exists()


# ---- models and disks


SHAPE = Shape(parameters=1000, hidden=10, vocabulary=100, kv_bytes_per_token=80)


@pytest.mark.parametrize(
    ("flags", "checkpoints", "model"),
    [
        ([], (14_000, 14_000), 2000),  # the last step's alone
        (["--ckpt.save_steps", "2"], (14_000, 4 * 14_000), 2000),  # three, and one more until an older one goes
        (["--ckpt.save_steps", "2", "--ckpt.max_num", "1"], (14_000, 2 * 14_000), 2000),
        (["--ckpt.save_steps", "2", "--oger.total_training_steps", "3"], (14_000, 2 * 14_000), 2000),
        (["--ckpt.save_steps", "2", "--ckpt.save_hf"], (16_000, 4 * 16_000), 2000),
        (["--ckpt.save_steps", "2", "--ckpt.disable_ds", "--ckpt.save_hf"], (0, 4 * 2000), 2000),
        (["--ckpt.save_steps", "2", "--ckpt.disable_ds"], None, 2000),
        (["--eval.dataset", "x", "--eval.steps", "2"], (14_000, 3 * 14_000), 2000),  # the best one, and a newer best
        (["--eval.dataset", "x", "--eval.steps", "2", "--ckpt.best_metric_key", "none"], (14_000, 14_000), 2000),
        (["--oger.total_training_steps", "0"], None, 2000),
        (["--algo.advantage.estimator", "gae"], (28_000, 28_000), 2000),
        (["--oger.grader", "average"], (18_000, 18_000), 2000),
        (["--oger.grader", "initial"], (14_000, 14_000), 2000),
    ],
)
def test_what_is_written_follows_from_what_the_recipe_keeps(
    parser: Any, flags: list[str], checkpoints: tuple[float, float] | None, model: float
) -> None:
    value = vars(parser.parse_args(["--ckpt.path", "c", "--ckpt.output_dir", "m", "--oger.run_dir", "r", *flags]))
    value["rollout.batch_size"] = 0  # without samples
    found = written(value, SHAPE, SHAPE)
    assert found.pop(Path("m")) == Written(model, model)
    assert found == ({Path("c"): Written(*checkpoints)} if checkpoints else {})


def test_what_a_source_learns_is_part_of_every_checkpoint(parser: Any, policy_folder: Path) -> None:
    """12 bytes for each parameter of its model; none where it does not learn, or nobody knows its shape."""
    value = vars(parser.parse_args(["--ckpt.path", "c", "--ckpt.output_dir", "m", "--oger.run_dir", "r"]))
    value |= {"actor.model_name_or_path": str(policy_folder), "rollout.batch_size": 0}
    parameters = model_files.parameters(policy_folder)
    assert parameters is not None
    of_policy = 14 * parameters
    entry = {"name": "prime", "kind": "process", "scorer": "implicit", "model": str(policy_folder)}
    stays, learns = entry | {"reference": "r"}, entry | {"learning_rate": 1e-6}
    for sources, more in (
        ((stays,), 0),
        ((learns,), 12 * parameters),
        ((learns, stays | {"name": "b"}, learns | {"name": "c"}), 24 * parameters),
        ((learns | {"model": "me/unknown"},), 0),
    ):
        value["oger.reward.sources"] = sources
        assert disk.sizes(value) == {"checkpoint": of_policy + more, "model": 2 * parameters}
        assert written(value, shape_of(str(policy_folder)))[Path("c")] == Written(of_policy + more, of_policy + more)
        assert disk.checkpoint_bytes(value | {"ckpt.disable_ds": True}, SHAPE) == more


@pytest.mark.parametrize(
    ("flags", "steps", "saves", "kept"),
    [
        (["--ckpt.save_steps", "50", "--ckpt.max_num", "1000000"], 2000, 40, 40),
        (["--ckpt.save_steps", "50", "--ckpt.max_num", "3"], 2000, 40, 4),  # and the newest, until an older one goes
        (["--ckpt.save_steps", "50", "--ckpt.max_num", "1000000"], 2001, 41, 41),  # and the last step
        (["--ckpt.save_steps", "50", "--ckpt.max_num", "1000000"], None, math.inf, 1_000_001),
        (["--ckpt.save_steps", "50", "--oger.total_training_steps", "10"], None, 1, 1),
        ([], 2000, 1, 1),
    ],
)
def test_planned_checkpoints_are_counted(
    parser: Any, flags: list[str], steps: int | None, saves: float, kept: float
) -> None:
    value = vars(parser.parse_args(flags))
    assert (disk.saves(value, steps), disk.kept(value, SHAPE, steps=steps)) == (saves, kept)


def test_samples_take_room_by_the_steps_that_write_them(parser: Any) -> None:
    """Four bytes a token: 2 x 4 rollouts of up to 50 tokens."""
    flags = ["--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "50"]
    value = vars(parser.parse_args([*flags, "--oger.run_dir", "r", "--ckpt.path", "c", "--ckpt.output_dir", "m"]))
    assert disk.samples(value, 25) == 4 * 8 * 50 * 25
    some = value | {"oger.samples_steps": 10}
    assert disk.samples(some, 25) == 4 * 8 * 50 * 3  # of steps 1, 10 and 20
    assert written(some, SHAPE, steps=25)[Path("r")] == Written(0, 4 * 8 * 50 * 3)
    assert disk.samples(value) == 0


def test_the_plan_says_what_the_disk_has_to_hold(
    desk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = model_files.parameters(desk.policy)
    assert parameters is not None
    flags = ("--dry-run", "--ckpt.save_steps", "1", "--ckpt.max_num", "1000000", "--train.num_episodes", "3")
    assert _train(*flags) is None
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("disk, at most:")
    (steps,) = (int(line.split()[1]) for line in lines if line.startswith("steps: "))
    one = readable(14.0 * parameters)
    assert lines[first + 1].startswith(f"  {steps} checkpoints of {one} ") and steps > 1
    assert "does not fit" not in "".join(lines[first:])
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=17 * parameters))
    assert _train(*flags) is None  # with room for the model and one of them
    assert "; it does not fit: lower ckpt.max_num" in capsys.readouterr().out


@pytest.mark.parametrize(("free", "ends"), [(15, "refused"), (17, "warned"), (60, "fine")])
def test_a_disk_without_room_for_what_is_surely_written_is_refused(
    desk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free: int, ends: str
) -> None:
    """``free`` bytes for each parameter; 16 are for the model and one checkpoint, 58 with four of these."""
    parameters = model_files.parameters(desk.policy)
    assert parameters is not None
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=free * parameters))
    stop = _train("--dry-run", "--ckpt.save_steps", "1")
    said = capsys.readouterr().out
    refused = f"the final model with the checkpoint of the last step takes {readable(16.0 * parameters)}"
    assert (stop is not None and refused in str(stop.code)) == (ends == "refused")
    assert ("models and checkpoints may take" in said) == (ends == "warned")


def test_parameters_are_counted_by_the_heads_of_the_files(desk: SimpleNamespace) -> None:
    from transformers import AutoModelForCausalLM

    assert model_files.parameters(desk.policy) == AutoModelForCausalLM.from_pretrained(desk.policy).num_parameters()
    assert model_files.fault(desk.policy, language_model=True) is None


def test_policy_and_judges_of_the_task_are_not_trained_by_a_dry_run(
    desk: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    prm = [{"name": "rule", "kind": "verifier"},
           {"name": "p", "kind": "process", "model": "countdown-prm", "format": "math_shepherd"}]  # fmt: skip
    (desk.folder / "task.yaml").write_text(yaml.safe_dump({
        "oger": {"task": {"name": "countdown", "cache": "tasks", "train_problems": 8, "eval_problems": 4},
                 "reward": {"sources": prm}},
        "rollout": {"batch_size": 2, "n_samples_per_prompt": 4, "max_new_tokens": 64, "micro_batch_size": 1},
        "data": {"max_len": 256}, "train": {"batch_size": 8, "micro_batch_size": 1},
    }))  # fmt: skip
    train.main(["--recipe", "task.yaml", "--dry-run"])
    said = capsys.readouterr().out
    assert "data: 8 rows with " in said and "countdown-prm: the run trains it first" in said
    assert "the run builds the task's policy and tokenizer first" in said
    assert all(path.name.startswith("countdown-data-") for path in (desk.folder / "tasks").iterdir())


def _everything(folder: Path) -> dict[str, tuple[int, int]]:
    files = (path for path in folder.rglob("*") if {"cache", "tasks"}.isdisjoint(path.relative_to(folder).parts))
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}
