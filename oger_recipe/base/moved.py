"""Where modules lie today that users' files may import by an earlier name: the import fails with a sentence."""

from collections.abc import Sequence
from types import ModuleType

_TO_BASE = (
    "errors", "files", "endpoint", "cpu", "hub", "imports", "progress", "ranges", "remote_code", "secrets", "seeds",
)  # fmt: skip
# Module or room -> what it is called today, both below oger_recipe.
MOVED = {
    **{name: f"base.{name}" for name in _TO_BASE},
    "plugin": "pipeline",
    "tasks": "lab",
    "rewards.entries": "rewards.kinds.entries",
    "rewards.models": "models",
    "models.injection": "models.plugins._fence",
    "rewards.verdict": "grading.verdict",
    "rewards.rules": "grading.rules",
    "rewards.samples": "grading.samples",
    "rewards.grading": "grading",
    "steps": "base.cutting",
}


class MovedFinder:
    """Asked last, for modules that nobody found: raises ModuleNotFoundError with the new name of those in MOVED.

    It has no base class: importing importlib.abc would take 15 ms of every process's start.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        package, _, module = name.partition(".")
        if package == "oger_recipe" and module in MOVED:
            raise ModuleNotFoundError(f"{name} has moved: import oger_recipe.{MOVED[module]} instead", name=name)
