"""Kind ``uniqueness``: right rollouts that few others of their group resemble, by exact classes, are paid more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oger_recipe.algorithm.exploration import UNIQUENESS, uniqueness
from oger_recipe.base.ranges import PART
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.sources import Group, Scores, own_right_rows
from oger_recipe.rewards.spec import Keys, SourceSpec, Surroundings

# What makes rollouts alike -> the field of the verdict that names it.
_CLASSES = {"solution": "solution", "answer": "extracted"}
_FACTOR = "distinct"  # the form that is above 0 for every right row


@dataclass(frozen=True, kw_only=True)
class UniquenessKeys(Keys):
    reads_rows: ClassVar[bool] = False
    if_below: ClassVar[str] = "common solutions would be paid more than rare ones"

    by: str = key(
        "solution",
        "what makes two right rollouts alike: the verifier's class of the solution, or the answer that it extracts",
        choices=_CLASSES,
    )
    form: str = key(
        "share",
        "with c rollouts of the class, m right ones and n in all: 1 - c / m (share), c^-power (inverse), or "
        "max(0.1, (n - c) / (n - 1)) (distinct, for combine mul)",
        choices=UNIQUENESS,
    )
    power: float = key(1.0, "power of the form inverse; 0.5: as UCB counts", range=PART)

    @classmethod
    def refusals(cls, entry: Mapping[str, Any]) -> Iterator[str]:
        yield from super().refusals(entry)
        form, multiplies, weight = entry.get("form", cls.form), entry.get("combine") == "mul", entry.get("weight", 1)
        if form == _FACTOR and not multiplies:
            yield f"form {form} is a factor, 0.1 for the commonest class: set combine mul, or choose another form"
        if multiplies and form == _FACTOR and isinstance(weight, int | float) and 0 <= weight < 1:
            yield f"weight {weight} with combine mul: it would shrink right rows' rewards alone; leave it out"
        if multiplies and form in [*UNIQUENESS] and form != _FACTOR:
            yield (
                f"combine mul with form {form}: right rows of value 0 would be paid less than wrong rows, which keep "
                f"their reward; use combine add, or form {_FACTOR}"
            )

    @property
    def bounds(self) -> tuple[float, float]:
        return UNIQUENESS[self.form].least, 1.0

    @property
    def counts_solutions(self) -> bool:
        return self.by == "solution"

    def combined(self) -> Iterator[str]:
        if self.power != 1 and self.form != "inverse":
            yield f"power {self.power:g} has no effect with form {self.form}: leave it out, or set form to inverse"

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Uniqueness:
        return Uniqueness(self)


@dataclass(frozen=True)
class Uniqueness:
    """Count classes among a group's right rollouts that may earn a bonus; teachers and wrong rows go without it."""

    keys: UniquenessKeys

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        right, earns, own = own_right_rows(groups)
        classes = torch.full(wanted.shape, -1)
        for number, group in enumerate(groups):
            names = [getattr(each.verdict, _CLASSES[self.keys.by]) for each in group.graded]
            known = {name: place for place, name in enumerate(dict.fromkeys(names)) if name is not None}
            classes[number] = torch.tensor([known.get(name, -1) for name in names])
        without = earns & (classes < 0)
        why = f"the verifier names no {self.keys.by} of this right response"
        return Scores(
            uniqueness(classes, earns & ~without, own, form=self.keys.form, power=self.keys.power).where(right, 0.0),
            errors={(group, row): why for group, row in (without & wanted).nonzero().tolist()},
            silent=~right,
        )
