"""Kinds classifier and critique_classifier: a head that gives a number to prompt and response, or also a critique."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from oger_recipe.rewards.models.asking import Judged, ask_place, score_rows, shares
from oger_recipe.rewards.models.keys import ClassifierKeys, CritiqueKeys, WriterKeys
from oger_recipe.rewards.models.place import Reply
from oger_recipe.rewards.models.places import place_of
from oger_recipe.rewards.models.plugins_of import of_critic, of_head
from oger_recipe.rewards.sources import Group, Scores

if TYPE_CHECKING:
    from oger_recipe.rewards.compose import SourceSpec, Surroundings


class Head:
    """A head, and the plugin that makes its texts."""

    def __init__(self, keys: ClassifierKeys, surroundings: Surroundings) -> None:
        self._place = place_of(keys, surroundings)
        self._plugin = of_head(keys)

    def read(self, prompts: Sequence[str], responses: Sequence[Any]) -> list[Reply]:
        """Ask for the number of each response to its prompt; all are asked at once."""
        return ask_place(self._place, self._plugin.preprocess(prompts, responses), None)


class ClassifierSource:
    """The head's number, raw."""

    def __init__(self, spec: SourceSpec, surroundings: Surroundings) -> None:
        keys = spec.keys
        assert isinstance(keys, ClassifierKeys)
        self._head, self._column = Head(keys, surroundings), keys.prompt_column
        self.overlaps = keys.runs_on == "server"

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        return score_rows(groups, wanted, self._column, self._ask)

    def _ask(self, prompts: list[str], responses: list[str]) -> tuple[list[Judged], Mapping[str, float]]:
        replies = self._head.read(prompts, responses)
        cached = shares([reply for reply in replies if reply.error is None])["cached"]
        return [_judged(reply) for reply in replies], {"cached": cached}


class CritiqueSource:
    """The number of a head that reads, behind prompt and response, what a critic wrote about them."""

    def __init__(self, spec: SourceSpec, surroundings: Surroundings) -> None:
        keys = spec.keys
        assert isinstance(keys, CritiqueKeys)
        critic, head = keys.models
        assert isinstance(critic, WriterKeys) and isinstance(head, ClassifierKeys)
        self._critic = place_of(critic, surroundings)
        self._plugin = of_critic(critic)
        self._head, self._column = Head(head, surroundings), keys.prompt_column
        self._sampling = keys.sampling(surroundings.seed, spec.name)
        self.overlaps = critic.runs_on == head.runs_on == "server"

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        return score_rows(groups, wanted, self._column, self._ask)

    def _ask(self, prompts: list[str], responses: list[str]) -> tuple[list[Judged], Mapping[str, float]]:
        critiques = ask_place(self._critic, self._plugin.preprocess(prompts, responses), self._sampling)
        there = [row for row, critique in enumerate(critiques) if critique.error is None]
        both = [[responses[row], critiques[row].text] for row in there]
        read = iter(self._head.read([prompts[row] for row in there], both))
        judged = [_judged(next(read) if critique.error is None else critique) for critique in critiques]
        return judged, shares([critiques[row] for row in there])


def _judged(reply: Reply) -> Judged:
    return Judged(reply.value, reply.error, reply)
