"""Kind ``length``: what tokens of a response cost beyond a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oger_recipe.base.ranges import COUNT, COUNT_OR_NONE
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.sources import Group, Scores, of_rows
from oger_recipe.rewards.spec import FLIPS, Keys, SourceSpec, Surroundings


@dataclass(frozen=True, kw_only=True)
class LengthKeys(Keys):
    reads_rows: ClassVar[bool] = False
    is_length: ClassVar[bool] = True
    if_below: ClassVar[str] = "its values are 0 or less, so long answers would be rewarded"
    if_multiplied: ClassVar[str] = FLIPS

    budget: int = key(
        help="tokens of a response without penalty, including the end-of-sequence token", range=COUNT_OR_NONE
    )
    limit: int = key(help="tokens from which the value is -1; between budget and limit it falls linearly", range=COUNT)

    @property
    def bounds(self) -> tuple[float, float]:
        return -1.0, 0.0

    def combined(self) -> Iterator[str]:
        if self.budget >= self.limit:
            yield f"budget {self.budget} must be below limit {self.limit}"

    def misfits(self, name: str, settings: Mapping[str, Any]) -> Iterator[str]:
        longest = settings["rollout.max_new_tokens"] or settings["data.max_len"]
        if self.budget >= longest:
            yield (
                f"oger.reward.sources: {name!r} has budget {self.budget}, and responses have at most "
                f"{longest} tokens (rollout.max_new_tokens): give a smaller budget"
            )
        if settings["reward.overlong_buffer_len"] is not None:
            yield (
                f"reward.overlong_buffer_len and {name!r} of oger.reward.sources, of kind length, both charge for "
                "tokens; choose one"
            )

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Length:
        return Length(self.budget, self.limit)


@dataclass(frozen=True)
class Length:
    """Charge a response y of |y| tokens for those beyond its budget; a truncated one, cut wherever, pays all.

        value = -min(max(|y| - budget, 0) / (limit - budget), 1)

    With limit L_max and budget L_max - L_cache this is DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13).
    """

    budget: int
    limit: int

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        tokens = of_rows(groups, lambda group: group.tokens, dtype=torch.float32)
        beyond = ((tokens - self.budget) / (self.limit - self.budget)).clamp(0, 1)
        return Scores(-beyond.where(~of_rows(groups, lambda group: group.truncated), 1.0))
