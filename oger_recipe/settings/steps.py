"""Settings of steps: how responses are cut into steps of reasoning, and sampled by them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from oger_recipe.algorithm.credit import STEP_ESTIMATORS
from oger_recipe.base.cutting import StepRule, StepSampling
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import COUNT, COUNT_OR_NONE
from oger_recipe.settings.fields import Need, Section, either, setting


def _are_used(oger: Any, value: Mapping[str, Any]) -> bool:
    steps = oger.steps
    ends = steps.sample_by_step or steps.max_steps is not None or steps.last_step_text is not None
    return ends or oger.cuts_steps(value["algo.advantage.estimator"])


_USED = Need(
    "steps of reasoning: a source that reads them (oger.reward.sources), algo.advantage.estimator "
    f"{either(STEP_ESTIMATORS)}, oger.ratio_level step, or a response that ends by steps (oger.steps)",
    _are_used,
)
_CUT = Need(
    "something that ends a step: oger.steps.delimiters, oger.steps.delimiter_token_ids or oger.steps.max_step_tokens",
    lambda oger, value: oger.steps.cuts,
)


@dataclass(frozen=True)
class StepSettings(Section):
    title: ClassVar[str] = "oger.steps"
    about: ClassVar[str] = "cutting responses into steps of reasoning"
    prefix: ClassVar[str] = "steps."

    delimiters: tuple[str, ...] = setting(("\n\n",), "texts that end a step", needs=_USED)
    delimiter_token_ids: tuple[int, ...] = setting((), "tokens that end a step", range=COUNT_OR_NONE, needs=_USED)
    max_step_tokens: int | None = setting(None, "longest step, in tokens", range=COUNT, needs=_USED)
    max_steps: int | None = setting(None, "most steps of a response", range=COUNT, needs=_CUT)
    last_step_text: str | None = setting(
        None, "end the response after the first step that contains this text (case-insensitive)", needs=_CUT
    )
    sample_by_step: bool = setting(False, "sample each step as its own request to the engine")

    @property
    def rule(self) -> StepRule:
        """The rule that cuts a response. Raises RecipeError for one that is none."""
        texts = self.delimiters, self.delimiter_token_ids, self.max_step_tokens, self.max_steps, self.last_step_text
        try:
            return StepRule(*texts)
        except ValueError as error:
            raise RecipeError(f"oger.steps: {error}") from None

    @property
    def cuts(self) -> bool:
        """Whether a response can have more than one step."""
        return bool(self.delimiters or self.delimiter_token_ids or self.max_step_tokens)

    @property
    def sampling(self) -> StepSampling | None:
        """The way to sample responses; None where steps make no difference to it."""
        if not self.sample_by_step and not self.rule.ends_responses:
            return None
        return StepSampling(self.rule, self.sample_by_step)
