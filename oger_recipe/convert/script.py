"""Finds the training command in a shell script, or in a page of text that quotes one."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from oger_recipe.convert.dialect import Argument, Dialect
from oger_recipe.convert.foreign import recognised

_ASSIGNMENT = re.compile(r"\s*(export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"'[^']*'"  # nothing is a variable between single quotes
    r"|\$(?P<plain>[A-Za-z_]\w*)"
    r"|\$\{(?P<braced>[A-Za-z_]\w*)(?::?-(?P<default>[^}]*))?\}"
)
_PASSED_ON = re.compile(r"\$(?:[@*]|\{[@*](?::\d+)?\})")
_OPERATOR = re.compile(r"(?:[0-9&]?>{1,2}(?:&[0-9-])?|<|\|{1,2}|&{1,2}|;).*", re.DOTALL)


@dataclass
class Command:
    """A command as it was found. ``problems``: what cannot be read; ``remarks``: what is passed over."""

    dialect: Dialect | None = None  # None: with problems
    arguments: list[Argument] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)  # exported, with their values
    used: set[str] = field(default_factory=set)  # variables that the command or another variable needs
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Line:
    """Lines joined by backslashes, with the numbers of the first and the last."""

    text: str
    first: int
    last: int


def read_command(text: str, variables: Mapping[str, str], dialects: Sequence[Dialect]) -> Command:
    """Read the one training command in ``text``; ``variables`` win over those that the text sets."""
    command = Command()
    known = dict(variables)
    lines = list(_joined(text))
    entries = [(line, dialect) for line in lines for dialect in dialects if dialect.command.search(line.text)]
    if len(entries) != 1:
        numbers = ", ".join(str(line.first) for line, _ in entries)
        found = f"there are {len(entries)} (lines {numbers}): leave one" if entries else "there is none"
        advice = None if entries else recognised(text)
        programs = " or ".join(dialect.program for dialect in dialects)
        wanted = f"the text needs one command that runs {programs}, and {found}"
        command.problems.append(wanted + (f"; {advice}" if advice else ""))
        return command
    ((entry, command.dialect),) = entries
    for line in lines:
        if line.first < entry.first:
            _read_assignments(line.text, command, known, fixed=variables)
        elif line.first > entry.first and command.dialect.stray.match(line.text):
            first_word = re.split("[= ]", line.text.strip())[0]
            command.problems.append(
                f"line {line.first}: {first_word} comes after the end of the command in line {entry.last}: add "
                "the missing backslash there, or remove the comment that cuts the command"
            )
    _read_arguments(entry, text.splitlines(), command, command.dialect, known)
    command.remarks += _explained(lines, command.dialect)
    return command


def _explained(lines: Iterable[_Line], dialect: Dialect) -> Iterator[str]:
    """Yield what the dialect says of lines beside the command, with their numbers."""
    for line in lines:
        yield from (
            f"line {line.first}: {sentence}" for pattern, sentence in dialect.lines if pattern.search(line.text)
        )


def _joined(text: str) -> Iterator[_Line]:
    """Join lines as a shell does: a comment ends its line, and with it the joining."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate(text.splitlines(), start=1):
        first = first if parts else number
        body, is_cut = _without_comment(line)
        more = not is_cut and re.search(r"\\\s*$", body)  # text copied from a page often has spaces at its end
        parts.append(re.sub(r"\\\s*$", " ", body) if more else body)
        if not more:
            yield _Line("".join(parts), first, number)
            parts = []
    if parts:
        yield _Line("".join(parts), first, first + len(parts) - 1)


def _without_comment(line: str) -> tuple[str, bool]:
    quote = ""
    for position, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and (position == 0 or line[position - 1].isspace()):
            return line[:position], True
    return line, False


def _expand(text: str, known: Mapping[str, str], used: set[str]) -> str:
    """Put known variables in place; leave unknown ones as they are written."""

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["braced"]
        if name is None:
            return match[0]
        used.add(name)
        if known.get(name) or (name in known and match["default"] is None):
            return known[name]
        return match[0] if match["default"] is None else match["default"]

    return _VARIABLE.sub(value, text)


def _read_assignments(text: str, command: Command, known: dict[str, str], fixed: Mapping[str, str]) -> None:
    """Read ``NAME=value`` and ``export NAME=value ...`` before the command."""
    match = _ASSIGNMENT.fullmatch(text)
    if match is None:
        return
    try:
        words = shlex.split(_expand(text, known, command.used))
    except ValueError:
        return  # a sentence with an apostrophe
    for word in words:
        name, separator, value = word.partition("=")
        if separator and name.isidentifier():
            known[name] = fixed.get(name, value)
            if match[1]:
                command.environment[name] = known[name]


def _read_arguments(
    entry: _Line, lines: list[str], command: Command, dialect: Dialect, known: Mapping[str, str]
) -> None:
    """Read the words behind the program by the dialect's syntax, and variables in front of it.

    Skip all else in front of it, `ray job submit` and the end of its JSON among them.
    """
    program = dialect.command.search(entry.text)
    assert program
    with contextlib.suppress(ValueError):  # a quotation mark that began in an earlier line
        for word in shlex.split(_expand(entry.text[: program.start()], known, command.used)):
            name, separator, value = word.partition("=")
            if separator and name.isidentifier():
                command.environment[name] = value
    try:
        words = shlex.split(_expand(entry.text[program.end() :], known, command.used))
    except ValueError as error:
        command.problems.append(f"line {entry.first}: the command has an unclosed quotation mark ({error})")
        return
    arguments = []
    for word in words:
        if _OPERATOR.fullmatch(word):
            break
        if _PASSED_ON.fullmatch(word):
            command.remarks.append(
                f"{word}: the script passed its own arguments on; give them as flags of `oger train`, after "
                "--recipe FILE"
            )
        else:
            arguments.append(word.removesuffix(";"))
        if word.endswith(";"):
            break
    command.arguments, problems = dialect.read(arguments, lambda name: _line_of(name, entry, lines))
    command.problems += problems


def _line_of(name: str, entry: _Line, lines: list[str]) -> int:
    numbers = range(entry.first, entry.last + 1)
    is_there = re.compile(rf"(?<![\w.]){re.escape(name)}")
    return next((number for number in numbers if is_there.search(lines[number - 1])), entry.first)
