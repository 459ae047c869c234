"""What commands share: parser and end, a run's settings, an entry of its reward, files to write, where they listen."""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from oger_recipe.base import remote_code
from oger_recipe.base.cpu import is_without_cuda
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import atomic_write, to_json
from oger_recipe.base.ranges import NEGATIVE

# What a command does: with its parser, its own flags, and those that it does not know, a run's.
Run = Callable[[argparse.ArgumentParser, argparse.Namespace, list[str]], None]


class CommandParser(argparse.ArgumentParser):
    """A parser that raises RecipeError in place of argparse's usage and exit, and reads every negative number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = NEGATIVE

    def error(self, message: str) -> NoReturn:
        raise RecipeError(f"{message} ({self.prog} --help shows all options)")


def run_command(
    build_parser: Callable[[], argparse.ArgumentParser],
    run: Run,
    argv: Sequence[str] | None,
    interrupted: str = "interrupted",
) -> None:
    """Read the command line and run the command. End it with one sentence where that cannot be, or at Ctrl-C."""
    parser = build_parser()
    try:
        run(parser, *parser.parse_known_args(argv))
    except RecipeError as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{parser.prog}: {interrupted}")
    except BrokenPipeError:  # the reader of a pipe, as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def own_flags_only(command: Callable[[argparse.Namespace], None]) -> Run:
    """Make a command that refuses options that it does not have; other commands take them for a run's."""

    def run(parser: argparse.ArgumentParser, args: argparse.Namespace, unknown: list[str]) -> None:
        if unknown:
            parser.error(f"unknown option {unknown[0]}")
        command(args)

    return run


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
    # A command trains the judges that it asks.
    settings = settings_of(parser, flags, find_recipe(recipe) if recipe else None, train_judges=False)
    remote_code.allow(settings)
    if problems := list(grading_problems(settings)):
        raise RecipeError("\n  - ".join(["answers cannot be graded by these settings:", *problems]))
    return settings


def add_responses(parser: argparse.ArgumentParser, sets: str, lines: str) -> None:
    """Add --recipe, --rows and --responses: a file of responses to the rows of a recipe's data; see `data_flags`.

    sets: what the recipe sets; lines: what the responses' lines have beside uid and text.
    """
    add = parser.add_argument
    add("--recipe", type=Path, required=True, help=f"recipe that {sets}")
    add("--rows", help="rows of the data (default: the recipe's data.prompt_dataset)")
    add("--responses", type=Path, required=True, help=f"JSON lines with uid (of a row) and text{lines}")


def data_flags(args: argparse.Namespace) -> list[str]:
    """Return --rows as the flag of a run."""
    return [f"--data.prompt_dataset={args.rows}"] if args.rows else []


def add_entry(parser: argparse.ArgumentParser, flag: str, what: str, help: str) -> None:
    """Add ``flag``, --recipe and --source, by which `entry_of` finds an entry of oger.reward.sources."""
    entry = parser.add_mutually_exclusive_group(required=True)
    entry.add_argument(flag, metavar="ENTRY", help=f"an entry of oger.reward.sources in YAML, e.g. {help}")
    entry.add_argument(
        "--recipe", type=Path, help=f"a recipe that has the {what} among its sources, named by --source"
    )
    parser.add_argument("--source", metavar="NAME", help=f"name of the {what} in --recipe")


def require_entry(args: argparse.Namespace, what: str) -> None:
    """Raise RecipeError where the flags of `add_entry` or --limit cannot be meant."""
    if (args.recipe is None) != (args.source is None):
        raise RecipeError(f"give --recipe and --source together: the recipe, and the name of the {what} in it")
    if args.limit is not None and args.limit < 1:
        raise RecipeError(f"--limit is {args.limit}: it must be 1 or more")


def entry_of(
    args: argparse.Namespace, flag: str, example: str, settings: Mapping[str, Any], **default: str
) -> Mapping[str, Any]:
    """Return the entry of oger.reward.sources that ``flag`` gives, over ``default``, or that --source names."""
    text = vars(args)[flag.removeprefix("--")]
    if text is None:
        entries = {entry["name"]: entry for entry in settings["oger.reward.sources"]}
        if args.source not in entries:
            raise RecipeError(f"{args.recipe} has no source {args.source!r}; it has {', '.join(entries) or 'none'}")
        return entries[args.source]  # type: ignore[no-any-return]
    try:
        entry = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{flag} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(entry, dict):
        raise RecipeError(f"{flag} {text!r} is not an entry such as '{example}'")
    from oger_recipe.rewards.kinds.entries import as_today

    return as_today({**default, **entry})


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    with atomic_write(path) as partial:
        partial.write_text(to_json(document, indent=2) + "\n")


def is_loopback(host: str) -> bool:
    """Say whether this address can be reached by processes of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Open the listening socket. Raises RecipeError where that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        raise RecipeError(
            f"cannot listen on {host} port {port}: {error.strerror}; --port 0 picks a free one"
        ) from error
    return listener
