"""The mix file: which datasets make up a file of rows, and what their columns mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from oger_recipe.base.errors import RecipeError

HOLDERS = ("x-", "_")  # what top-level keys begin with that only hold anchors
COLUMNS = ("prompt", "answer", "teacher", "correct", "uid")
WRITTEN = ("uid", "prompt", "answer", "task", "datasource", "teachers")  # columns that every file of rows has
ANSWERS = ("hashes", "boxed", "last_number")


@dataclass(frozen=True)
class Source:
    """One dataset of a mix.

    name: the teachers' source; path: as data.prompt_dataset takes it; split: of a Hub dataset or a saved folder;
    columns: by COLUMNS, where nested ones are written with dots; None for the recipe's own rows and LUFFY's files.
    answer_from: where in its column the answer is, by ANSWERS; None: the column is the answer. held_out: the problems
    are kept out of the file, whichever other sources have them.
    """

    name: str
    path: str
    split: str = "train"
    columns: Mapping[str, str] | None = None
    answer_from: str | None = None
    task: str | None = None
    datasource: str | None = None
    held_out: bool = False


@dataclass(frozen=True)
class Mix:
    """Sources, in the order in which they contribute, and limits.

    tokenizer: folder or hub name; max_prefix_len: tokens of a teacher with its end of sequence; max_prompt_length:
    tokens of a problem without its template; None: no limit. keep: further columns that stay in the file.
    """

    sources: tuple[Source, ...]
    tokenizer: str | None = None
    max_prefix_len: int | None = None
    max_prompt_length: int | None = None
    keep_wrong_teachers: bool = False
    keep: Sequence[str] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the mix itself names."""
        return tuple(source.task for source in self.sources if source.task)


_KINDS: dict[str, type] = {"split": str, "task": str, "datasource": str, "name": str, "path": str, "answer_from": str}
_KINDS |= {"tokenizer": str, "max_prefix_len": int, "max_prompt_length": int, "columns": dict, "sources": list}
_KINDS |= {"keep_wrong_teachers": bool, "held_out": bool, "keep": list}
_IN_WORDS = {str: "a text", int: "a number of 1 or more", dict: "a mapping", list: "a list", bool: "true or false"}


def read_mix(path: Path) -> Mix:
    """Read a mix from a YAML file. Raise RecipeError with the file, the source and what can be written."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(f"{path}: cannot be read as a mix file: {error}") from None
    if isinstance(document, dict):  # as in a recipe file, keys that hold anchors
        document = {key: value for key, value in document.items() if not str(key).startswith(HOLDERS)}
    values = _checked(document, Mix, str(path))
    sources = tuple(_source(entry, f"{path}: source {number}") for number, entry in enumerate(values["sources"], 1))
    if all(source.held_out for source in sources):
        raise RecipeError(f"{path}: 'sources' lists only held-out sources: at least one must not be held out")
    mix = Mix(**(values | {"sources": sources}))
    if mix.tokenizer is None and (mix.max_prefix_len or mix.max_prompt_length):
        raise RecipeError(f"{path}: max_prefix_len and max_prompt_length count tokens: set 'tokenizer'")
    if wrong := [name for name in mix.keep if not isinstance(name, str) or name in WRITTEN]:
        raise RecipeError(f"{path}: 'keep' takes columns other than {', '.join(WRITTEN)}, found {wrong[0]!r}")
    return mix


def _source(entry: Any, where: str) -> Source:
    values = _checked(entry, Source, where)
    where = f"{where} ({values['name']})"
    columns = values.get("columns")
    if columns is None and values.get("answer_from"):
        raise RecipeError(f"{where}: 'answer_from' needs 'columns'")
    if columns is not None:
        _refuse_unknown(columns, COLUMNS, f"{where}: columns")
        for key in ("prompt", "answer"):
            if not isinstance(columns.get(key), str):
                raise RecipeError(f"{where}: 'columns' names no {key} column")
        if values.get("task") is None:
            raise RecipeError(f"{where}: 'task' is missing: the verifier of its answers, such as math or gsm8k")
    if values.get("answer_from") not in (None, *ANSWERS):
        raise RecipeError(f"{where}: answer_from must be one of {', '.join(ANSWERS)}, found {values['answer_from']!r}")
    return Source(**values)


def _checked(document: Any, kind: type, where: str) -> dict[str, Any]:
    """Return the mapping, if it has only fields of ``kind``, all that are required, each of its type."""
    if not isinstance(document, dict):
        raise RecipeError(f"{where}: expected a mapping, found {type(document).__name__}")
    _refuse_unknown(document, [field.name for field in fields(kind)], where)
    for field in fields(kind):
        value, expected = document.get(field.name), _KINDS[field.name]
        if value is None and field.default is not MISSING:
            continue
        if type(value) is not expected or (expected is not bool and not value) or (type(value) is int and value < 1):
            raise RecipeError(f"{where}: '{field.name}' must be {_IN_WORDS[expected]}, found {value!r}")
    return {key: value for key, value in document.items() if value is not None}


def _refuse_unknown(found: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = list(known)
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
            hint += f"; a top-level key that only holds anchors begins with {' or '.join(HOLDERS)}" * (not near)
            raise RecipeError(f"{where}: unknown key '{key}'; {hint}")
