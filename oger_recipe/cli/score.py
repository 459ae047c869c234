"""``oger score --recipe R.yaml --rows ROWS --responses RESPONSES --out OUT``: a recipe's rewards, without training."""

from __future__ import annotations

import argparse
from pathlib import Path

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.shared import (
    CommandParser,
    add_responses,
    data_flags,
    require_writable,
    run_command,
    settings_of_run,
)


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "oger score",
        description="Scores answers in a file with all sources of a recipe's reward, as a run would, without "
        "training: one line per answer, and a table. Any setting of a run can follow as its flag, e.g. "
        "--oger.reward.on_error stop.",
        allow_abbrev=False,
    )
    add_responses(
        parser,
        "defines the reward",
        "; lines of one uid are a group; entropy, truncated and response_length (in tokens) are optional",
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="file to write: uid, reward, score, components and errors, in order"
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    interrupted = "interrupted; no scores were written; judges' replies are cached for the next time"
    run_command(build_parser, _score, argv, interrupted)


def _score(parser: argparse.ArgumentParser, args: argparse.Namespace, flags: list[str]) -> None:
    flags += data_flags(args)
    settings = settings_of_run(args.recipe, flags, parser)
    require_writable("--out", args.out)
    if args.out.exists() and args.responses.exists() and args.out.samefile(args.responses):
        raise RecipeError(f"--out {args.out} is the file of the responses: choose another one")
    from oger_recipe.offline.score import score

    table, dead = score(settings, args.responses, args.out)
    print(f"\n{table}\nlines: {args.out}", flush=True)
    if dead:
        raise RecipeError("\n  ".join(dead))


if __name__ == "__main__":
    main()
