"""Makes sources of kind process, by what the keys say the scorer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from oger_recipe.rewards.keys import Keys
from oger_recipe.rewards.models.implicit import implicit_source
from oger_recipe.rewards.models.keys import ProcessKeys
from oger_recipe.rewards.models.process import tagged_source
from oger_recipe.rewards.models.scorer_keys import ImplicitKeys, StepJudgeKeys
from oger_recipe.rewards.models.step_judge import step_judge_source
from oger_recipe.rewards.sources import Source

if TYPE_CHECKING:
    from oger_recipe.rewards.compose import SourceSpec, Surroundings


SOURCES: Mapping[type[Keys], Callable[[SourceSpec, Surroundings], Source]] = {
    ProcessKeys: tagged_source,
    ImplicitKeys: implicit_source,
    StepJudgeKeys: step_judge_source,
}


def process_source(spec: SourceSpec, surroundings: Surroundings) -> Source:
    return SOURCES[type(spec.keys)](spec, surroundings)
