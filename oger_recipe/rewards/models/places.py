"""Chooses the place of a source's model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oger_recipe.rewards.models.in_process import ProcessPlace
from oger_recipe.rewards.models.keys import ModelKeys
from oger_recipe.rewards.models.place import Place

if TYPE_CHECKING:
    from oger_recipe.rewards.compose import Surroundings


def place_of(keys: ModelKeys, surroundings: Surroundings) -> Place:
    """Make the place that an entry names."""
    return ProcessPlace(keys) if keys.runs_on == "process" else surroundings.engine(keys)
