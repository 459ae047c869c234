"""``oger convert COMMAND.sh [--out recipe.yaml]``: a training command of OGER, LUFFY, ExGRPO, HPT, OAT,
Understand-R1-Zero, VeRL-with-RMs or OpenR as a recipe file."""

import argparse
import re
import sys
from pathlib import Path
from typing import NoReturn

from oger_recipe.convert.dialect import page
from oger_recipe.convert.engine import DIALECTS, Conversion, convert


def main(argv: list[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    if args.table:
        print(page(DIALECTS[args.table]), end="")
        return
    if args.command is None:
        _stop(["COMMAND is missing: give the shell script, or a page of text that quotes the command"])
    try:
        text = args.command.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _stop([f"{args.command} cannot be read: {error}"])
    if args.out is not None and args.out.exists():
        _stop([f"{args.out} exists already; choose another file, or remove it"])
    from oger_recipe.cli.train_ppo_ray import build_parser

    result = convert(text, args.command.name, build_parser(cpu=False), _variables(args.set), args.out)
    if result.problems:
        _stop([f"{args.command} cannot be converted:", *result.problems])
    if args.out is None:
        print(result.text, end="")
    else:
        args.out.write_text(result.text, encoding="utf-8")
    print(_report(result, args.out), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("oger convert", allow_abbrev=False, description=__doc__)
    parser.add_argument("command", nargs="?", type=Path, help="shell script or text with one training command")
    parser.add_argument("--out", type=Path, help="recipe file to write (default: to the terminal)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a variable of the script, or of its argument: 1=VALUE for $1",
    )
    parser.add_argument(
        "--table", nargs="?", choices=DIALECTS, const="verl_mix", help="print the table of all flags and exit"
    )
    return parser


def _variables(entries: list[str]) -> dict[str, str]:
    wrong = [entry for entry in entries if not re.fullmatch(r"([A-Za-z_]\w*|\d)=.*", entry, re.DOTALL)]
    if wrong:
        _stop([f"--set {entry}: write NAME=VALUE" for entry in wrong])
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def _report(result: Conversion, out: Path | None) -> str:
    lines = [f"oger convert: {len(result.settings)} settings" + (f" in {out}" if out else "")]
    for title, entries in (
        ("without effect here:", [f"{flag}: {reason}" for flag, reason in result.without_effect.items()]),
        ("differs from the command:", [f"{name}: {remark}" for name, remark in result.differing.items()]),
        ("also:", result.remarks),
        ("before training:", result.to_do),
    ):
        lines += [title, *(f"  - {entry}" for entry in entries)] if entries else []
    return "\n".join(lines)


def _stop(sentences: list[str]) -> NoReturn:
    sys.exit("oger convert: " + "\n  - ".join(sentences))


if __name__ == "__main__":
    main()
