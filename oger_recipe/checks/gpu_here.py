"""The device that `oger doctor --gpu` looks at, and how a check of it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oger_recipe.base.cpu import main_memory
from oger_recipe.checks.job import PROBLEM, Job
from oger_recipe.checks.memory import GIB
from oger_recipe.checks.preflight import findings

Numbers = dict[str, float | str]


class Failed(Exception):
    """A failed check: a sentence, and the numbers that it is about."""

    def __init__(self, sentence: str, numbers: Numbers) -> None:
        super().__init__(sentence)
        self.numbers = numbers


class Skipped(Exception):
    """The reason for leaving a check out."""


@dataclass(frozen=True, eq=False)
class Here:
    """device: cuda or cpu; folder: for what the checks write; settings: a run's by flag, where nothing is set;
    smollm2: a folder or a name on the hub."""

    device: str
    folder: Path
    settings: Mapping[str, Any]
    smollm2: str

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"


def require(holds: bool, sentence: str, numbers: Numbers) -> Numbers:
    if not holds:
        raise Failed(sentence, numbers)
    return numbers


def machine(device: str) -> Numbers:
    """Describe the device for a report."""
    if device == "cpu":
        return {"device": "cpu", "cores": len(os.sched_getaffinity(0)), "GiB": round(main_memory() / GIB, 1)}
    first = torch.cuda.get_device_properties(0)
    driver = "unknown"
    if smi := shutil.which("nvidia-smi"):
        asked = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = (subprocess.run(asked, capture_output=True, text=True).stdout.splitlines() or [driver])[0]
    return {
        "device": first.name,
        "GiB": round(first.total_memory / GIB, 1),
        "devices": torch.cuda.device_count(),
        "capability": f"{first.major}.{first.minor}",
        "driver": driver,
        "cuda": torch.version.cuda or "none",
    }


def packages(here: Here) -> Numbers:
    job = Job(here.settings, here.folder, not here.cuda)
    problems = [f"{each.what}: {each.text}" for each in findings(job, has_recipe=False) if each.state == PROBLEM]
    return require(not problems, "; ".join(problems), machine(here.device))
