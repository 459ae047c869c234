"""What a run's recipe changes from the defaults, and where the recipes of several runs differ."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oger_recipe.report.run_state import Settings
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.parser import build_parser

Record = dict[str, Any]

# Every run has other values of these, and they say nothing about what was trained.
_OF_THE_PLACE = {"logger.wandb.run_name", "oger.run_dir", "oger.verifier_path", "reward.remote_url"}


def changed(settings: Settings) -> list[Record]:
    """List the settings that differ from the defaults of a machine with GPUs and of one without, in their order."""
    known = _defaults()
    return [
        {"key": key, "value": value, "default": known[0].get(key)}
        for key, value in settings.items()
        if not _says_nothing(key, value, settings) and all(value != each.get(key) for each in known)
    ]


def differences(recipes: Sequence[Settings]) -> list[Record]:
    """List the settings in which the recipes differ, with the value of each; null where a recipe has none."""
    keys = dict.fromkeys(key for settings in recipes for key in settings)
    return [
        {"key": key, "values": [settings.get(key) for settings in recipes]}
        for key in keys
        if any(settings.get(key) != recipes[0].get(key) for settings in recipes)
        and not all(_says_nothing(key, settings.get(key), settings) for settings in recipes)
    ]


def _says_nothing(key: str, value: Any, settings: Settings) -> bool:
    """Say whether the value only names a place in the run's own folder, or depends on where and when the run began."""
    folder = settings.get("oger.run_dir")
    in_folder = isinstance(value, str) and isinstance(folder, str) and Path(folder) in Path(value).parents
    return key in _OF_THE_PLACE or in_folder


@functools.cache
def _defaults() -> tuple[Settings, Settings]:
    """Return the defaults with GPUs and without, as YAML reads them."""
    both = (defaults(build_parser(cpu=cpu)) for cpu in (False, True))
    gpu, cpu = (
        {key: list(value) if isinstance(value, tuple) else value for key, value in each.items()} for each in both
    )
    return gpu, cpu
