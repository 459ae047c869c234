"""``oger data prepare MIX --out FILE`` builds a file of rows from datasets; ``oger data validate FILE`` checks one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oger_recipe.base import hub
from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.shared import CommandParser, settings_of_run
from oger_recipe.settings.grading import VerifierSettings, grading_rules

if TYPE_CHECKING:
    from oger_recipe.data.command_prepare import Part, Tally
    from oger_recipe.data.command_validate import Report

SUFFIXES = (".jsonl", ".parquet")
_SHORT = ("data.input_key", "data.label_key", "oger.teacher_key", "oger.task_name", "data.prompt_split")


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "oger data", description="Datasets for training: build one, or check one.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="prepare|validate")
    prepare = commands.add_parser(
        "prepare",
        help="build a file of rows from the datasets that a mix file lists",
        description="Builds a file of rows from the datasets that a mix file lists (docs/data.md): one row per "
        "problem, with the verified teachers of all sources. Prints a line of counts per source.",
        allow_abbrev=False,
    )
    prepare.add_argument("mix", type=Path, help="YAML file: sources with their columns, limits")
    prepare.add_argument("--out", type=Path, required=True, help=f"file to write, {' or '.join(SUFFIXES)}")
    prepare.add_argument("--held_out", type=Path, help="file for the sources marked held_out (default: not written)")
    prepare.add_argument("--force", action="store_true", help="replace files that exist")
    validate = commands.add_parser(
        "validate",
        help="check every row of a dataset",
        description="Reads a dataset as a run with the same settings would, and reports every bad row. Exits "
        "with 1 if there are any.",
        allow_abbrev=False,
    )
    validate.add_argument("dataset", help="file, saved folder or Hub dataset")
    for flag in _SHORT:
        validate.add_argument(f"--{flag.partition('.')[2]}", metavar="NAME", help=f"short for the run's --{flag}")
    validate.add_argument("--verifiers", nargs="+", metavar="TASK=MODULE:NAME", help="the run's --oger.verifiers")
    for command in (prepare, validate):
        command.add_argument("--allow_task", nargs="+", metavar="MODULE:NAME", help="the run's --oger.allow_task")
        command.add_argument(
            "--recipe", type=Path, help="grade as a run of this recipe does; flags of `oger train` may follow"
        )
    return parser


def main(argv: list[str] | None = None) -> None:
    try:
        parser = build_parser()
        args, flags = parser.parse_known_args(argv)
        flags += ["--oger.allow_task", *args.allow_task] if args.allow_task else []
        if args.command == "prepare":
            _prepare(parser, args, flags)
        elif _validate(parser, args, flags):
            sys.exit(1)
    except RecipeError as error:
        sys.exit(f"oger data: {error}")
    except KeyboardInterrupt:
        sys.exit("oger data: interrupted")
    except OSError as error:
        sys.exit(f"oger data: {error}")


def _prepare(parser: argparse.ArgumentParser, args: argparse.Namespace, flags: list[str]) -> None:
    from oger_recipe.data.command_prepare import build, write_rows
    from oger_recipe.data.mix import read_mix
    from oger_recipe.run.inputs import grading_settings

    mix = read_mix(args.mix)
    inputs = {Path(source.path).expanduser().resolve() for source in mix.sources}
    files = [path for path in (args.out, args.held_out) if path]
    for path in files:
        _check_output(path, inputs, args.force)
    if args.held_out and not any(source.held_out for source in mix.sources):
        raise RecipeError(f"--held_out: {args.mix} holds no source out: give one 'held_out: true'")
    if args.held_out and args.held_out.resolve() == args.out.resolve():
        raise RecipeError(f"--held_out and --out are the same file, {args.out}")
    tokenizer = _tokenizer(mix.tokenizer) if mix.tokenizer else None
    settings = dict(settings_of_run(args.recipe, flags, parser))
    settings["oger.allow_task"] = (*settings["oger.allow_task"], *mix.tasks)
    rules, grading = grading_rules(settings), grading_settings(settings, ())
    parts = build(mix, rules, grading, tokenizer, held_out=args.held_out is not None)
    for path, part in zip(files, parts, strict=False):
        assert part is not None
        write_rows(part.rows, path)
        print(f"{path}: {_summary(part)}\n\n{table(part)}\n", flush=True)


def _check_output(path: Path, inputs: set[Path], force: bool) -> None:
    if path.suffix not in SUFFIXES:
        raise RecipeError(f"{path}: a file of rows ends in {' or '.join(SUFFIXES)}")
    if path.resolve() in inputs:
        raise RecipeError(f"{path} is one of the sources; choose another file")
    if path.exists() and not force:
        raise RecipeError(f"{path} exists; choose another file, or replace it with --force")


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    if not name.startswith((".", "/", "~")) and (reason := hub.out_of_reach(name)):
        raise RecipeError(f"tokenizer: {reason}")
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise RecipeError(f"tokenizer: cannot load one from {name}: {error}") from None


def _summary(part: Part) -> str:
    """Say how many problems have how many teachers."""
    from collections import Counter

    by_number = Counter(len(row["teachers"]) for row in part.rows)
    numbers = ", ".join(f"{by_number[number]} with {number}" for number in sorted(by_number))
    return f"{len(part.rows)} problems; teachers each: {numbers}"


def table(part: Part) -> str:
    """Write the counts of each source as a table, without columns that no source needs."""
    from collections import Counter

    from oger_recipe.data.command_prepare import Tally

    total = Tally()
    for tally in part.tallies.values():
        total.problems |= tally.problems
        total.counts = Counter(total.counts) + tally.counts
    lines = [_line(name, tally) for name, tally in part.tallies.items()]
    lines += [_line("all", total)] if len(lines) > 1 else []
    always = ("source", "rows", "problems", "kept", "wrong", "duplicates", "too long")
    used = [name for name in lines[0] if name in always or any(line[name] not in ("", "0") for line in lines)]
    widths = {name: max(len(name), *(len(line[name]) for line in lines)) for name in used}
    header = {name: name for name in used}
    rule = {name: "-" * (widths[name] - (name != "source")) + ":" * (name != "source") for name in used}
    rows = ([_cell(line, name, widths) for name in used] for line in (header, rule, *lines))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(line: dict[str, str], name: str, widths: dict[str, int]) -> str:
    return line[name].ljust(widths[name]) if name == "source" else line[name].rjust(widths[name])


def _line(name: str, tally: Tally) -> dict[str, str]:
    tokens = tally["tokens"] / tally["teachers"] if tally["teachers"] else 0
    return {
        "source": name,
        "rows": str(tally["rows"]),
        "held out": str(tally["rows_held_out"]),
        "problem too long": str(tally["rows_too_long"]),
        "other answer": str(tally["rows_other_answer"]),
        "problems": str(len(tally.problems)),
        "kept": str(tally["teachers"]),
        "wrong": str(tally["wrong"]),
        "duplicates": str(tally["duplicates"]),
        "too long": str(tally["too_long"]),
        "not graded": str(tally["ungraded"]),
        "tokens": f"{tokens:.0f}" if tokens else "",
        "accuracy": "" if tally.accuracy is None else f"{100 * tally.accuracy:.1f} %",
        "said otherwise": str(tally["disagreed"]),
    }


def _validate(parser: argparse.ArgumentParser, args: argparse.Namespace, flags: list[str]) -> bool:
    """Print the report; say whether any row is bad."""
    from oger_recipe.data.command_validate import validate
    from oger_recipe.data.rows import without_repetitions
    from oger_recipe.data.sources import Columns
    from oger_recipe.run.inputs import grading_settings
    from oger_recipe.run.rows import row_problem
    from oger_recipe.settings.rewards import RewardSettings

    given = {flag: vars(args)[flag.partition(".")[2]] for flag in _SHORT}
    flags = [*flags, *(f"--{flag}={value}" for flag, value in given.items() if value is not None)]
    flags += ["--oger.verifiers", *args.verifiers] if args.verifiers else []
    settings = settings_of_run(args.recipe, flags, parser)
    own = tuple(VerifierSettings.of(settings).own)
    prompt, answer, teachers, task, split = (settings[flag] for flag in _SHORT)
    rewards = RewardSettings.of(settings)
    columns = Columns(prompt, answer, teachers, task, own, keep=rewards.reads_rows)
    rules, grading = grading_rules(settings), grading_settings(settings, ())
    report = validate(args.dataset, columns, rules, grading, split, lambda row: row_problem(row, rewards))
    for mistake in without_repetitions(report.bad.values()):
        print(mistake)
    print(_verdict(args.dataset, report))
    return bool(report.bad)


def _verdict(dataset: str, report: Report) -> str:
    by_source = ", ".join(f"{source} {count}" for source, count in sorted(report.teachers.items()))
    by_task = ", ".join(f"{task} {count}" for task, count in sorted(report.tasks.items()))
    lines = [
        f"{dataset}: {report.rows} rows, {len(report.bad)} bad",
        f"usable: {sum(report.tasks.values())} ({by_task or 'none'}), {report.problems} different problems, "
        f"{report.without_teachers} without teachers, {report.repeated} repeated rows, which training leaves out",
        f"teachers: {sum(report.teachers.values())} ({by_source or 'none'}), not verified here",
    ]
    lines += [
        f"the reference answers of {task} were not checked: its verifier fails on an empty response ({error})"
        for task, error in report.unchecked.items()
    ]
    if report.may_be_teachers:
        lines.append(
            "no teachers; if one of these columns has them, name it by --teacher_key: "
            f"{', '.join(report.may_be_teachers)}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
