"""Scorer judge of kind process: a model that writes about the numbered steps, and a plugin that reads scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from oger_recipe.base.ranges import WEIGHT
from oger_recipe.models.asking import Judged
from oger_recipe.models.keys import ChatKeys, ModelKeys, PluginKeys, Question, StepKeys
from oger_recipe.models.plugin import (
    BOTH,
    OF_SEVERAL,
    OF_STEPS,
    Plugin,
    find_plugin,
    plugin_problem,
    ready_made,
)
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.kinds.judge import JudgeKeys, Writer, judge_metrics, unparsed
from oger_recipe.rewards.kinds.process import ProcessSource, worst_probability
from oger_recipe.rewards.place import Reply
from oger_recipe.rewards.sources import Source
from oger_recipe.rewards.spec import SourceSpec, Surroundings


@dataclass(frozen=True, kw_only=True)
class StepJudgeKeys(ChatKeys, StepKeys, PluginKeys):
    """A model that writes about the numbered steps, and the plugin that reads scores of them in what it wrote."""

    plugin: str = key(
        "first_wrong_step",
        "file with rm_preprocess, which gets lists of steps in place of responses, and rm_postprocess, which gives "
        "the first wrong step's number from 0 (-1: none) or a score for each step; or the name of a ready-made one",
    )
    sampling_temperature: float = key(0.0, "sampling temperature of the judge; 0 is greedy", range=WEIGHT)

    @property
    def bounds(self) -> tuple[float, float] | None:
        return super().bounds if self.plugin in OF_STEPS else None

    @property
    def judge(self) -> JudgeKeys:
        """The model's keys, as those of kind judge."""
        names = {each.name for each in fields(JudgeKeys)} - {"temperature"}
        shared = {each.name: getattr(self, each.name) for each in fields(StepJudgeKeys) if each.name in names}
        return JudgeKeys(**shared, temperature=self.sampling_temperature)

    @property
    def models(self) -> tuple[ModelKeys, ...]:
        return (self.judge,)

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.plugin in ready_made() and self.plugin not in OF_STEPS:
            yield f"plugin {self.plugin!r} judges whole answers; {', '.join(OF_STEPS)} judges steps"
        else:
            yield from filter(None, [plugin_problem(self.plugin, example=OF_SEVERAL if self.chats else None)])

    def questions(self) -> list[Question]:
        return [Question(self.judge, self._plugin(), example=["x"], room=self.max_new_tokens)]

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Source:
        judge = StepJudge(Writer.of(self.judge, self._plugin(), spec, surroundings))
        return ProcessSource(self, judge, self.prompt_column, judge_metrics, worst_probability(spec))

    def _plugin(self) -> Plugin:
        return self.judge.plugin_at(find_plugin(self.plugin), BOTH, "steps", OF_SEVERAL)


@dataclass(frozen=True)
class StepJudge:
    """A model that writes, whose plugin reads in each reply the first wrong step or a score for each."""

    writer: Writer

    def ask(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[Judged]:
        return self.writer.ask(prompts, steps, _judged, shown=list)


def _judged(reply: Reply, value: int | list[float], steps: Sequence[str]) -> Judged:
    if isinstance(value, list):
        return Judged(reply=reply, steps=tuple(value))
    if value >= len(steps):
        last = len(steps) - 1
        return unparsed(reply, f"no verdict: step {value} is named, and the last is {last}, in the judge's reply")
    return Judged(reply=reply, steps=first_wrong(value, len(steps)))


def first_wrong(number: int, count: int) -> tuple[float, ...]:
    """Return `count` scores: 1 before the first wrong step (-1: there is none), 0 from it on."""
    good = count if number < 0 else number
    return (1.0,) * good + (0.0,) * (count - good)
