"""A reward that is no number, or too large to be compared, costs its own row or group, and no other one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from groups import group

from oger_recipe.algorithm.advantage import BASELINES
from oger_recipe.algorithm.credit import BATCH_ESTIMATORS, ESTIMATORS, STEP_ESTIMATORS, hybrid_advantages
from oger_recipe.algorithm.normalize import Running
from oger_recipe.base.ranges import REWARD
from oger_recipe.grading.foreign import form_of
from oger_recipe.rewards.compose import ON_ERROR, Rewards, rewards_of
from oger_recipe.rewards.kinds.entries import DEFAULT
from oger_recipe.rewards.kinds.own import ForeignFunction, OwnClass, OwnFunction
from oger_recipe.rewards.kinds.verifier import Verifier
from oger_recipe.rewards.sources import Group, Scores, Source
from oger_recipe.rewards.spec import COMBINATIONS, NORMALIZE, SourceSpec

RULE = [[1.0, 0.5, 0.0], [0.0, 1.0, 1.0], [0.25, 0.0, 1.0]]
BAD = [1e300, -1e300, 3.5e38, 1e20, 1.1e12, math.nan, math.inf, -math.inf]
GOOD = [1e12, -1e12, 1e6, 1e-300, 1e-45, 0.0]
PLACE = (1, 2)


class Says:
    """A source that says these values in float32, with its eyes shut."""

    def __init__(self, values: list[list[float]], steps: list[list[list[float]]] | None = None) -> None:
        self.values, self.steps = values, steps

    def score(self, groups: Sequence[Group], wanted: torch.Tensor) -> Scores:
        return Scores(torch.tensor(self.values), steps=None if self.steps is None else torch.tensor(self.steps))


def _of_class(values: list[list[float]]) -> Source:
    class InDouble(Says):
        def score(self, groups: Sequence[Group], wanted: torch.Tensor) -> Scores:
            return Scores(torch.tensor(self.values, dtype=torch.float64))

    return OwnClass(InDouble(values))


def _of_function(values: list[list[float]]) -> Source:
    return OwnFunction(lambda asked: values[int(asked.uid)])


def _of_verl(values: list[list[float]]) -> Source:
    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        number, row = solution_str.split(".")
        return values[int(number)][int(row)]

    form = form_of(compute_score)
    assert form is not None
    return ForeignFunction(compute_score, form)


KINDS: dict[str, Callable[[list[list[float]]], Source]] = {
    "says": Says, "class": _of_class, "function": _of_function, "verl": _of_verl,
}  # fmt: skip


def _composed(source: Source, **facts: Any) -> Rewards:
    groups = [
        replace(group(rewards), uid=str(number), responses=[f"{number}.{row}" for row in range(3)], row={
            "data_source": "", "ground_truth": ""})
        for number, rewards in enumerate(RULE)
    ]  # fmt: skip
    specs = [DEFAULT[0], SourceSpec("mine", "mine:f", **facts)]
    return rewards_of(groups, [Verifier(0.0, None), source], specs, on_error=facts.pop("on_error", "zero"))


def _values(number: float) -> list[list[float]]:
    values = [[0.5, 1.0, 2.0], [0.25, 0.5, 1.0], [1.0, 3.0, 0.5]]
    values[PLACE[0]][PLACE[1]] = number
    return values


@pytest.mark.parametrize(("kind", "number"), [*itertools.product(KINDS, BAD)])
def test_what_cannot_be_a_reward_fails_its_source_by_name_and_value(kind: str, number: float) -> None:
    found = _composed(KINDS[kind](_values(number)))
    row = PLACE[0] * 3 + PLACE[1]
    value = number
    if kind == "says" and abs(number) > torch.finfo(torch.float32).max:
        value = math.copysign(math.inf, number)  # float32 has lost it
    assert f" {value:g}, which is " in found.errors["mine"][row]
    assert found.total.isfinite().all() and not found.dropped.any() and not found.unfit.any()


@pytest.mark.parametrize(
    ("kind", "number", "normalize", "combine"), [*itertools.product(KINDS, BAD + GOOD, NORMALIZE, COMBINATIONS)]
)
def test_the_advantages_of_all_rows_are_finite_and_those_of_other_groups_as_ever(
    kind: str, number: float, normalize: str, combine: str
) -> None:
    """But for a mean over the whole run so far, and for estimators that compare groups, no number reaches another."""
    found = _composed(KINDS[kind](_values(number)), normalize=normalize, combine=combine)
    usual = _composed(KINDS[kind](_values(0.5)), normalize=normalize, combine=combine)
    others = [0, 2]
    if normalize != "running":
        assert found.total[others].tolist() == usual.total[others].tolist()
    is_teacher = torch.zeros(3, 3, dtype=torch.bool)
    for estimator, baseline in itertools.product((*ESTIMATORS, *BATCH_ESTIMATORS), BASELINES):
        advantages, expected = (
            hybrid_advantages(
                each.total, (each.total > 0).float(), is_teacher, estimator=estimator, baseline=baseline,
                all_correct_group="keep",
            )
            for each in (found, usual)
        )  # fmt: skip
        assert advantages.isfinite().all(), estimator
        if normalize != "running" and estimator in ESTIMATORS:
            assert advantages[others].tolist() == expected[others].tolist(), estimator


@pytest.mark.parametrize("on_error", [name for name, how in ON_ERROR.items() if not how.stops])
@pytest.mark.parametrize(("weight", "combine", "value"), [(10.0, "add", 1e12), (1.0, "mul", 1e11)])
def test_a_total_that_cannot_be_a_reward_drops_its_group_and_names_the_largest_term(
    on_error: str, weight: float, combine: str, value: float
) -> None:
    groups = [group([20.0 * rule for rule in rewards]) for rewards in RULE]
    specs = [replace(DEFAULT[0]), SourceSpec("mine", "mine:f", weight=weight, combine=combine)]
    found = rewards_of(groups, [Verifier(0.0, None), Says(_values(value))], specs, on_error=on_error)
    assert found.unfit.nonzero().tolist() == [list(PLACE)]
    assert found.dropped.tolist() == [False, True, False]
    assert found.total[PLACE] == 0 and found.total.isfinite().all()
    said = found.errors["mine"][5]
    assert said.startswith("its weighted value is 1e+1") and REWARD.text in said


@pytest.mark.parametrize("number", BAD + GOOD)
@pytest.mark.parametrize("estimator", [name for name, each in STEP_ESTIMATORS.items() if each.in_group])
def test_a_reward_of_a_step_reaches_no_other_group_either(estimator: str, number: float) -> None:
    steps = [[[0.5, 1.0], [1.0, 0.0], [0.25, 0.5]] for _ in RULE]
    groups = [replace(group(rewards), steps=[["a", "b"]] * 3) for rewards in RULE]
    specs = [DEFAULT[0], SourceSpec("mine", "mine:f")]
    found = {}
    for name, value in (("usual", 0.5), ("spoilt", number)):
        steps[PLACE[0]][PLACE[1]][0] = value
        source = Says([[sum(row) for row in rows] for rows in steps], steps)
        found[name] = rewards_of(groups, [Verifier(0.0, None), source], specs, on_error="zero", by_steps=True)
    spoilt = found["spoilt"]
    assert bool(spoilt.errors["mine"]) == (number in BAD and not math.isnan(number))  # nan: there is no such step
    assert not spoilt.dropped.any()
    in_group = STEP_ESTIMATORS[estimator].in_group
    assert in_group is not None and spoilt.steps is not None and found["usual"].steps is not None
    tokens = torch.ones(3, 3, 2)
    advantages, expected = (in_group(each.steps, tokens, None) for each in (spoilt, found["usual"]))
    assert advantages.isfinite().all()
    if not STEP_ESTIMATORS[estimator].compares_groups:
        assert torch.equal(advantages[[0, 2]], expected[[0, 2]])


def test_what_cannot_be_a_reward_is_not_among_a_runs_values_so_far() -> None:
    assert _composed(Says(_values(math.inf)), normalize="running").running["mine"] == Running().joined_by(
        torch.tensor([0.5, 1.0, 2.0, 0.25, 0.5, 1.0, 3.0, 0.5])
    )
