"""What is written to disk is strict JSON, whoever writes it."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any, NoReturn

import pytest

import oger_recipe
from oger_recipe.base.files import append_json, read_jsonl, to_json, write_jsonl

RECORD = {
    "reward": math.nan,
    "components": {"rule": {"form": math.inf, "right": 1.5}},
    "steps": [{"text": "a\u2028\u00e4", "sources": [-math.inf, 0.0]}, (1, math.nan)],
    "step": 3,
}
READ = {
    "reward": None,
    "components": {"rule": {"form": None, "right": 1.5}},
    "steps": [{"text": "a\u2028\u00e4", "sources": [None, 0.0]}, [1, None]],
    "step": 3,
}


def _strict(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_null_however_deep(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    write_jsonl([RECORD, {"a": 0.1}], path)
    append_json(path, RECORD)
    lines = path.read_text().split("\n")
    assert [_strict(line) for line in lines[:-1]] == [READ, {"a": 0.1}, READ] and lines[-1] == ""
    assert read_jsonl(path) == [READ, {"a": 0.1}, READ]
    assert math.isnan(RECORD["reward"])  # what was written stays as it was
    assert _strict(to_json(RECORD, indent=1, ensure_ascii=True)) == READ


def test_a_line_that_a_kill_or_a_full_disk_has_torn_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "\xc3\n{"a": 2}{"a"\n{"a": 3}\n{"a": "\xc3')
    assert read_jsonl(path) == [{"a": 1}, {"a": 3}]


def test_what_is_written_elsewhere_is_made_by_the_same_function() -> None:
    """A writer of its own would write NaN and Infinity."""
    writes = {"write", "writelines", "write_text", "write_bytes"}
    own = [
        f"{path.name}:{node.lineno}"
        for path in Path(oger_recipe.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if (node.func.attr in writes and "json.dumps(" in ast.unparse(node)) or ast.unparse(node.func) == "json.dump"
    ]
    assert own == []


@pytest.mark.parametrize("document", [{1, 2}, object()])
def test_what_is_no_json_is_refused(document: object) -> None:
    with pytest.raises(TypeError):
        to_json({"a": document})
