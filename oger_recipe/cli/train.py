"""``oger train --recipe FILE [flags]``: OpenRLHF's command line with a YAML file underneath; flags win over it."""

import argparse
import contextlib
import sys
from pathlib import Path

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.signals import end_in_a_line


def main(argv: list[str] | None = None) -> None:
    known, flags = options().parse_known_args(argv)
    supervisor, asks_help = None, bool({"-h", "--help"} & set(flags))
    if known.max_restarts and not (known.dry_run or asks_help):
        from oger_recipe.run.supervision import supervised

        supervisor = supervised(known.max_restarts)
        flags += supervisor.flags
    end_in_a_line("oger train")
    # The supervisor of restarts, which stays behind, has nothing of what is imported from here on.
    from oger_recipe.pipeline.driver.template import begun

    with contextlib.nullcontext() if known.dry_run or asks_help else begun():
        from oger_recipe.cli import train_ppo_ray

        if asks_help:
            train_ppo_ray.main(flags)
            return
        try:
            recipe = _recipe(known.recipe, flags)
        except RecipeError as error:
            sys.exit(f"oger train: {error}")
        overwrite = known.overwrite and not (supervisor and supervisor.restarts)
        train_ppo_ray.main(flags, recipe, dry_run=known.dry_run, overwrite=overwrite, supervisor=supervisor)


def options() -> argparse.ArgumentParser:
    """Return the parser of the options that are no settings of the run."""
    parser = argparse.ArgumentParser("oger train", add_help=False, allow_abbrev=False)
    parser.add_argument("--recipe", type=Path, help="YAML recipe file; its paths are the flags of `oger train --help`")
    parser.add_argument("--dry-run", action="store_true", help="check the recipe, print the plan, and exit")
    parser.add_argument("--overwrite", action="store_true", help="remove the run in oger.run_dir and start over")
    parser.add_argument(
        "--max-restarts", type=_count, default=0, metavar="N", help="after a failure resume the run, up to N times"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of restarts, e.g. 3")
    return int(text)


def _recipe(given: Path | None, flags: list[str]) -> Path:
    """Return the file to train by. Raises RecipeError where there is none, or for another trainer's script."""
    from oger_recipe.convert.foreign import OPENRLHF, recognised, recognised_flags
    from oger_recipe.settings.shipped import find_recipe

    if given is None:
        advice = recognised_flags(flags) or (OPENRLHF if any(flag.startswith("--") for flag in flags) else None)
        raise RecipeError(
            "--recipe FILE is missing, e.g. oger train --recipe countdown_cpu.yaml" + (f"; {advice}" if advice else "")
        )
    found = find_recipe(given)
    if found != given:
        print(f"recipe: {found}", flush=True)
    if found.suffix in (".sh", ".py", ".txt"):
        advice = recognised(found.read_text(encoding="utf-8", errors="replace"))
        raise RecipeError(
            f"{given} is not a recipe file (nested YAML): {advice or 'oger convert makes one from a script'}"
        )
    return found


if __name__ == "__main__":
    main()
