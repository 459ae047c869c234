"""Code that lies in a model's folder: it writes a file when it is imported, so that nobody has to guess."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oger_recipe.remote_code import refusals

CODE = """
import pathlib
from transformers import PreTrainedTokenizerFast

pathlib.Path({marker!r}).write_text("imported")


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
ROW = '{"prompt": "2 + 2 =", "answer": "4", "task": "math"}\n'


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


def _oger(command: str, *flags: str, folder: Path) -> str:
    """What the command prints; it has to stop with a message."""
    environment = os.environ | {"HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1"}
    line = [sys.executable, "-m", f"oger_recipe.cli.{command}", *flags]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def _train(folder: Path, *flags: str) -> str:
    (folder / "recipe.yaml").write_text(
        "actor: {model_name_or_path: model}\ndata: {prompt_dataset: rows.jsonl}\n"
        "oger: {bonus_weight: 0, max_replace_num: 0}\n"
    )
    return _oger("train", "--recipe", "recipe.yaml", *flags, folder=folder)


def test_a_run_refuses_a_model_with_code_before_anything_is_loaded(model: Path, marker: Path) -> None:
    message = _train(model.parent)
    assert "actor.model_name_or_path: model brings code of its own, which its tokenizer_config.json names" in message
    assert "own.OwnTokenizer" in message and "set oger.trust_remote_code" in message
    assert not marker.exists() and not (model.parent / "runs").exists()
    assert "1 prompts do not fill one step" in _train(model.parent, "--oger.trust_remote_code")  # the tokenizer works
    assert marker.exists()


def test_an_evaluation_refuses_a_model_with_code(model: Path, marker: Path) -> None:
    message = _oger("eval", "model", "--benchmark", "mine=rows.jsonl", folder=model.parent)
    assert message.startswith("oger eval: model: model brings code of its own") and "oger.trust_remote_code" in message
    assert not marker.exists()


def test_the_refusal_names_the_file_whatever_its_form(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": ["slow.Slow", null]}')
    assert "tokenizer_config.json names (auto_map: slow.Slow), and it is" in next(refusals(str(tmp_path), "actor"))
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "a.B"}}')
    (sentence,) = refusals(str(tmp_path), "actor")  # one file is enough
    assert "its config.json names (auto_map: a.B)" in sentence
    for harmless in ("{}", '{"auto_map": {}}', "[]", "not JSON"):
        (tmp_path / "config.json").write_text(harmless)
        (tmp_path / "tokenizer_config.json").write_text(harmless)
        assert list(refusals(str(tmp_path), "actor")) == []
    (tmp_path / "custom_generate").mkdir()
    (tmp_path / "custom_generate" / "generate.py").touch()  # which from_pretrained imports, unnamed
    assert "code of its own, custom_generate/generate.py, and" in next(refusals(str(tmp_path), "actor"))
    assert list(refusals("org/model", "actor", hub=False)) == []  # nothing is fetched


def test_qwens_process_reward_model_is_known_and_its_code_is_not_asked_for(tmp_path: Path) -> None:
    """Nobody runs it. Code beside it, of its tokenizer say, is refused as ever."""
    config = {"auto_map": {"AutoModel": "modeling_qwen2_rm.Model"}, "architectures": ["Qwen2ForProcessRewardModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert list(refusals(str(tmp_path), "prm", hub=False)) == []
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen2ForEnsemblePRM"]}))
    assert "modeling_qwen2_rm.Model" in next(refusals(str(tmp_path), "prm", hub=False))
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": [None, "own.Tokens"]}}))
    assert "own.Tokens" in next(refusals(str(tmp_path), "prm", hub=False))


def test_a_model_of_the_hub_is_refused_by_its_configuration(tmp_path: Path) -> None:
    """As its configuration lies in the Hub's cache once it is fetched; the file of the code itself is not there."""
    folder = tmp_path / "models--org--model"
    snapshot = folder / "snapshots" / "0123456789abcdef"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(snapshot.name)
    program = (
        "from oger_recipe.remote_code import untrusted\n"
        "value = {'oger.trust_remote_code': False, 'actor.model_name_or_path': 'org/model',\n"
        "         'critic.model_name_or_path': None, 'reward.model_name_or_path': 'other/model'}\n"
        "trusted = value | {'oger.trust_remote_code': True}\n"
        "print(list(untrusted(value, [], hub=True)), list(untrusted(trusted, [], hub=True)))"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    for text, said in (
        ('{"auto_map": {"AutoModelForCausalLM": "own.Own"}}', "['actor.model_name_or_path: org/model brings code of "),
        ('{"model_type": "llama"}', "[] []"),  # and what is not in reach is not refused
    ):
        (snapshot / "config.json").write_text(text)
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith(said) and done.stdout.endswith(" []\n"), done.stderr
