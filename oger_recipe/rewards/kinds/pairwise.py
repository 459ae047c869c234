"""Kind pairwise: a judge says which of two answers is better, asked in both orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from oger_recipe.models.asking import Judged, Metrics, RewardModel
from oger_recipe.models.keys import Question
from oger_recipe.models.plugin import OF_SEVERAL, Example
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.kinds.judge import JudgeKeys
from oger_recipe.rewards.place import Reply
from oger_recipe.rewards.sources import Group

OTHERS = ("answer", "teacher")
TIE = 0.5

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class PairwiseKeys(JudgeKeys):
    """A model that compares each response with another answer, in both orders."""

    threshold: ClassVar[None] = None

    plugin: str = key("pairwise", "as for a judge, but rm_preprocess gets pairs of answers instead of responses")
    against: str = key("answer", "compare a response with the reference answer, or with a teacher's", choices=OTHERS)

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def example(self) -> Example:
        return OF_SEVERAL

    @property
    def reads_teachers(self) -> bool:
        return self.against == "teacher"

    def questions(self) -> list[Question]:
        (question,) = super().questions()
        return [replace(question, example=["x", "x"], responses=2 if self.reads_teachers else 1)]

    def judged_of(self, group: Group, row: int) -> Pair | Reply:
        if self.against == "answer":
            return group.responses[row], group.answer
        return (
            (group.responses[row], group.teachers[0]) if group.teachers else Reply(error="the prompt has no teacher")
        )

    def ask_model(
        self, model: RewardModel, prompts: Sequence[str], judged: Sequence[Pair]
    ) -> tuple[list[Judged], Metrics]:
        """Value a response that is better than the other answer 1, one that is as good 0.5, a worse one 0."""
        compared = compare(model, prompts, judged)
        both = [each for pair in compared for each in (pair.forth, pair.back)]
        changes = sum(each.order_changes for each in compared) / max(sum(each.error is None for each in compared), 1)
        return [Judged(each.value, each.error, cause=each.cause) for each in compared], {
            **self.metrics(both),
            "order_changes": changes,
        }


@dataclass(frozen=True)
class Compared:
    """What a judge says of two answers, asked twice: each verdict is 1 where the answer that it read first is better,
    0 where the other one is, 0.5 for a tie. forth: the first answer is read first; back: the second one is."""

    forth: Judged
    back: Judged

    @property
    def error(self) -> str | None:
        return self.forth.error or self.back.error

    @property
    def cause(self) -> str | None:
        return self.forth.cause or self.back.cause

    @property
    def order_changes(self) -> bool:
        """Whether the verdict depends on which answer is read first."""
        return self.error is None and self.forth.value != 1 - self.back.value

    @property
    def value(self) -> float:
        """1 where the first answer is better, 0 where the second one is; a verdict that changes is a tie."""
        return TIE if self.order_changes else self.forth.value


def compare(judge: RewardModel, prompts: Sequence[str], pairs: Sequence[Pair]) -> list[Compared]:
    """Ask about each pair of answers in both orders, all at once."""
    turned = [(second, first) for first, second in pairs]
    judged = judge.judge([*prompts, *prompts], [*pairs, *turned])
    return [Compared(*both) for both in zip(judged[: len(pairs)], judged[len(pairs) :], strict=True)]
