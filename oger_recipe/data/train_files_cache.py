"""Cache of the files that `oger train` reads: the same rows are not prepared in the same way twice."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import oger_recipe
from oger_recipe.base.files import atomic_folder, to_json
from oger_recipe.base.imports import installed
from oger_recipe.data.rows import Row
from oger_recipe.data.train_files import write_train_files
from oger_recipe.grading.pool import GradingPool

_PROMPTS, _TEACHERS, _COUNTS = "prompts.jsonl", "teachers.arrow", "counts.json"
_OURS = re.compile(r"[0-9a-f]{32}|(?P<partial>\.[0-9a-f]{32}-[a-z0-9_]{8})")  # the latter while it is being written
_WRITTEN_WITHIN_S = 24 * 3600


def write_train_files_once(
    rows: Sequence[Row], *, cache: Path, cache_gb: float, prompts_path: Path, teachers_path: Path | None, **how: Any
) -> Counter[str]:
    """Call `write_train_files` with ``how``, unless ``cache`` has the files of the same rows and arguments.

    Keep nothing whose outcome may differ the next time: see `content_key`, and teachers that could not be graded. The
    cache takes at most ``cache_gb``: what was used longest ago goes first.
    """
    key = content_key(rows, how | {"with_teachers": teachers_path is not None})
    places = {_PROMPTS: prompts_path} | ({_TEACHERS: teachers_path} if teachers_path is not None else {})
    folder = cache / key if key else None
    if folder is not None and (counts := _kept(folder, places)) is not None:
        print(f"prepared data is reused from {folder}", flush=True)
        return counts
    counts = write_train_files(rows, prompts_path=prompts_path, teachers_path=teachers_path, **how)
    if folder is not None and not counts["teachers_ungraded"]:
        _keep(folder, places, counts, cache_gb)
    return counts


def content_key(rows: Sequence[Row], how: Mapping[str, Any]) -> str | None:
    """Hash the rows, everything in ``how``, and all code and installed packages that may have a part in the outcome.

    Return None where more decides: the user's own verifiers, and tokenizers with code of their own. Raises TypeError
    for an argument whose content is not known here.
    """
    tokenizer = how["tokenizer"]
    if how["rules"].own or any(":" in row["task"] for row in rows):
        return None
    if not (type(tokenizer).__module__.startswith("transformers.") and hasattr(tokenizer, "backend_tokenizer")):
        return None
    content = {name: _content(value) for name, value in how.items()}
    digest = hashlib.sha256(json.dumps([content, _code(), _packages()], sort_keys=True).encode())
    try:
        for row in rows:
            digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    except TypeError:  # a column that JSON does not know
        return None
    return digest.hexdigest()[:32]


def _content(value: Any) -> Any:
    """Return a JSON document that differs where the value does."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if dataclasses.is_dataclass(value):
        fields = {field.name: _content(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return fields | {"": type(value).__name__}
    if isinstance(value, Mapping):
        return {str(key): _content(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_content(item) for item in value]
    if isinstance(value, GradingPool):
        return _content(value.settings)
    if hasattr(value, "backend_tokenizer"):
        parts = [value.backend_tokenizer.to_str(), value.chat_template, value.special_tokens_map, value.init_kwargs]
        return [type(value).__name__, json.dumps(parts, sort_keys=True, default=repr)]
    raise TypeError(f"the content of a {type(value).__name__} is not known")


@functools.cache
def _code() -> list[list[str]]:
    root = Path(oger_recipe.__file__).parent
    files = sorted(root.rglob("*.py"))
    return [[str(file.relative_to(root)), hashlib.sha256(file.read_bytes()).hexdigest()] for file in files]


def _packages() -> list[str]:
    return sorted(f"{name}=={version}" for name, version in installed())


def _kept(folder: Path, places: Mapping[str, Path]) -> Counter[str] | None:
    """Copy the files to their places. Return the counts, or None where the folder is not there or not whole."""
    try:
        with (folder / _COUNTS).open() as file:
            with contextlib.suppress(OSError):  # another user's folder, or a file system without locks
                fcntl.flock(file, fcntl.LOCK_SH)  # no other run removes it
                os.utime(folder / _COUNTS)
            kept = json.load(file)
            if any((folder / name).stat().st_size != kept["sizes"][name] for name in places):
                return None
            for name, place in places.items():
                shutil.copyfile(folder / name, place)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Counter(kept["counts"])


def _keep(folder: Path, places: Mapping[str, Path], counts: Counter[str], most_gb: float) -> None:
    sizes = {name: place.stat().st_size for name, place in places.items()}
    size = sum(sizes.values()) / 1e9
    try:
        _is_removed(folder)  # an incomplete one
        if size > most_gb or not _has_room(folder.parent, most_gb - size):
            print(
                f"note: the prepared data is not kept for later runs: its {size:.3g} GB exceed "
                f"oger.data_cache_gb {most_gb:g}",
                flush=True,
            )
            return
        with atomic_folder(folder) as partial:
            for name, place in places.items():
                shutil.copyfile(place, partial / name)
            (partial / _COUNTS).write_text(to_json({"counts": counts, "sizes": sizes}))
    except OSError as error:  # the run has its data all the same
        print(f"note: the prepared data is not kept for later runs: {error} (oger.data_cache)", flush=True)


def _has_room(cache: Path, most_gb: float) -> bool:
    """Remove what was used longest ago until the rest fits into ``most_gb``, and say whether it does."""
    entries = sorted(_entries(cache))
    left, removed = sum(size for _, size, _ in entries), 0.0
    for _, size, folder in entries:
        if left > most_gb and _is_removed(folder):
            left, removed = left - size, removed + size
    if removed:
        what = f"{removed:.3g} GB of data prepared for earlier runs"
        print(f"removed {what} from {cache} (oger.data_cache_gb)", flush=True)
    return left <= most_gb


def _entries(cache: Path) -> Iterator[tuple[float, float, Path]]:
    """Yield when each folder of ours was last used, its size in GB, and itself."""
    for folder in cache.glob("*"):
        name = _OURS.fullmatch(folder.name)
        if name is None or folder.is_symlink():
            continue
        files = [path.stat() for path in _files(folder)]
        used = max((file.st_mtime for file in files), default=0.0)
        if name["partial"] is None or time.time() - used > _WRITTEN_WITHIN_S:  # else another run is writing it
            yield used, sum(file.st_size for file in files) / 1e9, folder


def _files(folder: Path) -> list[Path]:
    return [path for name in (_PROMPTS, _TEACHERS, _COUNTS) if (path := folder / name).is_file()]


def _is_removed(folder: Path) -> bool:
    """Remove our files of a folder, and the folder where it has no others; return False while a run takes them."""
    try:
        with contextlib.ExitStack() as held:
            if (folder / _COUNTS).is_file():
                fcntl.flock(held.enter_context((folder / _COUNTS).open("r+")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in _files(folder):  # the counts last: what is left of a removal is found again
                path.unlink()
    except OSError:
        return False
    with contextlib.suppress(OSError):
        folder.rmdir()
    return True
