"""Kind judge: a model that writes, and a plugin that reads a value from what it wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oger_recipe.models.asking import Judged, Metrics, RewardModel
from oger_recipe.models.keys import Question, ValueKeys, WriterKeys
from oger_recipe.models.plugin import (
    BOTH,
    EXAMPLE,
    OF_RUBRICS,
    OF_STEPS,
    Example,
    Plugin,
    find_plugin,
    plugin_problem,
    ready_made,
)
from oger_recipe.models.writer import Writer, judge_metrics
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.spec import SourceSpec, Surroundings


@dataclass(frozen=True, kw_only=True)
class JudgeKeys(WriterKeys, ValueKeys):
    """A model that writes, and the plugin that reads a score from what it wrote."""

    plugin: str = key(help="file with rm_preprocess and rm_postprocess, or the name of a ready-made one")

    @property
    def bounds(self) -> tuple[float, float] | None:
        return (0.0, 1.0) if self.plugin in ready_made() else None

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.plugin in OF_STEPS:
            yield f"plugin {self.plugin!r} judges steps of reasoning: it is for kind process, with scorer judge"
        if self.plugin in OF_RUBRICS:
            yield f"plugin {self.plugin!r} reads the criteria of a rubric: it is for kind rubric"
        yield from filter(None, [plugin_problem(self.plugin, example=self.example if self.chats else None)])

    @property
    def example(self) -> Example:
        """A prompt and what is judged, to try the plugin with."""
        return EXAMPLE

    def questions(self) -> list[Question]:
        return [Question(self, self._plugin(), room=self.max_new_tokens)]

    def reward_model(self, spec: SourceSpec, surroundings: Surroundings) -> RewardModel:
        return Judge(Writer.of(self, self._plugin(), spec, surroundings))

    def metrics(self, judged: Sequence[Judged]) -> Metrics:
        return judge_metrics(judged)

    def _plugin(self) -> Plugin:
        return self.plugin_at(find_plugin(self.plugin), BOTH, example=self.example)


@dataclass(frozen=True)
class Judge:
    """A model that writes, whose plugin reads one number in each reply."""

    writer: Writer

    def judge(self, prompts: Sequence[str], responses: Sequence[Any]) -> list[Judged]:
        return self.writer.ask(prompts, responses, lambda reply, value, _: Judged(value, reply=reply))
