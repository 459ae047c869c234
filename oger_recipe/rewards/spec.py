"""One source of the reward as the user lists it: `Keys` of its kind, `SourceSpec`, and what its source is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_type_hints

import torch
from torch import Tensor

from oger_recipe.algorithm.normalize import Running, group_normalized
from oger_recipe.base.ranges import FINITE
from oger_recipe.rewards.keys import key, read_number, unknown, value_problem
from oger_recipe.rewards.place import Place, Told, VerdictCache
from oger_recipe.rewards.sources import Source

if TYPE_CHECKING:
    from oger_recipe.embedding.encoder import MakeEncoder


COMBINATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"add": torch.add, "mul": torch.mul}
FLIPS = "values below 0 would flip the sign of the total"

# A row's verified reward decides whether a source counts there: reward to bool, same shape.
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "always": lambda rule: torch.ones_like(rule, dtype=torch.bool),
    "rule_nonzero": lambda rule: rule != 0,
    "rule_equals_1": lambda rule: rule == 1,
}


# Values and the rows that have one (bool), both [groups, n], and all values of the run so far -> what is weighted.
NORMALIZE: dict[str, Callable[[Tensor, Tensor, Running], Tensor]] = {
    "none": lambda values, counted, so_far: values,
    "group": lambda values, counted, so_far: group_normalized(values, counted),
    "running": lambda values, counted, so_far: so_far.normalized(values),
}


@dataclass(frozen=True, kw_only=True)
class Keys:
    """A kind: the keys that its entries may have beside the common ones, and what the recipe has to know of it.

    once: at most one such source; reads_rows: the question and the data's further columns travel to it; reads_steps:
    responses are cut into steps of reasoning for it; gives_rewards: its scores of steps are rewards, not probabilities
    that a step is good; reads_log_probs: it reads the policy's log-probability of every row; if_below, if_multiplied:
    what a weight below 0, and combine mul, would do, where nobody can want that; is_rule: it is the verified reward;
    is_bonus: it is the exploration bonus, whose weight is a setting of the run; is_length: it charges for length;
    is_own: it is code of the user's; asks_models: it has `models`; embeds: it needs the run's encoder.
    """

    once: ClassVar[bool] = False
    reads_rows: ClassVar[bool] = True
    reads_steps: ClassVar[bool] = False
    gives_rewards: ClassVar[bool] = False
    if_below: ClassVar[str] = ""
    if_multiplied: ClassVar[str] = ""
    reads_log_probs: ClassVar[bool] = False
    is_length: ClassVar[bool] = False
    is_rule: ClassVar[bool] = False
    is_bonus: ClassVar[bool] = False
    is_own: ClassVar[bool] = False
    asks_models: ClassVar[bool] = False
    embeds: ClassVar[bool] = False

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """Take the kind's keys out of an entry in which `problems` finds nothing."""
        return cls(**{each.name: read_number(entry[each.name]) for each in fields(cls) if each.name in entry})

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Source:
        """Make the source. Raises RecipeError where it cannot be made."""
        raise NotImplementedError

    def arguments(self) -> list[str]:
        """Return the columns of the data that the user's code needs as arguments and that no key names."""
        return []

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The lowest and the highest value that such a source gives to a row; None where nobody knows."""
        return None

    @property
    def models(self) -> tuple[Any, ...]:
        """The models that it asks, each with its own ModelKeys."""
        return ()

    def questions(self) -> Sequence[Any]:
        """Return a Question (models/keys.py) for each model: how it is asked. Nothing is started."""
        return ()

    @property
    def learns(self) -> bool:
        """Whether the source learns from what it scores."""
        return False

    @property
    def reads_teachers(self) -> bool:
        """Whether the source reads teacher trajectories."""
        return False

    @property
    def counts_solutions(self) -> bool:
        """Whether the source counts the verifier's classes of solutions."""
        return False

    @property
    def drops_overflow(self) -> bool:
        """Whether the group of a text that is too long for the source's model has no advantage."""
        return False

    def misfits(self, name: str, settings: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence for each of a run's settings, by flag, that the source of this name does not go with."""
        yield from ()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(each.name for each in fields(cls))

    def columns(self) -> Iterator[tuple[str, str, str]]:
        """Yield (key, column, what it holds) for keys that name a column of the training data."""
        for each in fields(self):
            if each.metadata["column"] and (name := getattr(self, each.name)) is not None:
                yield each.name, name, each.metadata["column"]

    @classmethod
    def unknown_keys(cls, entry: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence for every key that is no field."""
        known = (*(each.name for each in COMMON), *cls.names())
        yield from (unknown("key", name, known) for name in entry if name not in known)

    @classmethod
    def refusals(cls, entry: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence for each value of a common key that this kind refuses."""
        weight = entry.get("weight", 1)
        is_below = isinstance(weight, int | float) and weight < 0
        if is_below and cls.if_below:
            yield f"weight {weight}: it must be 0 or more for kind {entry.get('kind')}: {cls.if_below}"
        if entry.get("combine") == "mul" and (is_below or cls.if_multiplied):
            what = f"weight {weight}: {FLIPS}" if is_below else f"kind {entry.get('kind')}: {cls.if_multiplied}"
            yield f"combine mul with {what}; use combine add"

    @classmethod
    def problems(cls, entry: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence for every value that its key cannot have; without any, those of `combined`."""
        hints, wrong = get_type_hints(cls), False
        for each in fields(cls):
            if each.name not in entry and each.default is not MISSING:
                continue
            problem = value_problem(each.name, entry.get(each.name), hints[each.name], each.metadata)
            wrong |= problem is not None
            yield from [problem] if problem else []
        if not wrong:
            yield from cls.of(entry).combined()

    def combined(self) -> Iterator[str]:
        """Yield a sentence for keys that do not go together, or that name what is not there."""
        yield from ()


@dataclass(frozen=True)
class SourceSpec:
    """One entry of oger.reward.sources; ``keys``: those that its kind adds."""

    name: str = key(help="name in metrics and samples: letters, digits, '_', '.' and '-'")
    kind: str = key(help="a kind below, or package.module:name of a function or class of your own")
    weight: float = key(
        1.0,
        "factor of the value, below 0 for a penalty; the bonus has oger.bonus_weight instead",
        range=FINITE,
    )
    combine: str = key("add", "how the weighted value joins the total of the sources before it", choices=COMBINATIONS)
    gate: str = key(
        "always",
        "rows on which the source counts, by the verifier's reward; elsewhere its value is 0",
        choices=GATES,
    )
    normalize: str = key(
        "none",
        "values are first normalized to (x - mean) / (std + 1e-6): over the group's rows that have one (group), "
        "or over all values of the run so far (running)",
        choices=NORMALIZE,
    )
    worst: float | None = key(
        None,
        "value (before the weight) of a row whose response makes the source fail (default: the worst value of "
        "the kind; where that is not known, as for heads and your own code, the worst value of the run so far, "
        "never above 0)",
    )
    keys: Keys = field(default_factory=Keys)

    def source(self, surroundings: Surroundings) -> Source:
        """Make the source. Raises RecipeError where it cannot be made."""
        return self.keys.source(self, surroundings)

    @property
    def lowest(self) -> float | None:
        """The worst value that it gives to a row; None where nobody knows."""
        if self.worst is not None or self.keys.bounds is None:
            return self.worst
        return self.keys.bounds[self.weight < 0]

    @property
    def learns_lowest(self) -> bool:
        """Whether its worst value is learnt from those it has given."""
        return self.lowest is None and not (self.keys.is_rule or self.keys.is_bonus)

    @property
    def is_compared(self) -> bool:
        """Whether later steps need its values so far."""
        return self.normalize == "running" or self.learns_lowest


COMMON = tuple(each for each in fields(SourceSpec) if each.name != "keys")


def further_keys(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without the common keys."""
    return {name: value for name, value in entry.items() if name not in {each.name for each in COMMON}}


@dataclass(frozen=True)
class Surroundings:
    """What sources are made of besides their entries.

    settings: the run's (OgerSettings, which import the kinds); engine: starts an engine for a model's keys; seed: the
    run's; cache: where models' replies are kept (None: nowhere); encoder: makes an encoder (None: it is loaded here);
    told: called as replies come from servers and models in this process; around: what is put around each model's
    place.
    """

    settings: Any
    engine: Callable[[Any], Place]
    seed: int = 0
    cache: VerdictCache | None = None
    encoder: MakeEncoder | None = None
    told: Told | None = None
    around: Callable[[Any, Place], Place] = lambda keys, place: place

    @classmethod
    def of(cls, settings: Any, engine: Callable[[Any], Place], seed: int, encoder: MakeEncoder | None = None) -> Self:
        """Make the surroundings of a run, with the cache that its settings name."""
        cache = VerdictCache(Path(settings.reward.cache)) if settings.reward.cache else None
        return cls(settings, engine, seed, cache, encoder)
