"""Kinds classifier and critique_classifier: a head that gives a number to prompt and response, or also a critique."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from oger_recipe.models.asking import Judged, Metrics, RewardModel, ask_place, shares
from oger_recipe.models.keys import (
    OF_A_MODEL_HERE,
    OF_A_SERVER,
    ModelKeys,
    Question,
    ValueKeys,
    WriterKeys,
)
from oger_recipe.models.places import place_of
from oger_recipe.models.plugin import FIRST, READY_MADE, Plugin, find_plugin, plugin_problem
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.kinds.judge import Writer
from oger_recipe.rewards.place import Place
from oger_recipe.rewards.spec import SourceSpec, Surroundings


@dataclass(frozen=True, kw_only=True)
class ClassifierKeys(ValueKeys):
    """A model with a head that gives a number (Bradley-Terry)."""

    threshold: ClassVar[float] = 0.0  # of a Bradley-Terry head, whose values lie around 0

    plugin: str | None = key(
        None, "file with rm_preprocess, which makes the text (default: the model's chat template)"
    )

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.api is not None:
            yield "api is for judges; heads are asked as head says"
        if self.plugin is not None:
            yield from filter(None, [plugin_problem(self.plugin, FIRST)])

    def questions(self) -> list[Question]:
        return [Question(self, self._plugin())]

    def reward_model(self, spec: SourceSpec, surroundings: Surroundings) -> Head:
        return Head(place_of(self, surroundings), self._plugin())

    def metrics(self, judged: Sequence[Judged]) -> Metrics:
        return {"cached": shares(judged)["cached"]}  # it writes nothing that could be cut

    def _plugin(self) -> Plugin:
        path = READY_MADE / "_conversation.py" if self.plugin is None else find_plugin(self.plugin)
        return self.plugin_at(path, FIRST)


@dataclass(frozen=True, kw_only=True)
class CritiqueKeys(WriterKeys, ValueKeys):
    """A model that writes a critique, which a head then reads: `critic` writes, `model` is the head."""

    threshold: ClassVar[float] = 0.0

    critic: str = key(help="folder or hub name of the model that writes the critique, or what its server calls it")
    critic_url: str | None = key(None, "base address of the critic's server (default: it runs where the head does)")

    @property
    def models(self) -> tuple[WriterKeys, ClassifierKeys]:
        """The critic's keys and the head's; what is said of limits and sizes holds for both."""
        own = {each.name: getattr(self, each.name) for each in fields(WriterKeys)}
        critic = own | {"model": self.critic, "revision": None, "tokenizer": None, "head": ModelKeys.head}
        if self.critic_url is not None:
            critic |= {"url": self.critic_url, "place": None}
        head = {each.name: own[each.name] for each in fields(ModelKeys)} | {"api": None}
        if (critic["url"] is None) != (head["url"] is None):  # each leaves out what is for the other's place
            for model in (critic, head):
                for name in OF_A_SERVER if model["url"] is None else OF_A_MODEL_HERE:
                    model.pop(name, None)
        return WriterKeys(**critic), ClassifierKeys(**head)

    def combined(self) -> Iterator[str]:
        critic, head = self.models
        of_critic = critic.combined()
        if self.critic_url is not None:
            of_critic = (re.sub("^url: ", "critic_url: ", problem) for problem in of_critic)
        yield from dict.fromkeys([*of_critic, *head.combined()])

    def questions(self) -> list[Question]:
        critic, head = self.models
        (of_head,) = head.questions()  # which reads the critique, too
        return [
            Question(critic, self._plugin(), room=self.max_new_tokens),
            replace(of_head, example=["x", "x"], room=self.max_new_tokens),
        ]

    def reward_model(self, spec: SourceSpec, surroundings: Surroundings) -> RewardModel:
        critic, head = self.models
        writer = Writer.of(critic, self._plugin(), spec, surroundings)
        return CriticAndHead(writer, head.reward_model(spec, surroundings))

    def _plugin(self) -> Plugin:
        """Make the critic's plugin."""
        critic, _ = self.models
        return critic.plugin_at(READY_MADE / "_critique.py", FIRST)

    @property
    def urls(self) -> dict[str, str]:
        return super().urls | ({"critic_url": self.critic_url} if self.critic_url is not None else {})


@dataclass(frozen=True)
class Head:
    """A head, and the plugin that makes its texts. Its numbers are raw."""

    place: Place
    plugin: Plugin

    def judge(self, prompts: Sequence[str], responses: Sequence[Any]) -> list[Judged]:
        replies = ask_place(self.place, self.plugin.preprocess(prompts, responses), None)
        return [Judged(reply.value, reply=reply) if reply.error is None else Judged.failed(reply) for reply in replies]


@dataclass(frozen=True)
class CriticAndHead:
    """A model that writes about prompt and response, and a head that reads that, too."""

    critic: Writer
    head: Head

    def judge(self, prompts: Sequence[str], responses: Sequence[Any]) -> list[Judged]:
        """Ask critic, then head; replies are the critiques."""
        critic = self.critic
        critiques = ask_place(critic.place, critic.plugin.preprocess(prompts, responses), critic.sampling)
        there = [row for row, critique in enumerate(critiques) if critique.error is None]
        both = [[responses[row], critiques[row].text] for row in there]
        read = iter(self.head.judge([prompts[row] for row in there], both))
        return [
            replace(next(read), reply=critique) if critique.error is None else Judged.failed(critique)
            for critique in critiques
        ]
