"""The keys of kind process with a scorer that is no process reward model by tags or labels: implicit, and judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from oger_recipe.algorithm.steps import AGGREGATES
from oger_recipe.ranges import COUNT, PART, POSITIVE, SHARE, WEIGHT
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.models.keys import ChatKeys, JudgeKeys, ModelKeys, StepKeys, WriterKeys
from oger_recipe.rewards.models.plugin import OF_SEVERAL, OF_STEPS, plugin_problem, ready_made

UPDATES = ("before", "after")
_OF_LEARNING = ("update", "batch_size", "micro_batch_size", "max_grad_norm")


@dataclass(frozen=True, kw_only=True)
class ImplicitKeys(StepKeys):
    """An implicit PRM (PRIME): how much likelier the model finds a step than a reference does."""

    reference: str | None = key(
        None, "folder or hub name of the reference, a model with the same tokenizer (default: the model as it was)"
    )
    beta: float = key(0.05, "reward of a nat that the model finds a step likelier by", range=POSITIVE)
    learning_rate: float | None = key(
        None, "of the model, which learns from the outcomes of each step's rollouts (default: it stays as it is)",
        range=SHARE,
    )  # fmt: skip
    update: str = key(
        "before",
        "whether it learns from rollouts before it rewards them, which reads them once more, or after that",
        choices=UPDATES,
    )
    batch_size: int | None = key(None, "rows of one update (default: all of a step)", range=COUNT)
    micro_batch_size: int = key(8, "rows that it learns from at a time", range=COUNT)
    max_grad_norm: float = key(1.0, "norm to which gradients are clipped", range=POSITIVE)
    aggregate: str = key("sum", "what makes one number of the rewards of a row's steps", choices=AGGREGATES)

    @property
    def bounds(self) -> None:
        return None

    @property
    def learns(self) -> bool:
        return bool(self.learning_rate)

    @property
    def runs_on(self) -> str:
        return self.place or ("server" if self.url else "process" if self.learns else "engine")

    @property
    def models(self) -> tuple[ModelKeys, ...]:
        """The model's keys and the reference's. A model that learns is float32: steps of 1e-6 are lost in 16 bits."""
        shared = {each.name: getattr(self, each.name) for each in fields(ModelKeys)}
        shared |= {"place": self.runs_on, "cache": False}
        model = WriterKeys(**shared)
        reference = model
        if self.reference not in (None, self.model):
            reference = WriterKeys(**shared | {"model": self.reference, "revision": None, "tokenizer": None})
        return (replace(model, dtype="float32") if self.learns else model), reference

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.runs_on == "server":
            yield (
                "scorer implicit runs in this process or in an engine: servers have no request in common for how "
                "likely a given text is; leave out url"
            )
        if self.learns and self.runs_on == "engine":
            yield "learning_rate with place engine: what an engine has loaded does not learn; use place process"
        if self.learns and self.dtype not in ("auto", "float32"):
            yield f"dtype {self.dtype} with learning_rate: a model that learns is kept in float32; leave dtype out"
        if not self.learns and self.reference in (None, self.model):
            yield (
                "reference is the model itself, and without learning_rate every reward would be 0: name a reference, "
                "or a learning_rate (PRIME: 1e-6)"
            )
        for name in _OF_LEARNING:
            if not self.learns and getattr(self, name) != getattr(ImplicitKeys, name):
                yield f"{name} is for a model that learns (learning_rate)"
        if self.scale != StepKeys.scale:
            yield "scale is for probabilities, and rewards of scorer implicit are none; leave it out"
        if self.aggregate == "product":
            yield "aggregate product: rewards of scorer implicit are no probabilities; use sum, mean, min or last"
        if not self.cache:
            yield "cache is for replies, and scorer implicit keeps none; leave it out"


@dataclass(frozen=True, kw_only=True)
class StepJudgeKeys(ChatKeys, StepKeys):
    """A model that writes about the numbered steps, and the plugin that reads scores of them in what it wrote."""

    prompt_column: str | None = key(
        None,
        "column of the data with the judge's prompt (default: rm_prompt where it is there, else the problem)",
        column="text",
    )
    plugin: str = key(
        "first_wrong_step",
        "file with rm_preprocess, which gets lists of steps in place of responses, and rm_postprocess, which gives "
        "the first wrong step's number from 0 (-1: none) or a score for each step; or the name of a ready-made one",
    )
    sampling_temperature: float = key(0.0, "of the judge; 0 is greedy", range=WEIGHT)
    top_p: float = key(1.0, "nucleus of the judge", range=PART)
    max_new_tokens: int = key(1024, "longest reply", range=COUNT)
    plugin_limit_s: float = key(
        60.0, "seconds that each of the plugin's functions may take for the rows of a step", range=POSITIVE
    )
    plugin_memory_limit_mb: int = key(
        8192, "MiB of address space that the plugin may take beside what it has when it is loaded", range=COUNT
    )

    @property
    def bounds(self) -> tuple[float, float] | None:
        return super().bounds if self.plugin in OF_STEPS else None

    @property
    def judge(self) -> JudgeKeys:
        """The model's keys, as those of kind judge."""
        shared = {each.name: getattr(self, each.name) for each in fields(ChatKeys)}
        names = ("prompt_column", "plugin", "top_p", "max_new_tokens", "plugin_limit_s", "plugin_memory_limit_mb")
        own = {name: getattr(self, name) for name in names}
        return JudgeKeys(**shared, **own, temperature=self.sampling_temperature)

    @property
    def models(self) -> tuple[ModelKeys, ...]:
        return (self.judge,)

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.plugin in ready_made() and self.plugin not in OF_STEPS:
            yield f"plugin {self.plugin!r} judges whole answers; {', '.join(OF_STEPS)} judges steps"
        else:
            yield from filter(None, [plugin_problem(self.plugin, example=OF_SEVERAL if self.chats else None)])
