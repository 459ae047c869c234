"""Kind rubric: criteria with weights in a column of the row, and a model that says which of them a response meets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any, ClassVar

from oger_recipe.base.errors import shown
from oger_recipe.models.asking import Judged, Metrics
from oger_recipe.models.keys import Question, ValueKeys, WriterKeys
from oger_recipe.models.plugin import BOTH, OF_RUBRICS, Plugin, find_plugin, plugin_problem, ready_made
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.kinds.judge import Writer, judge_metrics, unparsed
from oger_recipe.rewards.place import Reply
from oger_recipe.rewards.sources import Group, Source
from oger_recipe.rewards.spec import SourceSpec, Surroundings

ASKS = ("each", "together")
_TEXTS, _WEIGHTS = ("description", "criterion"), ("weight", "points")  # RaR's and open-instruct's, HealthBench's


@dataclass(frozen=True, kw_only=True)
class RubricKeys(WriterKeys, ValueKeys):
    """A model that says which criteria of the row's rubric a response meets, and the plugin that asks and reads it."""

    if_below: ClassVar[str] = (
        "answers would be rewarded for failing their criteria; weights below 0 are for single criteria"
    )

    plugin: str = key(
        "rubric",
        "file with rm_preprocess, which gets {response, criteria} in place of responses, and rm_postprocess, which "
        "gives a list with a verdict from 0 to 1 for each criterion, None for none, or with ask: together one number "
        "for all of them; or the name of a ready-made one",
    )
    rubric_column: str = key(
        "rubric", "column of the data with the prompt's rubric: a list of criteria with weights", column="rubric"
    )
    ask: str = key("each", "how the judge is asked. each: once per criterion; together: once for all", choices=ASKS)

    @property
    def reads_rubric(self) -> str:
        return self.rubric_column

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

    def questions(self) -> list[Question]:
        rubric = [asdict(Criterion(None, "x"))]
        return [
            Question(self, self._plugin(), example={"response": "x", "criteria": rubric}, room=self.max_new_tokens)
        ]

    def reward_model(self, spec: SourceSpec, surroundings: Surroundings) -> RubricJudge:
        return RubricJudge(Writer.of(self, self._plugin(), spec, surroundings), self.ask == "each")

    def judged_of(self, group: Group, row: int) -> Rated | Reply:
        try:
            return group.responses[row], criteria_of(group.row.get(self.rubric_column))
        except ValueError as error:  # the rows of a run are looked at before it starts
            return Reply(error=f"the row's column {self.rubric_column}: {error}")

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Source:
        model = self.reward_model(spec, surroundings)

        def ask(prompts: Sequence[str], rated: Sequence[Rated]) -> tuple[list[Judged], Metrics]:
            rows, parts = model.ask(prompts, rated)
            return rows, judge_metrics(parts) | rubric_metrics([rubric for _, rubric in rated], rows)

        return self.asking(ask)

    def _plugin(self) -> Plugin:
        return self.plugin_at(find_plugin(self.plugin), BOTH, "rubrics", None)


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
    """Read the rubric of a row. Raises ValueError for one that no value can be made of."""
    if not isinstance(rubric, list) or not rubric:
        raise ValueError(f"a rubric is a list of criteria, found {shown(rubric)}")
    criteria = [_criterion(each, f"criterion {number}") for number, each in enumerate(rubric, start=1)]
    names = [each.name for each in criteria]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"two criteria are named {shown(twice[0])}")
    if not math.isfinite(sum(abs(each.weight) for each in criteria)):
        raise ValueError("the sum of the weights is not finite")
    if all(each.weight <= 0 for each in criteria):
        raise ValueError("no criterion has a weight above 0, so nothing could be earned")
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
        raise ValueError(f"{where}: {' or '.join(_TEXTS)} must be a text, found {shown(text)}")
    if not isinstance(title, str | None):
        raise ValueError(f"{where}: title must be a text, found {shown(title)}")
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not math.isfinite(weight):
        raise ValueError(f"{where}: {' or '.join(_WEIGHTS)} must be a finite number, found {shown(weight)}")
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


Rated = tuple[str, list[Criterion]]  # a response, and the rubric that it is held against
_Asked = tuple[str, str, list[Criterion]]  # prompt, response, and those of its criteria that one question is about


@dataclass(frozen=True)
class RubricJudge:
    """A model that writes, whose plugin reads verdicts; one_by_one: it is asked about each criterion alone."""

    writer: Writer
    one_by_one: bool

    def judge(self, prompts: Sequence[str], responses: Sequence[Rated]) -> list[Judged]:
        return self.ask(prompts, responses)[0]

    def ask(self, prompts: Sequence[str], responses: Sequence[Rated]) -> tuple[list[Judged], list[Judged]]:
        """Ask about all responses at once; return what came of each response, and of each question."""
        asked = [
            (prompt, response, criteria)
            for prompt, (response, rubric) in zip(prompts, responses, strict=True)
            for criteria in self._questions(rubric)
        ]
        parts = self.writer.ask([prompt for prompt, _, _ in asked], asked, self._part, _shown)
        given = iter(parts)
        rows = [joined(rubric, [next(given) for _ in self._questions(rubric)]) for _, rubric in responses]
        return rows, parts

    def _questions(self, rubric: list[Criterion]) -> list[list[Criterion]]:
        return [[each] for each in rubric] if self.one_by_one else [rubric]

    def _part(self, reply: Reply, said: float | list[float | None], asked: _Asked) -> Judged:
        criteria = asked[2]
        if isinstance(said, float):
            if not self.one_by_one:
                return Judged(said, reply=reply)
            said = [said]
        if len(said) > len(criteria):
            return unparsed(reply, f"no verdict: {len(said)} for {len(criteria)} criteria in the judge's reply")
        if all(verdict is None for verdict in said):
            return unparsed(reply)
        names = [each.name for each in criteria]
        return Judged(reply=reply, criteria=dict(zip_longest(names, said)))


def _shown(asked: _Asked) -> dict[str, Any]:
    _, response, criteria = asked
    return {"response": response, "criteria": [asdict(each) for each in criteria]}


def joined(rubric: Sequence[Criterion], parts: Sequence[Judged]) -> Judged:
    """Join what came of a response's questions.

    A question that failed fails the response, and one that the response made fail comes first. A reply without a
    verdict counts as the worst one, unless no reply has any.
    """
    if failed := [each for each in parts if each.error is not None and not each.unparsed]:
        return next((each for each in failed if each.cause is not None), failed[0])
    if all(each.unparsed for each in parts):
        return parts[0]
    replies = [each.reply for each in parts if each.reply is not None]
    reply = Reply("\n\n".join(each.text for each in replies), cut=any(each.cut for each in replies))
    known = {name: verdict for each in parts for name, verdict in each.criteria.items()}
    if not known:  # one number for all criteria
        return replace(parts[0], reply=reply)
    verdicts = {each.name: known.get(each.name) for each in rubric}
    return Judged(rubric_value(rubric, [*verdicts.values()]), reply=reply, criteria=verdicts)


def rubric_metrics(rubrics: Sequence[Sequence[Criterion]], rows: Sequence[Judged]) -> dict[str, float]:
    """Return means over the criteria of the responses that have verdicts: met and pitfalls, how far those of a weight
    above and below 0 are met; unread, the share that has no verdict."""
    said = [
        (each.weight, row.criteria[each.name])
        for rubric, row in zip(rubrics, rows, strict=True)
        for each in rubric
        if row.criteria
    ]
    met, pitfalls = (
        [verdict for weight, verdict in said if verdict is not None and (weight < 0) == is_pitfall]
        for is_pitfall in (False, True)
    )
    return {
        "met": sum(met) / max(len(met), 1),
        "pitfalls": sum(pitfalls) / max(len(pitfalls), 1),
        "unread": sum(verdict is None for _, verdict in said) / max(len(said), 1),
    }
