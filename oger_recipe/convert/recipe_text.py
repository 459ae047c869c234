"""Writes a recipe file with a comment behind every setting."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

_ORDER = ("oger", "actor", "critic", "ref", "algo", "data", "rollout", "train", "eval", "ckpt", "vllm", "ds", "logger")
_WIDTH = 118


def recipe_text(
    settings: dict[str, tuple[Any, list[str], bool]], header: Iterable[str], common_prefix: str = ""
) -> str:
    """Return the file's text. ``settings``: our flag -> (value, the flags that it comes from, whether one was given).

    Leave ``common_prefix`` out of the names of these flags.
    """
    root: dict[str, Any] = {}
    for key in sorted(settings, key=lambda key: _ORDER.index(key.split(".")[0])):  # stable in each section
        *parents, leaf = key.split(".")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = settings[key]
    return "".join(f"{line}\n" for line in [*_comment(header), *_lines(root, "", common_prefix)])


def _comment(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        text = line.lstrip()
        indent = "# " + " " * (len(line) - len(text))
        wrapped = textwrap.wrap(text, _WIDTH - len(indent), subsequent_indent="  " * (indent != "# "))
        yield from ((indent + part).rstrip() for part in wrapped or [""])


def _lines(node: dict[str, Any], indent: str, prefix: str) -> Iterator[str]:
    settings = {key: child for key, child in node.items() if not isinstance(child, dict)}
    for key, (value, names, given) in settings.items():
        sources = ", ".join(dict.fromkeys(name.removeprefix(prefix) for name in names)) + " (default)" * (not given)
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield from (f"{indent}{line}" for line in _comment([sources]))
            yield f"{indent}{key}:"
            yield from (f"{indent}  {line}" for item in value for line in _item(item, _WIDTH - 24))
        else:
            yield f"{indent}{key}: {_scalar(value)} # {sources}"
    for key, child in node.items():
        if key not in settings:
            yield f"{indent}{key}:"
            yield from _lines(child, indent + "  ", prefix)


def _item(value: dict[str, Any], width: int) -> Iterator[str]:
    """Write an item of a list, and its further lines below its first."""
    for number, line in enumerate(_scalar(value, width).splitlines()):
        yield f"   {line}" if number else f"- {line}"


def _scalar(value: Any, width: int = 10_000) -> str:
    """Write the value as YAML, on one line unless it is wider."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=width, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...").strip()


class _Dumper(yaml.SafeDumper):
    """YAML with line breaks as \\n."""


def _quoted(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)


_Dumper.add_representer(str, _quoted)
