"""Kind rubric: a model that says which criteria of the row's rubric a response meets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from torch import Tensor

from oger_recipe.rewards.models.asking import Judged, ask_place, score_rows
from oger_recipe.rewards.models.judge import judge_metrics, unparsed
from oger_recipe.rewards.models.place import Place, Reply, Sampling
from oger_recipe.rewards.models.places import place_of
from oger_recipe.rewards.models.plugin import Failed, Plugin
from oger_recipe.rewards.models.plugins_of import of_rubric_judge
from oger_recipe.rewards.models.rubrics import Criterion, RubricKeys, criteria_of, rubric_value
from oger_recipe.rewards.sources import Group, Scores

if TYPE_CHECKING:
    from oger_recipe.rewards.kinds import SourceSpec, Surroundings

Rated = tuple[str, list[Criterion]]  # a response, and the rubric that it is held against


@dataclass(frozen=True)
class RubricJudge:
    """A model that writes, and its plugin; one_by_one: it is asked about each criterion alone."""

    place: Place
    plugin: Plugin
    sampling: Sampling
    one_by_one: bool

    @classmethod
    def of(cls, spec: SourceSpec, surroundings: Surroundings) -> RubricJudge:
        """Make the judge of an entry; its samples depend on the source's name."""
        keys = spec.keys
        assert isinstance(keys, RubricKeys)
        sampling = keys.sampling(surroundings.seed, spec.name)
        return cls(place_of(keys, surroundings), of_rubric_judge(keys), sampling, keys.ask == "each")

    def judge(self, prompts: Sequence[str], responses: Sequence[Rated]) -> list[Judged]:
        return self.ask(prompts, responses)[0]

    def ask(self, prompts: Sequence[str], responses: Sequence[Rated]) -> tuple[list[Judged], list[Judged]]:
        """Ask about all responses at once; return what came of each response, and of each question."""
        asked = [
            (prompt, response, criteria)
            for prompt, (response, rubric) in zip(prompts, responses, strict=True)
            for criteria in self._questions(rubric)
        ]
        texts = self.plugin.preprocess(
            [prompt for prompt, _, _ in asked],
            [{"response": text, "criteria": [asdict(each) for each in criteria]} for _, text, criteria in asked],
        )
        replies = ask_place(self.place, texts, self.sampling)
        read = iter(self.plugin.postprocess([reply.text for reply in replies if reply.error is None]))
        parts = [
            self._part(reply, next(read), criteria) if reply.error is None else Judged.failed(reply)
            for reply, (_, _, criteria) in zip(replies, asked, strict=True)
        ]
        given = iter(parts)
        rows = [joined(rubric, [next(given) for _ in self._questions(rubric)]) for _, rubric in responses]
        return rows, parts

    def _questions(self, rubric: list[Criterion]) -> list[list[Criterion]]:
        return [[each] for each in rubric] if self.one_by_one else [rubric]

    def _part(self, reply: Reply, said: float | list[float | None] | Failed | None, asked: list[Criterion]) -> Judged:
        if isinstance(said, Failed):
            return Judged(error=said.reason, reply=reply, cause=said.cause)
        if isinstance(said, float):
            if not self.one_by_one:
                return Judged(said, reply=reply)
            said = [said]
        verdicts = said or []
        if len(verdicts) > len(asked):
            return unparsed(reply, f"no verdict: {len(verdicts)} for {len(asked)} criteria in the judge's reply")
        if all(verdict is None for verdict in verdicts):
            return unparsed(reply)
        names = [each.name for each in asked]
        return Judged(reply=reply, criteria=dict(zip_longest(names, verdicts)))


def joined(rubric: Sequence[Criterion], parts: Sequence[Judged]) -> Judged:
    """Make one of what came of a response's questions.

    A question that failed fails the response, and one that the response made fail comes first. A reply without a
    verdict counts as the worst one, but where no reply has any.
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


class RubricSource:
    """The share of a rubric's weights that each response earns, by what a judge says of the criteria."""

    def __init__(self, spec: SourceSpec, surroundings: Surroundings) -> None:
        keys = spec.keys
        assert isinstance(keys, RubricKeys)
        self._judge, self._keys = RubricJudge.of(spec, surroundings), keys
        self.overlaps = keys.runs_on == "server"

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        return score_rows(groups, wanted, self._keys.prompt_column, self._ask, self._rated)

    def _rated(self, group: Group, row: int) -> Rated | Failed:
        column = self._keys.rubric_column
        try:
            return group.responses[row], criteria_of(group.row.get(column))
        except ValueError as error:  # the rows of a run are looked at before it starts
            return Failed(f"the row's column {column}: {error}")

    def _ask(self, prompts: list[str], rated: list[Rated]) -> tuple[list[Judged], Mapping[str, float]]:
        rows, parts = self._judge.ask(prompts, rated)
        return rows, judge_metrics(parts) | rubric_metrics([rubric for _, rubric in rated], rows)
