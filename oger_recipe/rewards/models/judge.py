"""Sources that ask a judge: a model that writes, and a plugin that reads a value from what it wrote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oger_recipe.rewards.models.keys import JudgeKeys, ModelKeys
from oger_recipe.rewards.models.place import Place, Reply, Sampling
from oger_recipe.rewards.models.places import place_of
from oger_recipe.rewards.models.plugin import BOTH, Failed, Plugin, find_plugin
from oger_recipe.rewards.sources import Group, Scores

if TYPE_CHECKING:
    from oger_recipe.rewards.compose import SourceSpec, Surroundings

_SHOWN_CHARACTERS = 200  # of a reply, in the error that speaks of it
_PROMPT = "rm_prompt"  # the column that is read where an entry names none


@dataclass(frozen=True)
class Judged:
    """What came of one question: a value, or an error; unparsed: the judge replied, without a verdict in it."""

    value: float = float("nan")
    error: str | None = None
    reply: Reply | None = None
    unparsed: bool = False


@contextmanager
def opened(place: Place) -> Iterator[Place]:
    place.open()
    try:
        yield place
    finally:
        place.close()


@dataclass(frozen=True)
class Judge:
    """A model that writes, and its plugin."""

    place: Place
    plugin: Plugin
    sampling: Sampling

    @classmethod
    def of(cls, keys: JudgeKeys, name: str, surroundings: Surroundings) -> Judge:
        plugin = plugin_of(keys.plugin, keys, keys.plugin_limit_s)
        return cls(place_of(keys, surroundings), plugin, keys.sampling(surroundings.seed, name))

    def judge(self, prompts: Sequence[Any], responses: Sequence[Any]) -> list[Judged]:
        """Ask about each response to its prompt; all are asked at once."""
        replies = asked(self.place, self.plugin.preprocess(prompts, responses), self.sampling)
        read = iter(self.plugin.postprocess([reply.text for reply in replies if reply.error is None]))
        return [_judged(reply, None if reply.error else next(read)) for reply in replies]


def plugin_of(name: str, keys: ModelKeys, limit_s: float, needed: Mapping[str, int] = BOTH) -> Plugin:
    """Make the plugin that an entry names, with the tokenizer of its model."""
    tokenizer = None if keys.chats else keys.tokenizer or keys.model
    revision = keys.revision if tokenizer == keys.model else None
    return Plugin(find_plugin(name), tokenizer, revision, limit_s, needed)


def asked(place: Place, texts: Sequence[str | Failed], sampling: Sampling | None) -> list[Reply]:
    """Ask a place about those of the texts that are there: what is written, or without sampling the head's number."""
    there = [text for text in texts if isinstance(text, str)]
    if there:
        with opened(place):
            replies = iter(place.classify(there) if sampling is None else place.generate(there, sampling))
    return [Reply(error=text.reason) if isinstance(text, Failed) else next(replies) for text in texts]


def _judged(reply: Reply, value: float | None | Failed) -> Judged:
    if reply.error is not None:
        return Judged(error=reply.error)
    if isinstance(value, Failed):
        return Judged(error=value.reason, reply=reply)
    if value is None:
        shown = f"no verdict in the judge's reply {reply.text[-_SHOWN_CHARACTERS:]!r}"
        return Judged(error=shown, reply=reply, unparsed=True)
    return Judged(value, reply=reply)


@dataclass(frozen=True)
class Rows:
    """The rows of a step that a source is asked about, with each its prompt, or why it has none."""

    wanted: Tensor
    places: list[tuple[int, int]]
    prompts: list[str | Failed]
    responses: list[str]

    @classmethod
    def of(cls, groups: Sequence[Group], wanted: Tensor, column: str | None) -> Rows:
        places = [(group, row) for group, row in wanted.nonzero().tolist()]
        prompts = [_prompt(group, column) for group in groups]
        return cls(
            wanted,
            places,
            [prompts[group] for group, _ in places],
            [groups[group].responses[row] for group, row in places],
        )

    def judged(self, judge: Callable[[list[str], list[str]], list[Judged]]) -> list[Judged]:
        """Judge the rows that have a prompt."""
        there = [(prompt, response) for prompt, response in zip(self.prompts, self.responses) if isinstance(prompt, str)]
        found = iter(judge([prompt for prompt, _ in there], [response for _, response in there]) if there else [])
        return [Judged(error=prompt.reason) if isinstance(prompt, Failed) else next(found) for prompt in self.prompts]

    def scores(self, judged: Sequence[Judged], metrics: Mapping[str, float]) -> Scores:
        """Put what came of the rows into their places."""
        values, errors = torch.full(self.wanted.shape, torch.nan), {}
        for place, each in zip(self.places, judged, strict=True):
            values[place] = each.value
            if each.error is not None:
                errors[place] = each.error
        return Scores(values, errors=errors, metrics=metrics)


def _prompt(group: Group, column: str | None) -> str | Failed:
    name = column or _PROMPT
    if name not in group.row:
        return group.question if column is None else Failed(f"the row has no column {column}")
    value = group.row[name]
    return value if isinstance(value, str) else Failed(f"column {name} holds a {type(value).__name__}, no text")


def step_metrics(judged: Sequence[Judged], seconds: float) -> dict[str, float]:
    """Tell of a step: shares of the replies that were cut at their longest, not asked again, and without a verdict."""
    replies = [each.reply for each in judged if each.reply is not None]
    count = max(len(replies), 1)
    return {
        "cut": sum(reply.cut for reply in replies) / count,
        "cached": sum(reply.cached for reply in replies) / count,
        "unparsed": sum(each.unparsed for each in judged) / count,
        "seconds": seconds,
    }


class JudgeSource:
    """Kind judge: what the plugin reads in the judge's reply to each row."""

    def __init__(self, spec: SourceSpec, surroundings: Surroundings) -> None:
        keys = spec.keys
        assert isinstance(keys, JudgeKeys)
        self._judge, self._column = Judge.of(keys, spec.name, surroundings), keys.prompt_column
        self.overlaps = keys.runs_on == "server"

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        started = time.monotonic()
        rows = Rows.of(groups, wanted, self._column)
        judged = rows.judged(self._judge.judge)
        return rows.scores(judged, step_metrics(judged, time.monotonic() - started))
