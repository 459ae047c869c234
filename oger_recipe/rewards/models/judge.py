"""Kind judge: a model that writes, and a plugin that reads a value from what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oger_recipe.rewards.models.asking import Judged, ModelSource, ask_place, shares
from oger_recipe.rewards.models.keys import JudgeKeys
from oger_recipe.rewards.models.place import Place, Reply, Sampling
from oger_recipe.rewards.models.places import place_of
from oger_recipe.rewards.models.plugin import Failed, Plugin
from oger_recipe.rewards.models.plugins_of import of_judge
from oger_recipe.rewards.sources import ANSWER

if TYPE_CHECKING:
    from oger_recipe.rewards.kinds import SourceSpec, Surroundings

_SHOWN_CHARACTERS = 200  # of a reply, in the error that speaks of it


@dataclass(frozen=True)
class Judge:
    """A model that writes, and its plugin."""

    place: Place
    plugin: Plugin
    sampling: Sampling

    @classmethod
    def of(cls, spec: SourceSpec, surroundings: Surroundings) -> Judge:
        """Make the judge of an entry; its samples depend on the source's name."""
        keys = spec.keys
        assert isinstance(keys, JudgeKeys)
        return cls(place_of(keys, surroundings), of_judge(keys), keys.sampling(surroundings.seed, spec.name))

    def judge(self, prompts: Sequence[str], responses: Sequence[Any]) -> list[Judged]:
        replies = ask_place(self.place, self.plugin.preprocess(prompts, responses), self.sampling)
        read = iter(self.plugin.postprocess([reply.text for reply in replies if reply.error is None]))
        return [_judged(reply, next(read)) if reply.error is None else Judged.failed(reply) for reply in replies]


def _judged(reply: Reply, value: float | None | Failed) -> Judged:
    if isinstance(value, Failed):
        return Judged(error=value.reason, reply=reply, cause=value.cause)
    return unparsed(reply) if value is None else Judged(value, reply=reply)


def unparsed(reply: Reply, why: str = "no verdict in the judge's reply") -> Judged:
    """Return what comes of a reply without a verdict that could be read: an answer can talk a judge out of one."""
    text = f"{why}, which ends {reply.text[-_SHOWN_CHARACTERS:]!r}"
    return Judged(error=text, reply=reply, unparsed=True, cause=ANSWER)


def judge_metrics(judged: Sequence[Judged]) -> dict[str, float]:
    """Return what `shares` says of the judge's replies, and the share that has no verdict in it."""
    replies = sum(each.reply is not None for each in judged)
    return shares(judged) | {"unparsed": sum(each.unparsed for each in judged) / max(replies, 1)}


def judge_source(spec: SourceSpec, surroundings: Surroundings) -> ModelSource:
    """What the plugin reads in the judge's reply to each row."""
    assert isinstance(spec.keys, JudgeKeys)
    return ModelSource(spec.keys, Judge.of(spec, surroundings), judge_metrics)
