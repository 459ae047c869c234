"""Kinds of sources of reward: what an entry of oger.reward.sources says, and the source that is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from oger_recipe.algorithm.normalize import Running, group_normalized
from oger_recipe.ranges import FINITE
from oger_recipe.rewards.keys import Keys, key
from oger_recipe.rewards.length import Length, LengthKeys
from oger_recipe.rewards.models.cache import VerdictCache
from oger_recipe.rewards.models.classifier import classifier_source, critique_source
from oger_recipe.rewards.models.implicit import implicit_source
from oger_recipe.rewards.models.judge import judge_source
from oger_recipe.rewards.models.keys import (
    ClassifierKeys,
    CritiqueKeys,
    JudgeKeys,
    ModelKeys,
    PairwiseKeys,
    ProcessKeys,
    SimilarityKeys,
)
from oger_recipe.rewards.models.pairwise import PairwiseSource
from oger_recipe.rewards.models.place import Place, Told
from oger_recipe.rewards.models.process import tagged_source
from oger_recipe.rewards.models.rubric_judge import RubricSource
from oger_recipe.rewards.models.rubrics import RubricKeys
from oger_recipe.rewards.models.scorer_keys import ImplicitKeys, StepJudgeKeys
from oger_recipe.rewards.models.step_judge import step_judge_source
from oger_recipe.rewards.own import Keywords, make_own
from oger_recipe.rewards.sources import Bonus, Source, Verifier

if TYPE_CHECKING:
    from oger_recipe.embedding.encoder import MakeEncoder
    from oger_recipe.settings.oger import OgerSettings


COMBINATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"add": torch.add, "mul": torch.mul}

# The verified reward of rows, to where a source counts (bool, same shape).
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "always": lambda rule: torch.ones_like(rule, dtype=torch.bool),
    "rule_nonzero": lambda rule: rule != 0,
    "rule_equals_1": lambda rule: rule == 1,
}


# Values and the rows that have one (bool), both [groups, n], and all values of the run so far, to what is weighted.
NORMALIZE: dict[str, Callable[[Tensor, Tensor, Running], Tensor]] = {
    "none": lambda values, counted, so_far: values,
    "group": lambda values, counted, so_far: group_normalized(values, counted),
    "running": lambda values, counted, so_far: so_far.normalized(values),
}


@dataclass(frozen=True)
class SourceSpec:
    """One entry of oger.reward.sources; ``keys``: those that its kind adds."""

    name: str = key(help="a name of letters, digits, '_', '.' and '-', which metrics and samples bear")
    kind: str = key(help="a name below, or package.module:name of a function or class of your own")
    weight: float = key(
        1.0,
        "factor of its value, below 0 where that is a penalty; the bonus has oger.bonus_weight instead",
        range=FINITE,
    )
    combine: str = key("add", "how its weighted value joins the total of the sources before it", choices=COMBINATIONS)
    gate: str = key(
        "always", "where it counts, by the verifier's reward of the row; elsewhere its value is 0", choices=GATES
    )
    normalize: str = key(
        "none",
        "what its values are compared with before they are weighted: (x - mean) / (std + 1e-6) over the group's rows "
        "that have one, or over all values of the run so far",
        choices=NORMALIZE,
    )
    worst: float | None = key(
        None,
        "value, before its weight, of a row on which it fails by what the response says (default: the worst that the "
        "kind gives, and where nobody knows that, as of heads and of what is your own, the worst of the run so far, "
        "and never better than 0)",
    )
    keys: Keys = field(default_factory=Keys)

    @property
    def lowest(self) -> float | None:
        """The worst value that it gives to a row; None where nobody knows."""
        if self.worst is not None or self.keys.bounds is None:
            return self.worst
        return self.keys.bounds[self.weight < 0]

    @property
    def learns_lowest(self) -> bool:
        """Whether its worst value is known from those that it has given."""
        return self.lowest is None and self.kind not in ("verifier", "bonus")


@dataclass(frozen=True)
class Surroundings:
    """What sources are made of besides their entries: a run's settings, what starts an engine for a model, the run's
    seed, where models' replies are kept (None: nowhere), what makes an encoder (None: it is loaded here), who is told
    of replies as they come from servers and models in this process, and what is put around each model's place."""

    settings: OgerSettings
    engine: Callable[[ModelKeys], Place]
    seed: int = 0
    cache: VerdictCache | None = None
    encoder: MakeEncoder | None = None
    told: Told | None = None
    around: Callable[[ModelKeys, Place], Place] = lambda keys, place: place

    @classmethod
    def of(
        cls,
        settings: OgerSettings,
        engine: Callable[[ModelKeys], Place],
        seed: int,
        encoder: MakeEncoder | None = None,
    ) -> Self:
        """Those of a run, with the cache that its settings name."""
        cache = VerdictCache(Path(settings.reward.cache)) if settings.reward.cache else None
        return cls(settings, engine, seed, cache, encoder)


@dataclass(frozen=True)
class Kind:
    """make: the source of an entry; keys: what its entries may have beside the common keys; once: at most one;
    reads_rows: the question and the data's further columns travel to it; reads_steps: responses are cut into steps of
    reasoning for it; by_scorer: what takes its place where the entry's `scorer` says so; if_below: what a weight
    below 0 would do, where nobody can want that."""

    make: Callable[[SourceSpec, Surroundings], Source]
    keys: type[Keys] = Keys
    once: bool = False
    reads_rows: bool = True
    reads_steps: bool = False
    by_scorer: Mapping[str, Kind] = field(default_factory=dict)
    if_below: str = ""

    def of(self, scorer: object) -> Kind:
        return self.by_scorer.get(str(scorer), self)


def _verifier(spec: SourceSpec, of: Surroundings) -> Source:
    advantage = of.settings.advantage
    return Verifier(advantage.non_stop_penalty, advantage.non_stop_fixed_reward, spec.worst)


def _bonus(spec: SourceSpec, of: Surroundings) -> Source:
    bonus = of.settings.bonus
    return Bonus(
        bonus.last_token_enp_reward, bonus.similarity_reverse, bonus.similarity_reverse_fail, bonus.similarity_shaping
    )


def _similarity(spec: SourceSpec, of: Surroundings) -> Source:
    from oger_recipe.rewards.models.similarity import Similarity  # with the encoder's libraries

    assert isinstance(spec.keys, SimilarityKeys)
    return Similarity.of(spec.keys, of.settings.embedding, of.encoder)


KINDS: dict[str, Kind] = {
    "verifier": Kind(
        _verifier,
        once=True,
        reads_rows=False,
        if_below="wrong answers would be paid more than right ones",
    ),
    "bonus": Kind(_bonus, once=True, reads_rows=False),
    "similarity": Kind(_similarity, SimilarityKeys),
    "judge": Kind(judge_source, JudgeKeys),
    "pairwise": Kind(PairwiseSource, PairwiseKeys),
    "classifier": Kind(classifier_source, ClassifierKeys),
    "critique_classifier": Kind(critique_source, CritiqueKeys),
    "process": Kind(
        tagged_source,
        ProcessKeys,
        reads_steps=True,
        by_scorer={
            "implicit": Kind(implicit_source, ImplicitKeys, reads_steps=True),
            "judge": Kind(step_judge_source, StepJudgeKeys, reads_steps=True),
        },
        if_below="wrong steps would be paid more than right ones",
    ),
    "length": Kind(
        lambda spec, of: Length.of(spec.keys),
        LengthKeys,
        reads_rows=False,
        if_below="its values are 0 or less, and long answers would be paid",
    ),
    "rubric": Kind(
        RubricSource,
        RubricKeys,
        if_below="an answer would be paid for what its criteria are against; weights below 0 are for criteria",
    ),
}


def make_source(spec: SourceSpec, surroundings: Surroundings) -> Source:
    """Make the source of an entry, whose kind is a name in KINDS or an import path.

    Raises ValueError for an import path that leads to no source, and RecipeError for a source that cannot be made.
    """
    if isinstance(spec.keys, Keywords):
        return make_own(spec.name, spec.kind, spec.keys.given)
    return KINDS[spec.kind].of(getattr(spec.keys, "scorer", None)).make(spec, surroundings)
