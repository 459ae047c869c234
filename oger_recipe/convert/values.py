"""The parts of a dialect's table: flags, and the rules that turn their values into settings of ours."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]  # our flag -> value


class _Unset:
    """The default of a flag that, left out, changes nothing here."""

    def __repr__(self) -> str:
        return "unset"


UNSET = _Unset()


class NoEffect(Exception):
    """The flag changes nothing here; the message is the reason."""


class Unsupported(Exception):
    """The value cannot be honoured; the message says what to do instead."""


Get = Callable[[str], Any]  # a flag's value in the command, or its default; None where it has neither
Rule = Callable[[Any, Get], Settings]


@dataclass(frozen=True)
class Flag:
    """One flag of another trainer: its default there, its rule here, and what its page says of it."""

    name: str  # "trainer.exp*": all that begin so
    default: Any
    rule: Rule
    ours: str = ""  # our flags as the page names them, separated by commas; "": none
    remark: str = ""
    published: str | None = None  # its value in the command that the trainer's page publishes
    kind: type | None = None  # of the value, where the default does not tell
    differs: bool = False  # what it does here is not exactly what it does there, as the remark says

    def value_type(self) -> type | None:
        if self.kind or self.default in (UNSET, None):
            return self.kind
        return type(self.default)


def checked(value: Any, flag: Flag) -> Any:
    """Returns the value as the flag's type; null where that is a value.

    Raises:
        Unsupported: it is of another type, or still a variable where a number or a switch is needed.
    """
    kind = flag.value_type()
    if kind is None or type(value) is kind or value is None and flag.default in (None, UNSET):
        return value
    if kind is float and type(value) is int:
        return float(value)
    if is_placeholder(value):
        raise Unsupported("the variable has no value: set it in the file, or give --set NAME=VALUE")
    wanted = {int: "a whole number", float: "a number", bool: "True or False", str: "one text", list: "a list"}[kind]
    raise Unsupported(f"it takes {wanted}")


def is_placeholder(value: Any) -> bool:
    """Tells whether a text stands for what the user has to fill in."""
    return isinstance(value, str) and bool(re.search(r"\$|path/to|<[^>]+>|your[-_ /]", value))


def one_of(value: Any, choices: Mapping[Any, Any]) -> Any:
    """Returns what the value means among ``choices``. Raises Unsupported with all of them and the nearest one."""
    if value in choices:
        return choices[value]
    names = [str(choice) for choice in choices]
    near = difflib.get_close_matches(str(value), names, n=1)
    raise Unsupported(f"it is one of {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else ""))


def to(*targets: str) -> Rule:
    """Gives the value itself to each of these flags of ours."""
    return lambda value, get: dict.fromkeys(targets, value)


def choice(target: str, choices: Mapping[Any, Any]) -> Rule:
    """Replaces their word for a thing by ours."""
    return lambda value, get: {target: one_of(value, choices)}


def bound_of(target: str) -> Rule:
    """Sets a bound; -1 is none."""
    return lambda value, get: {target: None if value == -1 else value}


def inert(reason: str) -> Rule:
    """Says that no value has an effect, and why."""

    def rule(value: Any, get: Get) -> Settings:
        raise NoEffect(reason)

    return rule


def only(works: Any, reason: str, instead: str) -> Rule:
    """Accepts the one value that happens here anyway, and refuses any other."""

    def rule(value: Any, get: Get) -> Settings:
        if value == works:
            raise NoEffect(reason)
        raise Unsupported(instead)

    return rule


def where(condition: Callable[[Get], str], rule: Rule) -> Rule:
    """Applies ``rule``, unless ``condition`` gives a reason why the flag does nothing in this command."""

    def conditional(value: Any, get: Get) -> Settings:
        reason = condition(get)
        if reason:
            raise NoEffect(reason)
        return rule(value, get)

    return conditional
