"""Makes sources of kind process, by what the keys say the scorer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oger_recipe.rewards.keys import Keys
from oger_recipe.rewards.models.implicit import AboutQuestions, implicit_source
from oger_recipe.rewards.models.keys import ProcessKeys
from oger_recipe.rewards.models.process import StepScorer, TaggedSteps, tagged_source
from oger_recipe.rewards.models.scorer_keys import ImplicitKeys, StepJudgeKeys
from oger_recipe.rewards.models.step_judge import StepJudge, step_judge_source
from oger_recipe.rewards.sources import Source

if TYPE_CHECKING:
    from oger_recipe.rewards.compose import SourceSpec, Surroundings


@dataclass(frozen=True)
class _Made:
    """source: of an entry; scorer: for questions and steps outside of a run."""

    source: Callable[[SourceSpec, Surroundings], Source]
    scorer: Callable[[SourceSpec, Surroundings], StepScorer]


_MADE: Mapping[type[Keys], _Made] = {
    ProcessKeys: _Made(tagged_source, TaggedSteps),
    ImplicitKeys: _Made(implicit_source, AboutQuestions.of),
    StepJudgeKeys: _Made(step_judge_source, StepJudge.of),
}


def process_source(spec: SourceSpec, surroundings: Surroundings) -> Source:
    return _MADE[type(spec.keys)].source(spec, surroundings)


def scorer_of(spec: SourceSpec, surroundings: Surroundings) -> StepScorer:
    """Make what scores the steps of answers to questions as data has them, outside of a run: nothing is learnt."""
    return _MADE[type(spec.keys)].scorer(spec, surroundings)
