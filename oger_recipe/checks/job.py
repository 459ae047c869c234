"""A run that is to start: made of the command line once, and read by everything that comes before Ray."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from oger_recipe.run_folder.attempt import is_free
from oger_recipe.settings.derived import in_folder, in_prompts


@dataclass(frozen=True)
class Job:
    """value: its settings by flag; cpu: this machine has no CUDA; recipe: the file that some of them come from."""

    value: Mapping[str, Any]
    run_dir: Path
    cpu: bool
    recipe: Path | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any], recipe: Path | None, *, cpu: bool, overwrite: bool = False) -> Self:
        """Make the job, with the settings that follow from the user's."""
        run_dir = _run_dir(settings, recipe, overwrite=overwrite)
        return cls(in_folder(in_prompts(settings), run_dir), run_dir, cpu, recipe)

    def having(self, settings: Mapping[str, Any]) -> Self:
        """Return the same run with these settings in place of its own."""
        return replace(self, value={**self.value, **settings})

    @property
    def resumes(self) -> bool:
        return bool(self.value["ckpt.load_enable"])

    @property
    def checkpoints(self) -> Path:
        return Path(self.value["ckpt.path"])


def _run_dir(value: Mapping[str, Any], recipe: Path | None, *, overwrite: bool) -> Path:
    """Return the run's folder. One that nobody named is numbered on past those that hold a run, or others' files."""
    wanted = Path(value["oger.run_dir"] or Path("runs") / (recipe.stem if recipe else "train_ppo_ray")).absolute()
    folder, number = wanted, 1
    while not (value["oger.run_dir"] or value["ckpt.load_enable"] or overwrite or is_free(folder)):
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder
