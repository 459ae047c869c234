"""``python -m oger_recipe.cli.train_ppo_ray <any OpenRLHF flag> --oger.<flag>``: OpenRLHF's command line with OGER.

Everything that can be checked is checked before anything heavy is imported or started.
"""

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any, NoReturn

from oger_recipe.recipe import RecipeError, extend_parser, read_recipe


def build_parser(*, cpu: bool) -> argparse.ArgumentParser:
    """OpenRLHF's parser with the recipe's section and defaults."""
    from oger_recipe.plugin.openrlhf_parser import openrlhf_parser

    parser = openrlhf_parser()
    parser.prog = "oger train"
    parser.allow_abbrev = False
    parser.error = _refuse  # type: ignore[method-assign]
    extend_parser(parser, cpu=cpu)
    return parser


def _refuse(message: str) -> NoReturn:
    """In place of argparse's error, which prints the usage of two hundred flags before the sentence that matters."""
    raise RecipeError(message)


def _parse(parser: argparse.ArgumentParser, tokens: list[str]) -> argparse.Namespace:
    args, unknown = parser.parse_known_args(tokens)
    if unknown:
        near = difflib.get_close_matches(unknown[0].partition("=")[0], parser._option_string_actions, n=1, cutoff=0.5)
        raise RecipeError(f"unknown flag '{unknown[0]}'" + (f"; did you mean '{near[0]}'?" if near else ""))
    return args


def _without_cuda() -> bool:
    import torch

    return not torch.cuda.is_available()


def main(argv: list[str] | None = None, recipe: Path | None = None, *, dry_run: bool = False) -> None:
    flags = sys.argv[1:] if argv is None else argv
    cpu = _without_cuda()
    parser = build_parser(cpu=cpu)
    try:
        tokens = (read_recipe(recipe, parser) if recipe else []) + flags
        args = _parse(parser, tokens)
        if cpu:
            _print_cpu_defaults(args)
        from oger_recipe.run import train

        train(args, parser, tokens, recipe, dry_run=dry_run)
    except RecipeError as error:
        sys.exit(f"oger train: {error}")


def _print_cpu_defaults(args: argparse.Namespace) -> None:
    from oger_recipe.knobs import CPU_DEFAULTS

    values: dict[str, Any] = vars(args)
    chosen = [f"{key} {values[key]}" for key, default in CPU_DEFAULTS.items() if values[key] == default]
    print("no CUDA here, so: " + ", ".join(chosen) + " (each flag can be set)", flush=True)


if __name__ == "__main__":
    main()
