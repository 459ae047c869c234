"""The word problems of the study on text: what their teachers state is true, and held-out numbers are new."""

from __future__ import annotations

import random
import re

import pytest

from oger_recipe.base.files import read_jsonl
from oger_recipe.grading.verifiers import verify
from oger_recipe.lab import word_problems


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], list[dict]]:
    folder = tmp_path_factory.mktemp("words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["word_problems", str(folder / "data")])
        word_problems.main()
    return read_jsonl(folder / "data" / "train.jsonl"), read_jsonl(folder / "data" / "held_out.jsonl")


def _numbers(row: dict) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", row["prompt"]))


def test_every_equation_of_every_teacher_is_true_and_the_verifier_takes_its_answer(files):
    for row in files[0]:
        start, more, less = map(int, _numbers(row))
        assert int(row["answer"]) == start + more - less > 0
        for teacher in row["teachers"]:
            equations = re.findall(r"(\d+)([+-])(\d+)=(\d+)", teacher["text"])
            assert len(equations) == 2
            for left, sign, right, value in equations:
                assert int(value) == (int(left) + int(right) if sign == "+" else int(left) - int(right)) > 0
            assert verify(row["task"], teacher["text"], row["answer"]).score == 1


def test_teachers_take_the_steps_in_different_orders(files):
    for row in files[0]:
        firsts = [re.search(r"\d+[+-]\d+", teacher["text"]).group() for teacher in row["teachers"]]  # type: ignore[union-attr]
        assert len(set(firsts)) == 3
        assert [teacher["source"] for teacher in row["teachers"]] == ["forward", "away_first", "change"]


def test_held_out_problems_have_numbers_that_no_other_has(files):
    train, held_out = files
    assert (len(train), len(held_out)) == (word_problems.TRAIN, word_problems.HELD_OUT)
    every = [_numbers(row) for row in train + held_out]
    assert len(set(every)) == len(every)


def test_a_story_names_its_numbers_in_the_order_of_the_steps():
    row = word_problems.row((30, 12, 25), random.Random(1))
    assert _numbers(row) == ("30", "12", "25") and row["prompt"].endswith("?")
    assert [teacher["text"] for teacher in row["teachers"]] == [
        " First 30+12=42, then 42-25=17 #### 17",
        " Without 25: 30-25=5, 5+12=17 #### 17",
        " The change: 25-12=13, 30-13=17 #### 17",
    ]
