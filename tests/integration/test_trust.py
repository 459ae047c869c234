"""What is trusted: no key in the checkout's files, no code in files of weights."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm.model_executor.model_loader.weight_utils import pt_weights_iterator

from oger_recipe.checks.job import WARNING, Job
from oger_recipe.checks.models import model_files

ROOT = Path(__file__).parents[2]


def _git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.email=nobody@example.org", "-c", "user.name=nobody")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def _scanned(folder: Path, *words: str) -> tuple[int, str]:
    command = ["bash", str(folder / "scripts" / "secret_scan.sh"), *words]
    environment = os.environ | {"OGER_VENV": sys.prefix}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture()
def checkout(tmp_path: Path) -> Path:
    pytest.importorskip("detect_secrets")
    for name in ("scripts/secret_scan.sh", ".secrets.baseline", "tests/integration/test_serve_judge.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_a_key_in_a_file_is_found_before_it_is_committed_and_afterwards(checkout: Path) -> None:
    key = "".join(f"{number * 7919 % 16:x}" for number in range(40))
    (checkout / "mine.py").write_text(f'key = "{key}"\nAWS = "AKIA{"Q3EGRIT7LK2M5N6P"}"\n')
    for words in (["--changed"], []):
        code, shown = _scanned(checkout, *words)
        assert code != 0 and "mine.py:2" in shown, shown
        assert key not in shown
        _git(checkout, "add", ".")
    _git(checkout, "commit", "--quiet", "-m", "second")
    assert _scanned(checkout, "--changed")[0] != 0
    _git(checkout, "commit", "--quiet", "--allow-empty", "-m", "third")
    assert _scanned(checkout, "--changed")[0] == 0 and _scanned(checkout)[0] != 0


def test_what_the_baseline_knows_is_no_find_wherever_it_moves(checkout: Path) -> None:
    known = checkout / "tests" / "integration" / "test_serve_judge.py"
    known.write_text("\n\n\n" + known.read_text())
    baseline = (checkout / ".secrets.baseline").read_text()
    assert _scanned(checkout) == (0, "")
    assert (checkout / ".secrets.baseline").read_text() == baseline
    (checkout / ".secrets.baseline").write_text(baseline.replace("test_serve_judge.py", "other.py"))
    assert _scanned(checkout)[0] != 0


def test_an_audit_without_its_service_is_skipped_with_a_sentence() -> None:
    environment = os.environ | {"OGER_VENV": sys.prefix, "AUDIT_SERVICE": "http://127.0.0.1:9"}
    command = ["bash", str(ROOT / "scripts" / "audit.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith(
        "audit: skipped, as http://127.0.0.1:9/jinja2/2.10/json does not answer as PyPI does:"
    )


# pip and pip-audit: what the second says of the first lock and of the second, "none", "some" or "unasked".
AUDITOR = """#!/usr/bin/env bash
if [[ "$2" == pip ]]; then [[ -z "$NO_PIP" ]]; exit; fi
read -r says rest <"$SAYS"
echo "$rest" >"$SAYS"
case "$says" in
    none) echo "No known vulnerabilities found" >&2 ;;
    some) echo "Found 1 known vulnerability" >&2; echo "jinja2 2.10 PYSEC-2019-217"; exit 1 ;;
    unasked) echo "ERROR:pip_audit._cli:Connection timed out" >&2; exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ("none none", 0), ("some none", 1), ("unasked none", 2), ("unasked some", 1), ("some unasked", 1),
        ("no pip", 2),
    ],
)  # fmt: skip
def test_an_audit_that_could_not_ask_is_no_find(says: str, code: int, tmp_path: Path) -> None:
    for name in ("scripts/audit.sh", "requirements.lock", "requirements-gpu.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    auditor, known = tmp_path / ".cache" / "audit" / "bin" / "python", tmp_path / "jinja2" / "2.10" / "json"
    for path, text in ((auditor, AUDITOR), (known, '{"vulnerabilities": [1]}'), (tmp_path / "says", says)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    auditor.chmod(0o755)
    environment = os.environ | {"OGER_VENV": sys.prefix, "AUDIT_SERVICE": tmp_path.as_uri()}
    environment |= {"SAYS": str(tmp_path / "says"), "NO_PIP": "yes" if says == "no pip" else ""}
    function = "audited() {" + (ROOT / "scripts" / "test.sh").read_text().split("\naudited() {")[1].split("\n}\n")[0]
    commands = (["scripts/audit.sh"], ["-c", f"set -euo pipefail\n{function}\n}}\naudited"])
    for command in commands:
        (tmp_path / "says").write_text(says)
        done = subprocess.run(["bash", *command], env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert ("jinja2 2.10" in done.stdout) == ("some" in says), done.stderr
        assert done.returncode == (code if command == commands[0] else 0), done.stderr
    assert ("packages with known vulnerabilities" in done.stdout) == (code == 1)
    assert ("not every package could be asked about" in done.stdout) == (code == 2)


def test_a_warning_names_every_model_whose_weights_are_pickle_alone(
    tmp_path: Path, parser: argparse.ArgumentParser, policy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    hubs = tmp_path / "cache" / "models--mine--encoder"
    encoder, reranker, snapshot = tmp_path / "encoder", tmp_path / "reranker", hubs / "snapshots" / "abc"
    for folder in (encoder, reranker, snapshot, hubs / "refs"):
        folder.mkdir(parents=True)
    (hubs / "refs" / "main").write_text("abc")
    for folder in (encoder, reranker, snapshot):
        (folder / "config.json").write_text("{}")

    def warned(*flags: str) -> list[str]:
        settings = vars(parser.parse_args(["--actor.model_name_or_path", str(policy_folder), *flags]))
        found = model_files(Job(settings, tmp_path, cpu=True))
        return [each.text.split(" are pickle")[0] for each in found if each.state == WARNING]

    by = {"oger.embedding_model": str(encoder), "oger.similarity_reranker": str(reranker)}
    hub = ("--oger.embedding_model", "mine/encoder")
    for flag, folder in by.items():
        assert not warned(f"--{flag}", folder)
        (Path(folder) / "pytorch_model.bin").touch()
        assert warned(f"--{flag}", folder) == [f"{flag}: the weights of {folder}"]
    assert not warned(*hub)
    (snapshot / "pytorch_model.bin").touch()
    assert warned(*hub) == ["oger.embedding_model: the weights of mine/encoder"]
    assert not warned(*hub, "--oger.embedding_url", "http://127.0.0.1:9/v1")  # another machine reads them
    (snapshot / "model.safetensors").touch()
    assert not warned(*hub)


class _Code:
    """Makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self):
        return Path.touch, (self.made,)


def test_code_in_pickled_weights_is_run_by_neither_policy_nor_engine(policy_folder: Path, tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "policy"
    shutil.copytree(policy_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = folder / "pytorch_model.bin"
    torch.save({"model.embed_tokens.weight": _Code(made)}, weights)
    with pytest.raises(Exception, match="[Ww]eights.only"):
        AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(Exception, match="[Ww]eights.only"):
        list(pt_weights_iterator([str(weights)], use_tqdm_on_load=False))
    assert not made.exists()
    torch.load(weights, weights_only=False)
    assert made.exists()  # it would have run
