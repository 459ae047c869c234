"""The reward models that the built-in task brings, by the names that recipes and commands may use for them.

The judges and the head like operators, not right answers, so that everybody can say what a verdict has to be. The
process reward models are trained, which takes some minutes for the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oger_recipe.lab import (
    countdown,
    countdown_prm,
    countdown_problem,
    countdown_steps,
    countdown_teachers,
    known_judges,
    tiny_policy,
)
from oger_recipe.lab.build import cached, place, sources_of, versions
from oger_recipe.lab.countdown_prm import BAD, GOOD, Data

_SETS_WEIGHTS = (known_judges, tiny_policy)
_TRAINS = (countdown, countdown_problem, countdown_teachers, countdown_steps, countdown_prm, tiny_policy)

KNOWN: dict[str, Callable[[Path], Path]] = {
    # 1 where an answer multiplies, else 0
    "countdown-judge": lambda folder: known_judges.save_judge(known_judges.Star(), folder),
    # 10 where it adds, else 4
    "countdown-grader": lambda folder: known_judges.save_judge(known_judges.Star("10", "4", "+"), folder),
    # 2 for a product, less 1 for a sum
    "countdown-head": lambda folder: known_judges.save_head(folder, "*+"),
}
PRMS: dict[str, Data] = {
    "countdown-prm": GOOD,
    "countdown-prm-bad": BAD,
}
JUDGES = (*KNOWN, *PRMS)
_AT_SERVER = {"model": "url", "tokenizer": "", "critic": "critic_url"}  # key -> its server's key, where there is one


def folder_of(model: str, cache: str, *, train: bool = True) -> str:
    """Return a model's folder where its name is in JUDGES, built unless the cache has it; else the name itself.
    Without ``train`` a PRM that is not in the cache keeps its name too."""
    if model not in JUDGES:
        return model
    where = Path(cache).expanduser()
    if model in KNOWN:
        return str(cached(where, model, sources_of(*_SETS_WEIGHTS) | versions(), KNOWN[model]))
    content = sources_of(*_TRAINS) | versions()
    made = content | asdict(PRMS[model])
    if not train and not place(where, model, made).is_dir():
        return model
    base = cached(where, "countdown-prm-base", content, countdown_prm.save_base)
    return str(cached(where, model, made, lambda folder: countdown_prm.save_prm(base, PRMS[model], folder)))


def with_folders(entry: Mapping[str, Any], cache: str, *, train: bool = True) -> dict[str, Any]:
    """Return the entry of oger.reward.sources with folders in place of names in JUDGES. train: see `folder_of`."""
    names = {key: entry[key] for key, url in _AT_SERVER.items() if key in entry and not entry.get(url)}
    folders = {key: folder_of(name, cache, train=train) for key, name in names.items() if isinstance(name, str)}
    return {**entry, **folders}
