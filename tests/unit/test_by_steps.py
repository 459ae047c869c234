"""What sources pay for steps of reasoning, and how that is composed: values by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from groups import group

from oger_recipe.base.errors import RecipeError
from oger_recipe.rewards.compose import ON_ERROR, Rewards, rewards_of, with_fixed_rewards
from oger_recipe.rewards.kinds.entries import DEFAULT
from oger_recipe.rewards.kinds.verifier import Verifier
from oger_recipe.rewards.sources import Group, Scores
from oger_recipe.rewards.spec import SourceSpec

RULE = [1.0, 0.5, 0.0]
STEPS = [["a", "b", "c"], ["d"], ["e", "f"]]
NAN = math.nan
PROCESS = [[0.5, 0.25, 1.0], [0.75, NAN, NAN], [0.25, -0.5, NAN]]


class Says:
    """A source that says these values of the rows of one group; with ``steps`` also of their steps."""

    def __init__(self, values: list[float], steps: list[list[float]] | None = None, **facts: Any) -> None:
        told = None if steps is None else torch.tensor([steps])
        self.scores = Scores(torch.tensor([values]), steps=told, **facts)

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        return self.scores


def of_group(**facts: Any) -> Group:
    return group(RULE, steps=STEPS, **facts)


def process(steps: list[list[float]] = PROCESS, **facts: Any) -> Says:
    return Says([0.25, 0.75, -0.5], steps, **facts)


def composed(
    *listed: tuple[Any, dict[str, Any]], on_error: str = "zero", by_steps: bool = True, **facts: Any
) -> Rewards:
    """The rewards of one group by the rule and then the sources that are listed."""
    specs = [DEFAULT[0]]
    specs += [SourceSpec(f"s{number}", "mine:f", **given) for number, (_, given) in enumerate(listed, start=1)]
    sources = [Verifier(0.0, None), *(source for source, _ in listed)]
    return rewards_of([of_group(**facts)], sources, specs, on_error=on_error, by_steps=by_steps)


def of_steps(rewards: Rewards) -> list[list[float]]:
    assert rewards.steps is not None
    return rewards.steps.rewards[0].tolist()


def test_what_is_for_the_whole_response_is_paid_with_its_last_step() -> None:
    found = composed((Says([4.0, 6.0, 8.0]), {"weight": 0.5}))
    assert of_steps(found) == [[0, 0, 3.0], [3.5, 0, 0], [0, 4.0, 0]]
    assert found.steps is not None
    assert found.steps.mask[0].tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    assert found.steps.of_response.tolist() == [[3.0, 3.5, 4.0]] == found.total.tolist()


def test_a_source_that_speaks_of_steps_pays_each_with_its_weight() -> None:
    found = composed((process(), {"weight": 2.0}))
    assert of_steps(found) == [[1.0, 0.5, 3.0], [2.0, 0, 0], [0.5, -1.0, 0]]
    assert found.total.tolist() == [[4.5, 2.0, -0.5]]
    assert found.steps is not None and found.steps.of_response.tolist() == [RULE]
    assert found.terms["s1"].tolist() == [[3.5, 1.5, -0.5]]  # all of a row's steps
    assert found.said["s1"].tolist() == [[0.25, 0.75, -0.5]]  # its one value, as it was said


def test_without_an_estimator_of_steps_such_a_source_counts_with_its_value() -> None:
    found = composed((process(), {"weight": 2.0}), by_steps=False)
    assert found.steps is None and found.total.tolist() == [[1.5, 2.0, -1.0]]


def test_a_gate_closes_for_all_steps_of_a_row() -> None:
    found = composed((process(), {"gate": "rule_equals_1"}))
    assert of_steps(found) == [[0.5, 0.25, 2.0], [0.5, 0, 0], [0, 0, 0]]


def test_a_factor_multiplies_all_steps_before_it() -> None:
    half = Says([0.5, 2.0, 0.0])
    found = composed((process(), {}), (half, {"combine": "mul", "weight": 2.0}), (Says([1.0] * 3), {}))
    # (rule at the end + process) * (1, 4, 0), and 1 at the end
    assert of_steps(found) == [[0.5, 0.25, 3.0], [6.0, 0, 0], [0, 1.0, 0]]
    assert found.steps is not None and found.steps.of_response.tolist() == [[2.0, 3.0, 1.0]]


def test_the_sum_over_steps_is_the_total_that_responses_would_have_of_these_sums() -> None:
    """A source with one value for a row is composed alike with and without steps."""
    listed = [(Says([1.0, 2.0, 3.0]), {"weight": 0.25}), (Says([2.0, 1.0, -1.0]), {"combine": "mul"})]
    listed += [(Says([0.5, 0.25, 4.0]), {"gate": "rule_nonzero"})]
    assert composed(*listed).total.tolist() == composed(*listed, by_steps=False).total.tolist()


@pytest.mark.parametrize(
    ("on_error", "first", "total"),
    [
        ("zero", [0, 0, 1.0], 1.0),
        ("neutral", [0, 0, 1.0], 1.0),
        ("drop_group", [0, 0, 1.0], 1.0),
        ("stop", [0, 0, 1.0], 1.0),
    ],
)
def test_a_row_on_which_a_source_failed_is_paid_for_none_of_its_steps(on_error: str, first: Any, total: float) -> None:
    poisoned = [[NAN, 9.0, math.inf], *PROCESS[1:]]
    found = composed((process(poisoned, errors={(0, 0): "gone"}), {}), on_error=on_error)
    assert of_steps(found) == [first, [1.25, 0, 0], [0.25, -0.5, 0]]
    assert found.total[0, 0].item() == total
    assert found.dropped.tolist() == [ON_ERROR[on_error].drops_group]


def test_a_failed_factor_is_zero_or_is_passed_by_for_all_steps() -> None:
    factor = Says([9.0, 2.0, 2.0], errors={(0, 0): "gone"})
    listed = [(process(), {}), (factor, {"combine": "mul"})]
    assert of_steps(composed(*listed))[0] == [0, 0, 0]
    passed_by = composed(*listed, on_error="neutral")
    assert of_steps(passed_by)[0] == [0.5, 0.25, 2.0]
    assert passed_by.steps is not None and passed_by.steps.of_response.tolist() == [[1.0, 1.0, 0.0]]


def test_where_the_first_source_failed_the_next_one_begins() -> None:
    listed = [(process(), {}), (Says([3.0] * 3), {"combine": "mul"})]
    found = composed(*listed, on_error="neutral", errors={0: "not graded"}, unreadable=True)
    assert of_steps(found)[0] == [1.5, 0.75, 3.0]
    found = composed(
        (Says([3.0] * 3), {"combine": "mul"}), on_error="neutral", errors={0: "not graded"}, unreadable=True
    )
    assert of_steps(found)[0] == [0, 0, 3.0]
    assert found.steps is not None and found.steps.of_response[0, 0] == 3.0


def test_a_step_without_a_value_is_worth_nothing() -> None:
    found = composed((process([[NAN, 0.25, 1.0], *PROCESS[1:]]), {}))
    assert of_steps(found)[0] == [0, 0.25, 2.0]


def test_a_source_may_leave_out_columns_and_say_nothing_of_those_that_no_row_has() -> None:
    few, many = [[0.5, 0.25], [0.75, NAN], [0.25, -0.5]], [[*row, NAN, NAN] for row in PROCESS]
    assert of_steps(composed((process(few), {}))) == [[0.5, 0.25, 1.0], [1.25, 0, 0], [0.25, -0.5, 0]]
    assert of_steps(composed((process(many), {}))) == of_steps(composed((process(), {})))


BEYOND = [[0.5, 0.25, 1.0], [0.75, 1.0, NAN], [0.25, -0.5, NAN]]


@pytest.mark.parametrize("steps", [BEYOND, [[*row, last] for row, last in zip(BEYOND, (NAN, 5.0, NAN), strict=True)]])
def test_a_reward_for_a_step_that_a_response_does_not_have_is_a_failure(steps: Any) -> None:
    found = composed((process(steps), {}))
    assert found.errors["s1"] == {1: "it gave a reward to step 2 of a response with 1"}
    # Its step is paid the least that the source gave to a response, 0.25 - 0.5.
    assert of_steps(found) == [[0.5, 0.25, 2.0], [0.25, 0, 0], [0.25, -0.5, 0]]
    closed = composed((process(steps), {"gate": "rule_equals_1"}))
    assert closed.errors["s1"] == {}  # nobody asked


def test_nor_does_a_reward_count_for_a_step_that_no_response_has() -> None:
    steps = [[*row, last] for row, last in zip(PROCESS, (NAN, 5.0, NAN), strict=True)]
    found = composed((process(steps), {}))
    assert found.errors["s1"] == {1: "it gave a reward to step 4 of a response with 1"}


@pytest.mark.parametrize("facts", [{"combine": "mul"}, {"normalize": "group"}, {"normalize": "running"}])
def test_rewards_of_steps_are_added_as_they_are(facts: dict[str, str]) -> None:
    with pytest.raises(RecipeError, match="'s1' pays each step of reasoning, and such rewards can only be added"):
        composed((process(), facts))
    assert composed((process(), facts), by_steps=False).total.isfinite().all()


def test_a_fixed_reward_of_truncated_rows_is_paid_at_the_end_and_nothing_else() -> None:
    truncated = [True, False, True]
    rewards = composed((process(), {}), truncated=truncated)
    found = with_fixed_rewards(rewards, [of_group(truncated=truncated)], -0.5)
    assert of_steps(found) == [[0, 0, -0.5], [1.25, 0, 0], [0, -0.5, 0]]
    assert found.total.tolist() == [[-0.5, 1.25, -0.5]]
    assert found.steps is not None and found.steps.of_response.tolist() == [[-0.5, 0.5, -0.5]]
    assert with_fixed_rewards(rewards, [of_group(truncated=truncated)], None) is rewards


def test_groups_of_other_lengths_are_paid_side_by_side() -> None:
    long = replace(of_group(), steps=[["a"], ["b"] * 5, []])
    specs = [DEFAULT[0]]
    found = rewards_of([of_group(), long], [Verifier(0.0, None)], specs, on_error="zero", by_steps=True)
    assert found.steps is not None
    assert found.steps.rewards.tolist() == [
        [[0, 0, 1.0, 0, 0], [0.5, 0, 0, 0, 0], [0] * 5],
        [[1.0, 0, 0, 0, 0], [0, 0, 0, 0, 0.5], [0] * 5],
    ]
