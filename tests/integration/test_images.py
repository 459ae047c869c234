"""The Dockerfiles, as far as that can be told without building them: what they start from, copy, run and leave out."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = sorted((ROOT / "docker").glob("*.Dockerfile"))
SETUP = (ROOT / "scripts" / "setup.sh").read_text()


def instructions(image: Path) -> list[tuple[str, str]]:
    """Each with its arguments, on one line."""
    lines = [line for line in image.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line]


def of(image: Path, name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions(image) if instruction == name]


def ignored(path: str) -> bool:
    """Whether .dockerignore leaves it out: every pattern there is a name, at any depth."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"\*\*/[^/!]+", pattern) for pattern in patterns)
    return any(fnmatch(part, pattern.removeprefix("**/")) for part in path.split("/") for pattern in patterns)


def test_there_is_an_image_for_each_build() -> None:
    assert [image.name for image in IMAGES] == ["cpu.Dockerfile", "cuda.Dockerfile"]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_an_image_is_made_by_the_setup_script_with_options_that_it_has(image: Path) -> None:
    (run,) = [run for run in of(image, "RUN") if "setup.sh" in run]
    options = re.fullmatch(r".* bash scripts/setup\.sh (--[a-z-]+)", run)
    assert options and options[1] == {"cpu": "--cpu", "cuda": "--gpu"}[image.stem]
    known = [option for line in re.findall(r"^ +(--[^)\n]*)\)", SETUP, re.MULTILINE) for option in line.split(" | ")]
    assert options[1] in known
    assert not any("pip install" in run for run in of(image, "RUN"))


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_an_image_is_installed_and_run_by_a_user_without_rights_in_a_folder_that_is_his(image: Path) -> None:
    names = [name for name, _ in instructions(image)]
    prepared, installed = (place for place, name in enumerate(names) if name == "RUN")
    assert of(image, "USER") == ["1000:1000"] and prepared < names.index("USER") < installed
    assert "--uid 1000" in of(image, "RUN")[0]
    (folder,) = of(image, "WORKDIR")
    assert of(image, "RUN")[0].endswith(f"--owner oger --group oger {folder}")
    assert of(image, "COPY") == ["--chown=oger:oger . ."]
    assert of(image, "ENV") == [f'PATH="{folder}/.venv/bin:$PATH"'] and of(image, "ENTRYPOINT") == ['["oger"]']


def test_python_and_cuda_are_those_of_the_locks() -> None:
    for image in IMAGES:
        assert re.search(r"python:?3\.11[- ]", image.read_text())
    assert "sys.version_info[:2] == (3, 11)" in SETUP
    (base,) = of(ROOT / "docker" / "cuda.Dockerfile", "FROM")
    lock = (ROOT / "requirements-gpu.lock").read_text()
    (compiler,) = re.findall(r"^nvidia-cuda-nvcc={2,3}(\d+\.\d+)\.", lock, re.MULTILINE)
    assert re.match(rf"nvidia/cuda:{re.escape(compiler)}\.\d+-devel-", base)


def test_an_image_has_what_is_installed_and_nothing_that_runs_leave_behind() -> None:
    names = ["scripts", "oger_recipe", "patches", "configs", "docs", "requirements.lock", "requirements-gpu.lock"]
    for name in [*names, "setup.cfg", "pyproject.toml", "README.md", "LICENSE"]:
        assert (ROOT / name).exists() and not ignored(name)
        within = [path.relative_to(ROOT) for path in (ROOT / name).rglob("*") if "__pycache__" not in path.parts]
        assert [path for path in within if ignored(str(path))] == []
    assert ignored(".git/config") and ignored("runs/oger/model/model.safetensors")
    for pattern in (ROOT / ".gitignore").read_text().splitlines():
        if pattern and pattern[0] != "#":
            assert ignored("folder/" + pattern.replace("*", "x").replace("[cod]", "c").rstrip("/")), pattern
