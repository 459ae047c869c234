"""Dataset rows: reading and checking them.

A row: ``uid`` str, ``prompt`` str or chat messages, ``answer`` str, ``task`` str, ``datasource`` str (optional),
``teachers`` list of {``source`` str, ``text`` str, ``correct`` bool or null} (optional). Files: .jsonl or .parquet.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oger_recipe.recipe import RecipeError
from oger_recipe.rewards.verifiers import VERIFIERS

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """All rows of one file, checked.

    Raises:
        RecipeError: the file is missing, empty or of an unknown kind, or a row is malformed (with its line number).
    """
    rows: list[Row] = []
    uids: dict[str, int] = {}
    for number, row in _numbered_rows(path):
        where = f"{path}:{number}"
        _check_row(row, where)
        if row["uid"] in uids:
            raise RecipeError(f"{where}: uid {row['uid']!r} is already used by line {uids[row['uid']]}")
        uids[row["uid"]] = number
        rows.append(row)
    if not rows:
        raise RecipeError(f"{path}: the dataset has no rows")
    return rows


def _numbered_rows(path: Path) -> Iterator[tuple[int, Any]]:
    if not path.is_file():
        raise RecipeError(f"{path}: no such dataset file")
    if path.suffix == ".parquet":
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(path)
        except pyarrow.ArrowException as error:
            raise RecipeError(f"{path}: not a readable parquet file: {error}") from None
        yield from enumerate(table.to_pylist(), start=1)
    elif path.suffix == ".jsonl":
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _parse(line, f"{path}:{number}")
    else:
        raise RecipeError(
            f"{path}: a dataset is a .jsonl or .parquet file of the recipe's rows, found '{path.suffix}'"
        )


def _parse(line: bytes, where: str) -> Any:
    try:
        row = json.loads(line.decode())
        if rb"\ud" in line or rb"\uD" in line:  # half of a surrogate pair is valid JSON, but no text
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise RecipeError(f"{where}: not valid Unicode: {error}") from None
    except ValueError as error:
        raise RecipeError(f"{where}: not valid JSON: {error}") from None
    return row


def _check_row(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise RecipeError(f"{where}: a row is a JSON object, found {type(row).__name__}")
    teachers = row.get("teachers") or []
    if not isinstance(teachers, list):
        raise RecipeError(f"{where}: 'teachers' must be a list, found {type(teachers).__name__}")
    for key in ("prompt", "answer"):
        if not row.get(key) and teachers:
            raise RecipeError(f"{where}: {len(teachers)} teachers for no problem: '{key}' is missing")
    for key in ("uid", "answer", "task"):
        if not isinstance(row.get(key), str) or not row[key]:
            raise RecipeError(f"{where}: '{key}' must be a non-empty string, found {row.get(key)!r}")
    if not _is_prompt(row.get("prompt")):
        raise RecipeError(
            f"{where}: 'prompt' must be a string or a list of chat messages, found {row.get('prompt')!r}"
        )
    if row["task"] not in VERIFIERS:
        raise RecipeError(f"{where}: unknown task {row['task']!r}; known: {', '.join(sorted(VERIFIERS))}")
    if not isinstance(row.get("datasource"), str | None):  # a parquet column is null where a row leaves it out
        raise RecipeError(f"{where}: 'datasource' must be a string, found {row['datasource']!r}")
    for position, teacher in enumerate(teachers):
        _check_teacher(teacher, f"{where}: teacher {position}")


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, list) and prompt:
        return all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in prompt)
    return isinstance(prompt, str) and bool(prompt)


def _check_teacher(teacher: Any, where: str) -> None:
    if not isinstance(teacher, dict):
        raise RecipeError(f"{where} must be an object with source, text and correct, found {teacher!r}")
    for key in ("source", "text"):
        if not isinstance(teacher.get(key), str) or not teacher[key]:
            raise RecipeError(f"{where}: '{key}' must be a non-empty string, found {teacher.get(key)!r}")
    if teacher.get("correct") not in (True, False, None):
        raise RecipeError(f"{where}: 'correct' must be true, false or null, found {teacher['correct']!r}")
