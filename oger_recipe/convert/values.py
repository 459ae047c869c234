"""The parts of a dialect's table: flags, and the rules that turn their values into settings of ours."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
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
    default: Any  # or a function of the other flags
    rule: Rule
    ours: str = ""  # our flags as the page names them, separated by commas; "": none
    remark: str = ""
    kind: type | None = None  # of the value, where the default does not tell
    or_null: bool = False  # null is a value although the default does not tell
    differs: bool = False  # what it does here is not exactly what it does there, as the remark says

    def left_out(self, get: Get) -> Any:
        """Return what the trainer takes where the command does not say it."""
        return self.default(get) if callable(self.default) else self.default

    def value_type(self) -> type | None:
        if self.kind or self.default in (UNSET, None):
            return self.kind
        return type(self.default)


def checked(value: Any, flag: Flag) -> Any:
    """Return the value as the flag's type; null where that is a value.

    Raises:
        Unsupported: it is of another type, or still a variable where a number or a switch is needed.
    """
    kind = flag.value_type()
    null_too = flag.or_null or flag.default in (None, UNSET)
    if kind in (None, object) or type(value) is kind or value is None and null_too:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if is_placeholder(value):
        raise Unsupported("the variable has no value: set it in the file, or give --set NAME=VALUE")
    wanted = {int: "a whole number", float: "a number", bool: "True or False", str: "one text", list: "a list"}[kind]
    raise Unsupported(f"it takes {wanted}")


def is_placeholder(value: Any) -> bool:
    """Say whether a text stands for what the user has to fill in."""
    return isinstance(value, str) and bool(re.search(r"\$|path/to|<[A-Za-z][^>]*>|your[-_ /]|^[A-Z_]+_PATH$", value))


def placeholders(value: Any) -> Iterator[str]:
    """Yield the texts in a value that stand for what the user has to fill in."""
    if is_placeholder(value):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from placeholders(item)


def one_of(value: Any, choices: Mapping[Any, Any]) -> Any:
    """Return what the value means among ``choices``. Raises Unsupported with all of them and the nearest one."""
    if value in choices:
        return choices[value]
    names = [str(choice) for choice in choices]
    near = difflib.get_close_matches(str(value), names, n=1)
    raise Unsupported(f"it is one of {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else ""))


def to(*targets: str) -> Rule:
    """Make a rule that gives the value itself to these flags."""
    return lambda value, get: dict.fromkeys(targets, value)


def choice(target: str, choices: Mapping[Any, Any]) -> Rule:
    """Make a rule that replaces their word by ours."""
    return lambda value, get: {target: one_of(value, choices)}


def bound_of(target: str) -> Rule:
    """Make a rule for a bound; -1 is none."""
    return lambda value, get: {target: None if value == -1 else value}


def inert(reason: str) -> Rule:
    """Make a rule by which no value has an effect."""

    def rule(value: Any, get: Get) -> Settings:
        raise NoEffect(reason)

    return rule


def only(works: Any, reason: str, instead: str) -> Rule:
    """Make a rule that takes the one value that happens here anyway, and refuses others."""

    def rule(value: Any, get: Get) -> Settings:
        if value == works:
            raise NoEffect(reason)
        raise Unsupported(instead)

    return rule


def where(condition: Callable[[Get], str], rule: Rule) -> Rule:
    """Make a rule that applies ``rule``, unless ``condition`` says why the flag does nothing in this command."""

    def conditional(value: Any, get: Get) -> Settings:
        reason = condition(get)
        if reason:
            raise NoEffect(reason)
        return rule(value, get)

    return conditional


def same(name: str, default: Any, target: str, **more: Any) -> Flag:
    """Make a flag that has its twin here, in the same unit."""
    return Flag(name, default, to(target), target, **more)


def dead(name: str, default: Any, reason: str, **more: Any) -> Flag:
    """Make a flag without effect here."""
    return Flag(name, default, inert(reason), remark=reason, **more)


def alone(name: str, works: Any, reason: str, instead: str, **more: Any) -> Flag:
    """Make a flag that is accepted at the one value that happens here anyway."""
    word = "null" if works is None else works
    return Flag(name, works, only(works, reason, instead), remark=f"{word} alone: {reason}", **more)


def refused(name: str, instead: str) -> Flag:
    """Make a flag of which no value is honoured."""
    return Flag(name, UNSET, only(UNSET, "", instead), remark=f"refused: {instead}")
