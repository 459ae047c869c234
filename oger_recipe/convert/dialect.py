"""What `oger convert` has to know of another trainer's command line. A dialect is a folder here that makes one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from oger_recipe.convert.values import Flag


@dataclass(frozen=True)
class Argument:
    """One setting of a command: the value as text, and the line of the file that it is on."""

    name: str
    text: str
    line: int


# From the words behind the program to its settings, and sentences about what cannot be read; the function that it is
# given tells the line on which a word stands.
Reader = Callable[[Sequence[str], Callable[[str], int]], tuple[list[Argument], list[str]]]


@dataclass(frozen=True)
class Dialect:
    """A trainer whose commands `oger convert` reads.

    How its command looks: ``command`` is found in the line that runs ``program``; ``stray`` at the beginning of lines
    that belong to a command, so that a missing backslash is found; ``read`` takes its words apart (hydra.py), and
    ``value`` makes of a text, and of the type that its flag has, a value.
    What its flags mean: ``sections`` of its table, by title, and exported variables that are settings.
    What its page in docs/ says: ``page`` is its file, ``introduction`` its beginning, ``published`` the title of the
    column with the values of the trainer's own command.
    """

    name: str
    trainer: str  # whose defaults count for what a command leaves out
    program: str
    command: re.Pattern[str]
    stray: re.Pattern[str]
    read: Reader
    value: Callable[[str, type | None], Any]
    sections: Mapping[str, tuple[Flag, ...]]
    environment: tuple[Flag, ...]
    page: str
    introduction: str
    published: str
    common_prefix: str = ""  # of most flags; left out where a recipe names them

    @cached_property
    def flags(self) -> dict[str, Flag]:
        return {flag.name: flag for section in self.sections.values() for flag in section}

    def find(self, name: str) -> Flag | None:
        """The flag of this name, or the family that it belongs to."""
        families = (flag for key, flag in self.flags.items() if key.endswith("*") and name.startswith(key[:-1]))
        return self.flags.get(name) or next(families, None)
