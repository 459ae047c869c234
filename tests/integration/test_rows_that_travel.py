"""What of a row the sources of a reward read: its question and its other columns, as JSON in the prompt's label."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from oger_recipe.data.sources import Columns, read_dataset
from oger_recipe.rewards.rules import GradingRules

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
    assert CARRIES.label(row) == {"uid": "u", "answer": "96", "task": "countdown", "question": "Make 96."} | {
        "row": {"rm_prompt_0": "judge it", "extra_info": {"index": 3, "split": "train"}}
    }
    assert GradingRules().label(row) == {"uid": "u", "answer": "96", "task": "countdown"}
    assert CARRIES.label({"uid": "u", "prompt": "Q", "answer": "a", "task": "math"}) == {
        "uid": "u", "answer": "a", "task": "math", "question": "Q",
    }  # fmt: skip


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
