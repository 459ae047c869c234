"""Pairs of answers and single answers that people have labelled, to hold a judge against."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from oger_recipe.base.errors import RecipeError, shown
from oger_recipe.data.sources import made_of_records
from oger_recipe.rewards.kinds.rubric import Criterion, criteria_of, rubric_value

T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    name: str
    question: str
    first: str
    second: str
    first_is_better: bool


@dataclass(frozen=True)
class Answer:
    name: str
    question: str
    text: str
    label: float

    @property
    def judged(self) -> Any:
        """What a judge is asked about."""
        return self.text


@dataclass(frozen=True)
class RatedAnswer(Answer):
    """labels: people's labels of the criteria by name, 1 for met and 0 for not; of some criteria, or of all."""

    rubric: list[Criterion]
    labels: dict[str, float]

    @property
    def judged(self) -> Any:
        return self.text, self.rubric


@dataclass(frozen=True)
class _Format:
    """Columns of question and answers, and for each label whether it says that the first answer is better."""

    question: str
    first: str
    second: str
    labels: dict[Any, bool]


_FORMATS = {
    "LLMBar": _Format("input", "output_1", "output_2", {1: True, 2: False}),
    "JudgeBench": _Format("question", "response_A", "response_B", {"A>B": True, "B>A": False}),
}
_QUESTIONS, _TEXTS, _LABELS = ("question", "prompt"), ("text", "response"), ("label",)


def read_pairs(source: str, split: str, limit: int | None = None) -> list[Pair]:
    """Read pairs as LLMBar or JudgeBench have them: .json, .jsonl, .parquet, or a dataset of the Hub.

    Raises RecipeError with the lines that are wrong.
    """
    return _read(source, split, limit, _pair)


def read_answers(source: str, split: str, limit: int | None = None) -> list[Answer]:
    """Read answers with question (or prompt), text (or response) and label, 0 or 1 or any number.

    Raises RecipeError with the lines that are wrong.
    """
    return _read(source, split, limit, _answer)


def read_rated_answers(source: str, split: str, limit: int | None, column: str) -> list[RatedAnswer]:
    """Read answers with question (or prompt), text (or response) and a column with a rubric, whose criteria may have a
    label, 0 or 1. Without a column label, compute the answer's label from those of all criteria.

    Raises RecipeError with the lines that are wrong.
    """
    return _read(source, split, limit, lambda record, where: _rated(record, where, column))


def _read(source: str, split: str, limit: int | None, make: Callable[[dict[str, Any], str], T]) -> list[T]:
    def made(record: Any, where: str) -> T:
        if not isinstance(record, dict):
            raise RecipeError(f"{where}: a JSON object is needed, found {type(record).__name__}")
        return make(record, where)

    return made_of_records(source, split, made, "this file is empty")[:limit]


def _pair(record: dict[str, Any], where: str) -> Pair:
    known = (each for each in _FORMATS.values() if {each.question, each.first, each.second} <= record.keys())
    if (found := next(known, None)) is None:
        formats = "; ".join(
            f"{name}: {each.question}, {each.first}, {each.second}, label" for name, each in _FORMATS.items()
        )
        raise RecipeError(f"{where}: a pair needs the columns ({formats}); the columns are {', '.join(record)}")
    label = record.get("label")
    if not isinstance(label, int | str) or label not in found.labels:
        raise RecipeError(f"{where}: 'label' must be {' or '.join(map(repr, found.labels))}, found {shown(label)}")
    texts = [_text(record, column, where) for column in (found.question, found.first, found.second)]
    return Pair(str(record.get("pair_id") or where), texts[0], texts[1], texts[2], found.labels[label])


def _answer(record: dict[str, Any], where: str) -> Answer:
    columns = [_column(record, names, where) for names in (_QUESTIONS, _TEXTS, _LABELS)]
    label = record[columns.pop()]
    if not isinstance(label, int | float) or not math.isfinite(label):
        raise RecipeError(f"{where}: 'label' must be a number, found {shown(label)}")
    question, text = (_text(record, column, where) for column in columns)
    return Answer(str(record.get("uid") or where), question, text, float(label))


def _rated(record: dict[str, Any], where: str, column: str) -> RatedAnswer:
    rubric = record[_column(record, (column,), where)]
    try:
        criteria = criteria_of(rubric)
    except ValueError as error:
        raise RecipeError(f"{where}: {column!r}: {error}") from None
    given = [each.get("label") if isinstance(each, dict) else None for each in rubric]
    labels = {each.name: label for each, label in zip(criteria, given, strict=True) if label is not None}
    if wrong := [label for label in labels.values() if label not in (0, 1)]:
        raise RecipeError(f"{where}: the label of a criterion must be 0 or 1, found {shown(wrong[0])}")
    if record.get("label") is None:
        if None in given:
            raise RecipeError(f"{where}: add a column label, or a label for each criterion")
        record = record | {"label": rubric_value(criteria, given)}
    return RatedAnswer(**vars(_answer(record, where)), rubric=criteria, labels=labels)


def _column(record: dict[str, Any], names: Sequence[str], where: str) -> str:
    if (column := next((name for name in names if name in record), None)) is None:
        raise RecipeError(f"{where}: no column {' or '.join(names)}; the columns are {', '.join(record)}")
    return column


def _text(record: dict[str, Any], column: str, where: str) -> str:
    if not isinstance(record[column], str):
        raise RecipeError(f"{where}: {column!r} must be a string, found {shown(record[column])}")
    text: str = record[column]
    return text
