"""Scorer judge of kind process: a model that writes about the numbered steps, and a plugin that reads scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oger_recipe.rewards.models.asking import Judged, ask_place
from oger_recipe.rewards.models.judge import judge_metrics, unparsed
from oger_recipe.rewards.models.place import Place, Reply, Sampling
from oger_recipe.rewards.models.places import place_of
from oger_recipe.rewards.models.plugin import Failed, Plugin
from oger_recipe.rewards.models.plugins_of import of_step_judge
from oger_recipe.rewards.models.process import ProcessSource, worst_probability
from oger_recipe.rewards.models.scorer_keys import StepJudgeKeys

if TYPE_CHECKING:
    from oger_recipe.rewards.kinds import SourceSpec, Surroundings


@dataclass(frozen=True)
class StepJudge:
    """A model that writes, and its plugin."""

    place: Place
    plugin: Plugin
    sampling: Sampling

    @classmethod
    def of(cls, spec: SourceSpec, surroundings: Surroundings) -> StepJudge:
        """Make the judge of an entry; its samples depend on the source's name."""
        assert isinstance(spec.keys, StepJudgeKeys)
        keys = spec.keys.judge
        return cls(place_of(keys, surroundings), of_step_judge(keys), keys.sampling(surroundings.seed, spec.name))

    def ask(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[Judged]:
        replies = ask_place(self.place, self.plugin.preprocess(prompts, [list(each) for each in steps]), self.sampling)
        read = iter(self.plugin.postprocess([reply.text for reply in replies if reply.error is None]))
        return [
            _judged(reply, next(read), len(each)) if reply.error is None else Judged.failed(reply)
            for reply, each in zip(replies, steps, strict=True)
        ]


def _judged(reply: Reply, value: int | list[float] | None | Failed, count: int) -> Judged:
    if isinstance(value, Failed):
        return Judged(error=value.reason, reply=reply, cause=value.cause)
    if value is None:
        return unparsed(reply)
    if isinstance(value, list):
        return Judged(reply=reply, steps=tuple(value))
    if value >= count:
        return unparsed(reply, f"no verdict: step {value} is named, and the last is {count - 1}, in the judge's reply")
    return Judged(reply=reply, steps=first_wrong(value, count))


def first_wrong(number: int, count: int) -> tuple[float, ...]:
    """Return scores of so many steps: 1 before the first wrong one, 0 from it on; -1 is no step."""
    good = count if number < 0 else number
    return (1.0,) * good + (0.0,) * (count - good)


def step_judge_source(spec: SourceSpec, surroundings: Surroundings) -> ProcessSource:
    """The source of an entry."""
    assert isinstance(spec.keys, StepJudgeKeys)
    judge, worst = StepJudge.of(spec, surroundings), worst_probability(spec)
    return ProcessSource(spec.keys, judge, spec.keys.prompt_column, judge_metrics, worst)
