"""How sources of reward are asked and composed, values by hand."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from groups import group

from oger_recipe.algorithm.exploration import exploration_bonus
from oger_recipe.algorithm.normalize import Running
from oger_recipe.base.errors import RecipeError
from oger_recipe.rewards.compose import Rewards, rewards_of
from oger_recipe.rewards.kinds.bonus import Bonus
from oger_recipe.rewards.kinds.entries import DEFAULT, sources_of
from oger_recipe.rewards.kinds.verifier import Verifier
from oger_recipe.rewards.sources import Group, Scores
from oger_recipe.rewards.spec import GATES, NORMALIZE, SourceSpec

RULE = [[1.0, 0.5, 0.0, 1.0], [0.0, -0.5, 1.0, 0.25]]


class Says:
    """A source that says these values."""

    def __init__(self, values: list[list[float]], errors: dict[tuple[int, int], str] | None = None) -> None:
        self.scores = Scores(torch.tensor(values), errors=errors or {})

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        assert len(groups) == len(self.scores.values)
        return self.scores


def composed(*listed: tuple[Any, dict[str, Any]], on_error: str = "zero", groups: list[Group] | None = None):
    """The rewards of the two groups of RULE by the rule and then the sources that are listed."""
    verifier, specs = Verifier(0.0, None), [DEFAULT[0]]
    specs += [SourceSpec(f"s{number}", "mine:f", **facts) for number, (_, facts) in enumerate(listed, start=1)]
    groups = groups or [group(rewards) for rewards in RULE]
    return rewards_of(groups, [verifier, *(source for source, _ in listed)], specs, on_error=on_error)


# The fold


def test_sources_are_added_and_multiplied_in_their_order() -> None:
    one = Says([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]])
    two = Says([[2.0, 2.0, 2.0, 2.0], [10.0, 10.0, 10.0, 10.0]])
    found = composed((one, {"weight": 0.5}), (two, {"weight": 3.0, "combine": "mul"}))
    # (rule + 0.5 one) * (3 two)
    assert found.total.tolist() == [[9.0, 9.0, 9.0, 18.0], [60.0, 30.0, 60.0, 22.5]]
    found = composed((two, {"weight": 3.0, "combine": "mul"}), (one, {"weight": 0.5}))
    assert found.total.tolist() == [[6.5, 4.0, 1.5, 8.0], [2.0, -13.5, 31.0, 8.0]]
    assert found.terms["s2"].tolist() == [[0.5, 1.0, 1.5, 2.0], [2.0, 1.5, 1.0, 0.5]]
    assert found.said["s2"].tolist() == one.scores.values.tolist()  # before its weight


def test_the_first_source_counts_with_its_weight() -> None:
    specs = [SourceSpec("a", "mine:f", weight=2.0), SourceSpec("b", "mine:g")]
    sources = [Says([[1.0, 3.0]]), Says([[0.5, 0.25]])]
    assert rewards_of([group([0.0, 0.0])], sources, specs, on_error="zero").total.tolist() == [[2.5, 6.25]]


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ("always", [[11.0, 10.5, 10.0, 11.0], [10.0, 9.5, 11.0, 10.25]]),
        ("rule_nonzero", [[11.0, 10.5, 0.0, 11.0], [0.0, 9.5, 11.0, 10.25]]),
        ("rule_equals_1", [[11.0, 0.5, 0.0, 11.0], [0.0, -0.5, 11.0, 0.25]]),
    ],
)
def test_a_gate_reads_the_rule_and_makes_the_value_zero(gate: str, expected: list[list[float]]) -> None:
    assert composed((Says([[10.0] * 4] * 2), {"gate": gate})).total.tolist() == expected


def test_a_factor_behind_a_closed_gate_is_zero_too() -> None:
    found = composed((Says([[10.0] * 4] * 2), {"gate": "rule_equals_1", "combine": "mul"}))
    assert found.total.tolist() == [[10.0, 0.0, 0.0, 10.0], [0.0, -0.0, 10.0, 0.0]]


def test_a_value_behind_a_closed_gate_is_not_read() -> None:
    source = Says([[1.0, math.nan, math.nan, 1.0], [math.nan, math.nan, 1.0, math.inf]])
    assert composed((source, {"gate": "rule_equals_1"})).total.isfinite().all()


@pytest.mark.parametrize("name", GATES)
def test_a_gate_is_a_mask_and_gates_differ(name: str) -> None:
    rule = torch.tensor(RULE)
    assert GATES[name](rule).dtype == torch.bool and GATES[name](rule).shape == rule.shape
    assert len({str(gate(rule).tolist()) for gate in GATES.values()}) == len(GATES)


def test_the_default_is_the_rule_and_the_bonus_to_the_last_bit() -> None:
    torch.manual_seed(0)
    similarity, entropy, rewards = torch.rand(3, 8), torch.rand(3, 8), (torch.rand(3, 8) > 0.5).float()
    groups = [
        group(r, similarity=s, entropy=e)
        for r, s, e in zip(rewards.tolist(), similarity.tolist(), entropy.tolist(), strict=True)
    ]
    beta = 0.37
    sources = [Verifier(0.0, None), Bonus("exp_neg_entropy", True, False, "none")]
    specs = [DEFAULT[0], replace(DEFAULT[1], weight=beta)]
    found = rewards_of(groups, sources, specs, on_error="zero")
    assert torch.equal(found.total, rewards + beta * exploration_bonus(similarity, entropy, rewards))
    assert torch.equal(found.said["rule/format"], rewards / 2)


def test_the_verifier_fines_truncated_rows() -> None:
    groups = [group([1.0, 0.0, 1.0], truncated=[False, True, True])]
    rule = [DEFAULT[0]]
    assert rewards_of(groups, [Verifier(-0.25, None)], rule, on_error="zero").total.tolist() == [[1.0, -0.25, 0.75]]
    assert rewards_of(groups, [Verifier(0.0, 0.5)], rule, on_error="zero").total.tolist() == [[1.0, 0.5, 0.5]]


# Failures: the source has no value for one row of the first group and for the whole second one

FAILS = {(0, 1): "down"} | {(1, row): "down" for row in range(4)}


@pytest.mark.parametrize(
    ("on_error", "combine", "expected", "dropped"),
    [
        ("zero", "add", [[11.0, 0.5, 10.0, 11.0], RULE[1]], [False, False]),
        ("zero", "mul", [[10.0, 0.0, 0.0, 10.0], [0.0, -0.0, 0.0, 0.0]], [False, False]),
        ("neutral", "add", [[11.0, 0.5, 10.0, 11.0], RULE[1]], [False, False]),
        ("neutral", "mul", [[10.0, 0.5, 0.0, 10.0], RULE[1]], [False, False]),
        ("drop_group", "mul", [[10.0, 0.5, 0.0, 10.0], RULE[1]], [True, True]),
        ("stop", "add", [[11.0, 0.5, 10.0, 11.0], RULE[1]], [False, False]),  # who asked it, stops
    ],
)
def test_a_failed_source_costs_its_rows_what_on_error_says(
    on_error: str, combine: str, expected: list[list[float]], dropped: list[bool]
) -> None:
    found = composed((Says([[10.0] * 4] * 2, FAILS), {"combine": combine}), on_error=on_error)
    assert found.total.tolist() == expected
    assert found.dropped.tolist() == dropped
    assert found.errors == {"rule": {}, "s1": {1: "down", 4: "down", 5: "down", 6: "down", 7: "down"}}
    assert found.said["s1"].isnan().tolist() == [[False, True, False, False], [True] * 4]


def test_only_groups_in_which_a_source_failed_are_dropped() -> None:
    found = composed((Says([[10.0] * 4] * 2, {(1, 2): "down"}), {}), on_error="drop_group")
    assert found.dropped.tolist() == [False, True]


def test_an_answer_that_was_not_graded_is_a_failure_of_the_verifier() -> None:
    groups = [group([0.0, 1.0], errors={0: "no such reference"}, unreadable=True), group([1.0, 0.0])]
    found = composed((Says([[2.0, 2.0], [2.0, 2.0]]), {"combine": "mul"}), on_error="neutral", groups=groups)
    # Its row begins with the second source, as if the first were not listed.
    assert found.total.tolist() == [[2.0, 2.0], [2.0, 0.0]]
    assert found.errors["rule"] == {0: "no such reference"}
    assert composed((Says([[2.0] * 2] * 2), {}), on_error="drop_group", groups=groups).dropped.tolist() == [
        True,
        False,
    ]


# Values that are compared with others before they are weighted


def test_a_value_is_compared_within_its_group_before_it_is_weighted() -> None:
    source = Says([[1.0, 2.0, 3.0, 6.0], [5.0, 5.0, 5.0, 5.0]])
    found = composed((source, {"weight": 0.5, "normalize": "group"}))
    root = math.sqrt(14 / 3)  # of 1, 2, 3, 6: mean 3, squares 14 over 3
    assert found.terms["s1"][0].tolist() == pytest.approx([-1 / root, -0.5 / root, 0.0, 1.5 / root], abs=1e-5)
    assert found.terms["s1"][1].tolist() == [0.0] * 4
    assert found.total[0].tolist() == pytest.approx([1 - 1 / root, 0.5 - 0.5 / root, 0.0, 1 + 1.5 / root], abs=1e-5)
    assert found.said["s1"].tolist() == source.scores.values.tolist()  # as it was said


def test_rows_behind_a_closed_gate_and_rows_that_failed_are_not_compared_with() -> None:
    # By the gate rows 0, 1 and 3 of the first group and 1, 2, 3 of the second count; row 3 of the first failed.
    source = Says([[1.0, 3.0, 100.0, math.nan], [100.0, 4.0, 4.0, 4.0]], {(0, 3): "down"})
    found = composed((source, {"gate": "rule_nonzero", "normalize": "group"}))
    half = 1 / math.sqrt(2)
    assert found.terms["s1"][0].tolist() == pytest.approx([-half, half, 0.0, 0.0], abs=1e-5)
    assert found.terms["s1"][1].tolist() == [0.0] * 4
    later = composed((source, {"gate": "rule_nonzero", "normalize": "running"}))
    assert later.running["s1"] == Running(5, 3.2, pytest.approx(6.8), 1.0, 4.0)  # 1, 3, 4, 4, 4


def test_values_are_compared_with_all_of_the_run_so_far() -> None:
    spec = [SourceSpec("a", "mine:f", weight=2.0, normalize="running"), SourceSpec("b", "mine:g")]
    groups, zero = [group([0.0, 0.0])], Says([[0.0, 0.0]])

    def step(values: list[float], running: dict[str, Running] | None = None) -> Rewards:
        return rewards_of(groups, [Says([values]), zero], spec, on_error="zero", running=running)

    first = step([1.0, 3.0])  # mean 2, std sqrt(2)
    assert first.total[0].tolist() == pytest.approx([-math.sqrt(2), math.sqrt(2)], abs=1e-5)
    second = step([2.0, 6.0], first.running)  # 1, 3, 2, 6: mean 3, std sqrt(14 / 3)
    root = math.sqrt(14 / 3)
    assert second.total[0].tolist() == pytest.approx([-2 / root, 6 / root], abs=1e-5)
    # b is compared with nothing, but how low its values go is known from them alone.
    assert second.running == {"a": Running(4, 3.0, pytest.approx(14.0), 1.0, 6.0), "b": Running(4, 0, 0, 0, 0)}
    assert step([2.0, 6.0]).total[0].tolist() == pytest.approx([-math.sqrt(2), math.sqrt(2)], abs=1e-5)


@pytest.mark.parametrize("normalize", NORMALIZE)
def test_the_order_of_a_groups_rows_changes_nothing_but_their_order(normalize: str) -> None:
    torch.manual_seed(0)
    values, rules = torch.randn(3, 6), torch.rand(3, 6).round()
    specs = [DEFAULT[0], SourceSpec("s", "mine:f", 0.3, gate="rule_equals_1", normalize=normalize)]

    def total(order: torch.Tensor) -> torch.Tensor:
        groups = [group(rewards) for rewards in rules[:, order].tolist()]
        sources = [Verifier(0.0, None), Says(values[:, order].tolist())]
        return rewards_of(groups, sources, specs, on_error="zero").total

    order = torch.randperm(6)
    torch.testing.assert_close(total(order), total(torch.arange(6))[:, order])
    assert (
        len({str(NORMALIZE[each](values, rules > 0, Running(9, 1.0, 4.0))) for each in NORMALIZE}) == 3
    )  # they differ


def test_estimators_that_compare_all_groups_have_each_source_compared_in_its_group() -> None:
    entries = [{"name": "rule", "kind": "verifier"}, {"name": "similar", "kind": "similarity"}]
    assert [spec.normalize for spec in sources_of(entries)] == ["none", "none"]
    assert [spec.normalize for spec in sources_of(entries, "gdpo")] == ["group", "group"]
    assert [spec.normalize for spec in sources_of((), "gdpo")] == ["group", "group"]


# Sources that raise, and sources that wait for servers


class Asks:
    """A source that asks `ask` and says 1 everywhere; it may be asked while others are."""

    overlaps = True

    def __init__(self, ask: Callable[[], Any], **said: Any) -> None:
        self.ask, self.said = ask, said

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        self.ask()
        return Scores(torch.ones(wanted.shape), **self.said)


class AsksAlone(Asks):
    overlaps = False


def raises(error: Exception) -> Callable[[], None]:
    def ask() -> None:
        raise error

    return ask


@pytest.mark.parametrize("kind", [Asks, AsksAlone])
def test_a_source_that_raises_has_failed_on_the_rows_that_it_was_asked_about(kind: type[Asks]) -> None:
    found = composed((kind(raises(KeyError("down"))), {"gate": "rule_equals_1"}), (Says([[2.0] * 4] * 2), {}))
    assert found.errors["s1"].keys() == {0, 3, 6}
    assert found.errors["s1"][6].startswith("KeyError: 'down' (") and "test_compose.py" in found.errors["s1"][6]
    assert found.total.tolist() == [[3.0, 2.5, 2.0, 3.0], [2.0, 1.5, 3.0, 2.25]]  # the others are asked all the same
    assert found.said["s1"].isnan().all()


@pytest.mark.parametrize("kind", [Asks, AsksAlone])
def test_a_recipe_that_cannot_work_ends_the_step(kind: type[Asks]) -> None:
    with pytest.raises(RecipeError, match="no such model"):
        composed((kind(raises(RecipeError("no such model"))), {}), (Says([[2.0] * 4] * 2), {}))


def test_sources_that_wait_for_servers_are_asked_at_the_same_time_as_the_others() -> None:
    together = threading.Barrier(3, timeout=60)  # who is asked alone waits in vain
    sources = [Asks(together.wait), AsksAlone(together.wait), Asks(together.wait)]
    found = composed(
        *((source, {"weight": weight}) for source, weight in zip(sources, (1.0, 10.0, 100.0), strict=True))
    )
    assert not any(found.errors.values()) and not together.broken
    assert [found.terms[f"s{number}"][0, 0] for number in (1, 2, 3)] == [1.0, 10.0, 100.0]


def test_other_sources_are_asked_one_after_the_other_in_their_order() -> None:
    asked: list[str] = []
    sources = [AsksAlone(lambda: asked.append("first")), AsksAlone(lambda: asked.append("second"))]
    composed(*((source, {}) for source in sources))
    assert asked == ["first", "second"]


def test_what_a_source_says_of_the_step_bears_its_name() -> None:
    one, two = Asks(lambda: None, metrics={"cached": 3, "seconds": 0.5}), Asks(lambda: None, metrics={"cached": 4})
    assert composed((one, {}), (two, {})).metrics == {"s1/cached": 3, "s1/seconds": 0.5, "s2/cached": 4}


def test_what_a_source_says_of_rows_behind_its_gate_is_left_out() -> None:
    """Its values, components, errors and steps; the gate is open for the rows that the rule gives 1."""
    says, values = Says([[0.5] * 4] * 2), torch.tensor([[0.5] * 4] * 2)
    says.scores = Scores(values, {"part": values}, {(0, 1): "closed", (0, 3): "open"}, steps=values.unsqueeze(2))
    found = composed((says, {"gate": "rule_equals_1"}))
    assert found.said["s1"].nan_to_num(-1).tolist() == [[0.5, -1, -1, -1], [-1, -1, 0.5, -1]]
    assert found.said["s1/part"].nan_to_num(-1).tolist() == [[0.5, -1, -1, 0.5], [-1, -1, 0.5, -1]]
    assert found.said_of_steps["s1"].squeeze(2).nan_to_num(-1).tolist() == [[0.5, -1, -1, -1], [-1, -1, 0.5, -1]]
    assert found.errors["s1"] == {3: "open"} and found.asked == {"rule": 8, "s1": 3}
