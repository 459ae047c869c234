"""Kinds classifier and critique_classifier: a head that gives a number to prompt and response, or also a critique."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oger_recipe.rewards.models.asking import Judged, ModelSource, ask_place, shares
from oger_recipe.rewards.models.keys import ClassifierKeys, CritiqueKeys, WriterKeys
from oger_recipe.rewards.models.place import Place, Sampling
from oger_recipe.rewards.models.places import place_of
from oger_recipe.rewards.models.plugin import Plugin
from oger_recipe.rewards.models.plugins_of import of_critic, of_head

if TYPE_CHECKING:
    from oger_recipe.rewards.kinds import SourceSpec, Surroundings


@dataclass(frozen=True)
class Head:
    """A head, and the plugin that makes its texts. Its numbers are raw."""

    place: Place
    plugin: Plugin

    @classmethod
    def of(cls, spec: SourceSpec, surroundings: Surroundings) -> Head:
        keys = spec.keys
        assert isinstance(keys, ClassifierKeys)
        return cls(place_of(keys, surroundings), of_head(keys))

    def judge(self, prompts: Sequence[str], responses: Sequence[Any]) -> list[Judged]:
        replies = ask_place(self.place, self.plugin.preprocess(prompts, responses), None)
        return [Judged(reply.value, reply=reply) if reply.error is None else Judged.failed(reply) for reply in replies]


@dataclass(frozen=True)
class CriticAndHead:
    """A model that writes about prompt and response, and a head that reads that, too."""

    critic: Place
    plugin: Plugin  # the critic's
    sampling: Sampling
    head: Head

    @classmethod
    def of(cls, spec: SourceSpec, surroundings: Surroundings) -> CriticAndHead:
        keys = spec.keys
        assert isinstance(keys, CritiqueKeys)
        critic, head = keys.models
        assert isinstance(critic, WriterKeys)
        return cls(
            place_of(critic, surroundings),
            of_critic(critic),
            keys.sampling(surroundings.seed, spec.name),
            Head.of(replace(spec, keys=head), surroundings),
        )

    def judge(self, prompts: Sequence[str], responses: Sequence[Any]) -> list[Judged]:
        """As of RewardModel; the replies are the critiques."""
        critiques = ask_place(self.critic, self.plugin.preprocess(prompts, responses), self.sampling)
        there = [row for row, critique in enumerate(critiques) if critique.error is None]
        both = [[responses[row], critiques[row].text] for row in there]
        read = iter(self.head.judge([prompts[row] for row in there], both))
        return [
            replace(next(read), reply=critique) if critique.error is None else Judged.failed(critique)
            for critique in critiques
        ]


def classifier_source(spec: SourceSpec, surroundings: Surroundings) -> ModelSource:
    """The head's number, raw; it writes nothing that could be cut."""
    assert isinstance(spec.keys, ClassifierKeys)
    head = Head.of(spec, surroundings)
    return ModelSource(spec.keys, head, lambda judged: {"cached": shares(judged)["cached"]})


def critique_source(spec: SourceSpec, surroundings: Surroundings) -> ModelSource:
    """The number of a head that reads, behind prompt and response, what a critic wrote about them."""
    assert isinstance(spec.keys, CritiqueKeys)
    return ModelSource(spec.keys, CriticAndHead.of(spec, surroundings), shares)
