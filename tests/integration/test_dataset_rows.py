"""Dataset files become checked rows, or one sentence that says which line is wrong and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.data.sources import Columns, read_dataset

ROW: dict[str, Any] = {
    "uid": "p-1",
    "prompt": "Make 96 of 3, 5, 12.",
    "answer": '{"numbers":[3,5,12],"target":96}',
    "task": "countdown",
    "datasource": "made up",
    "teachers": [
        {"source": "a", "text": "<answer>(3+5)*12</answer>", "correct": True},
        {"source": "b", "text": "<answer>3*5+12</answer>", "correct": False},
        {"source": "c", "text": "é漢🎉", "correct": None},
    ],
}
TEACHERS = "'teachers' must be a text, a list of texts or a list of {source, text}"
PLAIN = {key: ROW[key] for key in ("uid", "prompt", "answer", "task")}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Make 96."}]


def _without(key: str) -> dict[str, Any]:
    return {name: value for name, value in PLAIN.items() if name != key}


@pytest.fixture()
def read(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Rows written as JSON lines (text is taken as it is) and read back."""

    def written(*lines: Any) -> list[dict[str, Any]]:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return list(read_dataset(str(path), Columns(), split="train"))

    return written


@pytest.fixture()
def refused(read: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    def message(*lines: Any) -> str:
        with pytest.raises(RecipeError) as error:
            read(*lines)
        return str(error.value).removeprefix(f"{tmp_path}/")

    return message


def test_json_lines_are_read_as_they_are(read: Callable[..., Any]) -> None:
    chat = PLAIN | {"uid": "p-2", "prompt": CHAT}
    bare = PLAIN | {"uid": "p-3", "datasource": None, "teachers": None}
    assert read(ROW, "", chat, "   ", bare) == [ROW, chat, bare]


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(pa.Table.from_pylist([ROW, PLAIN | {"uid": "p-2"}]), path)
    first, second = read_dataset(str(path), Columns(), split="train")
    assert first == ROW
    assert second == PLAIN | {"uid": "p-2", "datasource": None, "teachers": None}


def test_parquet_holds_chat_prompts(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(pa.Table.from_pylist([PLAIN | {"prompt": CHAT}]), path)
    assert read_dataset(str(path), Columns(), split="train")[0]["prompt"] == CHAT


def test_a_defect_in_parquet_is_named_by_its_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(pa.Table.from_pylist([ROW, ROW]), path)
    with pytest.raises(RecipeError, match=r"rows\.parquet:2: uid 'p-1' is already used by line 1$"):
        read_dataset(str(path), Columns(), split="train")


def test_a_uid_used_twice_is_refused_with_both_lines(refused: Callable[..., str]) -> None:
    message = refused(PLAIN, "", PLAIN | {"uid": "p-2"}, PLAIN)
    assert message == "rows.jsonl:4: uid 'p-1' is already used by line 1"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "a row is a JSON object, found list"),
        ("7", "a row is a JSON object, found int"),
        (PLAIN | {"uid": 7}, "'uid' must be a non-empty string, found 7"),
        (_without("answer"), "no column 'answer' (data.label_key); the columns are 'uid', 'prompt', 'task'"),
        (PLAIN | {"answer": None}, "'answer' must be a non-empty string, found None"),
        (PLAIN | {"answer": float("nan")}, "'answer' must be a non-empty string, found None"),
        (PLAIN | {"answer": True}, "'answer' must be a non-empty string, found True"),
        (_without("task"), "no column 'task' (or set oger.task_name); the columns are 'uid', 'prompt', 'answer'"),
        (PLAIN | {"task": None}, "'task' must be a non-empty string, found None"),
        (PLAIN | {"task": ["countdown"]}, "'task' must be a non-empty string, found ['countdown']"),
        (_without("prompt"), "no column 'prompt' (data.input_key); the columns are 'uid', 'answer', 'task'"),
        (PLAIN | {"prompt": None}, "'prompt' must be a string or a list of chat messages, found None"),
        (PLAIN | {"prompt": ""}, "'prompt' must be a string or a list of chat messages, found ''"),
        (PLAIN | {"prompt": []}, "'prompt' must be a string or a list of chat messages, found []"),
        (PLAIN | {"prompt": ["Hi"]}, "'prompt' must be a string or a list of chat messages, found ['Hi']"),
        (
            PLAIN | {"prompt": [{"role": "user"}]},
            "'prompt' must be a string or a list of chat messages, found [{'role': 'user'}]",
        ),
        (PLAIN | {"datasource": 5}, "'datasource' must be a string, found 5"),
        (PLAIN | {"teachers": {"source": "a"}}, f"{TEACHERS}, found dict"),
        (PLAIN | {"prompt": None, "teachers": 5}, f"{TEACHERS}, found int"),
        (
            _without("prompt") | {"question": "?", "teachers": ["right"]},
            "no column 'prompt' (data.input_key); the columns are 'uid', 'answer', 'task', 'question', 'teachers'",
        ),
        (ROW | {"prompt": ""}, "3 teachers for no problem: 'prompt' is missing"),
        (ROW | {"answer": None}, "3 teachers for no problem: 'answer' is missing"),
        (
            PLAIN | {"teachers": ["right", 5]},
            "teacher 1 must be a text, or an object with source and text, found 5",
        ),
        (
            PLAIN | {"teachers": [ROW["teachers"][0], {"text": "x"}]},
            "teacher 1: 'source' must be a non-empty string, found None",
        ),
        (
            PLAIN | {"teachers": [{"source": "a", "text": ""}]},
            "teacher 0: 'text' must be a non-empty string, found ''",
        ),
        (
            PLAIN | {"teachers": [{"source": "a", "text": ["x"]}]},
            "teacher 0: 'text' must be a non-empty string, found ['x']",
        ),
        (
            PLAIN | {"teachers": [{"source": "a", "text": "x", "correct": "yes"}]},
            "teacher 0: 'correct' must be true, false or null, found 'yes'",
        ),
        *(
            (
                PLAIN | {"teachers": [{"source": "a", "text": "x", "probs": probs}]},
                "teacher 0: 'probs' must be a list of numbers above 0 and at most 1, or null",
            )
            for probs in (0.5, ["0.5"], [0.5, 0.0], [-1.0], [1.5], [None], [True])
        ),
    ],
)
def test_each_defect_of_a_row_is_named_with_its_line(refused: Callable[..., str], row: Any, message: str) -> None:
    assert refused(PLAIN | {"uid": "first"}, row) == f"rows.jsonl:2: {message}"


def test_a_teacher_may_bring_its_own_probabilities(read: Callable[..., Any]) -> None:
    teachers = [{"source": "a", "text": "x", "probs": probs} for probs in ([0.5, 1.0], [], None)]
    assert read(PLAIN | {"teachers": teachers})[0]["teachers"] == teachers


def test_a_row_without_uid_is_refused_for_what_its_uid_would_be_made_from(refused: Callable[..., str]) -> None:
    bare = {"prompt": "1+1?", "answer": None, "task": "math"}
    assert refused(bare) == "rows.jsonl:1: 'answer' must be a non-empty string, found None"


def test_a_task_without_verifier_is_refused_with_those_that_exist(refused: Callable[..., str]) -> None:
    message = refused(PLAIN | {"task": "chess"})
    assert message.startswith("rows.jsonl:1: unknown task 'chess'; known: ")
    assert "countdown" in message


@pytest.mark.parametrize("line", ['{"uid": "p-1",', "{'uid': 1}", "uid,prompt", '{"uid": "p-1"} {}'])
def test_a_line_that_is_no_json_is_named(refused: Callable[..., str], line: str) -> None:
    assert refused(PLAIN, line).startswith("rows.jsonl:2: not valid JSON: ")


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_text(
    read: Callable[..., Any], refused: Callable[..., str]
) -> None:
    whole = json.dumps(PLAIN | {"prompt": "🎉"})
    assert r"\ud83c\udf89" in whole
    assert read(whole)[0]["prompt"] == "🎉"
    assert refused(whole.replace(r"\udf89", "")).startswith("rows.jsonl:1: not valid Unicode: ")


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(PLAIN).encode() + b'\n{"uid": "\xff"}\n')
    with pytest.raises(RecipeError, match=r"rows\.jsonl:2: not valid Unicode: "):
        read_dataset(str(path), Columns(), split="train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "no such dataset file"),
        ("empty.jsonl", b"", "the dataset has no rows"),
        ("blank.jsonl", b"\n  \n", "the dataset has no rows"),
        (
            "rows.csv",
            b"uid,prompt\n",
            "a dataset is a .jsonl, .json or .parquet file, a saved folder or a Hub dataset",
        ),
        ("rows.json", b"{}", "a .json dataset is a list of rows, found dict"),
        ("rows.parquet", b"not parquet", "not a readable parquet file: "),
    ],
)
def test_a_file_that_is_no_dataset_is_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RecipeError) as error:
        read_dataset(str(tmp_path / name), Columns(), split="train")
    assert str(error.value).startswith(f"{tmp_path / name}: {message}")


def test_a_parquet_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(pa.table({"uid": pa.array([], pa.string())}), path)
    with pytest.raises(RecipeError, match="the dataset has no rows"):
        read_dataset(str(path), Columns(), split="train")


# ---- datasets that were not made for the recipe

QUESTIONS = [{"question": "1+1?", "answer": 2, "task": None}, {"question": "1+2?", "answer": "#### 3", "task": None}]
GSM8K = Columns(prompt="question", answer="answer", task="gsm8k")


def _gsm8k(source: Path, split: str = "train", **limit: int) -> list[tuple[str, str, str]]:
    rows = read_dataset(str(source), GSM8K, split=split, **limit)
    assert len({row["uid"] for row in rows}) == len(rows)
    return [(row["prompt"], row["answer"], row["task"]) for row in rows]


EXPECTED = [("1+1?", "2", "gsm8k"), ("1+2?", "#### 3", "gsm8k")]


def test_columns_of_other_names_are_read_from_every_kind_of_source(tmp_path: Path) -> None:
    import datasets

    (tmp_path / "a.json").write_text(json.dumps(QUESTIONS))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    texts = [row | {"answer": str(row["answer"]), "task": "gsm8k"} for row in QUESTIONS]
    pa.parquet.write_table(pa.Table.from_pylist(texts), tmp_path / "a.parquet")
    datasets.DatasetDict(test=datasets.Dataset.from_list(texts)).save_to_disk(tmp_path / "saved")
    for name in ("a.json", "a.jsonl", "a.parquet"):
        assert _gsm8k(tmp_path / name) == EXPECTED
    assert _gsm8k(tmp_path / "saved", split="test") == EXPECTED
    assert _gsm8k(tmp_path / "a.json", limit=1) == EXPECTED[:1]
    with pytest.raises(RecipeError, match="no split 'train'; the splits are test"):
        _gsm8k(tmp_path / "saved")


def test_a_derived_uid_is_stable_and_leaves_repetitions_out(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps([*QUESTIONS, QUESTIONS[0]]))
    second.write_text(json.dumps(QUESTIONS[::-1]))
    uids = [[row["uid"] for row in read_dataset(str(path), GSM8K, split="train")] for path in (first, second)]
    assert len(uids[0]) == 2 and uids[0] == uids[1][::-1]


def test_a_missing_column_is_named_with_its_flag_and_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(QUESTIONS))
    with pytest.raises(RecipeError) as error:
        read_dataset(str(path), Columns(prompt="problem", task="gsm8k"), split="train")
    assert str(error.value) == (
        f"{path}:1: no column 'problem' (data.input_key); the columns are 'question', 'answer', 'task' "
        "(and so in 1 more row: 2)"
    )


def test_tasks_of_the_user_are_known_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for task, own, known in (("chess", ("chess",), True), ("a.b:c", ("a.b:c",), True), ("chess", (), False)):
        path.write_text(json.dumps(PLAIN | {"task": task}) + "\n")
        if known:
            assert read_dataset(str(path), Columns(own_tasks=own), split="train")[0]["task"] == task
        else:
            with pytest.raises(RecipeError, match="unknown task 'chess'; known: .*oger.verifiers"):
                read_dataset(str(path), Columns(own_tasks=own), split="train")


def test_a_hub_dataset_that_cannot_be_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(name: str, config: str | None, split: str) -> None:
        assert (name, config, split) == ("openai/gsm8k", "main", "test")
        raise ConnectionError("no route to the Hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(RecipeError) as error:
        read_dataset("main@openai/gsm8k", GSM8K, split="test")
    assert "no route to the Hub at all. Without the Hub, give a .jsonl or .parquet file" in str(error.value)


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    for name, text in (("rows.jsonl", json.dumps(ROW) + "\n"), ("rows.json", json.dumps([ROW]))):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
        [row] = read_dataset(str(tmp_path / name), Columns(), split="train")
        assert row["prompt"] == ROW["prompt"]


@pytest.mark.parametrize(
    ("value", "teachers"),
    [
        ("It is 4.", [("solved", "It is 4.")]),
        (["It is 4.", None, "", "Four."], [("solved_0", "It is 4."), ("solved_3", "Four.")]),
        ([{"source": "r1", "text": "It is 4."}, "Four."], [("r1", "It is 4."), ("solved_1", "Four.")]),
        ("", []),
        (None, []),
        ([], []),
    ],
)
def test_teachers_are_a_text_a_list_of_texts_or_of_sources_with_texts(
    tmp_path: Path, value: Any, teachers: list[tuple[str, str]]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"q": "2 + 2?", "a": "4", "solved": value}) + "\n")
    columns = Columns(prompt="q", answer="a", teachers="solved", task="gsm8k")
    [row] = read_dataset(str(path), columns, split="train")
    assert [(teacher["source"], teacher["text"]) for teacher in row["teachers"] or []] == teachers
    with pytest.raises(RecipeError) as error:
        read_dataset(str(path), Columns(prompt="q", answer="a", teachers="solutions", task="gsm8k"), split="train")
    assert str(error.value) == (
        f"{path}:1: no column 'solutions' (oger.teacher_key); the columns are 'q', 'a', 'solved'"
    )


def test_plain_texts_are_teachers_of_the_recipes_own_rows_too(read: Callable[..., Any]) -> None:
    [row] = read(PLAIN | {"teachers": ["one", "two"]})
    assert [(each["source"], each["text"]) for each in row["teachers"]] == [
        ("teachers_0", "one"),
        ("teachers_1", "two"),
    ]


def test_all_that_is_wrong_is_said_at_once_up_to_ten_rows(refused: Callable[..., str], tmp_path: Path) -> None:
    good, bad = (
        (PLAIN | {"uid": f"u{number}"} for number in (100, 101, 102)),
        [PLAIN | {"answer": n} for n in ["", None] * 6],
    )
    lines = refused(next(good), *bad, next(good)).splitlines()
    said = f"{tmp_path}/rows.jsonl:2: 'answer' must be a non-empty string, found ''"
    assert lines == ["12 rows are wrong:", f"  - {said} (and so in 11 more rows: 3, 4, 5, 6, 7, ...)"]
    lines = refused(next(good), *bad[:10]).splitlines()
    assert lines[0] == "10 rows are wrong:" and len(lines) == 11
    for number, line in enumerate(lines[1:], start=2):
        found = "None" if number % 2 else "''"
        assert line == f"  - {tmp_path}/rows.jsonl:{number}: 'answer' must be a non-empty string, found {found}"
    assert refused(PLAIN | {"uid": "u"}, *bad[:2]).count("\n") == 2
    same = "rows.jsonl:1: 'answer' must be a non-empty string, found ''"
    assert refused(bad[0]) == same
    assert refused(*bad[:5:2]) == f"{same} (and so in 2 more rows: 2, 3)"
