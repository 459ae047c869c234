"""What `oger convert` has to know of another trainer's commands. Each dialect's folder makes one `Dialect`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from oger_recipe.convert.values import Flag, Get


@dataclass(frozen=True)
class Argument:
    """One setting of a command: the value as text, and the line of the file that it is on."""

    name: str
    text: str
    line: int


# The words behind the program, and a function from a word to its line -> the settings, and a sentence for each word
# that cannot be read.
Reader = Callable[[Sequence[str], Callable[[str], int]], tuple[list[Argument], list[str]]]


@dataclass(frozen=True)
class Dialect:
    """A trainer whose commands `oger convert` reads.

    Its command: ``command`` matches in the line that runs ``program``; its group "program", if it has one, is the
    value of a flag of that name. ``stray`` matches the beginning of a line that belongs to a command, so that a
    missing backslash is found. ``read`` takes the words apart, and ``value`` turns a text into a value of the flag's
    type (hydra.py and options.py have both).
    Its flags: ``sections`` holds the table by title, ``environment`` the exported variables that are settings.
    Besides: ``lines`` says what becomes of other lines of a script, by what matches in them. Every recipe has the
    settings ``always``, of which no flag speaks. ``differing`` is what differs whatever the flags, and ``to_do``
    what is left to the user, both by the command's values.
    Its page: ``page`` names the file in docs/, ``introduction`` is its beginning, and ``published`` holds the values
    of the trainer's own commands by the heading of their column.
    """

    name: str
    trainer: str  # its defaults count for what a command leaves out
    program: str
    command: re.Pattern[str]
    stray: re.Pattern[str]
    read: Reader
    value: Callable[[str, type | None], Any]
    sections: Mapping[str, tuple[Flag, ...]]
    environment: tuple[Flag, ...]
    page: str
    introduction: str
    published: Mapping[str, Mapping[str, str]]
    lines: tuple[tuple[re.Pattern[str], str], ...] = ()
    always: Mapping[str, Any] = field(default_factory=dict)
    to_do: Callable[[Get], Iterable[str]] = lambda get: ()
    differing: Callable[[Get], Mapping[str, str]] = lambda get: {}  # what -> how
    common_prefix: str = ""  # of most flags; left out where a recipe names them

    @cached_property
    def flags(self) -> dict[str, Flag]:
        return {flag.name: flag for section in self.sections.values() for flag in section}

    def find(self, name: str) -> Flag | None:
        """Return the flag of this name, or the family that it belongs to, or None."""
        families = (flag for key, flag in self.flags.items() if key.endswith("*") and name.startswith(key[:-1]))
        return self.flags.get(name) or next(families, None)


def page(dialect: Dialect) -> str:
    """Write the dialect's page in docs/ from its table."""
    return "\n".join([dialect.introduction, *_sections(dialect)])


def _sections(dialect: Dialect) -> Iterator[str]:
    titles = " | ".join(dialect.published)
    for title, flags in {**dialect.sections, "Environment variables": dialect.environment}.items():
        if not flags:
            continue
        yield f"## {title}\n"
        yield f"| flag | {titles} | here | |"
        yield "|---" * (len(dialect.published) + 3) + "|"
        yield from (_row(flag, [values.get(flag.name) for values in dialect.published.values()]) for flag in flags)
        yield ""


def _row(flag: Flag, published: Sequence[str | None]) -> str:
    values = " | ".join("" if value is None else f"`{value}`" for value in published)
    ours = ", ".join(f"`{name.strip()}`" for name in flag.ours.split(",")) if flag.ours else "none"
    return f"| `{flag.name}` | {values} | {ours} | {flag.remark} |"
