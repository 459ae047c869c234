"""What of a row the sources of a reward read: its question and its other columns, as JSON in the prompt's label."""

from __future__ import annotations

import argparse
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.data.sources import Columns, read_dataset
from oger_recipe.grading.rules import GradingRules, other_columns, travelled
from oger_recipe.run.rows import evaluation_rows, training_rows
from oger_recipe.settings.grading import grading_rules

CARRIES = GradingRules(row_travels=True)


def test_question_and_other_columns_travel_where_a_source_reads_them_and_nowhere_else() -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Make 96."},
    ]
    row = {"uid": "u", "prompt": chat, "answer": "96", "task": "countdown", "datasource": "x", "teachers": [1]}
    row |= {"rm_prompt_0": "judge it", "extra_info": {"index": 3, "split": "train"}, "image": object()}
    assert CARRIES.label(row) == {"uid": "u", "answer": "96", "task": "countdown", "question": chat} | {
        "row": {"datasource": "x", "rm_prompt_0": "judge it", "extra_info": {"index": 3, "split": "train"}}
    }
    assert travelled(CARRIES.label(row)) == {
        "question": "Make 96.", "messages": chat, "row": CARRIES.label(row)["row"],
    }  # fmt: skip
    assert travelled({}) == {"question": "", "messages": [], "row": {}}
    assert GradingRules().label(row) == {"uid": "u", "answer": "96", "task": "countdown"}
    assert CARRIES.label({"uid": "u", "prompt": "Q", "answer": "a", "task": "math"}) == {
        "uid": "u", "answer": "a", "task": "math", "question": "Q",
    }  # fmt: skip
    assert travelled({"question": "Q"}) == {"question": "Q", "messages": [], "row": {}}


@pytest.mark.parametrize("number", ["NaN", "sNaN", "-Infinity"])
def test_a_decimal_that_is_not_finite_is_null(number: str) -> None:
    assert other_columns({"price": Decimal(number), "more": [Decimal("1.5")]}) == {"price": None, "more": [1.5]}


def test_what_parquet_holds_travels_as_json(tmp_path: Path) -> None:
    record = {
        "prompt": [{"role": "user", "content": "1+1?"}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "data_source": "rider",
        "extra_info": {"index": 4, "split": "train"},
        "rm_prompt_0": "first judge",
        "rm_prompt_1": "",
        "text": b"caf\xc3\xa9",
        "raw": b"\xff\x00",
        "levels": [1.5, float("nan"), None],
        "nested": [{"a": [{"b": 1}]}],
        "when": datetime(2026, 1, 2, 3, 4, 5),
        "day": date(2026, 1, 2),
        "price": Decimal("1.25"),
    }
    pa.parquet.write_table(pa.Table.from_pylist([record]), tmp_path / "rows.parquet")
    (row,) = read_dataset(str(tmp_path / "rows.parquet"), Columns(task="math", keep=True), split="train")
    assert (row["answer"], row["uid"]) == ("2", "rider/train/4")
    label = json.loads(json.dumps(CARRIES.label(row)))
    assert label["row"] == {
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "data_source": "rider",
        "datasource": "rider",
        "extra_info": {"index": 4, "split": "train"},
        "rm_prompt_0": "first judge",
        "rm_prompt_1": "",
        "text": "café",
        "raw": "/wA=",
        "levels": [1.5, None, None],
        "nested": [{"a": [{"b": 1}]}],
        "when": "2026-01-02T03:04:05",
        "day": "2026-01-02",
        "price": 1.25,
    }
    (plain,) = read_dataset(str(tmp_path / "rows.parquet"), Columns(task="math"), split="train")
    assert plain.keys() & {"reward_model", "data_source", "extra_info"} == set()  # as ever, where no source reads them


def test_arrays_travel_as_lists() -> None:
    row = {
        "uid": "u",
        "prompt": "p",
        "answer": "a",
        "task": "t",
        "vector": np.array([[1, 2], [3, 4]]),
        "n": np.int64(7),
    }
    assert CARRIES.label(row)["row"] == {"vector": [[1, 2], [3, 4]], "n": 7}


RIDER = {"name": "rider", "kind": "similarity", "reference": "rm_prompt_1"}


def _training_rows(
    parser: argparse.ArgumentParser, path: Path, rows: list[dict[str, Any]], *sources: dict[str, Any]
) -> list[dict[str, Any]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--data.prompt_dataset", str(path), "--oger.task_name", "math", "--data.label_key", "answer"]
    listed = json.dumps([{"name": "rule", "kind": "verifier"}, *sources])
    return training_rows(vars(parser.parse_args([*flags, f"--oger.reward.sources={listed}"])))


def test_a_column_that_a_source_names_has_to_be_there_in_every_row(
    parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    path, rows = tmp_path / "rows.jsonl", [{"prompt": f"{n}?", "answer": "1", "uid": f"u{n}"} for n in range(12)]
    with pytest.raises(RecipeError) as raised:
        _training_rows(parser, path, [row | {"rm_prompt_0": "x"} for row in rows], RIDER)
    assert str(raised.value) == (
        f"{path}: no column 'rm_prompt_1', the reference of the reward source 'rider'; the columns are 'prompt', "
        "'answer', 'uid', 'rm_prompt_0', 'task'"
    )
    some = [row | {"rm_prompt_1": "" if n % 2 else None} for n, row in enumerate(rows)]
    del some[11]["rm_prompt_1"]
    with pytest.raises(RecipeError) as raised:
        _training_rows(parser, path, some, RIDER)
    assert str(raised.value) == (
        f"{path}: 7 of 12 rows have no 'rm_prompt_1', the reference of the reward source 'rider': "
        "u0, u2, u4, u6, u8, u10, u11"
    )
    some = [row | {"rm_prompt_1": ["a", "list"] if n < 11 else ""} for n, row in enumerate(rows)]
    judge = {"name": "rider", "kind": "judge", "model": "m", "plugin": "zero_one", "prompt_column": "rm_prompt_1"}
    with pytest.raises(RecipeError) as raised:
        _training_rows(parser, path, some, judge)
    assert str(raised.value) == (
        f"{path}: 11 rows have no text in 'rm_prompt_1', the prompt_column of the reward source 'rider': "
        "u0, u1, u2, u3, u4, u5, u6, u7, u8, u9 and 1 more"
    )
    assert len(_training_rows(parser, path, rows)) == len(_training_rows(parser, path, some, RIDER)) == 12


def test_a_source_counts_solutions_only_where_the_rows_verifier_may_name_them(
    parser: argparse.ArgumentParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "from oger_recipe.grading.verifiers import TaskSpec\ndef grade(response, answer): ...\n"
    (tmp_path / "of_mine.py").write_text(f"{own}never = TaskSpec(grade, names_solutions=False)\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "rows.jsonl"

    def read(task: str, *flags: str, **entry: Any) -> int:
        rows = [
            {"prompt": f"{n}", "answer": "1", "uid": f"u{n}", "task": each}
            for n, each in enumerate(["countdown", task])
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sources = [{"name": "rule", "kind": "verifier"}, {"name": "rare", "kind": "uniqueness", **entry}]
        listed = ["--data.prompt_dataset", str(path), "--oger.reward.sources", json.dumps(sources)]
        value = vars(parser.parse_args([*listed, *flags]))
        grading_rules(value)  # which allows the user's own
        return len(training_rows(value))

    mine = ["--oger.verifiers", "mine=of_mine:grade", "never=of_mine:never"]
    assert read("countdown") == read("mine", *mine) == read("math", by="answer") == 2
    for task, flags in (("math", ()), ("never", mine)):
        with pytest.raises(RecipeError) as raised:
            read(task, *flags)
        counts = "the reward source 'rare' counts classes of solutions"
        assert str(raised.value).startswith(f"{path}: {counts}, and the verifier of task '{task}' names none: ")


def test_columns_that_a_function_for_trl_needs_have_to_be_there(
    parser: argparse.ArgumentParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "for_trl.py").write_text("def right(prompts, completions, solution, answer, level=1, **more): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    path, source = tmp_path / "rows.jsonl", {"name": "mine", "kind": "for_trl:right"}
    row = {"prompt": "1?", "answer": "1", "uid": "u"}
    with pytest.raises(RecipeError) as raised:
        _training_rows(parser, path, [row | {"solutions": "1"}], source)
    assert str(raised.value) == (
        f"{path}: no column 'solution', which the reward source 'mine' (for_trl:right) needs as an "
        "argument; the columns are 'answer', 'uid', 'solutions', 'task'"
    )
    some = [row | {"solution": None}, row | {"uid": "v"}]  # it may say None of these
    assert len(_training_rows(parser, path, some, source)) == 2


def test_a_verifier_of_the_users_reads_what_verls_files_say_of_a_row(
    parser: argparse.ArgumentParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "for_verl.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    record = {"prompt": [{"role": "user", "content": "1+1?"}], "data_source": "sums", "extra_info": {"index": 4}}
    record |= {"reward_model": {"style": "rule", "ground_truth": "2"}}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(record) + "\n")
    flags = ["--data.prompt_dataset", str(path), "--eval.dataset", str(path), "--data.label_key", "answer"]
    flags += ["--oger.task_name", "mine", "--oger.verifiers", "mine=for_verl:compute_score"]
    value = vars(parser.parse_args(flags))
    for row in (*training_rows(value), *evaluation_rows(value)):
        _, options = grading_rules(value).call(row)
        assert (options["row"]["data_source"], options["row"]["extra_info"]) == ("sums", {"index": 4})
