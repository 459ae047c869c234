"""Where dataset rows come from: files, folders and Hub datasets, with the names of their columns."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oger_recipe.data.rows import Row, check_row, decode_line
from oger_recipe.recipe import RecipeError

SUFFIXES = (".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Columns of the problem and its reference answer; the task of rows that name none; the user's own tasks; the
    flags that name the two columns, for messages."""

    prompt: str = "prompt"
    answer: str = "answer"
    task: str | None = None
    own_tasks: tuple[str, ...] = ()
    flags: tuple[str, str] = ("data.input_key", "data.label_key")


def read_dataset(
    setting: str,
    columns: Columns,
    *,
    split: str,
    limit: int | None = None,
    counts: Counter[str] | None = None,
) -> list[Row]:
    """Checked rows of a comma-separated dataset setting: .jsonl, .json and .parquet files, folders that `datasets`
    saved, and Hub datasets, ``owner/name`` or ``config@owner/name``.

    Rows without a ``uid`` get one from prompt and answer; among them, repetitions are left out, and counted as
    ``duplicates`` in ``counts``.
    Raises:
        RecipeError: a source cannot be read or a row is malformed; with its file and line.
    """
    rows: list[Row] = []
    derived: set[str] = set()  # uids, over all sources
    counts = Counter() if counts is None else counts
    for source in setting.split(","):
        rows += _read_source(source.strip(), columns, split, derived, counts)
    return rows[:limit]


def is_hub_name(source: str) -> bool:
    """Whether a source can only be a Hub dataset."""
    return not Path(source).exists() and not source.endswith(SUFFIXES) and not source.startswith((".", "/", "~"))


def _read_source(source: str, columns: Columns, split: str, derived: set[str], counts: Counter[str]) -> list[Row]:
    rows: list[Row] = []
    uids: dict[str, int] = {}
    number = 0
    for number, record in read_records(source, split):
        where = f"{source}:{number}"
        row, is_derived = _row(record, columns, where)
        check_row(row, where, columns.own_tasks)
        if is_derived and row["uid"] in derived:
            counts["duplicates"] += 1
            continue
        if row["uid"] in uids:
            raise RecipeError(f"{where}: uid {row['uid']!r} is already used by line {uids[row['uid']]}")
        if is_derived:
            derived.add(row["uid"])
        uids[row["uid"]] = number
        rows.append(row)
    if not number:
        raise RecipeError(f"{source}: the dataset has no rows")
    return rows


def _row(record: Any, columns: Columns, where: str) -> tuple[Any, bool]:
    """The record as a row of the recipe, and whether its uid was derived."""
    if not isinstance(record, dict):
        return record, False
    needed = dict(zip((columns.prompt, columns.answer), columns.flags, strict=True))
    if columns.task is None:
        needed["task"] = "or set oger.task_name"
    for key, flag in needed.items():
        if key not in record and not record.get("teachers"):  # whose prompt or answer is missing for another reason
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
    """Answers are texts; datasets also keep them as JSON documents or numbers, whole ones often as 27.0."""
    if isinstance(answer, dict | list):
        return json.dumps(answer)
    if isinstance(answer, float):
        return None if math.isnan(answer) else str(int(answer)) if answer.is_integer() else repr(answer)
    return str(answer) if isinstance(answer, int) and not isinstance(answer, bool) else answer


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
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        hint = "Without the Hub, give a .jsonl or .parquet file"
        if "config" in reason.lower():
            hint = f"A configuration goes in front: CONFIG@{name}"
        elif "unknown split" in reason.lower():
            hint = "The flags are data.prompt_split and eval.split"
        raise RecipeError(
            f"{source}: neither a file here nor a Hub dataset that can be loaded (split {split!r}): {reason}. {hint}"
        ) from None
    return rows
