"""Kind ``unlikeliness``: what right rollouts lose for being likely, by their rank in the group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from oger_recipe.algorithm.exploration import unlikeliness
from oger_recipe.rewards.sources import Group, Scores, of_rows, own_right_rows
from oger_recipe.rewards.spec import Keys, SourceSpec, Surroundings

_UNKNOWN = "the policy's log-probability of this response is not known"


@dataclass(frozen=True, kw_only=True)
class UnlikelinessKeys(Keys):
    reads_rows: ClassVar[bool] = False
    reads_log_probs: ClassVar[bool] = True
    if_below: ClassVar[str] = "likely solutions would be paid more than unlikely ones"
    if_multiplied: ClassVar[str] = "its values are 0 or less, so right rows would be paid less than wrong ones"

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Unlikeliness:
        return Unlikeliness()


@dataclass(frozen=True)
class Unlikeliness:
    """Rank the policy's rows of a group by log-probability, wrong ones as well. A right row that may not earn a bonus
    counts as the likeliest; teachers and wrong rows go without a value."""

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        right, earns, own = own_right_rows(groups)
        log_probs = of_rows(groups, lambda group: group.log_prob or [math.nan] * len(group.graded))
        rewards = of_rows(groups, lambda group: [each.verdict.reward for each in group.graded])
        known = ~log_probs.isnan()
        without = earns & ~known
        return Scores(
            unlikeliness(log_probs, rewards, own & known, earns & known).where(right, 0.0),
            errors={(group, row): _UNKNOWN for group, row in (without & wanted).nonzero().tolist()},
            silent=~right,
        )
