"""What commands share that start no run and grade as one: their parser, and the settings of a run."""

from __future__ import annotations

import argparse
import difflib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from oger_recipe.base import remote_code
from oger_recipe.base.cpu import is_without_cuda
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import NEGATIVE


class CommandParser(argparse.ArgumentParser):
    """A parser that raises RecipeError in place of argparse's usage and exit, and reads every negative number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = NEGATIVE

    def error(self, message: str) -> NoReturn:
        raise RecipeError(f"{message} ({self.prog} --help shows all options)")


def require_writable(flag: str, path: Path) -> None:
    """Raise RecipeError where no file could be written at the end of the work; make missing folders."""
    if path.is_dir():
        raise RecipeError(f"{flag} {path} is a folder: name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise RecipeError(f"{flag} {path} cannot be written: {error.strerror}") from None


def settings_of_run(recipe: Path | None, flags: Sequence[str], command: argparse.ArgumentParser) -> Mapping[str, Any]:
    """Read the defaults, over them the recipe's settings, over these the flags. From then on the user's verifiers are
    found, and models' own code may run as the settings say.

    flags: what ``command`` does not know itself. Raises RecipeError for flags that a run has not either, and for
    settings by which no answer can be graded.
    """
    from oger_recipe.cli.train_ppo_ray import build_parser, settings_of
    from oger_recipe.settings.grading import grading_problems
    from oger_recipe.settings.shipped import find_recipe

    for name in (flag.partition("=")[0] for flag in flags):
        if name.startswith("--") and "." not in name:  # all flags of a run have a dot
            near = difflib.get_close_matches(name, command._option_string_actions, n=1)
            meant = f"; did you mean '{near[0]}'?" if near else ""
            raise RecipeError(f"unknown flag '{name}'{meant} ({command.prog} --help shows all)")
    parser = build_parser(cpu=is_without_cuda())
    settings = settings_of(parser, flags, find_recipe(recipe) if recipe else None)
    remote_code.allow(settings)
    if problems := list(grading_problems(settings)):
        raise RecipeError("\n  - ".join(["answers cannot be graded by these settings:", *problems]))
    return settings
