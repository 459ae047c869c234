"""Kind verifier: the verified reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from oger_recipe.algorithm.credit import penalise_truncated
from oger_recipe.rewards.sources import ANSWER, Group, Scores, components_of, of_rows
from oger_recipe.rewards.spec import Keys, SourceSpec, Surroundings


@dataclass(frozen=True, kw_only=True)
class VerifierKeys(Keys):
    once: ClassVar[bool] = True
    reads_rows: ClassVar[bool] = False
    is_rule: ClassVar[bool] = True
    if_below: ClassVar[str] = "wrong answers would be paid more than right ones"

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Verifier:
        advantage = surroundings.settings.advantage
        return Verifier(advantage.non_stop_penalty, advantage.non_stop_fixed_reward, spec.worst)


@dataclass(frozen=True)
class Verifier:
    """The verdict that came with each row; truncated rows as oger.non_stop_* say."""

    non_stop_penalty: float
    non_stop_fixed_reward: float | None
    worst: float | None = None  # of a row that could not be graded; None: 0, or less where one of the step has less

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        rewards = of_rows(groups, lambda group: [each.verdict.reward for each in group.graded], dtype=torch.float32)
        truncated = of_rows(groups, lambda group: group.truncated)
        errors = {
            (number, row): each.error
            for number, group in enumerate(groups)
            for row, each in enumerate(group.graded)
            if each.error is not None
        }
        rewards[of_rows(groups, lambda group: [each.error is not None for each in group.graded])] = (
            min(0.0, rewards.min().item()) if self.worst is None else self.worst
        )
        causes = {place: ANSWER for place in errors if not groups[place[0]].graded[place[1]].unreadable}
        return Scores(
            penalise_truncated(rewards, truncated, self.non_stop_penalty, self.non_stop_fixed_reward),
            components_of([[each.verdict.components for each in group.graded] for group in groups]),
            errors,
            causes=causes,
        )
