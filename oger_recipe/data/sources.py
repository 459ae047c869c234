"""Where dataset rows come from: files, folders and Hub datasets, with the names of their columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oger_recipe.data.rows import Row, check_row, decode_line
from oger_recipe.recipe import RecipeError

SUFFIXES = (".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Columns of the problem and its reference answer; the task of rows that name none; the user's own tasks."""

    prompt: str = "prompt"
    answer: str = "answer"
    task: str | None = None
    own_tasks: tuple[str, ...] = ()


def read_dataset(setting: str, columns: Columns, *, split: str, limit: int | None = None) -> list[Row]:
    """Checked rows of a comma-separated dataset setting: .jsonl, .json and .parquet files, folders that `datasets`
    saved, and Hub datasets, ``owner/name`` or ``config@owner/name``.

    Rows without a ``uid`` get one from prompt and answer; among them, repetitions are left out.
    Raises:
        RecipeError: a source cannot be read or a row is malformed; with its file and line.
    """
    rows: list[Row] = []
    for source in setting.split(","):
        rows += _read_source(source.strip(), columns, split)
    return rows[:limit]


def is_hub_name(source: str) -> bool:
    """Whether a source can only be a Hub dataset."""
    return not Path(source).exists() and not source.endswith(SUFFIXES) and not source.startswith((".", "/", "~"))


def _read_source(source: str, columns: Columns, split: str) -> list[Row]:
    rows: list[Row] = []
    uids: dict[str, int] = {}
    for number, record in read_records(source, split):
        where = f"{source}:{number}"
        row, derived = _row(record, columns, where)
        check_row(row, where, columns.own_tasks)
        if row["uid"] in uids:
            if derived:
                continue
            raise RecipeError(f"{where}: uid {row['uid']!r} is already used by line {uids[row['uid']]}")
        uids[row["uid"]] = number
        rows.append(row)
    if not rows:
        raise RecipeError(f"{source}: the dataset has no rows")
    return rows


def _row(record: Any, columns: Columns, where: str) -> tuple[Any, bool]:
    """The record as a row of the recipe, and whether its uid was derived."""
    if not isinstance(record, dict):
        return record, False
    for key, flag in ((columns.prompt, "data.input_key"), (columns.answer, "data.label_key")):
        if key not in record and key not in ("prompt", "answer"):
            raise RecipeError(
                f"{where}: there is no column {key!r} ({flag}); there are {', '.join(map(repr, record))}"
            )
    row = dict(record) | {"prompt": record.get(columns.prompt), "answer": _text(record.get(columns.answer))}
    if columns.task and not row.get("task"):
        row["task"] = columns.task
    derived = not row.get("uid")
    if derived and row["prompt"] and row["answer"]:
        content = json.dumps([row["prompt"], row["answer"]], sort_keys=True, default=str)
        row["uid"] = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return row, derived


def _text(answer: Any) -> Any:
    """Answers are texts; datasets also keep them as numbers or JSON documents."""
    if isinstance(answer, dict | list):
        return json.dumps(answer)
    return str(answer) if isinstance(answer, int | float) and not isinstance(answer, bool) else answer


def read_records(source: str, split: str) -> Iterable[tuple[int, Any]]:
    """Numbered records of one source as they are. Raises RecipeError when it cannot be read."""
    path = Path(source).expanduser()
    if path.is_dir():
        return enumerate(_saved(path, split), start=1)
    if path.suffix == ".parquet":
        return enumerate(_parquet(path), start=1)
    if path.suffix == ".jsonl":
        return _lines(path)
    if path.suffix == ".json":
        return enumerate(_json(path), start=1)
    if is_hub_name(source):
        return enumerate(_hub(source, split), start=1)
    raise RecipeError(f"{source}: a dataset is a .jsonl, .json or .parquet file, a saved folder or a Hub dataset")


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise RecipeError(f"{path}: no such dataset file")


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    _require_file(path)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, decode_line(line, f"{path}:{number}")


def _json(path: Path) -> list[Any]:
    _require_file(path)
    document = decode_line(path.read_bytes(), str(path))
    if not isinstance(document, list):
        raise RecipeError(f"{path}: a .json dataset is a list of rows, found {type(document).__name__}")
    return document


def _parquet(path: Path) -> list[Any]:
    import pyarrow.parquet

    _require_file(path)
    try:
        table: list[Any] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise RecipeError(f"{path}: not a readable parquet file: {error}") from None
    return table


def _saved(path: Path, split: str) -> Iterable[Any]:
    import datasets

    try:
        dataset = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: not a folder that datasets.save_to_disk wrote: {error}") from None
    return _split(dataset, split, str(path)) if isinstance(dataset, datasets.DatasetDict) else dataset


def _split(dataset: Any, split: str, source: str) -> Iterable[Any]:
    if split not in dataset:
        raise RecipeError(f"{source}: there is no split {split!r}; there are {', '.join(dataset)}")
    rows: Iterable[Any] = dataset[split]
    return rows


def _hub(source: str, split: str) -> Iterable[Any]:
    import datasets

    config, _, name = source.rpartition("@")
    try:
        rows: Iterable[Any] = datasets.load_dataset(name, config or None, split=split)
    except Exception as error:  # network, authentication, names, splits: each its own class in three libraries
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RecipeError(
            f"{source}: neither a file here nor a Hub dataset that can be loaded (split {split!r}): {reason}. Without "
            "the Hub, give a .jsonl or .parquet file"
        ) from None
    return rows
