"""A run that is to start, made of the command line once and read by everything before Ray; and what checks find."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from oger_recipe.run_folder.attempt import is_free
from oger_recipe.settings.derived import in_folder, in_prompts

OK, WARNING, PROBLEM = "ok", "warning", "problem"


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


@dataclass(frozen=True)
class Finding:
    """state: OK, WARNING or PROBLEM; text: what was found and, unless ok, what to do; what: the name of the check."""

    state: str
    text: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.state:8} {self.what:18} {self.text}"


Found = Iterator[Finding]
