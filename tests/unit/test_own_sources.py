"""Sources of reward that a user writes, a function or a class: how they are asked, and what their mistakes cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from groups import group

from oger_recipe.base.errors import RecipeError
from oger_recipe.rewards.compose import rewards_of
from oger_recipe.rewards.kinds.entries import sources_of
from oger_recipe.rewards.kinds.own import OwnClass, OwnFunction
from oger_recipe.rewards.sources import Group, Scores
from oger_recipe.rewards.spec import SourceSpec

# A function of the user's


def own(function: Callable[[Group], Any]) -> Scores:
    groups = [group([1.0, 0.0], uid="a"), group([0.0, 0.0], uid="b")]
    return OwnFunction(function).score(groups, torch.ones(2, 2, dtype=torch.bool))


def test_a_function_is_asked_about_each_group_and_may_say_components() -> None:
    scores = own(lambda each: [reward + len(each.uid) for reward in (0.5, 1)])
    assert scores.values.tolist() == [[1.5, 2.0]] * 2 and not scores.errors and not scores.components
    scores = own(lambda each: ((0, 1), {"words": [3, 4]} if each.uid == "a" else {}))
    assert scores.values.tolist() == [[0.0, 1.0]] * 2
    assert scores.components["words"][0].tolist() == [3.0, 4.0] and scores.components["words"][1].isnan().all()
    for values in (torch.tensor([0.5, 1.0]), np.array([0.5, 1.0]), (0.5, 1.0), {0: 0.5, 1: 1.0}.values()):
        assert own(lambda each, values=values: values).values.tolist() == [[0.5, 1.0]] * 2
    assert own(lambda each: (0.5 * row for row in (1, 2))).values.tolist() == [[0.5, 1.0]] * 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: [1.0], "ValueError: it has 1 values for 2 responses"),
        (lambda: [1.0, 2.0, 3.0], "ValueError: it has 3 values for 2 responses"),
        (lambda: [1.0, math.nan], "ValueError: it has the value nan, which is not finite"),
        (lambda: [1.0, math.inf], "ValueError: it has the value inf, which is not finite"),
        (lambda: [1.0, None], "TypeError: float() argument"),
        (lambda: None, "TypeError: it is of type NoneType, no list with a number for each response"),
        (lambda: {0: 1.0, 1: 2.0}, "TypeError: it is of type dict, no list with a number for each response"),
        (lambda: {0.5, 1.0}, "TypeError: it is of type set, no list with a number for each response"),
        (lambda: "12", "TypeError: it is of type str, no list with a number for each response"),
        (lambda: ([1.0, 2.0], {"words": {1: 5, 2: 6}}), "TypeError: its component 'words' is of type dict, no list "),
        (lambda: ([1.0, 2.0], {"words": [1]}), "ValueError: its component 'words' has 1 values for 2 responses"),
        (lambda: ([1.0, 2.0], [1, 2]), "TypeError: float() argument must be"),
        (lambda: [1 / 0, 2], "ZeroDivisionError: division by zero ("),
    ],
)
def test_what_goes_wrong_with_a_group_is_its_own_error(answer: Callable[[], Any], said: str) -> None:
    scores = own(lambda each: answer() if each.uid == "b" else [1.0, 2.0])
    assert scores.values[0].tolist() == [1.0, 2.0]
    assert scores.errors.keys() == {(1, 0), (1, 1)}
    assert scores.errors[1, 0].startswith(said) and scores.values[1].isnan().all()


def test_every_group_that_goes_wrong_has_its_error() -> None:
    scores = own(lambda each: [])
    assert scores.errors.keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}


# A class of the user's


def made(kind: str, **keys: Any) -> Any:
    (spec,) = sources_of([{"name": "mine", "kind": f"mine_of_compose:{kind}", **keys}])
    return spec.source(None)  # type: ignore[arg-type]


def test_a_class_is_made_with_its_entrys_further_keys_and_opened_and_closed_around_each_step() -> None:
    source = made("Length", times="1e-1", weight=0.5)
    groups = [group([1.0, 0.0], responses=["four", "fourteen chars"])]
    for _ in range(2):
        scores = source.score(groups, torch.tensor([[True, False]]))
    assert scores.values[0].tolist() == pytest.approx([0.4, 1.4]) and scores.metrics == {"asked": 1.0}
    assert scores.components["length"].tolist() == [[4.0, 14.0]]
    assert source.source.used == ["open", "score", "close"] * 2
    assert source.source.unit == "words" and not source.overlaps and made("Failing").overlaps


def test_a_class_that_raises_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    source = made("Length", times=1)
    monkeypatch.setattr(source.source, "score", None)
    with pytest.raises(TypeError):
        source.score([group([1.0])], torch.ones(1, 1, dtype=torch.bool))
    monkeypatch.setattr(source.source, "open", None)  # half of it may be loaded
    with pytest.raises(TypeError):
        source.score([group([1.0])], torch.ones(1, 1, dtype=torch.bool))
    assert source.source.used == ["open", "close", "close"]


def test_values_of_a_class_that_are_not_finite_are_errors_of_their_rows() -> None:
    source = made("Failing", values=[[1.0, math.nan, math.inf, math.nan]])
    scores = source.score([group([1.0] * 4)], torch.tensor([[True, True, True, False]]))
    assert scores.errors == {
        (0, 1): "its value is nan, which is not finite",
        (0, 2): "its value is inf, which is not finite",
    }


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "TypeError: its score() returned list, not Scores"),
        ({"values": [1.0, 2.0]}, "ValueError: its values are [2], not [groups, rows] = [2, 4]"),
        ({"values": [[1.0, 2.0]] * 4}, "ValueError: its values are [4, 2], not [groups, rows] = [2, 4]"),
    ],
)
def test_what_is_no_scores_fails_on_all_rows(keys: dict[str, Any], said: str) -> None:
    found = rewards_of([group([1.0] * 4)] * 2, [made("Failing", **keys)], [SourceSpec("s", "a:b")], on_error="zero")
    assert found.errors["s"] == dict.fromkeys(range(8), said)


class Says:
    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        return self.scores


def test_a_class_names_errors_of_its_own_and_its_components_have_the_rows_shape() -> None:
    groups, wanted = [group([1.0, 0.0])], torch.ones(1, 2, dtype=torch.bool)
    said = Scores(torch.tensor([[1.0, math.nan]]), errors={(0, 1): "no text"})
    assert OwnClass(Says(said)).score(groups, wanted).errors == {(0, 1): "no text"}
    said = Scores(torch.tensor([[1.0, math.nan]]), silent=torch.tensor([[False, True]]))
    found = OwnClass(Says(said)).score(groups, wanted)
    assert not found.errors and found.silent is said.silent  # it does not concern that row
    said = Scores(torch.ones(1, 2), {"words": torch.ones(2)})
    with pytest.raises(ValueError, match=r"its component 'words' are \[2\], not \[groups, rows\] = \[1, 2\]"):
        OwnClass(Says(said)).score(groups, wanted)


def test_a_class_that_cannot_be_made_is_said_with_its_name() -> None:
    with pytest.raises(
        RecipeError, match=r"the reward source 'mine' cannot be made by mine_of_compose:Broken: ValueE"
    ):
        made("Broken")


def test_a_function_is_asked_about_groups_with_a_row_whose_gate_is_open() -> None:
    asked = []

    def function(of: Group) -> list[float]:
        asked.append(of.uid)
        return [1.0] * len(of.responses)

    groups = [group([1.0, 0.0], uid="open"), group([0.0, 0.0], uid="closed")]
    scores = OwnFunction(function).score(groups, torch.tensor([[True, False], [False, False]]))
    assert asked == ["open"] and scores.values[1].isnan().all() and not scores.errors


def test_no_error_of_a_users_source_has_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_MINE_API_KEY", key := "0123456789" * 4)

    def refused(group: Group) -> Any:
        raise ConnectionError(f"401 for {key}")

    assert own(refused).errors[0, 0].startswith("ConnectionError: 401 for $OF_MINE_API_KEY (")
    said = Scores(torch.zeros(1, 2), errors={(0, 1): f"401 for {key}"})
    groups, wanted = [group([1.0, 0.0])], torch.ones(1, 2, dtype=torch.bool)
    assert OwnClass(Says(said)).score(groups, wanted).errors == {(0, 1): "401 for $OF_MINE_API_KEY"}


def test_what_a_class_says_of_criteria_goes_to_the_rows_and_no_row_is_silent() -> None:
    said = Scores(torch.tensor([[1.0, 0.5]]), criteria={(0, 1): {"polite": 0.5}})
    found = rewards_of([group([1.0, 0.0])], [OwnClass(Says(said))], [SourceSpec("s", "a:b")], on_error="zero")
    assert found.criteria == {"s": {1: {"polite": 0.5}}} and found.total.tolist() == [[1.0, 0.5]]


def test_criteria_of_rows_behind_the_gate_are_left_out() -> None:
    said = Scores(torch.ones(1, 2), criteria={(0, row): {"polite": 1.0} for row in (0, 1)})
    spec = SourceSpec("s", "a:b", gate="rule_equals_1")
    found = rewards_of([group([1.0, 0.0])], [OwnClass(Says(said))], [spec], on_error="zero")
    assert found.criteria == {"s": {0: {"polite": 1.0}}}
