"""Exact labels of Countdown's steps of reasoning."""

import random
from itertools import accumulate

import pytest
import torch
from groups import group

from oger_recipe.base.cutting import cut_text
from oger_recipe.lab.countdown import Difficulty, build_rows, generate_problems
from oger_recipe.lab.countdown_steps import STEPS, reaches, step_labels
from oger_recipe.lab.countdown_teachers import TEACHERS, slip
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.sources import Group
from oger_recipe.rewards.spec import Surroundings

ANSWER = "done.</think>\n<answer>(3+5)*12</answer>"
WRONG = "done.</think>\n<answer>(3+12)*5</answer>"


def labels(text: str, numbers: tuple[int, ...] = (3, 5, 12), target: int = 96) -> list[int]:
    return step_labels(cut_text(text, STEPS), numbers, target)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the three styles
        (f"<think>start with 3+5=8, then 8*12=96, {ANSWER}", [1, 1, 1]),
        ("<think>need 96=8*12, need 8=3+5, found.</think>\n<answer>(3+5)*12</answer>", [1, 1, 1]),
        (f"<think>try 12-3=9, 9*5=45, no. try 3+5=8, 8*12=96, {ANSWER}", [0, 0, 1, 1, 1]),
        # both directions in one response: 8 is what the numbers make and what the goal needs
        (f"<think>need 96=8*12, then 3+5=8, {ANSWER}", [1, 1, 1]),
        # false; and what is built on a false statement has no such number
        (f"<think>start with 3+5=9, then 9*12=108, {WRONG}", [0, 0, 0]),
        (f"<think>start with 3+5=9, then 8*12=96, {ANSWER}", [0, 0, 1]),
        # numbers that are not there, or used before
        (f"<think>start with 4+4=8, then 8*12=96, {ANSWER}", [0, 0, 1]),
        (f"<think>start with 3+5=8, then 8+5=13, {WRONG}", [1, 0, 0]),
        # goals that are not open
        (f"<think>need 95=8*12, need 8=3+5, {ANSWER}", [0, 0, 1]),
        # true, of numbers that are there, but 96 cannot be reached any more: 3*12=36 and 5 make 41, 31 and 180
        (f"<think>start with 3*12=36, then 36+5=41, {WRONG}", [0, 0, 0]),
        # an answer counts whatever came before it, and only as the last one
        (ANSWER, [1]),
        (WRONG, [0]),
        ("<answer>(3+5)*12</answer>, <answer>(3+5)*12</answer>", [0, 1]),
        ("<answer>(3+5)*12</answer>, <answer>(3+12)*5</answer>", [0, 0]),
        (f"<think>start with 3+5=8, {ANSWER}, and so on", [1, 1, 0]),
        # spaces are as good as none
        ("3 + 5 = 8, 8 * 12 = 96, ", [1, 1]),
        # no statements
        ("", [0]),  # an empty response is one step
        ("well, well, ", [0, 0]),
        ("8=8, 96=96, 3+5, =8, 3+5=8=8, 3+5=8.0, ", [0, 0, 0, 0, 0, 0]),
        ("0+3=3, 3*0=0, 5-5=0, 3/5=0, 99999999999+1=100000000000, ", [0, 0, 0, 0, 0]),
        # two statements in one step: both have to be good
        (f"3+5=8. then 8*12=96, {ANSWER}", [1, 1]),
        (f"3+5=8. then 8*12=97, {ANSWER}", [0, 1]),
        ("3+5=9. so 3+5=8, ", [0]),
        # a statement with 0 is none, and leaves the goals as they are
        ("need 96=0+96, need 96=8*12, need 8=3+5, ", [0, 1, 1]),
    ],
)  # fmt: skip
def test_a_step_is_good_if_it_is_true_and_brings_the_target_nearer(text: str, expected: list[int]) -> None:
    assert labels(text) == expected


@pytest.mark.parametrize(
    "spam",
    [
        "3+5=8, " * 20,
        "try 3+5=8, no. " * 20,
        "try 3+5=8, 8*12=96, no. " * 20,
        "need 96=8*12, " * 20,
        "try 3+5=8, no. try 5+3=8, no. need 96=8*12, need 96=12*8, no. try 3*12=36, 5*12=60, try 36+60=96, ",
    ],
)
def test_repetition_and_new_attempts_earn_no_more_than_the_solution(spam: str) -> None:
    assert sum(labels(spam)) <= 2


def test_every_new_attempt_has_to_go_beyond_the_ones_before() -> None:
    assert labels(f"try 3+5=8, no. try 3+5=8, 8*12=96, {ANSWER}") == [1, 0, 1, 1]


def test_operands_are_used_as_often_as_they_are_given() -> None:
    assert labels("4+4=8, ", (4, 4, 12), 96) == [1]
    assert labels("4+4=8, ", (4, 5, 12), 96) == [0]


@pytest.mark.parametrize(
    ("values", "goals", "expected"),
    [
        ((3, 5, 12), (96,), True),
        ((3, 5, 12), (8, 12), True),
        ((3, 5, 12), (95, 1), False),
        ((3, 5, 12), (3, 5, 12), True),
        ((8, 12), (3, 5, 12), False),
        ((2, 3), (1,), True),  # 3-2, not 2-3
        ((4, 12), (3,), True),  # 12/4
        ((5, 12), (2,), False),  # 12/5 is no whole number
    ],
)
def test_what_can_be_reached(values: tuple[int, ...], goals: tuple[int, ...], expected: bool) -> None:
    assert reaches(values, goals) is expected


@pytest.mark.parametrize(("numbers", "operators"), [(2, "+-*/"), (3, "+-*"), (4, "+-")])
def test_teachers_make_every_statement_of_a_solution_once(numbers: int, operators: str) -> None:
    for problem in generate_problems(40, difficulty=Difficulty(numbers, 20, 100, operators), seed=1, split="train"):
        for teacher in build_rows([problem], seed=1)[0]["teachers"]:
            good = step_labels(cut_text(teacher["text"], STEPS), problem.numbers, problem.target)
            assert sum(good) == numbers and good[-1] == 1, teacher["text"]
            if teacher["source"] != "search":
                assert all(good), teacher["text"]


def test_no_slip_has_a_good_answer_or_more_than_a_solution() -> None:
    rng = random.Random(0)
    for problem in generate_problems(40, difficulty=Difficulty(3, 20, 100, "+-*"), seed=2, split="train"):
        for teacher in TEACHERS.values():
            good = step_labels(cut_text(slip(problem, teacher, rng), STEPS), problem.numbers, problem.target)
            assert good[-1] == 0 and max(accumulate(good)) <= 2


RIGHT = ["<think>start with 3+5=8, ", "then 8*12=96, ", ANSWER]
DEAD_END = ["<think>start with 3+5=8, ", "then 12-8=4, ", WRONG]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [[1, 1, 1], [1, 0, 0]]),
        ({"scale": "difference"}, [[1, 1, 1], [1, -1, -1]]),
        # softmax of -r / 0.1: equal scores share the row's; of the other row the two -1 have a half of -1 each
        ({"scale": "difference", "credit": "min"}, [[1 / 3] * 3, [0, -0.5, -0.5]]),
    ],
)
def test_as_a_source_of_reward_it_pays_by_labels(keys: dict[str, str], expected: list[list[float]]) -> None:
    entry = {"name": "prm", "kind": "oger_recipe.lab.exact_steps:ExactSteps"} | keys
    assert not [*entry_problems([entry])]
    (spec,) = sources_of([entry])
    source = spec.source(Surroundings(None, None))  # type: ignore[arg-type]
    rows = [RIGHT, DEAD_END]
    groups = [_group(rows), _group([RIGHT, [ANSWER]]), _group([["5+3=9, ", ANSWER], [ANSWER]])]
    scores = source.score(groups, torch.ones(3, 2, dtype=torch.bool))
    assert scores.steps is not None and scores.steps.shape == (3, 2, 3)
    assert [row.tolist() for row in scores.steps[0]] == [pytest.approx(each, abs=1e-6) for each in expected]
    assert scores.steps[1, 1, 0] == 1 and scores.steps[1, 1, 1:].isnan().all()
    assert scores.values[0, 0] == 1 and scores.values[0, 1] == (-1 if keys else 0)
    assert scores.values[2].tolist() == [-1 if keys else 0, 1]  # the lowest, not the last
    assert scores.metrics["steps"] == pytest.approx(13 / 6)


def _group(rows: list[list[str]]) -> Group:
    answer = '{"numbers": [3, 5, 12], "target": 96}'
    return group([1.0] * len(rows), answer=answer, responses=["".join(row) for row in rows], steps=rows)
