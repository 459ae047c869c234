"""Chooses the place of a source's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oger_recipe.rewards.models.cache import Cached
from oger_recipe.rewards.models.in_process import ProcessPlace
from oger_recipe.rewards.models.keys import ModelKeys
from oger_recipe.rewards.models.place import Place
from oger_recipe.rewards.models.server import ServerPlace

if TYPE_CHECKING:
    from oger_recipe.rewards.kinds import Surroundings


def place_of(keys: ModelKeys, surroundings: Surroundings) -> Place:
    """Make the place that an entry names, behind the cache of replies where there is one."""
    makers: dict[str, Callable[[ModelKeys], Place]] = {
        "server": lambda keys: ServerPlace(keys, told=surroundings.told),
        "process": lambda keys: ProcessPlace(keys, told=surroundings.told),
        "engine": surroundings.engine,
    }
    place = surroundings.around(keys, makers[keys.runs_on](keys))
    return Cached(place, keys, surroundings.cache) if surroundings.cache is not None and keys.cache else place
