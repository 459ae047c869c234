"""The entries of oger.reward.sources: what is wrong with them, and the sources and models that they name.

Without any the list is DEFAULT: r = R + beta * B.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_type_hints

from oger_recipe.algorithm.credit import BATCH_ESTIMATORS
from oger_recipe.rewards.keys import Keys, unknown, value_problem
from oger_recipe.rewards.kinds import KINDS, SourceSpec
from oger_recipe.rewards.models.keys import ModelKeys
from oger_recipe.rewards.own import Keywords, imported, keyword_problems
from oger_recipe.secrets import declare_key

DEFAULT = (SourceSpec("rule", "verifier"), SourceSpec("explore", "bonus"))
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
    _declare_key(entry)
    keys = Keywords if _is_path(entry["kind"]) else KINDS[entry["kind"]].of(entry.get("scorer")).keys
    return SourceSpec(**common, keys=keys.of(further))


def _declare_key(entry: Mapping[str, Any]) -> None:
    if isinstance(variable := entry.get("api_key_env"), str):
        declare_key(variable)


def _is_path(kind: Any) -> bool:
    return isinstance(kind, str) and ":" in kind


def models_of(entries: Sequence[Mapping[str, Any]] | None) -> Iterator[tuple[str, ModelKeys]]:
    """Yield the models of a run, each with the name of its source; none of an entry whose keys no run could do."""
    for entry in entries or ():
        known = KINDS.get(str(entry.get("kind"))) if isinstance(entry, Mapping) else None
        keys = known.of(entry.get("scorer")).keys if known else Keys
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
        _declare_key(entry)  # before code of the user's is loaded
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
    if kind == "bonus" and "worst" in entry:
        yield "worst: the bonus does not fail; leave worst out"
    yield from _of_sign(kind, entry)
    if first and entry.get("combine") == "mul":
        yield "combine mul: the first source has nothing before it to multiply; leave combine out, or move it down"
    if entry.get("combine") == "mul" and entry.get("normalize", "none") != "none":
        yield (
            f"normalize {entry['normalize']} with combine mul: a normalized value is below 0 for about every second "
            "row, and would turn the total's sign there; use combine add, or leave normalize out"
        )
    problems = [*_of_kind(kind, {key: value for key, value in entry.items() if key not in _COMMON})]
    yield from problems
    bounds = None
    if not problems and isinstance(kind, str) and kind in KINDS:
        bounds = KINDS[kind].of(entry.get("scorer")).keys.of(entry).bounds
    if bounds is not None and "worst" in entry:
        low, high = bounds
        yield f"worst {entry['worst']!r}: this source gives {low:g} to {high:g}, so that it is known; leave worst out"


def _of_sign(kind: Any, entry: Mapping[str, Any]) -> Iterator[str]:
    """Say where a weight or a value below 0 would pay for what nobody wants."""
    weight = entry.get("weight", 1)
    is_below = isinstance(weight, int | float) and weight < 0
    if is_below and kind in KINDS and KINDS[kind].if_below:
        yield f"weight {weight}: it has to be 0 or more for kind {kind}: {KINDS[kind].if_below}"
    if entry.get("combine") == "mul" and (is_below or kind == "length"):
        what = f"weight {weight}" if is_below else "kind length"
        yield f"combine mul with {what}: values below 0 would turn the total's sign; use combine add"


def _of_kind(kind: Any, further: Mapping[str, Any]) -> Iterator[str]:
    if _is_path(kind):
        try:
            imported(kind)
        except ValueError as error:
            yield f"kind {error}"
        else:
            yield from keyword_problems(kind, further)
    elif kind in KINDS:
        keys = KINDS[kind].of(further.get("scorer")).keys
        known = (*_COMMON, *keys.names())
        yield from (unknown("key", key, known) for key in further if key not in known)
        yield from keys.problems(further)
    else:
        yield f"{unknown('kind', kind, KINDS)}, or package.module:name of a function or class of your own"
