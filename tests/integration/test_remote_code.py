"""Code that lies in a model's folder: it writes a file when it is imported, so that nobody has to guess."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import Forks

from oger_recipe.base import remote_code
from oger_recipe.base.remote_code import Named, environment, may_run, untrusted
from oger_recipe.checks.settings import models_of_run
from oger_recipe.cli.train_ppo_ray import build_parser
from oger_recipe.settings.flags import defaults

CODE = """
import pathlib
from transformers import PreTrainedTokenizerFast

pathlib.Path({marker!r}).write_text("imported")


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
Oger = Callable[..., str]
ROW = '{"prompt": "2 + 2 =", "answer": "4", "task": "math"}\n'


def _refusals(model: Path | str, *, is_ours: bool = False, hub: bool = True) -> Iterator[str]:
    return remote_code.refusals(Named("actor", str(model), is_ours=is_ours), hub=hub)


def _settings(**given: Any) -> dict[str, Any]:
    return {**defaults(build_parser(cpu=True)), "oger.bonus_weight": 0.5, **given}


@pytest.fixture()
def marker(tmp_path: Path) -> Path:
    return tmp_path / "the code was run"


@pytest.fixture()
def model(policy_folder: Path, tmp_path: Path, marker: Path) -> Path:
    """A working model whose tokenizer is a class in its own folder."""
    folder = tmp_path / "model"
    shutil.copytree(policy_folder, folder)
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "rows.jsonl").write_text(ROW)
    return folder


@pytest.fixture()
def oger(forks: Forks, tmp_path: Path) -> Oger:
    """What the command prints; it has to stop with a message, if nothing else is asked."""

    def run(command: str, *flags: str, status: int = 1) -> str:
        done = forks.run("-m", f"oger_recipe.cli.{command}", *flags, cwd=tmp_path)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return run


def test_a_run_refuses_a_model_with_code_before_anything_is_loaded(model: Path, marker: Path, oger: Oger) -> None:
    (model.parent / "recipe.yaml").write_text(
        "actor: {model_name_or_path: model}\ndata: {prompt_dataset: rows.jsonl}\n"
        "oger: {bonus_weight: 0, max_replace_num: 0}\n"
    )
    message = oger("train", "--recipe", "recipe.yaml")
    assert "actor.model_name_or_path: model brings code of its own, which its tokenizer_config.json names" in message
    assert "own.OwnTokenizer" in message and "set oger.trust_remote_code" in message
    assert not marker.exists() and not (model.parent / "runs").exists()
    assert "1 prompts do not fill one step" in oger(
        "train", "--recipe", "recipe.yaml", "--oger.trust_remote_code"
    )  # the tokenizer works
    assert marker.exists()


def test_an_evaluation_refuses_a_model_with_code(model: Path, marker: Path, oger: Oger) -> None:
    message = oger("eval", "model", "--benchmark", "mine=rows.jsonl")
    assert message.startswith("oger eval: model: model brings code of its own") and "oger.trust_remote_code" in message
    assert not marker.exists()


def test_scoring_refuses_a_model_with_code_and_obeys_the_same_switch(model: Path, marker: Path, oger: Oger) -> None:
    """Responses are cut into steps, for which the policy's tokenizer is needed."""
    (model.parent / "recipe.yaml").write_text(
        "actor: {model_name_or_path: model}\ndata: {prompt_dataset: rows.jsonl}\n"
        "oger: {bonus_weight: 0, max_replace_num: 0, steps: {delimiters: [x]}}\n"
        "algo: {advantage: {estimator: process_rloo}}\n"
    )
    (model.parent / "rows.jsonl").write_text('{"uid": "a", "prompt": "2 + 2 =", "answer": "4", "task": "math"}\n')
    (model.parent / "responses.jsonl").write_text('{"uid": "a", "text": "4"}\n')
    words = ("--recipe", "recipe.yaml", "--responses", "responses.jsonl", "--out", "out.jsonl")
    message = oger("score", *words)
    assert message.startswith("oger score: actor.model_name_or_path: model brings code of its own"), message
    assert not marker.exists()
    oger("score", *words, "--oger.trust_remote_code", status=0)
    assert marker.exists()


def test_a_judge_and_a_prm_that_bring_code_are_refused_where_they_are_evaluated(
    model: Path, marker: Path, oger: Oger
) -> None:
    (model.parent / "labels.jsonl").write_text('{"question": "2 + 2?", "text": "4", "label": 1}\n')
    judge = "{kind: classifier, place: in_process, model: model}"
    message = oger("judge_eval", "--judge", judge, "--labels", "labels.jsonl")
    assert "\noger judge-eval: oger.reward.sources, judge: model brings code of its own" in message
    (model.parent / "steps.jsonl").write_text('{"prompt": "2 + 2?", "completions": ["4"], "labels": [true]}\n')
    prm = "{format: math_shepherd, place: in_process, model: model}"
    message = oger("prm", "eval", "--prm", prm, "--data", "steps.jsonl")
    assert "\noger prm eval: oger.reward.sources, prm: model brings code of its own" in message
    assert not marker.exists()


def test_the_refusal_names_the_file_whatever_its_form(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": ["slow.Slow", null]}')
    assert "tokenizer_config.json names (auto_map: slow.Slow), and it is" in next(_refusals(tmp_path))
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "a.B"}}')
    (sentence,) = _refusals(tmp_path)  # one file is enough
    assert "its config.json names (auto_map: a.B)" in sentence
    for harmless in ("{}", '{"auto_map": {}}', "[]", "not JSON"):
        (tmp_path / "config.json").write_text(harmless)
        (tmp_path / "tokenizer_config.json").write_text(harmless)
        assert list(_refusals(tmp_path)) == []
    (tmp_path / "custom_generate").mkdir()
    (tmp_path / "custom_generate" / "generate.py").touch()  # which from_pretrained imports, unnamed
    assert "code of its own, custom_generate/generate.py, and" in next(_refusals(tmp_path))
    assert list(_refusals("org/model", hub=False)) == []  # nothing is fetched


QWENS = {"auto_map": {"AutoModel": "modeling_qwen2_rm.Model"}, "architectures": ["Qwen2ForProcessRewardModel"]}


def test_qwens_process_reward_model_needs_no_leave_where_our_own_class_loads_it(tmp_path: Path) -> None:
    """Code beside it, of its tokenizer say, is refused as ever, and so is a file that only says that it is one."""
    (tmp_path / "config.json").write_text(json.dumps(QWENS))
    assert list(_refusals(tmp_path, is_ours=True)) == []
    assert "modeling_qwen2_rm.Model" in next(_refusals(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(QWENS | {"architectures": ["Qwen2ForEnsemblePRM"]}))
    assert "modeling_qwen2_rm.Model" in next(_refusals(tmp_path, is_ours=True))
    (tmp_path / "config.json").write_text(json.dumps(QWENS))
    tokenizer = {"auto_map": {"AutoTokenizer": [None, "own.Tokens"]}}
    for more in ({}, {"architectures": QWENS["architectures"]}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer | more))
        assert "own.Tokens" in next(_refusals(tmp_path, is_ours=True))


PRM = {"name": "prm", "kind": "process", "format": "qwen_prm"}
ROLES = {
    "actor.model_name_or_path": lambda model: {"actor.model_name_or_path": model},
    "critic.model_name_or_path": lambda model: {"critic.model_name_or_path": model},
    "reward.model_name_or_path": lambda model: {"reward.model_name_or_path": model},
    "oger.embedding_model": lambda model: {"oger.embedding_model": model},
    "oger.similarity_reranker": lambda model: {"oger.similarity_reranker": model},
    "oger.reward.sources, head": lambda model: _sources({"name": "head", "kind": "classifier", "model": model}),
    "oger.reward.sources, judge": lambda model: _sources(
        {"name": "judge", "kind": "judge", "model": model, "plugin": "binary"}
    ),
    "oger.reward.sources, tags": lambda model: _sources(
        {"name": "tags", "kind": "process", "format": "math_shepherd", "model": model}
    ),
    "oger.reward.sources, prm": lambda model: _sources(PRM | {"model": "org/prm", "tokenizer": model}),
}


def _sources(entry: dict[str, Any]) -> dict[str, Any]:
    return {"oger.reward.sources": ({"name": "rule", "kind": "verifier"}, entry)}


@pytest.mark.parametrize("key", ROLES)
def test_who_says_to_be_qwens_process_reward_model_is_refused_in_every_other_place(key: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWENS))
    value = _settings(**ROLES[key](str(tmp_path)))
    (said,) = untrusted(value, models_of_run(value), hub=False)
    assert said.startswith(f"{key}: {tmp_path} brings code of its own, which its config.json names")
    switch = "oger.embedding_trust_remote_code" if key in list(ROLES)[3:5] else "oger.trust_remote_code"
    assert f"then set {switch}; or" in said
    assert list(untrusted(value | {switch: True}, models_of_run(value), hub=False)) == []
    (other,) = {"oger.embedding_trust_remote_code", "oger.trust_remote_code"} - {switch}
    assert list(untrusted(value | {other: True}, models_of_run(value), hub=False)) == [said]


@pytest.mark.parametrize("place", ["in_process", "engine"])
def test_as_a_source_of_kind_process_it_is_loaded_by_our_class(place: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWENS))
    value = _settings(**_sources(PRM | {"model": str(tmp_path), "place": place}))
    assert list(untrusted(value, models_of_run(value), hub=False)) == []


def test_the_encoders_switch_opens_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = _settings()
    for own, encoders, said in ((False, False, "0"), (False, True, "0"), (True, False, "1"), (True, True, "1")):
        value = closed | {"oger.trust_remote_code": own, "oger.embedding_trust_remote_code": encoders}
        assert environment(value) == {"OGER_TRUST_REMOTE_CODE": said}
        monkeypatch.setenv("OGER_TRUST_REMOTE_CODE", "1")  # somebody else's
        remote_code.allow(value)
        assert may_run() is own


OF_A_RUN = """
import sys
from oger_recipe.patches import apply_import_patches
apply_import_patches()
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from transformers import AutoTokenizer
from oger_recipe.embedding import encoder, reranker
from oger_recipe.embedding.settings import EncoderSettings

def outcome(act):
    try:
        act()
    except (ValueError, OSError) as error:
        return type(error).__name__
    return "loaded"

def policys():  # as OpenRLHF loads it
    return AutoTokenizer.from_pretrained("model", trust_remote_code=True)

def encoders(trusted):
    return encoder.TrajectoryEncoder(EncoderSettings("model", None, 16, "head", trust_remote_code=trusted), 2)

seen = [outcome(policys), outcome(lambda: encoders(False)), Path("the code was run").exists()]
import sentence_transformers
original = sentence_transformers.SentenceTransformer
def while_loading(*args, **kwargs):
    with ThreadPoolExecutor(1) as thread:
        seen.append(thread.submit(outcome, policys).result())
    return original(*args, **kwargs)
sentence_transformers.SentenceTransformer = while_loading
seen += [outcome(lambda: encoders(True)), Path("the code was run").exists(), outcome(policys)]
print(seen)
"""


def test_a_trusted_encoder_is_all_that_may_bring_code_in_its_process(model: Path, marker: Path, forks: Forks) -> None:
    """The controller has the policy's tokenizer as well; a thread of it does not get the encoder's leave."""
    done = forks.run("-c", OF_A_RUN, cwd=model.parent, env=os.environ | {"OGER_TRUST_REMOTE_CODE": "0"})
    assert done.returncode == 0, done.stderr
    closed = ["ValueError", "loaded", False]  # by a class of transformers, in the second case
    assert done.stdout.splitlines()[-1] == str([*closed, "ValueError", "loaded", True, "ValueError"])


def test_a_model_of_the_hub_is_refused_by_its_configuration(tmp_path: Path, forks: Forks) -> None:
    """As its configuration lies in the Hub's cache once it is fetched; the file of the code itself is not there."""
    folder = tmp_path / "models--org--model"
    snapshot = folder / "snapshots" / "0123456789abcdef"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(snapshot.name)
    program = (
        "from oger_recipe.base.remote_code import policy_models, untrusted\n"
        "value = {'oger.trust_remote_code': False, 'actor.model_name_or_path': 'org/model',\n"
        "         'critic.model_name_or_path': None, 'reward.model_name_or_path': 'other/model'}\n"
        "trusted = value | {'oger.trust_remote_code': True}\n"
        "print(*(list(untrusted(each, policy_models(each), hub=True)) for each in (value, trusted)))"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    for text, said in (
        ('{"auto_map": {"AutoModelForCausalLM": "own.Own"}}', "['actor.model_name_or_path: org/model brings code of "),
        ('{"model_type": "llama"}', "[] []"),  # and what is not in reach is not refused
    ):
        (snapshot / "config.json").write_text(text)
        done = forks.run("-c", program, env=environment)
        assert done.returncode == 0 and done.stdout.startswith(said) and done.stdout.endswith(" []\n"), done.stderr
