"""What a row is worth on which a source fails by what its response says: never more than the worst verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from groups import group

from oger_recipe.algorithm.normalize import Running
from oger_recipe.models.keys import ON_OVERFLOW
from oger_recipe.rewards.compose import ON_ERROR, Rewards, rewards_of
from oger_recipe.rewards.kinds.classifier import ClassifierKeys
from oger_recipe.rewards.kinds.entries import DEFAULT
from oger_recipe.rewards.kinds.judge import JudgeKeys
from oger_recipe.rewards.kinds.own import OwnClass, OwnFunction
from oger_recipe.rewards.kinds.pairwise import PairwiseKeys
from oger_recipe.rewards.kinds.similarity import SimilarityKeys
from oger_recipe.rewards.kinds.verifier import Verifier
from oger_recipe.rewards.sources import ANSWER, OVERFLOW, Group, Scores
from oger_recipe.rewards.spec import COMBINATIONS, GATES, NORMALIZE, Keys, SourceSpec

CAUSES = (OVERFLOW, ANSWER)
VALUES = [[0.5, -1.0, 0.25, 0.75], [1.0, 0.0, -0.5, 0.5]]  # their worst is -1, their best 1
RULE = [[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.5, 0.0]]
FAILS = (0, 2)  # the row that fails where a test has one


@dataclass(frozen=True, kw_only=True)
class Known(Keys):
    """Of a source whose scale is known."""

    @property
    def bounds(self) -> tuple[float, float]:
        return -1.0, 1.0


class Says:
    def __init__(self, values: Any, cause: str | None = None, **more: Any) -> None:
        values = torch.tensor(values)
        if cause is not None:
            values[FAILS] = math.nan
            more |= {"errors": {FAILS: "no verdict"}, "causes": {FAILS: cause} if cause != "nobody's" else {}}
        self.scores = Scores(values, **more)

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        return self.scores


def total(
    source: Any, *, on_error: str = "zero", running: Any = None, keys: Keys | None = None, **facts: Any
) -> Rewards:
    specs = [DEFAULT[0], SourceSpec("s", "mine:f", keys=keys or Known(), **facts)]
    groups = [group(rewards) for rewards in RULE]
    return rewards_of(groups, [Verifier(0.0, None), source], specs, on_error=on_error, running=running)


def said_worst(worst: float) -> list[list[float]]:
    values = [list(row) for row in VALUES]
    values[FAILS[0]][FAILS[1]] = worst
    return values


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("weight", [2.0, -0.5])
@pytest.mark.parametrize("on_error", [each for each in ON_ERROR if each != "stop"])
@pytest.mark.parametrize("cause", CAUSES)
def test_such_a_row_is_worth_just_what_the_worst_verdict_is_worth(cause, on_error, weight, gate, normalize) -> None:
    """Whatever is made of values afterwards; a negative weight pays least for the highest value."""
    facts = {"weight": weight, "gate": gate, "normalize": normalize}
    failed = total(Says(VALUES, cause), on_error=on_error, **facts)
    judged = total(Says(said_worst(-1.0 if weight > 0 else 1.0)), **facts)
    torch.testing.assert_close(failed.total, judged.total)
    for value in (-1.0, 0.0, 0.3, 1.0):
        assert failed.total[FAILS] <= total(Says(said_worst(value)), **facts).total[FAILS] + 1e-6
    assert not failed.dropped.any() and failed.errors["s"] == {2: "no verdict"}
    assert failed.said["s"][FAILS].isnan()  # it was not said


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_as_a_factor_too(combine: str) -> None:
    failed = total(Says(VALUES, ANSWER), combine=combine)
    assert torch.equal(failed.total, total(Says(said_worst(-1.0)), combine=combine).total)


@pytest.mark.parametrize(("weight", "worst"), [(1.0, -1.0), (-1.0, 1.0)])
@pytest.mark.parametrize("cause", CAUSES)
def test_where_nobody_knows_the_scale_the_worst_of_the_run_so_far_counts(cause, weight, worst) -> None:
    failed = total(Says(VALUES, cause), keys=Keys(), weight=weight)
    assert torch.equal(failed.total, total(Says(said_worst(worst)), weight=weight).total)
    later = total(Says([[0.5] * 4] * 2, cause), keys=Keys(), weight=weight, running=failed.running)
    assert later.terms["s"][FAILS] == weight * worst  # of the step before
    assert (later.running["s"].lowest, later.running["s"].highest) == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("weight", "values"), [(1.0, [[0.5, 0.75, 1.0, 2.0]] * 2), (-1.0, [[-0.5, -1.0, -3.0, -2.0]] * 2)]
)
def test_nor_is_it_worth_more_than_nothing_where_all_others_are(weight: float, values: Any) -> None:
    """A source of one's own that has only praised so far: a row that breaks it is not praised."""
    assert total(Says(values, ANSWER), keys=Keys(), weight=weight).terms["s"][FAILS] == 0


def test_a_declared_value_takes_its_place() -> None:
    failed = total(Says(VALUES, OVERFLOW), keys=Keys(), worst=-3.0, weight=0.5)
    assert failed.terms["s"][FAILS] == -1.5 and failed.running == {}


def test_where_nothing_is_known_at_all_the_failure_stays_one() -> None:
    """Of the first step of a run: nothing was said that could be compared with."""
    errors = {(number, row): "gone" for number in range(2) for row in range(4)}
    nothing = Says([[math.nan] * 4] * 2, errors=errors, causes=dict.fromkeys(errors, OVERFLOW))
    assert total(nothing, keys=Keys(), on_error="drop_group").dropped.tolist() == [True, True]
    assert total(nothing).terms["s"].tolist() == [[-1.0] * 4] * 2  # a known scale needs nobody else


@pytest.mark.parametrize("on_error", ["zero", "neutral", "drop_group"])
def test_what_no_answer_can_bring_about_costs_what_on_error_says(on_error: str) -> None:
    failed = total(Says(VALUES, "nobody's"), on_error=on_error)
    assert failed.terms["s"][FAILS] == 0 and failed.dropped.tolist() == [on_error == "drop_group", False]


@pytest.mark.parametrize("how", [each for each in ON_OVERFLOW if each != "truncate"])
@pytest.mark.parametrize("cause", CAUSES)
def test_only_what_is_too_long_can_cost_its_group_the_advantage(cause: str, how: str) -> None:
    failed = total(Says(VALUES, cause), keys=ClassifierKeys(model="m", on_overflow=how))
    drops = how == "drop_group" and cause == OVERFLOW
    assert failed.dropped.tolist() == [drops, False]
    assert failed.total[FAILS] == (1.0 if drops else 0.0)  # the rule's 1 alone, or with the worst


def test_a_row_whose_gate_is_closed_is_neither_asked_about_nor_counted() -> None:
    """A function of one's own is asked about whole groups: what fails there fails for those rows as well."""
    listed = OwnFunction(lambda each: [1 / 0] if each.graded[3].verdict.reward else [-0.25] * 4)
    failed = total(listed, keys=Keys(), gate="rule_equals_1", normalize="running")
    assert failed.terms["s"][0, 1] == 0 and failed.running["s"].count == 5
    assert total(listed, keys=Keys(), gate="rule_equals_1").total[0].tolist() == [0.75, 0.0, 0.75, 0.75]


class Own:
    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        return self.scores


def test_sources_of_ones_own_fail_by_an_answer_where_a_value_is_not_finite_or_they_say_so() -> None:
    values = torch.tensor(VALUES)
    values[0, 0], values[1, 1], values[1, 3] = math.nan, math.nan, math.nan
    told = Scores(values, errors={(1, 1): "too long", (1, 3): "no server"}, causes={(1, 1): OVERFLOW})
    found = OwnClass(Own(told)).score([], torch.ones(2, 4, dtype=torch.bool))
    assert found.causes == {(0, 0): ANSWER, (1, 1): OVERFLOW}
    assert total(OwnClass(Own(told)), keys=Keys()).terms["s"].tolist() == [[-1, -1, 0.25, 0.75], [1, -1, -0.5, 0]]


# ---- the verifier


@pytest.mark.parametrize("on_error", ["zero", "neutral", "drop_group"])
def test_an_answer_that_keeps_itself_from_being_graded_is_worth_the_worst_rule(on_error: str) -> None:
    """With the fine of a truncated row on top, as a wrong answer has it; 0, where the rule gives no less."""
    groups = [group([0.0, -1.0, 1.0, 0.0], errors={0: "killed", 3: "killed"}, truncated=[False, True, False, True])]
    specs = [DEFAULT[0]]
    found = rewards_of(groups, [Verifier(-0.5, None)], specs, on_error=on_error)
    assert found.total.tolist() == [[-1.0, -1.5, 1.0, -1.5]] and not found.dropped.any()
    found = rewards_of(groups, [Verifier(-0.5, None, worst=-2.0)], specs, on_error=on_error)
    assert found.total.tolist() == [[-2.0, -1.5, 1.0, -2.5]]
    plain = [group([0.0, 1.0, 0.25], errors={0: "killed"})]
    assert rewards_of(plain, [Verifier(0.0, None)], specs, on_error=on_error).total.tolist() == [[0.0, 1.0, 0.25]]


# ---- steps of reasoning: shares of what the row is worth


def test_the_worst_of_a_run_is_shared_out_among_a_rows_steps() -> None:
    steps = torch.tensor([[[0.5, -2.0, math.nan], [1.0, 0.25, 0.25], [math.nan] * 3, [-1.0, math.nan, math.nan]]])
    source = Says([[-2.0, 0.25, math.nan, -1.0]], errors={(0, 2): "gone"}, causes={(0, 2): ANSWER}, steps=steps)
    shown = [group([0.0] * 4, steps=[["a", "b"], ["a", "b", "c"], ["a", "b", "c"], ["a"]])]
    specs = [DEFAULT[0], SourceSpec("s", "mine:f", 2.0)]
    found = rewards_of(shown, [Verifier(0.0, None), source], specs, on_error="zero", by_steps=True)
    assert found.steps is not None
    # The lowest sum of a row's steps is 0.5 - 2, the weight 2: -1 for each of the three.
    assert found.steps.rewards[0, 2].tolist() == pytest.approx([-1.0] * 3)
    assert found.total[0].tolist() == pytest.approx([-3.0, 3.0, -3.0, -2.0])
    assert found.said_of_steps["s"][0, 2].isnan().all()


# ---- scales


@pytest.mark.parametrize(
    ("keys", "bounds"),
    [
        (JudgeKeys(model="m", plugin="grade"), (0, 1)),
        (JudgeKeys(model="m", plugin="mine.py"), None),
        (PairwiseKeys(model="m", plugin="mine.py"), (0, 1)),
        (ClassifierKeys(model="m"), None),
        (SimilarityKeys(floor=0.2), (0.2, 1)),
    ],
)
def test_a_kind_knows_its_scale_or_that_nobody_does(keys: Keys, bounds: Any) -> None:
    assert keys.bounds == bounds
    spec = SourceSpec("s", "judge", keys=keys)
    assert spec.lowest == (None if bounds is None else bounds[0]) and spec.learns_lowest == (bounds is None)


def test_the_lowest_and_the_highest_of_a_run_are_kept() -> None:
    known = (
        Running().joined_by(torch.tensor([3.0, 1.0])).joined_by(torch.tensor([])).joined_by(torch.tensor([2.0, 5.0]))
    )
    assert (known.lowest, known.highest) == (1.0, 5.0) and Running().lowest is None
