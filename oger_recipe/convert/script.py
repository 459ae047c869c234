"""Finds the training command in a shell script, or in a page of text that quotes one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from oger_recipe.convert.dialect import Argument, Dialect
from oger_recipe.convert.foreign import recognised
from oger_recipe.convert.shell import ASSIGNMENT, Line, expand, joined, words

_LOOP = re.compile(r"(?:^|;)\s*for\s+(\w+)\s+in\s+([^;]+?)\s*(?:;|$)")
_CALL = re.compile(r"\b(?:bash|sh|source|sbatch)\s+(\S+\.(?:sh|sbatch|slurm))\b")
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


def read_command(text: str, variables: Mapping[str, str], dialects: Sequence[Dialect]) -> Command:
    """Read the one training command in ``text``; ``variables`` win over those that the text sets."""
    command = Command()
    known = dict(variables)
    lines = list(joined(text))
    entries = [(line, dialect) for line in lines for dialect in dialects if dialect.command.search(line.text)]
    if len(entries) != 1:
        command.problems.append(_not_one([line for line, _ in entries], text, dialects))
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
    command.problems += _loops([line for line in lines if line.first <= entry.first], command, command.dialect, known)
    command.remarks += _explained(lines, command.dialect)
    return command


def _not_one(entries: Sequence[Line], text: str, dialects: Sequence[Dialect]) -> str:
    if entries:
        lines = ", ".join(str(line.first) for line in entries)
        return f"there are {len(entries)} training commands (lines {lines}): leave one in a copy of the file"
    programs = "; ".join(f"{dialect.trainer}: {dialect.program}" for dialect in dialects)
    said = recognised(text) or f"there is no training command that `oger convert` reads ({programs})"
    scripts = ", ".join(dict.fromkeys(_CALL.findall(text)))
    return said + (f". The text runs {scripts}: convert that file" if scripts else "")


def _loops(lines: Iterable[Line], command: Command, dialect: Dialect, known: Mapping[str, str]) -> Iterator[str]:
    """Yield what to do about a loop that runs the command for several values."""
    for line in lines:
        for name, values in _LOOP.findall(line.text):
            if name not in command.used or name in known:
                continue
            given = (each.name for each in command.arguments if re.search(rf"\$\{{?{name}\b", each.text))
            flag = dialect.find(next(given, ""))
            ours = flag.ours.partition(",")[0] if flag and flag.ours else "FLAG"
            yield (
                f"line {line.first}: the script loops over {name}: convert one value, with --set "
                f"{name}={values.split()[0]}, and train all with scripts/sweep.sh --{ours} {values} --recipe FILE"
            )


def _explained(lines: Iterable[Line], dialect: Dialect) -> Iterator[str]:
    """Yield what the dialect says of lines beside the command, with their numbers."""
    for line in lines:
        yield from (
            f"line {line.first}: {sentence}" for pattern, sentence in dialect.lines if pattern.search(line.text)
        )


def _read_assignments(text: str, command: Command, known: dict[str, str], fixed: Mapping[str, str]) -> None:
    """Read ``NAME=value``, ``NAME=(words)``, their ``+=``, and ``export NAME=value ...`` before the command."""
    match = ASSIGNMENT.fullmatch(text)
    if match is None:
        return
    exported, name, adds, written = match.groups()
    value, others = expand(written.strip(), known, command.used), []
    is_array = value.startswith("(") and value.endswith(")")
    if is_array:
        value = value[1:-1]  # its words keep their quotation marks
    else:
        try:
            value, *others = words(value) or [""]
        except ValueError:
            return  # a sentence with an apostrophe
    if adds:
        value = known.get(name, "") + " " * is_array + value
    more = (word.partition("=") for word in others)
    pairs = [(name, value), *((other, text) for other, equals, text in more if equals)]
    for name, value in pairs:
        known[name] = fixed.get(name, value)
        if exported:
            command.environment[name] = known[name]


def _read_arguments(
    entry: Line, lines: list[str], command: Command, dialect: Dialect, known: Mapping[str, str]
) -> None:
    """Read the words behind the program by the dialect's syntax, and variables in front of it.

    Skip all else in front of it, `ray job submit` and the end of its JSON among them.
    """
    program = dialect.command.search(entry.text)
    assert program
    with contextlib.suppress(ValueError):  # a quotation mark that began in an earlier line
        for word in words(expand(entry.text[: program.start()], known, command.used)):
            name, separator, value = word.partition("=")
            if separator and name.isidentifier():
                command.environment[name] = value
    try:
        found = words(expand(entry.text[program.end() :], known, command.used))
    except ValueError as error:
        command.problems.append(f"line {entry.first}: the command has an unclosed quotation mark ({error})")
        return
    arguments = []
    for word in found:
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
    if "program" in dialect.command.groupindex:
        command.arguments.insert(0, Argument("program", program["program"], entry.first))
    command.problems += problems


def _line_of(name: str, entry: Line, lines: list[str]) -> int:
    numbers = range(entry.first, entry.last + 1)
    is_there = re.compile(rf"(?<![\w.]){re.escape(name)}")
    elsewhere = range(1, entry.first)  # in a variable
    return next((n for n in (*numbers, *elsewhere) if is_there.search(lines[n - 1])), entry.first)
