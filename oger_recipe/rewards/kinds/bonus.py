"""Kind bonus: OGER's exploration bonus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oger_recipe.algorithm.credit import earned_bonus
from oger_recipe.rewards.sources import Group, Scores, of_rows
from oger_recipe.rewards.spec import Keys, SourceSpec, Surroundings


@dataclass(frozen=True, kw_only=True)
class BonusKeys(Keys):
    once: ClassVar[bool] = True
    reads_rows: ClassVar[bool] = False
    is_bonus: ClassVar[bool] = True
    if_multiplied: ClassVar[str] = "rows that earn no bonus, as teachers' do, would lose their whole reward"

    @classmethod
    def refusals(cls, entry: Mapping[str, Any]) -> Iterator[str]:
        yield from super().refusals(entry)
        if "weight" in entry:
            of_run = "the weight of the bonus is oger.bonus_weight, with its schedule; leave weight out"
            yield f"weight {entry['weight']!r}: {of_run}"
        if "worst" in entry:
            yield "worst: the bonus never fails; leave worst out"

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Bonus:
        bonus = surroundings.settings.bonus
        return Bonus(
            bonus.last_token_enp_reward,
            bonus.similarity_reverse,
            bonus.similarity_reverse_fail,
            bonus.similarity_shaping,
        )


@dataclass(frozen=True)
class Bonus:
    """OGER's exploration bonus, before its weight beta."""

    entropy_weight: str
    reverse: bool
    reverse_fail: bool
    shaping: str

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        verdicts = [[each.verdict for each in group.graded] for group in groups]
        return Scores(
            earned_bonus(
                of_rows(groups, lambda group: group.similarity),
                of_rows(groups, lambda group: group.entropy),
                torch.tensor([[verdict.reward for verdict in group] for group in verdicts]),
                torch.tensor([[verdict.score for verdict in group] for group in verdicts]),
                of_rows(groups, lambda group: group.may_earn),
                entropy_weight=self.entropy_weight,
                reverse=self.reverse,
                reverse_fail=self.reverse_fail,
                shaping=self.shaping,
            )
        )
