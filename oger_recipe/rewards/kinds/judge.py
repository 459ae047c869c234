"""Kind judge: a model that writes, and a plugin that reads a value from what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from oger_recipe.models.asking import Judged, Metrics, RewardModel, ask_place, shares
from oger_recipe.models.keys import Question, ValueKeys, WriterKeys
from oger_recipe.models.places import place_of
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
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.place import Place, Reply, Sampling
from oger_recipe.rewards.sources import ANSWER
from oger_recipe.rewards.spec import SourceSpec, Surroundings

_SHOWN_CHARACTERS = 200  # of a reply, in the error that speaks of it
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class JudgeKeys(WriterKeys, ValueKeys):
    """A model that writes, and the plugin that reads a score from what it wrote."""

    plugin: str = key(help="file with rm_preprocess and rm_postprocess, or the name of a ready-made plugin")

    @property
    def bounds(self) -> tuple[float, float] | None:
        return (0.0, 1.0) if self.plugin in ready_made() else None

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.plugin in OF_STEPS:
            yield f"plugin {self.plugin!r} judges steps of reasoning: use it with kind process and scorer judge"
        if self.plugin in OF_RUBRICS:
            yield f"plugin {self.plugin!r} reads the criteria of a rubric: use it with kind rubric"
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


@dataclass(frozen=True)
class Writer:
    """The model in its place, the plugin that asks it and reads its replies, and how it samples."""

    place: Place
    plugin: Plugin
    sampling: Sampling

    @classmethod
    def of(cls, keys: WriterKeys, plugin: Plugin, spec: SourceSpec, surroundings: Surroundings) -> Writer:
        """Make the writer of an entry; its samples depend on the source's name."""
        return cls(place_of(keys, surroundings), plugin, keys.sampling(surroundings.seed, spec.name))

    def ask(
        self,
        prompts: Sequence[str],
        asked: Sequence[_T],
        read: Callable[[Reply, Any, _T], Judged],
        shown: Callable[[_T], Any] = lambda each: each,
    ) -> list[Judged]:
        """Ask about all of `asked` at once. The plugin gets what is `shown` of each; `read` gets what it found in a
        reply that has a verdict."""
        replies = ask_place(self.place, self.plugin.preprocess(prompts, [*map(shown, asked)]), self.sampling)
        found = iter(self.plugin.postprocess([reply.text for reply in replies if reply.error is None]))

        def judged(reply: Reply, each: _T) -> Judged:
            if reply.error is not None:
                return Judged.failed(reply)
            said = next(found)
            if isinstance(said, Reply):
                return Judged(error=said.error, reply=reply, cause=said.cause)
            return unparsed(reply) if said is None else read(reply, said, each)

        return [judged(*both) for both in zip(replies, asked, strict=True)]


def unparsed(reply: Reply, why: str = "no verdict in the judge's reply") -> Judged:
    """Make the error of a reply without a verdict that could be read: an answer can talk a judge out of one."""
    text = f"{why}, which ends {reply.text[-_SHOWN_CHARACTERS:]!r}"
    return Judged(error=text, reply=reply, unparsed=True, cause=ANSWER)


def judge_metrics(judged: Sequence[Judged]) -> dict[str, float]:
    """Return `shares` of the judge's replies, and the share of those without a verdict."""
    replies = sum(each.reply is not None for each in judged)
    return shares(judged) | {"unparsed": sum(each.unparsed for each in judged) / max(replies, 1)}
