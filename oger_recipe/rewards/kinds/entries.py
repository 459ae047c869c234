"""The entries of oger.reward.sources: what is wrong with them, and the sources and models that they name.

Without any the list is DEFAULT: r = R + beta * B.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_type_hints

from oger_recipe.algorithm.credit import BATCH_ESTIMATORS
from oger_recipe.base.secrets import declare_key
from oger_recipe.models.keys import ModelKeys
from oger_recipe.rewards.keys import unknown, value_problem
from oger_recipe.rewards.kinds import KINDS, kind_of
from oger_recipe.rewards.kinds.bonus import BonusKeys
from oger_recipe.rewards.kinds.verifier import VerifierKeys
from oger_recipe.rewards.spec import COMMON, Keys, SourceSpec, further_keys

# (key, its earlier word) -> today's.
_EARLIER = {("place", "process"): "in_process"}

DEFAULT = (SourceSpec("rule", "verifier", keys=VerifierKeys()), SourceSpec("explore", "bonus", keys=BonusKeys()))


def as_today(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Put today's words into an entry that the user wrote; print a note on each earlier one."""
    new = dict(entry)
    for (name, earlier), word in _EARLIER.items():
        if entry.get(name) == earlier and ":" not in str(entry.get("kind")):  # a class of the user's has its own words
            new[name] = word
            _note(f"{name} {earlier} of oger.reward.sources is now called {word}: write {name}: {word}")
    return new


@functools.cache  # settings are read several times
def _note(text: str) -> None:
    print(f"note: {text}", flush=True)


def sources_of(entries: Sequence[Mapping[str, Any]] | None, estimator: str = "") -> tuple[SourceSpec, ...]:
    """Read a run's sources from entries that entry_problems accepts; BATCH_ESTIMATORS normalize all by group."""
    specs = tuple(map(_spec, entries)) if entries else DEFAULT
    if estimator not in BATCH_ESTIMATORS:
        return specs
    return tuple(replace(spec, normalize="group") for spec in specs)


def _spec(entry: Mapping[str, Any]) -> SourceSpec:
    declare_key_of(entry)
    further = further_keys(entry)
    kind = kind_of(entry)
    assert kind is not None, entry
    return SourceSpec(**{name: entry[name] for name in entry.keys() - further.keys()}, keys=kind.of(entry))


def declare_key_of(entry: Mapping[str, Any]) -> None:
    """Declare an entry's API key, which is then cut out of what others' code prints and raises."""
    if isinstance(variable := entry.get("api_key_env"), str):
        declare_key(variable)


def models_of(entries: Sequence[Mapping[str, Any]] | None) -> Iterator[tuple[str, ModelKeys]]:
    """Yield the models of a run, each with the name of its source; skip entries whose keys are invalid."""
    for entry in entries or ():
        keys = kind_of(entry) if isinstance(entry, Mapping) else None
        if keys is not None and keys.asks_models and not [*keys.problems(entry)]:
            yield from ((str(entry.get("name")), each) for each in keys.of(entry).models)


def entry_problems(entries: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    """Yield a sentence for each mistake in oger.reward.sources. Imports the user's sources."""
    names: list[Any] = []
    kinds: list[Any] = []
    for number, entry in enumerate(entries or (), start=1):
        where = f"oger.reward.sources, entry {number}"
        if not isinstance(entry, Mapping):
            yield f"{where}: {entry!r} is not a mapping: {{name: ..., kind: ...}}"
            continue
        declare_key_of(entry)  # before code of the user's is loaded
        yield from (f"{where}: {problem}" for problem in _of_entry(entry, first=number == 1))
        names.append(entry.get("name"))
        kinds.append(entry.get("kind"))
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"oger.reward.sources: two sources are named {name!r}"
    for kind, known in KINDS.items():
        if known.once and kinds.count(kind) > 1:
            yield f"oger.reward.sources: {kinds.count(kind)} sources are of kind {kind}: list only one"


def _of_entry(entry: Mapping[str, Any], *, first: bool) -> Iterator[str]:
    name = entry.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        yield f"name {name!r}: use only letters, digits, '_', '.' and '-': metrics and samples have this name"
    hints = get_type_hints(SourceSpec)
    for each in COMMON[2:]:
        if each.name in entry:
            problem = value_problem(each.name, entry[each.name], hints[each.name], each.metadata)
            yield from [problem] if problem else []
    known = kind_of(entry)
    yield from (known or Keys).refusals(entry)
    if first and entry.get("combine") == "mul":
        yield "combine mul: the first source has nothing before it to multiply; leave combine out, or move it down"
    if entry.get("combine") == "mul" and entry.get("normalize", "none") != "none":
        yield (
            f"normalize {entry['normalize']} with combine mul: about every second normalized value is below 0 and "
            "would flip the sign of the total; use combine add, or leave normalize out"
        )
    problems = [*_of_kind(known, entry)]
    yield from problems
    bounds = None if known is None or problems else known.of(entry).bounds
    if bounds is not None and "worst" in entry:
        low, high = bounds
        yield (
            f"worst {entry['worst']!r}: this source gives {low:g} to {high:g}, so its worst value is known: leave "
            "worst out"
        )


def _of_kind(kind: type[Keys] | None, entry: Mapping[str, Any]) -> Iterator[str]:
    if kind is None:
        yield f"{unknown('kind', entry.get('kind'), KINDS)}, or package.module:name of a function or class of your own"
        return
    yield from kind.unknown_keys(entry)
    yield from kind.problems(entry)
