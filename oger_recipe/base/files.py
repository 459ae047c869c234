"""Files that are there whole or not at all, and JSON lines."""

import contextlib
import json
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a place for a file that appears at ``path`` whole or not at all. Makes missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")  # processes of several nodes may write it
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a place for a folder that appears at ``path`` whole or not at all; one that another process has made there
    in the meantime stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    try:
        yield partial
        try:
            os.rename(partial, path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_empty(folder: Path) -> None:
    """Remove the folder and those in it, as far as there is no file in them. Links are not followed."""
    if folder.is_symlink():
        return
    for path, _, _ in os.walk(folder, topdown=False):
        if not os.listdir(path):
            os.rmdir(path)


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or where it is not there yet, the nearest one above it that is."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def to_json(document: Any, *, ensure_ascii: bool = False, **layout: Any) -> str:
    """Write strict JSON. Numbers that are not finite, which it lacks, become null, however deep they lie.

    layout: arguments of json.dumps, as ensure_ascii.
    """
    layout |= {"ensure_ascii": ensure_ascii, "allow_nan": False}
    try:
        return json.dumps(document, **layout)
    except ValueError:
        return json.dumps(_finite(document), **layout)


def _finite(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_finite(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def ray_folder() -> Path:
    """Return the folder for a run's files of Ray and engines: not TMPDIR, as the paths of sockets have to be short."""
    return Path(os.environ.get("RAY_TMPDIR") or "/tmp")


def write_jsonl(records: Iterable[dict[str, Any]], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(to_json(record) + "\n" for record in records)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the records of a JSONL file: none where it does not exist, and no line that a kill or a full disk tore."""
    return list(iter_jsonl(path)) if path.exists() else []


def iter_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSONL file one by one, of one that may not fit into memory."""
    with path.open("rb") as file:  # str.splitlines would cut at U+2028, which texts may have
        lines = (parse_record(line) for line in file if line.endswith(b"\n"))
        yield from (record for record in lines if record is not None)


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line; None for one that a kill or a full disk tore."""
    try:
        record = json.loads(line)
    except ValueError:  # no JSON, or no UTF-8
        return None
    return record if isinstance(record, dict) else None


def read_record(path: Path) -> dict[str, Any]:
    """Read a file of one JSON record; nothing of one that is missing, half-written or no record."""
    with contextlib.suppress(OSError):
        return parse_record(path.read_bytes()) or {}
    return {}


def append_json(path: Path, record: dict[str, Any]) -> None:
    """Append a record as one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(to_json(record) + "\n")


def fingerprint(name: str) -> list[tuple[str, int, int]]:
    """Return path, size and time of a model folder's files, to tell it from a later model there; none of a name."""
    folder = Path(name)
    if not folder.is_dir():
        return []
    files = sorted(path for path in folder.resolve().rglob("*") if path.is_file())
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
