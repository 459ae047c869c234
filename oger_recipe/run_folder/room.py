"""Stops a run before a write for which its disk has no room."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import nearest_existing
from oger_recipe.run_folder import checkpoints

ENVIRONMENT = "OGER_SIZES"  # estimates in bytes, by the policy's shape: of a "checkpoint", and of the "model"
_SPARE = 16 * 2**20  # bytes, for records and logs


def check_checkpoint(folder: Path, step: int) -> None:
    """Raise RecipeError where a checkpoint as large as the newest whole one there, or else the estimate, cannot go."""
    before = checkpoints.newest_whole(checkpoints.found(folder))
    size = before.size if before else _estimated("checkpoint")
    _check(folder, size, f"the checkpoint of step {step}", "lower ckpt.max_num, or remove checkpoints")


def check_model(folder: Path) -> None:
    """Raise RecipeError where the final model cannot go."""
    _check(folder, _estimated("model"), "the final model", "set ckpt.output_dir elsewhere")


def _check(folder: Path, size: float, what: str, advice: str) -> None:
    free = shutil.disk_usage(nearest_existing(folder)).free
    if free < size + _SPARE:
        raise RecipeError(
            f"no room for {what}: it takes {_gib(size)}, and the disk of {folder} has {_gib(free)} left; nothing of "
            f"it was written, and earlier checkpoints are kept. Make room ({advice}), and resume"
        )


def _estimated(what: str) -> float:
    sizes: dict[str, Any] = json.loads(os.environ.get(ENVIRONMENT, "{}"))
    return float(sizes.get(what, 0))


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"
