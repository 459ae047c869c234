"""How sources of reward are asked and composed, values by hand; and what of a list of them is refused."""

from __future__ import annotations

import math
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from oger_recipe.algorithm.exploration import exploration_bonus
from oger_recipe.errors import RecipeError
from oger_recipe.rewards.compose import (
    COMBINATIONS,
    DEFAULT,
    GATES,
    KINDS,
    ON_ERROR,
    SourceSpec,
    entry_problems,
    rewards_of,
    sources_of,
)
from oger_recipe.rewards.own import Own
from oger_recipe.rewards.sources import Bonus, Group, Scores, Verifier
from oger_recipe.rewards.verdict import Graded, Verdict

RULE = [[1.0, 0.5, 0.0, 1.0], [0.0, -0.5, 1.0, 0.25]]


def group(rewards: list[float], *, errors: dict[int, str] | None = None, **facts: Any) -> Group:
    """Rows with these verified rewards, right where they are 1."""
    n = len(rewards)
    known = {
        "uid": "u", "prompt": "?", "question": "?", "task": "gsm8k", "answer": "42", "row": {}, "teachers": [],
        "responses": ["r"] * n, "is_teacher": [False] * n, "truncated": [False] * n, "may_earn": [True] * n,
        "similarity": [math.nan] * n, "entropy": [0.0] * n,
    }  # fmt: skip
    graded = [
        Graded(Verdict(reward, float(reward == 1), "", {"format": reward / 2}), (errors or {}).get(row))
        for row, reward in enumerate(rewards)
    ]
    return Group(**(known | {"graded": graded} | facts))


class Says:
    """A source that says these values."""

    def __init__(self, values: list[list[float]], errors: dict[tuple[int, int], str] | None = None) -> None:
        self.scores = Scores(torch.tensor(values), errors=errors or {})

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        assert len(groups) == len(self.scores.values)
        return self.scores


def composed(*listed: tuple[Any, dict[str, Any]], on_error: str = "zero", groups: list[Group] | None = None):
    """The rewards of the two groups of RULE by the rule and then the sources that are listed."""
    verifier, specs = Verifier(0.0, None), [SourceSpec("rule", "verifier")]
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
    specs = [DEFAULT[0], SourceSpec("explore", "bonus", weight=beta)]
    found = rewards_of(groups, sources, specs, on_error="zero")
    assert torch.equal(found.total, rewards + beta * exploration_bonus(similarity, entropy, rewards))
    assert torch.equal(found.said["rule/format"], rewards / 2)


def test_the_verifier_fines_truncated_rows() -> None:
    groups = [group([1.0, 0.0, 1.0], truncated=[False, True, True])]
    rule = [SourceSpec("rule", "verifier")]
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
    groups = [group([0.0, 1.0], errors={0: "killed"}), group([1.0, 0.0])]
    found = composed((Says([[2.0, 2.0], [2.0, 2.0]]), {"combine": "mul"}), on_error="neutral", groups=groups)
    # Its row begins with the second source, as if the first were not listed.
    assert found.total.tolist() == [[2.0, 2.0], [2.0, 0.0]]
    assert found.errors["rule"] == {0: "killed"}
    assert composed((Says([[2.0] * 2] * 2), {}), on_error="drop_group", groups=groups).dropped.tolist() == [
        True,
        False,
    ]


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
    assert found.said["s1"].isnan().tolist() == [[True, False, False, True], [False, False, True, False]]


@pytest.mark.parametrize("kind", [Asks, AsksAlone])
def test_a_recipe_that_cannot_work_ends_the_step(kind: type[Asks]) -> None:
    with pytest.raises(RecipeError, match="no such model"):
        composed((kind(raises(RecipeError("no such model"))), {}), (Says([[2.0] * 4] * 2), {}))


def test_sources_that_wait_for_servers_are_asked_at_the_same_time_as_the_others() -> None:
    together = threading.Barrier(3, timeout=20)  # who is asked alone waits in vain
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


# A function of the user's


def own(function: Callable[[Group], Any]) -> Scores:
    groups = [group([1.0, 0.0], uid="a"), group([0.0, 0.0], uid="b")]
    return Own(function).score(groups, torch.ones(2, 2, dtype=torch.bool))


def test_a_function_is_asked_about_each_group_and_may_say_components() -> None:
    scores = own(lambda each: [reward + len(each.uid) for reward in (0.5, 1)])
    assert scores.values.tolist() == [[1.5, 2.0]] * 2 and not scores.errors and not scores.components
    scores = own(lambda each: ((0, 1), {"words": [3, 4]} if each.uid == "a" else {}))
    assert scores.values.tolist() == [[0.0, 1.0]] * 2
    assert scores.components["words"][0].tolist() == [3.0, 4.0] and scores.components["words"][1].isnan().all()
    assert own(lambda each: torch.tensor([0.5, 1.0])).values.tolist() == [[0.5, 1.0]] * 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: [1.0], "ValueError: it has 1 values for 2 responses"),
        (lambda: [1.0, 2.0, 3.0], "ValueError: it has 3 values for 2 responses"),
        (lambda: [1.0, math.nan], "ValueError: it has the value nan, which is not finite"),
        (lambda: [1.0, None], "TypeError: float() argument"),
        (lambda: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda: ([1.0, 2.0], {"words": [1]}), "ValueError: its component 'words' has 1 values for 2 responses"),
        (lambda: ([1.0, 2.0], [1, 2]), "AttributeError: 'list' object has no attribute 'items'"),
        (lambda: [1 / 0, 2], "ZeroDivisionError: division by zero ("),
    ],
)
def test_what_goes_wrong_with_a_group_is_its_own_error(answer: Callable[[], Any], said: str) -> None:
    scores = own(lambda each: answer() if each.uid == "b" else [1.0, 2.0])
    assert scores.values[0].tolist() == [1.0, 2.0]
    assert scores.errors.keys() == {(1, 0), (1, 1)}
    assert scores.errors[1, 0].startswith(said)


# oger.reward.sources


def listed(*entries: Any) -> list[str]:
    return list(entry_problems(entries))


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("mine_of_compose")
    module.score = lambda group: [0.0]  # type: ignore[attr-defined]
    module.pair = lambda group, other: [0.0]  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mine_of_compose", module)


def test_a_right_list_is_read_and_no_list_is_the_default() -> None:
    entries = [
        {"name": "rule", "kind": "verifier"},
        {"name": "short", "kind": "mine_of_compose:score", "weight": 0.5, "combine": "mul", "gate": "rule_equals_1"},
        {"name": "explore", "kind": "bonus"},
    ]
    assert listed(*entries) == [] == listed()
    assert sources_of(entries) == (
        SourceSpec("rule", "verifier", 1.0, "add", "always"),
        SourceSpec("short", "mine_of_compose:score", 0.5, "mul", "rule_equals_1"),
        SourceSpec("explore", "bonus"),
    )
    assert sources_of(()) == sources_of(None) == DEFAULT
    assert [(spec.kind, spec.weight, spec.combine, spec.gate) for spec in DEFAULT] == [
        ("verifier", 1.0, "add", "always"),
        ("bonus", 1.0, "add", "always"),
    ]


RULE_ENTRY = {"name": "rule", "kind": "verifier"}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("verifier", "'verifier' is not a mapping: {name: ..., kind: ...}"),
        ({"kind": "bonus"}, "name None: a name of letters"),
        ({"name": "a/b", "kind": "bonus"}, "name 'a/b': a name of letters"),
        ({"name": "a", "kind": "critic"}, "kind 'critic' is unknown; known: verifier, bonus, "),
        (
            {"name": "a", "kind": "bonuss"},
            "kind 'bonuss' is unknown; did you mean 'bonus'? known: verifier, bonus, ",
        ),
        ({"name": "a"}, "kind None is unknown"),
        ({"name": "a", "kind": "bonus", "wieght": 1}, "key 'wieght' is unknown; did you mean 'weight'? known: name"),
        ({"name": "a", "kind": "mine_of_compose:score", "weight": -1}, "weight -1: it has to be 0 or more"),
        ({"name": "a", "kind": "mine_of_compose:score", "weight": math.nan}, "weight nan: it has to be 0 or more"),
        ({"name": "a", "kind": "mine_of_compose:score", "weight": math.inf}, "weight inf: it has to be 0 or more"),
        ({"name": "a", "kind": "mine_of_compose:score", "weight": "1"}, "weight '1': it has to be 0 or more"),
        ({"name": "a", "kind": "mine_of_compose:score", "weight": True}, "weight True: it has to be 0 or more"),
        ({"name": "a", "kind": "bonus", "weight": 0.5}, "weight 0.5: the weight of the bonus is oger.bonus_weight"),
        ({"name": "a", "kind": "bonus", "combine": "times"}, "combine 'times' is unknown; known: add, mul"),
        ({"name": "a", "kind": "bonus", "gate": "rule_equals"}, "did you mean 'rule_equals_1'? known: always, rule_"),
        ({"name": "a", "kind": "mine_of_compose:scores"}, "kind 'mine_of_compose:scores' cannot be imported: Attr"),
        ({"name": "a", "kind": "nowhere:score"}, "kind 'nowhere:score' cannot be imported: ModuleNotFoundError"),
        ({"name": "a", "kind": "mine_of_compose:number"}, "kind 'mine_of_compose:number' is of type int, no function"),
        (
            {"name": "a", "kind": "mine_of_compose:pair"},
            "cannot be called with one group: missing a required argument",
        ),
    ],
)
def test_what_is_wrong_with_an_entry_is_said_with_its_place(entry: Any, said: str) -> None:
    (problem,) = listed(RULE_ENTRY, entry)
    assert problem.startswith("oger.reward.sources, entry 2: ") and said in problem


def test_what_is_wrong_with_the_list_is_said() -> None:
    assert listed(RULE_ENTRY, {"name": "rule", "kind": "bonus"}) == [
        "oger.reward.sources: two sources are named 'rule'"
    ]
    assert listed(RULE_ENTRY, {"name": "again", "kind": "verifier"}) == [
        "oger.reward.sources: 2 sources are of kind verifier, which can be there once"
    ]
    (problem,) = listed(RULE_ENTRY | {"combine": "mul"})
    assert "entry 1: combine mul: the first source has nothing before it to multiply" in problem
    assert len(listed({"name": "?", "kind": "critic", "weight": -1})) == 3  # all at once


def test_registries_hold_what_the_documents_name() -> None:
    assert list(KINDS) == ["verifier", "bonus", "judge", "pairwise", "classifier", "critique_classifier"] and list(COMBINATIONS) == ["add", "mul"]
    assert list(ON_ERROR) == ["zero", "neutral", "drop_group", "stop"]
