"""Dataset rows and their checks.

A row: ``uid`` str, ``prompt`` str or chat messages, ``answer`` str, ``task`` str, ``datasource`` str (optional),
``teachers`` list of {``source`` str, ``text`` str, ``correct`` bool or null, ``probs`` list of float (optional)}
(optional). ``probs`` are the teacher's own probabilities of its tokens, the end-of-sequence token last. ``correct`` is
compared with the verifier's verdict, which decides; how many differ is counted.
"""

import json
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from oger_recipe.base.errors import RecipeError, cut, kind_of, shown
from oger_recipe.grading.verifiers import VERIFIERS, not_allowed

Row = dict[str, Any]
_SHOWN = 10  # mistakes of a dataset, or of one kind, that are said
_KINDS = 20  # of mistakes that are said
_NAMED = 5  # rows that share a mistake and are named
_LONGEST = 600  # characters of a mistake
_LOOKED_AT = 100  # rows in which columns are looked for
_LONG_TEXT = 100  # characters
_ABOVE_ONE = 1e-4  # what rounding in half precision adds to a probability of 1


def decode_line(line: bytes, where: str) -> Any:
    """Decode the JSON document of a line (or a file). Raise RecipeError where it is none, or is no text."""
    try:
        row = json.loads(line.decode("utf-8-sig"))  # some editors begin a file with a byte order mark
        if rb"\ud" in line or rb"\uD" in line:  # half of a surrogate pair is valid JSON, but no text
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise RecipeError(f"{where}: not valid Unicode: {error}") from None
    except ValueError as error:
        raise RecipeError(f"{where}: not valid JSON: {error}") from None
    return row


def refuse_rows(mistakes: Sequence[str]) -> None:
    """Raise RecipeError with the mistakes in a dataset's rows, if any: the first of each kind where there are many."""
    if not mistakes:
        return
    if len({_reason(mistake) for mistake in mistakes}) == 1:
        raise RecipeError(_and_so_in(mistakes))
    lines = without_repetitions(mistakes, _SHOWN if len(mistakes) <= _SHOWN else 1)
    raise RecipeError("\n  - ".join([f"{len(mistakes)} rows are wrong:", *lines]))


def without_repetitions(mistakes: Iterable[str], alone: int = _SHOWN) -> Iterator[str]:
    """Yield the mistakes, shortened: where more than ``alone`` rows share a kind, its first with the number of the
    others. Of more than twenty kinds, yield the first twenty."""
    kinds: dict[str, list[str]] = {}
    for mistake in mistakes:
        kinds.setdefault(kind_of(_reason(mistake)), []).append(mistake)
    for same in islice(kinds.values(), _KINDS):
        yield from map(_cut, same) if len(same) <= alone else [_and_so_in(same)]
    if len(kinds) > _KINDS:
        yield f"and mistakes of {len(kinds) - _KINDS} more kinds"


def _cut(mistake: str) -> str:
    return cut(mistake, _LONGEST)


def _reason(mistake: str) -> str:
    return mistake.partition(": ")[2]  # behind the row's place


def _and_so_in(same: Sequence[str]) -> str:
    """Say the first of mistakes that are alike, and where the next ones are."""
    first, *others = same
    if not others:
        return _cut(first)
    places = [each.partition(": ")[0] for each in others[:_NAMED] if ": " in each]
    named = ", ".join(place.rpartition(":")[2].removeprefix("row ") for place in places)
    more = f": {named}" + ", ..." * (len(others) > _NAMED) if named else ""
    return f"{_cut(first)} (and so in {len(others):,} more row{'s' * (len(others) > 1)}{more})"


def check_row(row: Any, where: str, own_tasks: Collection[str] = ()) -> None:
    """Raise RecipeError for a malformed row; ``where`` is its file and line, ``own_tasks`` the user's verifiers."""
    if not isinstance(row, dict):
        raise RecipeError(f"{where}: a row is a JSON object, found {type(row).__name__}")
    teachers = row.get("teachers") or []
    if not isinstance(teachers, list):
        raise RecipeError(
            f"{where}: 'teachers' must be a text, a list of texts or a list of {{source, text}}, found "
            f"{type(teachers).__name__}"
        )
    for key in ("prompt", "answer"):
        if not row.get(key) and teachers:
            raise RecipeError(f"{where}: {len(teachers)} teachers for no problem: '{key}' is missing")
    for key in ("answer", "task"):
        _check_text(row, key, where)
    if not _is_prompt(row.get("prompt")):
        raise RecipeError(
            f"{where}: 'prompt' must be a string or a list of chat messages, found {shown(row.get('prompt'))}"
        )
    _check_text(row, "uid", where)  # after those that it is derived from
    if row["task"] not in VERIFIERS and row["task"] not in own_tasks:
        _check_path(row["task"], where, own_tasks)
    if not isinstance(row.get("datasource"), str | None):  # a parquet column is null where a row leaves it out
        raise RecipeError(f"{where}: 'datasource' must be a string, found {shown(row['datasource'])}")
    for position, teacher in enumerate(teachers):
        _check_teacher(teacher, f"{where}: teacher {position}")


def _check_path(task: str, where: str, own_tasks: Collection[str]) -> None:
    """Raise RecipeError for a task that is no import path, or one that the user has not allowed."""
    if ":" not in task:
        known = ", ".join(sorted({*VERIFIERS, *own_tasks}))
        raise RecipeError(f"{where}: unknown task {shown(task)}; known: {known}; your own: oger.verifiers")
    if (reason := not_allowed(task)) is not None:
        raise RecipeError(f"{where}: {reason}")


def _check_text(row: Row, key: str, where: str) -> None:
    if not isinstance(row.get(key), str) or not row[key]:
        raise RecipeError(f"{where}: '{key}' must be a non-empty string, found {shown(row.get(key))}")


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, list) and prompt:
        return all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in prompt)
    return isinstance(prompt, str) and bool(prompt)


def _check_teacher(teacher: Any, where: str) -> None:
    if not isinstance(teacher, dict):
        raise RecipeError(f"{where} must be a text, or an object with source and text, found {shown(teacher)}")
    for key in ("source", "text"):
        _check_text(teacher, key, where)
    if teacher.get("correct") not in (True, False, None):
        raise RecipeError(f"{where}: 'correct' must be true, false or null, found {shown(teacher['correct'])}")
    if teacher.get("probs") is not None and not _are_probabilities(teacher["probs"]):
        raise RecipeError(f"{where}: 'probs' must be a list of numbers above 0 and at most 1, or null")


def _are_probabilities(values: Any) -> bool:
    if not isinstance(values, list) or not all(type(value) in (float, int) for value in values):
        return False
    numbers = np.array(values, dtype=np.float64)  # at once: a data set has hundreds of millions of them
    return bool(((numbers > 0) & (numbers <= 1 + _ABOVE_ONE)).all())


def problem_key(prompt: str | list[dict[str, Any]]) -> str:
    """Return a key that prompts share when they ask the same: the user's words, white space evened out."""
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    question = " ".join(str(turn["content"]) for turn in turns if turn["role"] == "user")
    return unicodedata.normalize("NFC", " ".join(question.split()))


def teacher_columns(rows: Iterable[Row], input_key: str, label_key: str) -> list[str]:
    """List columns beside the prompt's with lists or long texts; the reference answer may be a whole solution."""
    used = {"uid", "prompt", "task", "datasource", "teachers", "answer", input_key} - {label_key}
    kinds: dict[str, str] = {}
    for row in islice(rows, _LOOKED_AT):
        for name, content in row.items():
            if isinstance(content, list) and content and isinstance(content[0], str | dict):
                kinds.setdefault(name, "lists")
            elif isinstance(content, str) and len(content) >= _LONG_TEXT:
                kinds.setdefault(name, "long texts")
    return [f"{name!r} has {kind}" for name, kind in kinds.items() if name not in used]
