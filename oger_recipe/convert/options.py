"""Reads a command line as argparse does: words of the form ``--name value``, ``--name=value``, and switches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oger_recipe.convert.dialect import Argument, Reader
from oger_recipe.convert.values import Flag


def reader(sections: Mapping[str, Sequence[Flag]]) -> Reader:
    """Make a function that reads the words of a command with these flags as argparse does. A flag of type bool is a
    switch: it takes no value, and is the opposite of its default where it is given."""
    flags = {flag.name: flag for section in sections.values() for flag in section}
    switches = (flag for flag in flags.values() if flag.value_type() is bool)
    return _reader(flags, {flag.name: (flag.name, str(flag.default is not True)) for flag in switches})


def tyro_reader(sections: Mapping[str, Sequence[Flag]]) -> Reader:
    """Make the same as tyro reads them: - and _ are one in names, and a switch --a has the opposite --no-a."""
    flags = {flag.name: flag for section in sections.values() for flag in section}
    names = [name for name, flag in flags.items() if flag.value_type() is bool]
    switches = {name: (name, "True") for name in names}
    read = _reader(flags, switches | {f"--no_{name[2:]}": (name, "False") for name in names})

    def read_any(words: Sequence[str], line_of: Callable[[str], int]) -> tuple[list[Argument], list[str]]:
        written = {_underscores(word): word for word in words if word.startswith("--")}
        lines = {name.partition("=")[0]: word.partition("=")[0] for name, word in written.items()}
        plain = [_underscores(word) if word.startswith("--") else word for word in words]
        return read(plain, lambda name: line_of(lines.get(name, name)))

    return read_any


def _underscores(word: str) -> str:
    name, equals, text = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{text}"


def _reader(flags: Mapping[str, Flag], switches: Mapping[str, tuple[str, str]]) -> Reader:
    """``switches``: the word -> the flag that it sets, and its value."""

    def read(words: Sequence[str], line_of: Callable[[str], int]) -> tuple[list[Argument], list[str]]:
        arguments: list[Argument] = []
        problems: list[str] = []
        rest = deque(words)
        while rest:
            word = rest.popleft()
            name, has_text, text = word.partition("=")
            if not word.startswith("--"):
                last = arguments[-1].name if arguments else ""
                of_switch = f": the switch {last} takes no value" if last in switches else ""
                problems.append(f"line {line_of(word)}: {word!r} is not the value of a flag{of_switch}")
                continue
            line = line_of(name)
            if name in switches:
                problems += [f"line {line}: {word}: this switch takes no value"] if has_text else []
                name, text = switches[name]
            elif not has_text and rest and not rest[0].startswith("--"):
                text = rest.popleft()
            elif not has_text and name in flags:
                problems.append(f"line {line}: {name} has no value")
                continue
            arguments.append(Argument(name, text, line))
        return arguments, problems

    return read


def parse(text: str, kind: type | None = None) -> Any:
    """Return a number or a switch where the flag takes one and the text is one, else the text."""
    if kind is bool:
        return text == "True"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text
