"""``oger report RUN [RUN ...] [--out FILE.html]``: one HTML page about a run, or about several side by side."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.progress import Progress
from oger_recipe.cli.shared import CommandParser, own_flags_only, require_writable, run_command
from oger_recipe.report.page.rollouts import Reading
from oger_recipe.report.page.write import write_page
from oger_recipe.report.runs import require_run
from oger_recipe.run_folder.own_files import PAGE


def main(argv: Sequence[str] | None = None) -> None:
    run_command(_parser, _report, argv)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser("oger report", allow_abbrev=False, description=__doc__)
    parser.add_argument("run", nargs="+", type=Path, help="folder of a run")
    parser.add_argument("--out", type=Path, help=f"file to write (default: {PAGE} in the run's folder)")
    return parser


@own_flags_only
def _report(args: argparse.Namespace) -> None:
    for run in args.run:
        require_run(run)
    path = args.out or args.run[0] / PAGE
    require_writable("--out", path)
    files = sum(len(Reading.of(run).steps) for run in args.run)
    try:
        with Progress("reading samples", "files", files) as bar:
            write_page(args.run, path, bar.add)
    except OSError as error:  # a full disk, or a folder that went away
        raise RecipeError(f"{path} could not be written: {error}; nothing is left of it") from None
    print(path)


if __name__ == "__main__":
    main()
