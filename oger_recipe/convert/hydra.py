"""Reads a command line as Hydra does: words of the form ``name=value``, and their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from oger_recipe.convert.dialect import Argument

_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([\w.]+\.[\w.]+)\}")


def stray(sections: Sequence[str]) -> re.Pattern[str]:
    """Make a pattern for the beginning of a line that sets something in one of these sections."""
    return re.compile(rf"\s*['\"]?\+{{0,2}}(?:{'|'.join(sections)})\.[\w.]+=")


def read_overrides(words: Sequence[str], line_of: Callable[[str], int]) -> tuple[list[Argument], list[str]]:
    """Return the settings, with references among them resolved, and a sentence for every word that is no setting."""
    overrides: list[Argument] = []
    problems = []
    for word in words:
        match = _OVERRIDE.fullmatch(word)
        if match:
            overrides.append(Argument(match[1], match[2], line_of(match[1])))
        else:
            problems.append(f"line {line_of(word)}: {_refusal(word)}")
    texts = {override.name: override.text for override in overrides}
    resolved = (_REFERENCE.sub(lambda match: texts.get(match[1], match[0]), override.text) for override in overrides)
    return [replace(override, text=text) for override, text in zip(overrides, resolved, strict=True)], problems


def _refusal(word: str) -> str:
    if word.startswith("-"):
        return f"{word}: settings from another file or Hydra's own flags are not read; give the settings as name=value"
    if word.startswith("~"):
        return f"{word}: removing a setting is not supported"
    return f"{word!r} is not name=value"


def parse(text: str, kind: type | None = None) -> Any:
    """Return null, a switch, a number or a list as Hydra does; else, and for ``str``, the text without quotes."""
    word = text.strip()
    if word in ("", "null", "None", "~", "{}"):
        return None
    if kind is str and not word.startswith("["):
        return _text(word)
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if re.fullmatch(r"[+-]?\d+", word):
        return int(word)
    try:
        return float(word) if re.fullmatch(r"[+-]?[\d.]+(?:[eE][+-]?\d+)?", word) else _text(word)
    except ValueError:  # 1.2.3
        return word


def _text(word: str) -> Any:
    if word.startswith("[") and word.endswith("]"):
        return [parse(item) for item in word[1:-1].split(",") if item.strip()]
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
