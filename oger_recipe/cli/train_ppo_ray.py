"""``python -m oger_recipe.cli.train_ppo_ray <any OpenRLHF flag> --oger.<flag>``: OpenRLHF's command line with OGER.

Everything that can be checked is checked before anything heavy is imported or started.
"""

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from oger_recipe.base.cpu import is_without_cuda
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.imports import TRAINING, not_installed
from oger_recipe.base.machine import Machine, machine
from oger_recipe.base.secrets import SECRETS, hide_secret, hide_secrets
from oger_recipe.checks.settings import out_of_range
from oger_recipe.convert.foreign import recognised_flags
from oger_recipe.run.supervision import Supervised
from oger_recipe.settings.derived import two_step_sizes, with_verifier_path, without_outdone
from oger_recipe.settings.parser import build_parser
from oger_recipe.settings.recipe_file import read_recipe
from oger_recipe.settings.removed import gone
from oger_recipe.settings.upstream import CPU_DEFAULTS


def settings_of(
    parser: argparse.ArgumentParser, flags: Sequence[str], recipe: Path | None = None, *, train_judges: bool = True
) -> Mapping[str, Any]:
    """Return the settings by flag of a recipe file and the flags over it; move API keys in them to the environment.
    ``train_judges``: train the built-in task's judges that are not trained yet, which takes minutes.

    Raises RecipeError for what is wrong in either, with the nearest known name for an unknown one.
    """
    file = read_recipe(recipe, parser) if recipe else {}
    hidden = {name: hide_secret(name, value) for name, value in file.items()}, hide_secrets(flags)
    if hidden != (file, list(flags)):
        print(
            "note: others can read an API key in a recipe file or on a command line; a run does not record it. Set "
            "WANDB_API_KEY and write logger.wandb.key env; set OGER_REWARD_TOKEN and write ?token=$OGER_REWARD_TOKEN",
            flush=True,
        )
    settings = with_verifier_path(parse(parser, hidden[1], hidden[0]), recipe)
    if not settings["oger.reward.sources"]:
        return settings
    from oger_recipe.run.inputs import with_judges

    return with_judges(settings, train=train_judges)


def parse(
    parser: argparse.ArgumentParser, flags: Sequence[str], settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return ``settings`` with the flags over them. Raises RecipeError with all mistakes that are found."""
    given = {flag.removeprefix("--").partition("=")[0] for flag in flags}
    settings = without_outdone(settings or {}, given)
    try:
        value = _parsed(parser, flags, settings)
        for problem in two_step_sizes(value, given):
            raise RecipeError(problem)
        return value
    except RecipeError:
        if recognised_flags(flags):  # they are all another trainer's
            raise
        mistakes, values = _one_by_one(parser, flags, settings)
        mistakes += out_of_range(values)
        if len(mistakes) < 2:
            raise
        raise RecipeError("\n  - ".join([f"{len(mistakes)} mistakes in the settings:", *mistakes])) from None


def _parsed(parser: argparse.ArgumentParser, flags: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parse all flags. Raises RecipeError for the first mistake."""
    args, rest = parser.parse_known_args(flags, argparse.Namespace(**settings))
    if rest and (advice := recognised_flags(rest)):
        raise RecipeError(f"{_unknown(rest[0], parser)}: {advice}")
    if rest:
        unknown = [flag for flag in rest if flag.startswith("--")]
        raise RecipeError(_unknown(unknown[0], parser) if unknown else _stray(rest[0], flags, parser))
    return vars(args)


def _one_by_one(
    parser: argparse.ArgumentParser, flags: Sequence[str], settings: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Return what is wrong with each flag, and the settings that the others make."""
    mistakes: list[str] = []
    values = _parsed(parser, [], settings)
    starts = [place for place, word in enumerate(flags) if word.startswith("--")]
    for start, end in pairwise(dict.fromkeys([0, *starts, len(flags)])):
        try:
            values = _parsed(parser, flags[start:end], values)
        except RecipeError as mistake:
            mistakes.append(str(mistake))
    return mistakes, values


def _unknown(flag: str, parser: argparse.ArgumentParser) -> str:
    name = flag.partition("=")[0]
    if sentence := gone(name.removeprefix("--").removeprefix("no-")):
        return sentence
    near = difflib.get_close_matches(name, parser._option_string_actions, n=1, cutoff=0.5)
    is_secret = any(secret in near[0] for secret in SECRETS) if near else False  # then its value is not shown
    return f"unknown flag '{name if is_secret else flag}'" + (f"; did you mean '{near[0]}'?" if near else "")


def _stray(word: str, flags: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Say that no flag takes this word; the one before it may be a switch."""
    flag = flags[flags.index(word) - 1] if word in flags[1:] else ""
    off = "--no-" + flag.removeprefix("--")
    if off not in parser._option_string_actions:
        return f"unknown argument '{word}'"
    return f"unknown argument '{word}': {flag} takes no value, and {off} switches it off"


def _help(parser: argparse.ArgumentParser, words: list[str]) -> str:
    from oger_recipe.cli.flag_help import overview, section

    return section(parser, words[0]) if words else overview(parser)


def main(
    argv: list[str] | None = None,
    recipe: Path | None = None,
    *,
    dry_run: bool = False,
    overwrite: bool = False,
    supervisor: Supervised | None = None,
) -> None:
    flags = sys.argv[1:] if argv is None else argv
    try:
        if asked := {"-h", "--help"} & set(flags):
            print(_help(build_parser(cpu=is_without_cuda()), flags[flags.index(asked.pop()) + 1 :]))
            return
        here = machine()
        cpu = here.cpu
        parser = build_parser(cpu=cpu)
        settings = settings_of(parser, flags, recipe, train_judges=not dry_run)
        if not dry_run and (lacking := not_installed(*TRAINING)):
            raise RecipeError(lacking)
        if cpu:
            _print_cpu_defaults(settings, here)
        from oger_recipe.checks.job import Job
        from oger_recipe.run.training import train

        job = Job.of(settings, recipe, cpu=cpu, overwrite=overwrite)
        train(job, parser, dry_run=dry_run, overwrite=overwrite, supervisor=supervisor)
    except RecipeError as error:
        if supervisor is not None and supervisor.takes(error):
            sys.exit(1)
        sys.exit(f"oger train: {error}")


def _print_cpu_defaults(settings: Mapping[str, Any], here: Machine) -> None:
    chosen = [f"{key} {settings[key]}" for key, default in CPU_DEFAULTS.items() if settings[key] == default]
    place = f"on {here}" if here.cluster and not here.silent else "here"
    print(f"no CUDA {place}, so: " + ", ".join(chosen) + " (each flag can be set)", flush=True)


if __name__ == "__main__":
    main()
