"""``oger runs [FOLDER]``: the runs below a folder, with state, steps and scores."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import to_json
from oger_recipe.cli.shared import CommandParser, own_flags_only, run_command

_NARROW = 100  # columns


def main(argv: Sequence[str] | None = None) -> None:
    run_command(_parser, _list, argv)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "oger runs",
        description="Lists the runs at or below a folder, the newest first: running, finished, or ended with the "
        "reason and the step to resume from; steps, the last and the best held-out score with its step, and time over "
        "all attempts. Changes nothing.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="folder to search (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the same as JSON, with attempts and warnings")
    return parser


@own_flags_only
def _list(args: argparse.Namespace) -> None:
    from oger_recipe.report.runs import next_commands, read_runs, runs_table
    from oger_recipe.report.terminal import is_narrow, plain, terminal

    if not args.folder.is_dir():
        raise RecipeError(f"there is no folder {args.folder}: name one that holds runs, oger runs FOLDER")
    states = read_runs(args.folder)
    console = terminal()
    if args.json:
        print(to_json([asdict(state) | {"folder": str(state.folder)} for state in states], indent=2))
    elif not states:
        console.print(plain(f"no run at or below {args.folder}"))
    else:
        console.print(runs_table(states, narrow=is_narrow(console, _NARROW)))
        if console.is_terminal:
            console.print(plain("next: " + " · ".join(next_commands(states)), "dim"))


if __name__ == "__main__":
    main()
