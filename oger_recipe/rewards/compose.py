"""How the sources of a run make one reward: a left fold with weights and gates, and what a failed source costs.

    total = weight_1 * value_1
    total = total + weight_k * value_k      combine: add
    total = total * weight_k * value_k      combine: mul

A value is 0 where its gate is closed; elsewhere it is what the source said, by NORMALIZE compared with other values.
Without oger.reward.sources the list is DEFAULT: r = R + beta * B.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_type_hints

import torch
from torch import Tensor

from oger_recipe.algorithm.credit import BATCH_ESTIMATORS, penalise_truncated
from oger_recipe.algorithm.normalize import Running, group_normalized
from oger_recipe.errors import RecipeError
from oger_recipe.ranges import WEIGHT
from oger_recipe.rewards.by_steps import StepRewards, Term, compose_steps, step_errors, step_mask, weighted_steps
from oger_recipe.rewards.keys import Keys, key, unknown, value_problem
from oger_recipe.rewards.models.cache import VerdictCache
from oger_recipe.rewards.models.classifier import classifier_source, critique_source
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
from oger_recipe.rewards.models.scorer_keys import ImplicitKeys, StepJudgeKeys
from oger_recipe.rewards.models.step_sources import process_source
from oger_recipe.rewards.own import Keywords, imported, keyword_problems, make_own, reason
from oger_recipe.rewards.sources import Bonus, Group, Scores, Source, Verifier, of_rows

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
    weight: float = key(1.0, "factor of its value; the bonus has oger.bonus_weight instead", range=WEIGHT)
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
    keys: Keys = field(default_factory=Keys)


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
    """make: the source of an entry; keys: what its entries may have beside the common keys, by_scorer where `scorer`
    says which; once: at most one; reads_rows: the question and the data's further columns travel to it; reads_steps:
    responses are cut into steps of reasoning for it."""

    make: Callable[[SourceSpec, Surroundings], Source]
    keys: type[Keys] = Keys
    once: bool = False
    reads_rows: bool = True
    reads_steps: bool = False
    by_scorer: Mapping[str, type[Keys]] = field(default_factory=dict)

    def keys_of(self, entry: Mapping[str, Any]) -> type[Keys]:
        return self.by_scorer.get(str(entry.get("scorer")), self.keys)


def _similarity(spec: SourceSpec, of: Surroundings) -> Source:
    from oger_recipe.rewards.models.similarity import Similarity  # with the encoder's libraries

    assert isinstance(spec.keys, SimilarityKeys)
    return Similarity.of(spec.keys, of.settings.embedding, of.encoder)


KINDS: dict[str, Kind] = {
    "verifier": Kind(lambda spec, of: Verifier.of(of.settings), once=True, reads_rows=False),
    "bonus": Kind(lambda spec, of: Bonus.of(of.settings), once=True, reads_rows=False),
    "similarity": Kind(_similarity, SimilarityKeys),
    "judge": Kind(judge_source, JudgeKeys),
    "pairwise": Kind(PairwiseSource, PairwiseKeys),
    "classifier": Kind(classifier_source, ClassifierKeys),
    "critique_classifier": Kind(critique_source, CritiqueKeys),
    "process": Kind(
        process_source,
        ProcessKeys,
        reads_steps=True,
        by_scorer={"implicit": ImplicitKeys, "judge": StepJudgeKeys},
    ),
}

DEFAULT = (SourceSpec("rule", "verifier"), SourceSpec("explore", "bonus"))


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
    (bool [groups]): groups that have no advantage in this step; metrics: ``source/name`` -> a number about the step;
    running: source -> all its values so far, of those that are compared with them; steps: what each step of reasoning
    is paid, where an estimator takes that: then total and terms are sums over a row's steps; said_of_steps: source ->
    what it said of steps of reasoning, [groups, n, S], nan where there is no such step.
    """

    total: Tensor
    terms: dict[str, Tensor]
    said: dict[str, Tensor]
    errors: dict[str, dict[int, str]]
    dropped: Tensor
    metrics: dict[str, float]
    running: dict[str, Running]
    steps: StepRewards | None = None
    said_of_steps: dict[str, Tensor] = field(default_factory=dict)


def make_source(spec: SourceSpec, surroundings: Surroundings) -> Source:
    """Make the source of an entry, whose kind is a name in KINDS or an import path.

    Raises ValueError for an import path that leads to no source, and RecipeError for a source that cannot be made.
    """
    if isinstance(spec.keys, Keywords):
        return make_own(spec.name, spec.kind, spec.keys.given)
    return KINDS[spec.kind].make(spec, surroundings)


def rewards_of(
    groups: Sequence[Group],
    sources: Sequence[Source],
    specs: Sequence[SourceSpec],
    *,
    on_error: str,
    running: Mapping[str, Running] | None = None,
    by_steps: bool = False,
) -> Rewards:
    """Ask all sources and compose what they say; ``running``: that of the step before, None at the first.

    by_steps: every step of reasoning gets a reward, of groups that know their steps; otherwise a source that speaks of
    steps counts with its one value for a row, as any other. A source that raises has failed on all rows that it was
    asked about; a RecipeError is raised further.
    """
    rule = of_rows(groups, lambda group: [graded.verdict.reward for graded in group.graded])
    wanted = [GATES[spec.gate](rule) for spec in specs]
    scores = _asked(sources, groups, wanted)
    mask = step_mask(groups) if by_steps else None
    if mask is not None:
        scores = [_with_steps(*each, mask) for each in zip(specs, scores, wanted, strict=True)]
    failed = [_failed(each) for each in scores]
    valued = [asked & ~missing for asked, missing in zip(wanted, failed, strict=True)]
    before = running or {}
    so_far = {
        spec.name: before.get(spec.name, Running()).joined_by(each.values[has_value])
        for spec, each, has_value in zip(specs, scores, valued, strict=True)
    }
    values = [
        NORMALIZE[spec.normalize](each.values, has_value, so_far[spec.name])
        for spec, each, has_value in zip(specs, scores, valued, strict=True)
    ]
    terms = [
        spec.weight * torch.where(has_value, each, 0.0)
        for spec, each, has_value in zip(specs, values, valued, strict=True)
    ]
    names, how = [spec.name for spec in specs], ON_ERROR[on_error]
    counts = [~missing if how.passed_by else torch.ones_like(missing) for missing in failed]
    errors = [{group * rule.shape[1] + row: why for (group, row), why in each.errors.items()} for each in scores]
    rewards = Rewards(
        compose(terms, counts, [spec.combine for spec in specs]),
        dict(zip(names, terms, strict=True)),
        _said(scores, names, failed),
        dict(zip(names, errors, strict=True)),
        torch.stack(failed).any(dim=0).any(dim=1) & how.drops_group,
        {f"{spec.name}/{name}": value for spec, each in zip(specs, scores, strict=True)
         for name, value in each.metrics.items()},
        {spec.name: so_far[spec.name] for spec in specs if spec.normalize == "running"},
        said_of_steps={name: each.steps for name, each in zip(names, scores, strict=True) if each.steps is not None},
    )  # fmt: skip
    if mask is None:
        return rewards
    paid = [
        rewards.terms[spec.name] if each.steps is None else weighted_steps(each.steps, spec.weight, has_value, mask)
        for spec, each, has_value in zip(specs, scores, valued, strict=True)
    ]
    factors = [spec.combine == "mul" for spec in specs]
    steps = compose_steps([Term(*each) for each in zip(paid, counts, factors, strict=True)], mask)
    sums = {name: term.sum(dim=2) if term.ndim == 3 else term for name, term in zip(names, paid, strict=True)}
    return replace(rewards, total=steps.total, terms=sums, steps=steps)


def _with_steps(spec: SourceSpec, scores: Scores, wanted: Tensor, mask: Tensor) -> Scores:
    """Count rows as failed to which a source gives rewards of steps that they do not have."""
    if scores.steps is None:
        return scores
    if spec.combine == "mul" or spec.normalize != "none":
        raise RecipeError(f"oger.reward.sources: {by_steps_problem(spec.name)}")
    return replace(scores, errors=step_errors(scores, mask, wanted) | dict(scores.errors))


def by_steps_problem(name: str) -> str:
    """Say what a source that pays for steps of reasoning cannot have."""
    return (
        f"{name!r} pays for each step of reasoning, which can only be added as it is: leave its combine and normalize "
        "out, or choose an algo.advantage.estimator that does not go by steps"
    )


def with_fixed_rewards(rewards: Rewards, groups: Sequence[Group], fixed: float | None) -> Rewards:
    """Put the fixed reward of truncated rows (oger.non_stop_fixed_reward) in the place of their total."""
    if fixed is None:
        return rewards
    truncated = of_rows(groups, lambda group: group.truncated)
    total = penalise_truncated(rewards.total, truncated, 0.0, fixed)
    return replace(rewards, total=total, steps=rewards.steps and rewards.steps.with_responses(total, truncated))


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


@torch.no_grad()  # of a thread alone
def _scores(source: Source, groups: Sequence[Group], wanted: Tensor) -> Scores:
    try:
        return source.score(groups, wanted)
    except RecipeError:
        raise
    except Exception as error:
        why = reason(error)
        errors = {(group, row): why for group, row in wanted.nonzero().tolist()}
        return Scores(torch.full(wanted.shape, torch.nan), errors=errors)


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

COMMON = tuple(each for each in fields(SourceSpec) if each.name != "keys")
_COMMON = tuple(each.name for each in COMMON)


def sources_of(entries: Sequence[Mapping[str, Any]] | None, estimator: str = "") -> tuple[SourceSpec, ...]:
    """Read the sources of a run, entries as entry_problems accepts them; BATCH_ESTIMATORS normalize all of them."""
    specs = tuple(map(_spec, entries)) if entries else DEFAULT
    if estimator not in BATCH_ESTIMATORS:
        return specs
    return tuple(replace(spec, normalize="group") for spec in specs)


def _spec(entry: Mapping[str, Any]) -> SourceSpec:
    common = {name: value for name, value in entry.items() if name in _COMMON}
    further = {name: value for name, value in entry.items() if name not in _COMMON}
    keys = Keywords if _is_path(entry["kind"]) else KINDS[entry["kind"]].keys_of(entry)
    return SourceSpec(**common, keys=keys.of(further))


def _is_path(kind: Any) -> bool:
    return isinstance(kind, str) and ":" in kind


def models_of(entries: Sequence[Mapping[str, Any]] | None) -> Iterator[tuple[str, ModelKeys]]:
    """Yield the models of a run, each with the name of its source; none of an entry whose keys no run could do."""
    for entry in entries or ():
        known = KINDS.get(str(entry.get("kind"))) if isinstance(entry, Mapping) else None
        keys = known.keys_of(entry) if known else Keys
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
    name, kind = entry.get("name"), entry.get("kind")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        yield f"name {name!r}: a name of letters, digits, '_', '.' and '-' is needed, which metrics and samples bear"
    hints = get_type_hints(SourceSpec)
    for each in COMMON[2:]:
        if each.name in entry:
            problem = value_problem(each.name, entry[each.name], hints[each.name], each.metadata)
            yield from [problem] if problem else []
    if kind == "bonus" and "weight" in entry:
        weight = entry["weight"]
        yield f"weight {weight!r}: the weight of the bonus is oger.bonus_weight, with its schedule; leave weight out"
    if first and entry.get("combine") == "mul":
        yield "combine mul: the first source has nothing before it to multiply; leave combine out, or move it down"
    if entry.get("combine") == "mul" and entry.get("normalize", "none") != "none":
        yield (
            f"normalize {entry['normalize']} with combine mul: a normalized value is below 0 for about every second "
            "row, and would turn the total's sign there; use combine add, or leave normalize out"
        )
    yield from _of_kind(kind, {key: value for key, value in entry.items() if key not in _COMMON})


def _of_kind(kind: Any, further: Mapping[str, Any]) -> Iterator[str]:
    if _is_path(kind):
        try:
            imported(kind)
        except ValueError as error:
            yield f"kind {error}"
        else:
            yield from keyword_problems(kind, further)
    elif kind in KINDS:
        keys = KINDS[kind].keys_of(further)
        known = (*_COMMON, *keys.names())
        yield from (unknown("key", key, known) for key in further if key not in known)
        yield from keys.problems(further)
    else:
        yield f"{unknown('kind', kind, KINDS)}, or package.module:name of a function or class of your own"
