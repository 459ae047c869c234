"""``oger doctor [--recipe FILE] [flags of oger train]``: whether this machine is ready, one line a check."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from oger_recipe import remote_code
from oger_recipe.errors import RecipeError
from oger_recipe.run.job import Job
from oger_recipe.run.preflight import PROBLEM, Finding, findings
from oger_recipe.settings.derived import in_prompts
from oger_recipe.settings.shipped import find_recipe


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "oger doctor",
        allow_abbrev=False,
        description="Look whether this machine is ready for training, one line a check: ok, warning, or problem with "
        "what to do. The exit status is 1 where there is a problem.",
    )
    parser.add_argument(
        "--recipe", type=Path, help="look for what this recipe needs, too; flags of `oger train` may follow"
    )
    args, flags = parser.parse_known_args(argv)
    problems = 0
    try:
        for found in _findings(find_recipe(args.recipe) if args.recipe else None, flags):
            print(found, flush=True)
            problems += found.state == PROBLEM
    except RecipeError as error:
        sys.exit(f"oger doctor: {error}")
    if problems:
        sys.exit(f"oger doctor: {problems} problem{'s' if problems > 1 else ''}")


def _findings(recipe: Path | None, flags: list[str]) -> Iterator[Finding]:
    import torch

    from oger_recipe.cli.train_ppo_ray import build_parser, settings_of
    from oger_recipe.settings.checks import recipe_problems
    from oger_recipe.settings.machine import gpus_found, machine_problems

    cpu = not torch.cuda.is_available()
    value = in_prompts(settings_of(build_parser(cpu=cpu), flags, recipe, train_judges=False))
    remote_code.allow(value)
    if recipe:
        yield from (Finding(PROBLEM, text, "recipe") for text in recipe_problems(value))
        here = machine_problems(value, cpu=cpu, gpus_here=gpus_found(value))
        yield from (Finding(PROBLEM, text, "this machine") for text in here)
    job = Job(value, Path(value["oger.run_dir"] or "runs").absolute(), cpu, recipe)
    yield from findings(job, has_recipe=recipe is not None, slow=True)


if __name__ == "__main__":
    main()
