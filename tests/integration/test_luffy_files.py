"""LUFFY's and OGER's parquet files train as they are.

The released shape: an empty data_source, a system and a user turn, a target that opens its thought, an index. Their
loader knows the other columns.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.data.sources import Columns, read_dataset
from oger_recipe.data.train_files import Budget, PromptFormat, TeacherChoice, write_train_files
from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.rules import GradingRules
from oger_recipe.teachers.store import TeacherStore

MESSAGES = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", MESSAGES),
        ("target", MESSAGES),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
        ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string())])),
    ]
)
SYSTEM = "Think first, inside <think>\n {thoughts} </think>\n, then write the solution."
THOUGHT = "<think>\n1+1 is 2.\n</think>\nSo \\boxed{2}"


def _record(index: int, target: str | None = THOUGHT, question: str = "1+1?", **fields: Any) -> dict[str, Any]:
    return {
        "data_source": "",
        "prompt": [{"content": SYSTEM, "role": "system"}, {"content": question, "role": "user"}],
        "target": None if target is None else [{"content": target, "role": "assistant"}],
        "ability": "math",
        "reward_model": {"ground_truth": "2", "style": "rule"},
        "extra_info": {"index": index, "split": "default"},
    } | fields


def _write(path: Path, *records: dict[str, Any], more: tuple[tuple[str, pa.DataType], ...] = ()) -> str:
    schema = SCHEMA
    for name, kind in more:
        schema = schema.append(pa.field(name, kind))
    pa.parquet.write_table(pa.Table.from_pylist(list(records), schema), path)
    return str(path)


def _read(source: str, task: str | None = None, **counts: Any) -> list[dict[str, Any]]:
    return list(read_dataset(source, Columns(task=task), split="train", **counts))


def test_a_released_record_becomes_a_row_with_its_target_as_teacher(tmp_path: Path) -> None:
    first, second = _read(_write(tmp_path / "train.parquet", _record(7), _record(8, None, "1+2?")))
    assert first == {
        "uid": "default/7",
        "prompt": [{"content": SYSTEM, "role": "system"}, {"content": "1+1?", "role": "user"}],
        "answer": "2",
        "task": "math",
        "datasource": None,
        "teachers": [{"source": "target", "text": THOUGHT, "correct": None}],
    }
    assert (second["uid"], second["teachers"]) == ("default/8", [])


def test_json_lines_hold_the_same(tmp_path: Path) -> None:
    records = [_record(7), _record(8, None, reward_model={"ground_truth": 3.0, "style": "rule"})]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = _read(str(tmp_path / "train.jsonl"))
    assert rows[0] == _read(_write(tmp_path / "train.parquet", records[0]))[0]
    assert rows[1]["answer"] == "3"


def test_the_list_of_targets_gives_more_teachers_and_equal_texts_are_one(tmp_path: Path) -> None:
    more = (("target_lst", pa.list_(pa.string())),)
    targets = [THOUGHT, "\\boxed{2}", None, "\\boxed{2}", "\\boxed{2.0}"]
    records = [_record(0, target_lst=targets), _record(1, None, target_lst=targets[:1]), _record(2, None)]
    rows = _read(_write(tmp_path / "train.parquet", *records, more=more))
    assert [[(teacher["source"], teacher["text"]) for teacher in row["teachers"]] for row in rows] == [
        [("target", THOUGHT), ("target_lst_1", "\\boxed{2}"), ("target_lst_4", "\\boxed{2.0}")],
        [("target_lst_0", THOUGHT)],
        [],
    ]


def test_the_successes_that_rlep_keeps_beside_the_answer_are_teachers(tmp_path: Path) -> None:
    kept = {"ground_truth": "2", "candidates": ["\\boxed{2}", "", THOUGHT, "\\boxed{2}"]}
    records = [_record(0, None, reward_model=kept), _record(1, reward_model=kept | {"candidates": None})]
    (tmp_path / "rlep.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = _read(str(tmp_path / "rlep.jsonl"))
    assert [[(teacher["source"], teacher["text"]) for teacher in row["teachers"]] for row in rows] == [
        [("candidates_0", "\\boxed{2}"), ("candidates_2", THOUGHT)],
        [("target", THOUGHT)],
    ]
    (tmp_path / "rlep.jsonl").write_text(json.dumps(_record(0, reward_model=kept | {"candidates": "2"})))
    with pytest.raises(RecipeError, match="'candidates' must be a list of texts, found '2'"):
        _read(str(tmp_path / "rlep.jsonl"))


@pytest.mark.parametrize(
    ("data_source", "ability", "task", "found"),
    [
        ("", "math", None, "math"),
        ("aime", "math", None, "math"),
        ("openai/gsm8k", "math", None, "gsm8k"),
        ("openai/gsm8k", None, None, "gsm8k"),
        ("openai/gsm8k", "math", "choice", "choice"),
    ],
)
def test_the_verifier_is_the_users_else_the_data_sources_else_the_abilitys(
    tmp_path: Path, data_source: str, ability: str | None, task: str | None, found: str
) -> None:
    record = _record(3, data_source=data_source, ability=ability)
    (row,) = _read(_write(tmp_path / "train.parquet", record), task)
    assert (row["task"], row["datasource"]) == (found, data_source or None)
    assert row["uid"] == (f"{data_source}/default/3" if data_source else "default/3")


def test_a_record_whose_verifier_is_unknown_says_how_to_name_it(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.parquet", _record(0), _record(1, data_source="logic", ability="reasoning"))
    with pytest.raises(RecipeError) as error:
        _read(path)
    assert str(error.value) == (
        f"{path}:2: no verifier is known for data_source 'logic' and ability 'reasoning': set oger.task_name"
    )


def test_an_index_that_is_not_unique_is_no_uid(tmp_path: Path) -> None:
    """Two copies of one problem are one row then, and two problems are two."""
    records = [_record(5), _record(5), _record(5, question="1+2?"), _record(6)]
    counts: Counter[str] = Counter()
    rows = _read(_write(tmp_path / "valid.parquet", *records), counts=counts)
    assert [row["prompt"][1]["content"] for row in rows] == ["1+1?", "1+2?", "1+1?"]
    assert rows[2]["uid"] == "default/6" and not any("default" in row["uid"] for row in rows[:2])
    assert counts == {"duplicates": 1}


def test_two_files_with_the_same_indices_can_be_read_together(tmp_path: Path) -> None:
    first = _write(tmp_path / "a.parquet", _record(0), _record(1, question="1+2?"))
    second = _write(tmp_path / "b.parquet", _record(0, question="1+3?"))
    uids = [row["uid"] for row in _read(f"{first},{second}")]
    assert uids[:2] == ["default/0", "default/1"] and len(set(uids)) == 3


def test_a_malformed_target_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(_record(0) | {"target": [["assistant", "x"]]}) + "\n")
    with pytest.raises(RecipeError, match=r"train\.jsonl:1: 'target' must be a list of \{role, content\} or null"):
        _read(str(path))


def test_a_row_of_our_own_with_a_reward_model_keeps_its_teachers(tmp_path: Path) -> None:
    teachers = [{"source": "r1", "text": "2", "correct": None}]
    row = {"uid": "p", "prompt": "1+1?", "answer": "2", "task": "math", "teachers": teachers}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row | {"reward_model": {"ground_truth": "3"}}) + "\n")
    assert _read(str(path))[0]["teachers"] == teachers and _read(str(path))[0]["answer"] == "2"


# ---- prepared for a run


@pytest.fixture()
def thinking(letters: Any) -> Any:
    """The tokenizer of letters with a chat template that opens the thought, and that knows system turns."""
    tokenizer = copy.deepcopy(letters)
    tokenizer.chat_template = (
        "{% for turn in messages %}{{ turn['role'] + ': ' + turn['content'] + '\n' }}{% endfor %}{{ '<think>\n' }}"
    )
    return tokenizer


def _prepare(tmp_path: Path, rows: list[dict[str, Any]], tokenizer: Any, **settings: Any) -> tuple[Any, TeacherStore]:
    with GradingPool(GradingSettings(workers=1, time_limit_s=3600)) as pool:
        counts = write_train_files(
            rows,
            tokenizer=tokenizer,
            prompt_format=PromptFormat(True, None),
            budget=Budget(1000, 500),
            prompts_path=tmp_path / "train.jsonl",
            teachers_path=tmp_path / "teachers.arrow",
            rules=GradingRules(),
            pool=pool,
            choice=TeacherChoice(**settings),
        )
    return counts, TeacherStore(tmp_path / "teachers.arrow")


def test_a_file_trains_as_it_is(tmp_path: Path, thinking: Any) -> None:
    """The thought that the template has opened is not opened again; end of sequence once; no wrong targets."""
    wrong = "<think>\nHm.\n</think>\nSo \\boxed{3}"
    path = _write(tmp_path / "luffy.parquet", _record(0), _record(1, wrong), _record(2, None))
    counts, store = _prepare(tmp_path, _read(path), thinking)
    assert counts == {"prompts": 3, "teachers": 1, "teachers_wrong": 1, "prompts_without_teacher": 2}
    (teacher,) = store["default/0"]
    assert (teacher.source, teacher.text, teacher.score) == ("target", THOUGHT.removeprefix("<think>\n"), 1.0)
    # one token for each character and each tag
    assert thinking.decode(teacher.tokens) == teacher.text + "<|im_end|>"
    assert len(teacher.tokens) == len("1+1 is 2.\n") + 1 + len("\nSo \\boxed{2}") + 1
    assert teacher.probs is None


def _with_probs(tmp_path: Path, count: int) -> list[dict[str, Any]]:
    more = (("target_ds_qwen_7b_probs", pa.list_(pa.float64())),)
    answer = "<answer>(3+5)*12</answer>"
    record = _record(0, answer, target_ds_qwen_7b_probs=[0.5] * (count - 1) + [0.25])
    record["reward_model"]["ground_truth"] = '{"numbers":[3,5,12],"target":96}'
    return _read(_write(tmp_path / "luffy.parquet", record, _record(1, None), more=more), "countdown")[:1]


def test_the_teachers_probabilities_reach_the_store(tmp_path: Path, thinking: Any) -> None:
    """2 tags and 8 characters: 10 tokens, and the end of sequence."""
    _, store = _prepare(tmp_path, _with_probs(tmp_path, 11), thinking)
    (teacher,) = store["default/0"]
    assert len(teacher.tokens) == 11 and teacher.probs == [0.5] * 10 + [0.25]


@pytest.mark.parametrize("count", [10, 12])
def test_probabilities_of_another_tokenizer_are_refused_with_both_lengths(
    tmp_path: Path, thinking: Any, count: int
) -> None:
    with pytest.raises(RecipeError) as error:
        _prepare(tmp_path, _with_probs(tmp_path, count), thinking)
    assert str(error.value).startswith(
        f"row 'default/0': teacher 'target' has {count} token probabilities and, with the end of sequence, 11 tokens"
    )


def test_probabilities_are_cut_with_their_teacher(tmp_path: Path, thinking: Any) -> None:
    rows = _with_probs(tmp_path, 11)
    settings = {"max_prefix_len": 10, "long_teachers": "truncate", "keep_wrong_teachers": True}
    (teacher,) = _prepare(tmp_path, rows, thinking, **settings)[1]["default/0"]
    assert len(teacher.tokens) == 10 and teacher.probs == [0.5] * 10
