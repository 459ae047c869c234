"""Kind ``uniqueness``: values by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from groups import group

from oger_recipe.algorithm.exploration import uniqueness
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.rewards.compose import Rewards, rewards_of
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.kinds.verifier import Verifier
from oger_recipe.rewards.sources import Group


def solved(solutions: list[str | None], **facts: Any) -> Group:
    """Rows with these classes; None: wrong."""
    graded = [
        Graded(Verdict(float(each is not None), float(each is not None), "", {}, each, (), each)) for each in solutions
    ]
    return group([1.0] * len(solutions), graded=graded, **facts)


def paid(of: Group, **entry: Any) -> Rewards:
    entries = [{"name": "rule", "kind": "verifier"}, {"name": "rare", "kind": "uniqueness", **entry}]
    assert not [*entry_problems(entries)]
    specs = sources_of(entries)
    sources = [Verifier(0.0, None), specs[1].source(None)]  # type: ignore[arg-type]
    return rewards_of([of], sources, specs, on_error="zero")


GROUP = ["a", "a", "b", None, "a", "c", None, None]  # 5 of 8 right


@pytest.mark.parametrize(
    ("entry", "total"),
    [
        ({}, [1 + 2 / 5, 1 + 2 / 5, 1 + 4 / 5, 0, 1 + 2 / 5, 1 + 4 / 5, 0, 0]),
        ({"weight": 0.5}, [1.2, 1.2, 1.4, 0, 1.2, 1.4, 0, 0]),
        ({"form": "inverse"}, [4 / 3, 4 / 3, 2, 0, 4 / 3, 2, 0, 0]),
        ({"form": "inverse", "power": 0.5}, [1 + 3**-0.5, 1 + 3**-0.5, 2, 0, 1 + 3**-0.5, 2, 0, 0]),
        ({"form": "distinct", "combine": "mul"}, [5 / 7, 5 / 7, 1, 0, 5 / 7, 1, 0, 0]),
        ({"by": "answer"}, [1.4, 1.4, 1.8, 0, 1.4, 1.8, 0, 0]),
    ],
)
def test_rare_solutions_are_paid_more_and_wrong_rows_nothing(entry: dict[str, Any], total: list[float]) -> None:
    assert paid(solved(GROUP), **entry).total.tolist() == [pytest.approx(total)]


@pytest.mark.parametrize(
    ("solutions", "share", "inverse", "distinct"),
    [
        ([None, None, None], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
        (["a", None, None], [0, 0, 0], [1, 0, 0], [1, 0, 0]),
        (["a", "a", "a"], [0, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.1, 0.1]),
        (["a", "b", "c"], [2 / 3, 2 / 3, 2 / 3], [1, 1, 1], [1, 1, 1]),
        (["a"], [0], [1], [0.1]),
    ],
)
def test_groups_without_a_right_row_with_one_and_with_all(
    solutions: list[str | None], share: list[float], inverse: list[float], distinct: list[float]
) -> None:
    for form, expected in (("share", share), ("inverse", inverse), ("distinct", distinct)):
        said = paid(solved(solutions), form=form, combine="mul" if form == "distinct" else "add").terms["rare"]
        assert said.tolist() == [pytest.approx(expected)]


def test_teachers_and_rows_that_may_not_earn_get_nothing_and_count_for_nobody() -> None:
    is_teacher, may_earn = [True, False, False, False], [False, False, False, True]
    of = solved(["a", "a", "a", "a"], is_teacher=is_teacher, may_earn=may_earn)
    assert paid(of, form="inverse").terms["rare"].tolist() == [[0, 0, 0, 1]]
    both = solved(["a", "a", "a", "b"], is_teacher=is_teacher, may_earn=[False, True, False, True])
    assert paid(both).terms["rare"].tolist() == [[0, 0.5, 0, 0.5]]
    assert paid(solved(["a", None]), form="distinct", combine="mul").said["rare"].tolist() == [[1, 0]]
    multiplied = paid(both, form="distinct", combine="mul")  # three of its own: (3 - 1) / (3 - 1)
    assert multiplied.total.tolist() == [pytest.approx([1, 1, 0.1, 1])]  # a teacher keeps its reward
    larger = solved(["a", "a", "a", "b", None], is_teacher=[True] + [False] * 4, may_earn=[False] + [True] * 4)
    multiplied = paid(larger, form="distinct", combine="mul")  # of four of its own, two are of one class
    assert multiplied.total.tolist() == [pytest.approx([1, 2 / 3, 2 / 3, 1, 0])]


def test_classes_are_the_verifiers_or_the_answers() -> None:
    """Two answers of one class of solutions, and one answer that the verifier counts as two classes."""
    named = [("a", "4"), ("a", "5"), ("b", "5"), ("c", "5")]
    of = group([1.0] * 4, graded=[Graded(Verdict(1.0, 1.0, "", {}, x, (), s)) for s, x in named])
    assert paid(of, form="inverse").terms["rare"].tolist() == [[0.5, 0.5, 1, 1]]
    assert paid(of, form="inverse", by="answer").terms["rare"].tolist() == [pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])]


def test_a_right_row_without_a_class_has_failed() -> None:
    graded = [
        Graded(Verdict(1.0, 1.0, "")),
        Graded(Verdict(0.0, 0.0, "")),
        Graded(Verdict(1.0, 1.0, "", solution="a")),
    ]
    rewards = paid(group([1.0] * 3, graded=graded), form="inverse")
    assert rewards.errors["rare"] == {0: "the verifier names no solution of this right response"}
    assert rewards.terms["rare"].tolist() == [[0, 0, 1]]
    assert paid(group([1.0] * 3, graded=graded)).terms["rare"].tolist() == [[0, 0, 0]]  # it counts for nobody


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"form": "share", "power": 0.5}, "power 0.5 has no effect with form share"),
        ({"form": "invers"}, "did you mean 'inverse'"),
        ({"by": "text"}, "known: solution, answer"),
        ({"weight": -0.5}, "common solutions would be paid more"),
        ({"power": 0}, "above 0 and at most 1"),
        ({"worst": 0.0}, "this source gives 0 to 1"),
        ({"combine": "mul"}, "combine mul with form share: right rows of value 0 would be paid less than wrong rows"),
        ({"combine": "mul", "form": "inverse"}, "combine mul with form inverse"),  # 0 for one that may not earn
        ({"form": "distinct"}, "form distinct is a factor, 0.1 for the commonest class: set combine mul"),
        ({"form": "distinct", "combine": "mul", "weight": 0.5}, "weight 0.5 with combine mul: it would shrink right"),
    ],
)
def test_entries_that_cannot_be_meant_are_refused(entry: dict[str, Any], words: str) -> None:
    (problem,) = entry_problems(
        [{"name": "rule", "kind": "verifier"}, {"name": "rare", "kind": "uniqueness", **entry}]
    )
    assert words in problem


def test_the_forms_are_those_of_the_papers_for_random_groups() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        classes = torch.randint(3, (1, 7), generator=draw)
        own = torch.rand(1, 7, generator=draw) < 0.8
        earns = own & (torch.rand(1, 7, generator=draw) < 0.7)
        sizes = Counter(classes[earns].tolist())
        m, n = int(earns.sum()), int(own.sum())
        for form, power in (("share", 1.0), ("inverse", 0.25), ("distinct", 1.0)):
            found = uniqueness(classes, earns, own, form=form, power=power)[0]
            for row in range(7):
                c = sizes[int(classes[0, row])]
                if not earns[0, row]:
                    expected = 0.1 if form == "distinct" else 0.0
                elif form == "share":
                    expected = 1 - c / m
                elif form == "inverse":
                    expected = 1 / c**power
                else:
                    expected = max(0.1, (n - c) / (n - 1)) if n > 1 else 0.1
                assert found[row].item() == pytest.approx(expected)


def test_an_unknown_form_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="valid values: share, inverse, distinct"):
        uniqueness(torch.zeros(1, 2), torch.ones(1, 2).bool(), torch.ones(1, 2).bool(), form="rare")
