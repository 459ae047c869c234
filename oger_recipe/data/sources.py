"""Reads dataset rows from files, folders and Hub datasets, by the names of their columns."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from oger_recipe.base.errors import RecipeError, cut, shown
from oger_recipe.base.progress import progress
from oger_recipe.data.disk_list import DiskList
from oger_recipe.data.luffy import index_uid, is_luffy, own_record
from oger_recipe.data.rows import Row, check_row, decode_line, refuse_rows
from oger_recipe.grading.rules import TIMES_ASKED

TEACHERS = "teachers"  # the column of the recipe's own rows
_BATCH = 256  # rows of a parquet file that are read at once
SUFFIXES = (".jsonl", ".json", ".parquet")


_T = TypeVar("_T")


@dataclass(frozen=True)
class Columns:
    """Columns of the problem, its reference answer and its teachers.

    ``task``: of rows that name none; ``own_tasks``: the user's; ``flags`` and ``task_flag``: for messages, the flags
    that name the first two columns and the task. ``by_content``: rows without a uid of their own that ask the same are
    repetitions, whatever index LUFFY's files give them. ``keep``: the columns of LUFFY's files that describe a row,
    verl's, stay in it (reward_model, data_source, ability, extra_info).
    """

    prompt: str = "prompt"
    answer: str = "answer"
    teachers: str = TEACHERS
    task: str | None = None
    own_tasks: tuple[str, ...] = ()
    by_content: bool = False
    keep: bool = False
    flags: tuple[str, str] = ("data.input_key", "data.label_key")
    task_flag: str = "oger.task_name"


@dataclass
class Seen:
    """Uids of the rows read so far: derived ones with the number of their rows, and those of LUFFY's files. Uids of
    later sources differ from the latter."""

    derived: Counter[str] = field(default_factory=Counter)
    indices: set[str] = field(default_factory=set)


def read_dataset(
    setting: str,
    columns: Columns,
    *,
    split: str,
    limit: int | None = None,
    counts: Counter[str] | None = None,
    seen: Seen | None = None,
) -> Sequence[Row]:
    """Read and check the rows of a comma-separated dataset setting: .jsonl, .json and .parquet files, folders that
    `datasets` saved, and Hub datasets, ``owner/name`` or ``config@owner/name``.

    The files that LUFFY and OGER released are read as they are; their uid is ``data_source/split/index`` where no
    other row has the same. Rows without a ``uid`` get one from prompt and answer; among them, repetitions are left
    out, and counted as ``duplicates`` in ``counts``; ``seen`` tells how often each came.

    The rows lie on disk, and every look at one is a copy.

    Raises:
        RecipeError: a source cannot be read or rows are malformed; with their file and lines.
    """
    rows: DiskList[Row] = DiskList()
    seen = Seen() if seen is None else seen
    counts = Counter() if counts is None else counts
    for source in setting.split(","):
        _read_source(source.strip(), columns, split, seen, counts, rows)
    return rows[:limit]


def is_hub_name(source: str) -> bool:
    """Say whether a source can only be a Hub dataset."""
    return not Path(source).exists() and not source.endswith(SUFFIXES) and not source.startswith((".", "/", "~"))


def _read_source(
    source: str, columns: Columns, split: str, seen: Seen, counts: Counter[str], rows: DiskList[Row]
) -> None:
    bad: list[str] = []
    is_empty = True
    for _, row in each_row(source, columns, split, seen):
        is_empty = False
        if isinstance(row, RecipeError):
            bad.append(str(row))
        elif row is None:
            counts["duplicates"] += 1
        else:
            rows.append(row)
    if is_empty:
        raise RecipeError(f"{source}: the dataset has no rows")
    refuse_rows(bad)


def each_row(source: str, columns: Columns, split: str, seen: Seen) -> Iterator[tuple[int, Row | RecipeError | None]]:
    """Yield every record of a source with its number: as a checked row, as what is wrong with it, or as None where it
    repeats a row and neither has a uid. Raise RecipeError when the source cannot be read."""
    records = DiskList(progress(records_or_errors(source, split), f"reading {source}", "rows"))
    indices = Counter(index_uid(record) for _, record in records if is_luffy(record) and not columns.by_content)
    unique = {uid for uid, count in indices.items() if uid is not None and count == 1} - seen.indices
    seen.indices |= unique
    uids: dict[str, int] = {}
    for number, record in progress(records, f"checking {source}", "rows", len(records)):
        where = f"{source}:{number}"
        try:
            if isinstance(record, RecipeError):
                raise record
            row = to_row(record, columns, where)
            if isinstance(row, dict) and not row.get("uid") and is_luffy(record) and index_uid(record) in unique:
                row["uid"] = index_uid(record)
            derived = _derive_uid(row)
            if derived and row["uid"] in seen.derived:
                seen.derived[row["uid"]] += 1
                yield number, None
                continue
            first = _first_use(row, number, uids)  # before the check: malformed rows have their uid as well
            check_row(row, where, columns.own_tasks)
            if first != number:
                raise RecipeError(f"{where}: uid {shown(row['uid'])} is already used by line {first}")
        except RecipeError as error:
            yield number, error
            continue
        if derived:
            seen.derived[row["uid"]] += 1
        yield number, row


def _first_use(row: Any, number: int, uids: dict[str, int]) -> int:
    """Return the first line whose row has this uid; this one, if it has none."""
    uid = row.get("uid") if isinstance(row, dict) else None
    return uids.setdefault(uid, number) if isinstance(uid, str) and uid else number


def to_row(record: Any, columns: Columns, where: str) -> Any:
    """Give a record the columns of the recipe's rows, unchecked; its uid is the record's own, if it has one.

    Raises:
        RecipeError: a column that was asked for is missing, or LUFFY's columns are malformed.
    """
    if not isinstance(record, dict):
        return record
    named = record.get(columns.teachers)  # by the user, or the recipe's own
    if columns.teachers not in record and columns.teachers != TEACHERS:
        raise _no_column(columns.teachers, "oger.teacher_key", record, where)
    if is_luffy(record):
        record = own_record(record, columns.answer, columns.task, columns.task_flag, where, keep=columns.keep)
    needed = dict(zip((columns.prompt, columns.answer), columns.flags, strict=True))
    if columns.task is None:
        needed["task"] = f"or set {columns.task_flag}"
    for key, flag in needed.items():
        if key not in record:
            raise _no_column(key, flag, record, where)
    row = dict(record) | {"prompt": record.get(columns.prompt), "answer": as_text(record.get(columns.answer))}
    row.pop(TIMES_ASKED, None)  # the recipe's own
    if named is not None or columns.teachers != TEACHERS:
        row[TEACHERS] = _teachers(named, columns.teachers)
    if columns.task and not row.get("task"):
        row["task"] = columns.task
    return row


def _no_column(name: str, flag: str, record: dict[str, Any], where: str) -> RecipeError:
    return RecipeError(
        f"{where}: no column {name!r} ({flag}); the columns are {cut(', '.join(map(repr, record)), 300)}"
    )


def _teachers(value: Any, column: str) -> Any:
    """Make teachers of texts: one is named after its column, those of a list after their place in it. Leave empty ones
    out, and everything else to the check."""
    if isinstance(value, str):
        return [{"source": column, "text": value, "correct": None}] if value else []
    if not isinstance(value, list):
        return value
    named = ((f"{column}_{place}", item) for place, item in enumerate(value) if item not in (None, ""))
    return [
        {"source": source, "text": item, "correct": None} if isinstance(item, str) else item for source, item in named
    ]


def _derive_uid(row: Any) -> bool:
    """Give a row without a uid one from prompt and answer, and say whether it got one."""
    if not isinstance(row, dict) or row.get("uid") or not row["prompt"] or not row["answer"]:
        return False
    content = json.dumps([row["prompt"], row["answer"]], sort_keys=True, default=str)
    row["uid"] = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return True


def as_text(answer: Any) -> Any:
    """Make a text of an answer: datasets also keep JSON documents, and numbers, whole ones often as 27.0."""
    if isinstance(answer, dict | list):
        return json.dumps(answer)
    if isinstance(answer, float):
        return None if math.isnan(answer) else str(int(answer)) if answer.is_integer() else repr(answer)
    return str(answer) if isinstance(answer, int) and not isinstance(answer, bool) else answer


def read_records(source: str, split: str) -> Iterable[tuple[int, Any]]:
    """Number the records of one source as they are. Raise RecipeError when it cannot be read."""
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


def made_of_records(source: str, split: str, make: Callable[[Any, str], _T], empty: str) -> list[_T]:
    """Apply ``make`` to every record of a source and its place; ``make`` raises RecipeError for a wrong one. Raise
    RecipeError with all that is wrong, and with the sentence ``empty`` where there is no record."""
    made: list[_T] = []
    wrong: list[str] = []
    for number, record in records_or_errors(source, split):
        try:
            if isinstance(record, RecipeError):
                raise record
            made.append(make(record, f"{source}:{number}"))
        except RecipeError as error:
            wrong.append(str(error))
    refuse_rows(wrong)
    if not made:
        raise RecipeError(f"{source}: {empty}")
    return made


def records_or_errors(source: str, split: str) -> Iterable[tuple[int, Any]]:
    """Number the records, with an error in the place of a line that cannot be decoded."""
    path = Path(source).expanduser()
    if path.suffix != ".jsonl" or path.is_dir():
        return read_records(source, split)
    return ((number, _decoded(line, f"{path}:{number}")) for number, line in _numbered(path))


def _decoded(line: bytes, where: str) -> Any:
    try:
        return decode_line(line, where)
    except RecipeError as error:
        return error


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise RecipeError(f"{path}: no such dataset file")


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in _numbered(path):
        yield number, decode_line(line, f"{path}:{number}")


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that hold anything, with their numbers."""
    _require_file(path)
    with path.open("rb") as lines:
        yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _json(path: Path) -> list[Any]:
    _require_file(path)
    document = decode_line(path.read_bytes(), str(path))
    if not isinstance(document, list):
        raise RecipeError(f"{path}: a .json dataset is a list of rows, found {type(document).__name__}")
    return document


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow.parquet

    _require_file(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise RecipeError(f"{path}: not a readable parquet file: {error}") from None


def _saved(path: Path, split: str) -> Iterable[Any]:
    import datasets

    try:
        dataset = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: not a folder that datasets.save_to_disk wrote: {error}") from None
    return _split(dataset, split, str(path)) if isinstance(dataset, datasets.DatasetDict) else dataset


def _split(dataset: Any, split: str, source: str) -> Iterable[Any]:
    if split not in dataset:
        raise RecipeError(f"{source}: no split {split!r}; the splits are {', '.join(dataset)}")
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
            f"{source}: not a file here, and it cannot be loaded from the Hub (split {split!r}): {reason}. {hint}"
        ) from None
    return rows
