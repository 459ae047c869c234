"""The page of messages quotes messages that the code still has, each with something to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ENTRIES = re.findall(r"^### `(.+?)`(?: \((\w+)\))?\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)


@cache
def said(package: str, start: str = "") -> list[str]:
    """Return the texts in those files of a package's code that have ``start``; what an f-string fills in is a null
    byte."""
    spec = find_spec(package)
    assert spec and spec.submodule_search_locations
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.py"))
    sources = [source for file in files if start in (source := file.read_text(encoding="utf-8"))]
    return [text for source in sources for text in _texts(ast.parse(source))]


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def quoted(message: str) -> re.Pattern[str]:
    """Turn a heading into a pattern of the text in the code: `...` is what is filled in, with what is around it."""
    return re.compile(r"[^\n]*\0[^\n]*".join(re.escape(part) for part in re.split(r" ?\.\.\.", message)))


def test_every_heading_is_a_message() -> None:
    assert len(ENTRIES) == len(re.findall("^### ", PAGE, re.M)) >= 40


@pytest.mark.parametrize("message, package, _", ENTRIES, ids=[message for message, *_ in ENTRIES])
def test_a_quoted_message_is_in_the_code(message: str, package: str, _: str) -> None:
    texts = said(package, " ".join(message.split()[:3])) if package else said("oger_recipe")
    assert any(quoted(message).search(text) for text in texts)


def test_each_has_a_cause_and_a_remedy() -> None:
    for message, _, text in ENTRIES:
        cause, separator, remedy = text.partition("\n**Do:** ")
        assert cause.strip() and separator and remedy.strip(), message


def test_a_message_that_is_not_in_the_code_is_found_out() -> None:
    assert not any(quoted("unknown setting ... of nothing").search(text) for text in said("oger_recipe"))
    assert quoted("the ... of ... dogs").search("of the \0 of the \0 big dogs")
    assert not quoted("the ... dogs").search("the big dogs")
