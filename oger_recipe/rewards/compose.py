"""How the sources of a run make one reward: a left fold with weights and gates, and what a failed source costs.

    total = weight_1 * value_1
    total = total + weight_k * value_k      combine: add
    total = total * weight_k * value_k      combine: mul

A value is 0 where its gate is closed. Without oger.reward.sources the list is DEFAULT: r = R + beta * B.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oger_recipe.errors import RecipeError
from oger_recipe.rewards.keys import Keys, unknown
from oger_recipe.rewards.models.classifier import ClassifierSource, CritiqueSource
from oger_recipe.rewards.models.judge import JudgeSource
from oger_recipe.rewards.models.keys import ClassifierKeys, CritiqueKeys, JudgeKeys, ModelKeys, PairwiseKeys
from oger_recipe.rewards.models.pairwise import PairwiseSource
from oger_recipe.rewards.models.place import Place
from oger_recipe.rewards.own import Own, own_function, reason
from oger_recipe.rewards.sources import Bonus, Group, Scores, Source, Verifier, of_rows

if TYPE_CHECKING:
    from oger_recipe.rewards.models.cache import VerdictCache
    from oger_recipe.settings.oger import OgerSettings


@dataclass(frozen=True)
class SourceSpec:
    """One entry of oger.reward.sources; ``keys``: those that its kind adds."""

    name: str
    kind: str
    weight: float = 1.0
    combine: str = "add"
    gate: str = "always"
    keys: Keys = field(default_factory=Keys)


@dataclass(frozen=True)
class Surroundings:
    """What sources are made of besides their entries: a run's settings, what starts an engine for a model, the run's
    seed, and where models' replies are kept (None: nowhere)."""

    settings: OgerSettings
    engine: Callable[[ModelKeys], Place]
    seed: int = 0
    cache: VerdictCache | None = None


@dataclass(frozen=True)
class Kind:
    """make: the source of an entry; keys: what its entries may have beside the common keys; once: at most one;
    reads_rows: the question and the data's further columns travel to it."""

    make: Callable[[SourceSpec, Surroundings], Source]
    keys: type[Keys] = Keys
    once: bool = False
    reads_rows: bool = True


KINDS: dict[str, Kind] = {
    "verifier": Kind(lambda spec, of: Verifier.of(of.settings), once=True, reads_rows=False),
    "bonus": Kind(lambda spec, of: Bonus.of(of.settings), once=True, reads_rows=False),
    "judge": Kind(JudgeSource, JudgeKeys),
    "pairwise": Kind(PairwiseSource, PairwiseKeys),
    "classifier": Kind(ClassifierSource, ClassifierKeys),
    "critique_classifier": Kind(CritiqueSource, CritiqueKeys),
}

DEFAULT = (SourceSpec("rule", "verifier"), SourceSpec("explore", "bonus"))

COMBINATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"add": torch.add, "mul": torch.mul}

# The verified reward of rows, to where a source counts (bool, same shape).
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "always": lambda rule: torch.ones_like(rule, dtype=torch.bool),
    "rule_nonzero": lambda rule: rule != 0,
    "rule_equals_1": lambda rule: rule == 1,
}


@dataclass(frozen=True)
class OnError:
    """What a source without a value costs the rows it failed on: its value is 0, or it counts as not listed there
    (`passed_by`); the group has no advantage in this step (`drops_group`); the run ends (`stops`)."""

    passed_by: bool = False
    drops_group: bool = False
    stops: bool = False


ON_ERROR: dict[str, OnError] = {
    "zero": OnError(),
    "neutral": OnError(passed_by=True),
    "drop_group": OnError(passed_by=True, drops_group=True),
    "stop": OnError(stops=True),
}


@dataclass(frozen=True)
class Rewards:
    """The rewards of a step; tensors are [groups, n].

    terms: source -> its weighted values, 0 where its gate is closed; said: ``source`` and ``source/component`` -> what
    it said, nan where it said nothing; errors: source -> row, counted over all groups -> why it has no value; dropped
    (bool [groups]): groups that have no advantage in this step; metrics: ``source/name`` -> a number about the step.
    """

    total: Tensor
    terms: dict[str, Tensor]
    said: dict[str, Tensor]
    errors: dict[str, dict[int, str]]
    dropped: Tensor
    metrics: dict[str, float]


def make_source(spec: SourceSpec, surroundings: Surroundings) -> Source:
    """Make the source of an entry, whose kind is a name in KINDS or an import path.

    Raises ValueError for an import path that leads to no function of one argument.
    """
    known = KINDS.get(spec.kind)
    return known.make(spec, surroundings) if known else Own(own_function(spec.kind))


def rewards_of(
    groups: Sequence[Group], sources: Sequence[Source], specs: Sequence[SourceSpec], *, on_error: str
) -> Rewards:
    """Ask all sources and compose what they say.

    A source that raises has failed on all rows that it was asked about; a RecipeError is raised further.
    """
    rule = of_rows(groups, lambda group: [graded.verdict.reward for graded in group.graded])
    counted = [GATES[spec.gate](rule) for spec in specs]
    scores = _asked(sources, groups, counted)
    failed = [_failed(each) for each in scores]
    terms = [
        spec.weight * torch.where(wanted & ~missing, each.values, 0.0)
        for each, spec, wanted, missing in zip(scores, specs, counted, failed, strict=True)
    ]
    names, how = [spec.name for spec in specs], ON_ERROR[on_error]
    counts = [~missing if how.passed_by else torch.ones_like(missing) for missing in failed]
    errors = [{group * rule.shape[1] + row: why for (group, row), why in each.errors.items()} for each in scores]
    return Rewards(
        compose(terms, counts, [spec.combine for spec in specs]),
        dict(zip(names, terms, strict=True)),
        _said(scores, names, failed),
        dict(zip(names, errors, strict=True)),
        torch.stack(failed).any(dim=0).any(dim=1) & how.drops_group,
        {f"{spec.name}/{name}": value for spec, each in zip(specs, scores, strict=True)
         for name, value in each.metrics.items()},
    )  # fmt: skip


def _asked(sources: Sequence[Source], groups: Sequence[Group], wanted: Sequence[Tensor]) -> list[Scores]:
    """Ask one source after the other, and meanwhile in threads those that wait for servers."""
    overlap = [getattr(source, "overlaps", False) for source in sources]
    with ThreadPoolExecutor(max(sum(overlap), 1)) as threads:
        waiting = {
            number: threads.submit(_scores, sources[number], groups, wanted[number])
            for number, overlaps in enumerate(overlap)
            if overlaps
        }
        asked = {
            number: _scores(sources[number], groups, wanted[number])
            for number, overlaps in enumerate(overlap)
            if not overlaps
        }
        asked |= {number: each.result() for number, each in waiting.items()}
    return [asked[number] for number in range(len(sources))]


def _scores(source: Source, groups: Sequence[Group], wanted: Tensor) -> Scores:
    try:
        return source.score(groups, wanted)
    except RecipeError:
        raise
    except Exception as error:
        why = reason(error)
        return Scores(
            torch.zeros(wanted.shape), errors={(group, row): why for group, row in wanted.nonzero().tolist()}
        )


def compose(terms: Sequence[Tensor], counts: Sequence[Tensor], combine: Sequence[str]) -> Tensor:
    """Fold terms from the left; where `counts` (bool) is not set a term is passed by. All tensors have one shape."""
    total, begun = torch.zeros_like(terms[0]), torch.zeros_like(counts[0])
    for term, counted, how in zip(terms, counts, combine, strict=True):
        folded = torch.where(begun, COMBINATIONS[how](total, term), term)
        total, begun = torch.where(counted, folded, total), begun | counted
    return total


def _failed(scores: Scores) -> Tensor:
    failed = torch.zeros_like(scores.values, dtype=torch.bool)
    for place in scores.errors:
        failed[place] = True
    return failed


def _said(scores: Sequence[Scores], names: Sequence[str], failed: Sequence[Tensor]) -> dict[str, Tensor]:
    said = {}
    for each, source, missing in zip(scores, names, failed, strict=True):
        said[source] = torch.where(missing, torch.nan, each.values)
        said |= {f"{source}/{name}": values for name, values in each.components.items()}
    return said


# ---- oger.reward.sources

_COMMON = tuple(each.name for each in fields(SourceSpec) if each.name != "keys")


def sources_of(entries: Sequence[Mapping[str, Any]] | None) -> tuple[SourceSpec, ...]:
    """Read the sources of a run; entries as entry_problems accepts them."""
    return tuple(map(_spec, entries)) if entries else DEFAULT


def _spec(entry: Mapping[str, Any]) -> SourceSpec:
    common = {name: entry[name] for name in _COMMON if name in entry}
    return SourceSpec(**common, keys=_keys_of(entry.get("kind")).of(entry))


def _keys_of(kind: Any) -> type[Keys]:
    return KINDS[kind].keys if kind in KINDS else Keys


def models_of(entries: Sequence[Mapping[str, Any]] | None) -> Iterator[tuple[str, ModelKeys]]:
    """Yield the models of a run, each with the name of its source; none of an entry whose keys no run could do."""
    for entry in entries or ():
        keys = _keys_of(entry.get("kind")) if isinstance(entry, Mapping) else Keys
        if issubclass(keys, ModelKeys) and not [*keys.problems(entry)]:
            yield from ((str(entry.get("name")), each) for each in keys.of(entry).models)


def entry_problems(entries: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    """Yield a sentence for all in oger.reward.sources that no run could do; imports the user's sources."""
    names: list[Any] = []
    kinds: list[Any] = []
    for number, entry in enumerate(entries or (), start=1):
        where = f"oger.reward.sources, entry {number}"
        if not isinstance(entry, Mapping):
            yield f"{where}: {entry!r} is not a mapping: {{name: ..., kind: ...}}"
            continue
        yield from (f"{where}: {problem}" for problem in _of_entry(entry, first=number == 1))
        names.append(entry.get("name"))
        kinds.append(entry.get("kind"))
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"oger.reward.sources: two sources are named {name!r}"
    for kind, known in KINDS.items():
        if known.once and kinds.count(kind) > 1:
            yield f"oger.reward.sources: {kinds.count(kind)} sources are of kind {kind}, which can be there once"


def _of_entry(entry: Mapping[str, Any], *, first: bool) -> Iterator[str]:
    name, kind, weight = entry.get("name"), entry.get("kind"), entry.get("weight", 1.0)
    keys = _keys_of(kind)
    known = (*_COMMON, *keys.names())
    yield from (unknown("key", key, known) for key in entry if key not in known)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        yield f"name {name!r}: a name of letters, digits, '_', '.' and '-' is needed, which metrics and samples bear"
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        yield f"weight {weight!r}: it has to be 0 or more"
    if kind == "bonus" and "weight" in entry:
        yield f"weight {weight!r}: the weight of the bonus is oger.bonus_weight, with its schedule; leave weight out"
    yield from _of_kind(kind)
    for key, choices in (("combine", COMBINATIONS), ("gate", GATES)):
        if key in entry and entry[key] not in choices:
            yield unknown(key, entry[key], choices)
    if first and entry.get("combine") == "mul":
        yield "combine mul: the first source has nothing before it to multiply; leave combine out, or move it down"
    yield from keys.problems(entry)


def _of_kind(kind: Any) -> Iterator[str]:
    if isinstance(kind, str) and ":" in kind:
        try:
            own_function(kind)
        except ValueError as error:
            yield f"kind {error}"
    elif kind not in KINDS:
        yield f"{unknown('kind', kind, KINDS)}, or package.module:function of your own"
