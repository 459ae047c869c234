"""Rubrics as data: criteria with weights in a column of the row, and the value that verdicts on them make."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oger_recipe.errors import shown
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.models.keys import WriterKeys
from oger_recipe.rewards.models.plugin import OF_RUBRICS, plugin_problem, ready_made

ASKS = ("each", "together")
_TEXTS, _WEIGHTS = ("description", "criterion"), ("weight", "points")  # RaR's and open-instruct's, HealthBench's


@dataclass(frozen=True, kw_only=True)
class RubricKeys(WriterKeys):
    """A model that says which criteria of the row's rubric a response meets, and the plugin that asks and reads it."""

    plugin: str = key(
        "rubric",
        "file with rm_preprocess, which gets {response, criteria} in place of responses, and rm_postprocess, which "
        "gives a list with a verdict from 0 to 1 for each criterion, None for none, or with ask: together one number "
        "for all of them; or the name of a ready-made one",
    )
    rubric_column: str = key(
        "rubric", "column of the data with the prompt's rubric: a list of criteria with weights", column="rubric"
    )
    ask: str = key("each", "how the judge is asked. each: once a criterion; together: once for all", choices=ASKS)

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, 1.0

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.plugin in ready_made() and self.plugin not in OF_RUBRICS:
            yield f"plugin {self.plugin!r} reads no rubric; {', '.join(OF_RUBRICS)} do"
        else:
            yield from filter(None, [plugin_problem(self.plugin)])
        if self.plugin == "rubric_grade" and self.ask != "together":
            yield "plugin 'rubric_grade' grades by all criteria at once: it needs ask: together"


@dataclass(frozen=True)
class Criterion:
    """What an answer should do (weight above 0) or should not do (below 0), as a sentence about the answer."""

    title: str | None
    description: str
    weight: float = 1.0

    @property
    def name(self) -> str:
        return self.title or self.description


def criteria_of(rubric: Any) -> list[Criterion]:
    """Read the rubric of a row. Raises ValueError for one that verdicts could make no value of."""
    if not isinstance(rubric, list) or not rubric:
        raise ValueError(f"a rubric is a list of criteria, found {shown(rubric)}")
    criteria = [_criterion(each, f"criterion {number}") for number, each in enumerate(rubric, start=1)]
    names = [each.name for each in criteria]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"two criteria are named {shown(twice[0])}")
    if not math.isfinite(sum(abs(each.weight) for each in criteria)):
        raise ValueError("the weights add up to no finite number")
    if all(each.weight <= 0 for each in criteria):
        raise ValueError("no criterion has a weight above 0, so that nothing could be earned")
    return criteria


def rubric_problem(rubric: Any) -> str | None:
    """Say what is wrong with the rubric of a row."""
    try:
        criteria_of(rubric)
    except ValueError as error:
        return str(error)
    return None


def _criterion(each: Any, where: str) -> Criterion:
    if isinstance(each, str):
        each = {"description": each}
    if not isinstance(each, dict):
        raise ValueError(f"{where} is a text, or has a description and a weight; found {shown(each)}")
    known = {name: value for name, value in each.items() if value is not None}  # as Arrow fills gaps
    text = next((known[name] for name in _TEXTS if name in known), None)
    weight = next((known[name] for name in _WEIGHTS if name in known), 1.0)
    title = known.get("title")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: {' or '.join(_TEXTS)} has to be a text, found {shown(text)}")
    if not isinstance(title, str | None):
        raise ValueError(f"{where}: title has to be a text, found {shown(title)}")
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not math.isfinite(weight):
        raise ValueError(f"{where}: {' or '.join(_WEIGHTS)} has to be a finite number, found {shown(weight)}")
    return Criterion(title, text, float(weight))


def rubric_value(criteria: Sequence[Criterion], verdicts: Sequence[float | None]) -> float:
    """Return the share of the weights above 0 that was earned, less what weights below 0 take off; 0 to 1.

    A verdict says how far a criterion is met, 0 to 1. Where there is none it is the worst: not met where that would
    pay, met where that costs.
    """
    whole = math.fsum(max(each.weight, 0.0) for each in criteria)
    earned = math.fsum(
        each.weight * (float(each.weight < 0) if verdict is None else verdict)
        for each, verdict in zip(criteria, verdicts, strict=True)
    )
    return min(max(earned / whole, 0.0), 1.0)
