"""Reading of labelled steps: each shape that people publish, and what is said of rows that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.data.labelled_steps import Solution, read_labelled_steps
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.offline.prm_labels import label_of

PROCESS_BENCH = {
    "id": "olympiadbench-7",
    "generator": "some-model",
    "problem": "1 + 1 + 1?",
    "steps": ["1 + 1 = 2", "2 + 1 = 4", "so 4"],
    "label": 1,
}
SHEPHERD = {
    "input": "Ann has 3 apples. How many? Step 1: She has 3. ки\nStep 2: The answer is: 4 ки",
    "label": "Ann has 3 apples. How many? Step 1: She has 3. +\nStep 2: The answer is: 4 -",
    "task": "GSM8K",
}
STEPWISE = {"prompt": "Which?", "completions": ["A.", "B."], "labels": [True, False]}
PRM_BENCH = {
    "idx": "p1",
    "original_question": "Q?",
    "modified_question": "Q'?",
    "original_process": ["a", "b"],
    "modified_process": ["a", "x", "c"],
    "error_steps": [2, 3],
    "classification": "redundancy",
}


def rated(text: str, rating: Any) -> dict[str, Any]:
    return {"text": text, "rating": rating, "flagged": None}


def step(completions: list[Any] | None, chosen: int | None, human: Any = None) -> dict[str, Any]:
    return {"completions": completions, "human_completion": human, "chosen_completion": chosen}


PRM800K = {
    "labeler": "l",
    "timestamp": "t1",
    "question": {"problem": "P?", "ground_truth_answer": "1"},
    "label": {
        "steps": [
            step([rated("one", 1), rated("uno", -1)], 0),
            step([rated("two", 0)], 0),
            step([rated("drei", -1)], None, rated("three", None)),
            step([rated("four", -1), rated("vier", 1)], None),
            step([rated("never", 1)], 0),
        ],
        "finish_reason": "found_error",
    },
}


def read(folder: Path, *records: Any) -> tuple[list[Solution], dict[str, int]]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_labelled_steps([str(path)])


def test_process_bench(tmp_path: Path) -> None:
    (wrong, right), shapes = read(tmp_path, PROCESS_BENCH, PROCESS_BENCH | {"label": -1})
    assert shapes == {"ProcessBench": 2}
    assert wrong == Solution(
        "olympiadbench-7",
        "1 + 1 + 1?",
        ("1 + 1 = 2", "2 + 1 = 4", "so 4"),
        (1, 0, None),
        "olympiadbench",
        "some-model",
    )
    assert right.labels == (1, 1, 1)


def test_math_shepherd(tmp_path: Path) -> None:
    (found,), shapes = read(tmp_path, SHEPHERD)
    assert shapes == {"Math-Shepherd": 1}
    assert found.question == "Ann has 3 apples. How many?"
    assert found.steps == ("Step 1: She has 3.", "Step 2: The answer is: 4")
    assert (found.labels, found.subset) == ((1, 0), "GSM8K")


def test_stepwise_supervision(tmp_path: Path) -> None:
    both, shapes = read(tmp_path, STEPWISE, STEPWISE | {"labels": [None, 0.25], "subset": "s", "id": 3})
    assert shapes == {"stepwise supervision": 2}
    assert both[0].labels == (1, 0) and both[0].name.endswith("rows.jsonl:1")
    assert both[1] == Solution("3", "Which?", ("A.", "B."), (None, 0.25), "s")


def test_prm_bench_has_two_solutions_a_row(tmp_path: Path) -> None:
    found, shapes = read(tmp_path, PRM_BENCH)
    assert shapes == {"PRMBench": 1}
    assert [(each.question, each.steps, each.labels, each.subset) for each in found] == [
        ("Q?", ("a", "b"), (1, 1), "redundancy"),
        ("Q'?", ("a", "x", "c"), (1, 0, 0), "redundancy"),
    ]


def test_prm800k_has_the_chosen_way_and_what_branches_off_it(tmp_path: Path) -> None:
    """A neutral step is good; what a person wrote is good; the way ends where nothing was chosen, with the first
    completion that stands there; a label is in one solution alone."""
    found, shapes = read(tmp_path, PRM800K)
    assert shapes == {"PRM800K": 1}
    assert {each.question for each in found} == {"P?"}
    assert [(each.steps, each.labels) for each in found] == [
        (("one", "two", "three", "four"), (1, 1, 1, 0)),
        (("uno",), (0,)),
        (("one", "two", "drei"), (None, None, 0)),
        (("one", "two", "three", "vier"), (None, None, None, 1)),
    ]


def test_prm800k_goes_on_with_what_was_chosen_though_a_person_wrote_too(tmp_path: Path) -> None:
    steps = [step([rated("one", 1)], 0, rated("mine", None)), step([rated("two", 1)], 0)]
    found, _ = read(tmp_path, PRM800K | {"label": {"steps": steps}})
    assert [each.steps for each in found] == [("one", "two")]


def test_prm800k_without_any_label_is_no_solution(tmp_path: Path) -> None:
    empty = PRM800K | {"label": {"steps": [step(None, None)], "finish_reason": "bad_problem"}}
    found, _ = read(tmp_path, empty, PRM800K)
    assert len(found) == 4


def test_files_of_several_shapes_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(json.dumps([PROCESS_BENCH, SHEPHERD, STEPWISE, PRM_BENCH, PRM800K]))
    found, shapes = read_labelled_steps([str(tmp_path / "all.json")])
    assert len(found) == 1 + 1 + 1 + 2 + 4
    assert shapes == dict.fromkeys(["ProcessBench", "Math-Shepherd", "stepwise supervision", "PRMBench", "PRM800K"], 1)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (PROCESS_BENCH | {"label": 3}, "'label' must be the index of the first wrong step, 0 to 2, or -1, found 3"),
        (PROCESS_BENCH | {"label": True}, "'label' must be the index"),
        (PROCESS_BENCH | {"steps": "a"}, "'steps' must be a list of texts, one per step, found 'a'"),
        (PROCESS_BENCH | {"steps": ["a", " "]}, r"'steps\[1\]' must be a step that is not empty"),
        (PROCESS_BENCH | {"problem": None}, "'problem' must be a text, found None"),
        (STEPWISE | {"labels": [True]}, "'labels' must be a list with a label for each of the 2 completions"),
        (STEPWISE | {"labels": [True, 2]}, r"'labels\[1\]' must be true, false, a number from 0 to 1, or null"),
        (
            SHEPHERD | {"label": SHEPHERD["label"].replace("She", "He")},
            "'label' must be the input .*; step 1 differs",
        ),
        (
            SHEPHERD | {"label": SHEPHERD["label"].replace("4 -", "4 ?")},
            "'label' must be the input .*; step 2 differs",
        ),
        (SHEPHERD | {"input": "no tag"}, "'input' must be a question and steps that end with 'ки' each"),
        (SHEPHERD | {"input": "Q ки", "label": "Q +"}, "'input' must be a question, and 'Step 1:' behind it"),
        (PRM_BENCH | {"error_steps": [4]}, "'error_steps' must be a list of numbers from 1 to 3"),
        (PRM800K | {"question": {}}, "'question.problem' must be a text"),
        (
            PRM800K | {"label": {"steps": [step([rated("a", 2)], 0)]}},
            r"'label.steps\[0\].completions\[0\].rating' must be -1, 0, 1 or null, found 2",
        ),
        (
            PRM800K | {"label": {"steps": [step([rated("a", [1])], 0)]}},
            r"'label.steps\[0\].completions\[0\].rating' must be -1, 0, 1 or null, found \[1\]",
        ),
        (
            PRM800K | {"label": {"steps": [step([rated("a", 1), rated("b", 1)], True)]}},
            r"'label.steps\[0\].chosen_completion' must be",
        ),
        (
            PRM800K | {"label": {"steps": [step([rated("a", 1)], 1)]}},
            r"'label.steps\[0\].chosen_completion' must be",
        ),
        ({"text": 1}, "the columns match no known shape .*; they are text"),
        ([1], "a JSON object is needed, found list"),
    ],
)
def test_a_wrong_row_is_named_with_file_line_and_field(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=rf"rows.jsonl:2: {message}"):
        read(tmp_path, STEPWISE, record)


RIGHT, WRONG, FAILED = Graded(Verdict(1.0, 1.0, "")), Graded(Verdict(0.0, 0.0, "")), Graded.failed("it took too long")


@pytest.mark.parametrize(
    ("graded", "share", "hard"),
    [
        ([RIGHT, WRONG, WRONG, WRONG], 0.25, 1.0),
        ([WRONG, WRONG], 0.0, 0.0),
        ([RIGHT, WRONG, FAILED, FAILED], 0.5, 1.0),
        ([FAILED, FAILED], None, None),
        ([], None, None),
    ],
)
def test_a_verifier_that_fails_says_nothing_of_the_step(
    graded: list[Graded], share: float | None, hard: float | None
) -> None:
    assert (label_of(graded, "share"), label_of(graded, "any")) == (share, hard)
