"""Starts runs as processes of their own, for the benches that time whole runs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oger_recipe.base.files import read_jsonl

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SIDES = ("plain OpenRLHF", "recipe, no encoder", "recipe")
ROLES = {"PPOTrainer": "controller", "PolicyModelActor": "policy", "RolloutActor": "engine"}  # in process titles
RECIPE = ROOT / "configs" / "countdown_cpu.yaml"


def train_command(folder: Path, settings: dict[str, Any], flags: list[str]) -> list[str]:
    """Returns the command of a training into ``folder``, without evaluation, checkpoints or much learning."""
    settings = {"oger.run_dir": folder, "actor.adam.lr": 1e-12, "ckpt.save_steps": -1} | settings
    values = [token for name, value in settings.items() for token in (f"--{name}", str(value))]
    once = ["--train.num_episodes", "1", "--no-oger.val_before_train", "--no-oger.val_after_train"]
    return ["-m", "oger_recipe.cli.train", "--recipe", str(RECIPE), *once, *values, *flags]


def run(
    command: list[str],
    log: Path,
    environment: dict[str, str] | None = None,
    watch: Callable[[subprocess.Popen], Any] = subprocess.Popen.wait,
) -> Any:
    """Runs python with ``command`` and returns what ``watch`` does; a run that fails ends the bench with its log."""
    paths = [str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | (environment or {})
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, *command], env=environment, stdout=file, stderr=file)
        seen = watch(process)
    if process.returncode:
        sys.exit(f"failed: {' '.join(command)}\n{log.read_text()[-3000:]}")
    return seen


def step_events(folder: Path) -> list[dict[str, Any]]:
    """Reads the event at which training began, then one for each step."""
    return [event for event in read_jsonl(folder / "events.jsonl") if event["event"] in ("training", "step")]


def step_seconds(times: list[float]) -> list[float]:
    """Returns the seconds of the third and later steps: the first two warm the processes up."""
    return [later - before for before, later in zip(times, times[1:], strict=False)][2:]
