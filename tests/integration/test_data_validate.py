"""``oger data validate`` finds every bad row of a file, by its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli import data
from oger_recipe.data.rows import without_repetitions
from oger_recipe.data.sources import Columns, read_dataset

TEACHER = {"source": "r1", "text": "so 2", "correct": None}


def _row(uid: str, **fields: Any) -> dict[str, Any]:
    row = {
        "uid": uid,
        "prompt": f"{uid}?",
        "answer": "2",
        "task": "gsm8k",
        "datasource": "mine",
        "teachers": [TEACHER],
    }
    return row | fields


def _luffy(index: int | None, **fields: Any) -> dict[str, Any]:
    return {
        "data_source": "",
        "prompt": [{"role": "user", "content": f"{index}+1?"}],
        "target": [{"role": "assistant", "content": "<think>\n</think>\n\\boxed{2}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "default", "index": index},
    } | fields


def _write(path: Path, *lines: Any) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(text + "\n" for text in texts))
    return path


def _validate(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> tuple[int, dict[int, str], list[str]]:
    """Exit code; the reasons by row; the summary."""
    code = 0
    try:
        data.main(["validate", str(path), *flags])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    printed = capsys.readouterr().out.splitlines()
    bad = next(number for number, line in enumerate(printed) if line.startswith(f"{path}: "))
    lines, summary = printed[:bad], printed[bad:]
    reasons = {}
    for line in lines:
        number, _, reason = line.removeprefix(f"{path}:").partition(": ")
        reasons[int(number)] = reason
    assert len(reasons) == len(lines)
    return code, reasons, [summary[0].removeprefix(f"{path}: "), *summary[1:]]


def test_a_file_without_defects_has_a_summary_and_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"source": "human", "text": "2", "correct": True}
    rows = [_row("a", teachers=[TEACHER, other]), _row("b", prompt="a?"), _row("c", teachers=None)]
    for path in (tmp_path / "rows.jsonl", tmp_path / "rows.parquet"):
        _write(path, *rows)
        if path.suffix == ".parquet":
            pa.parquet.write_table(pa.Table.from_pylist(rows), path)
        assert _validate(capsys, path) == (0, {}, [
            "3 rows, 0 bad",
            "usable: 3 (gsm8k 3), 2 different problems, 1 without teachers, 0 repeated "
            "rows, which training leaves out",
            "teachers: 3 (human 1, r1 2), not verified here",
        ])  # fmt: skip


def test_every_planted_defect_is_found_at_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = {"prompt": "1+1?", "answer": "2", "task": "gsm8k"}
    path = _write(
        tmp_path / "rows.jsonl",
        _row("a"),
        "",
        _row("b", answer=None, teachers=[]),  # 3
        '{"uid": "broken",',  # 4
        _row("a", prompt="another?"),  # 5: the uid of line 1
        bare,
        _row("c", task="chess"),  # 7
        _row("d", teachers=[TEACHER, {"source": "r1"}]),  # 8
        _row("e", answer="two"),  # 9: no number
        bare,  # 10: repeats line 6
        _row("b"),  # 11: the uid of line 3, which is bad
        ["a list"],  # 12
        _row("f", teachers=[TEACHER | {"probs": [0.5, 0.0]}]),  # 13
        _row("g", prompt=[{"role": "user"}]),  # 14
        _row("h"),
    )
    code, reasons, summary = _validate(capsys, path)
    assert code == 1
    assert list(reasons) == [3, 4, 5, 11, 7, 8, 9, 12, 13, 14]  # those of a kind together
    assert reasons[3] == "'answer' must be a non-empty string, found None"
    assert reasons[4].startswith("not valid JSON: ")
    assert reasons[5] == "uid 'a' is already used by line 1"
    assert reasons[7].startswith("unknown task 'chess'; known: ")
    assert reasons[8] == "teacher 1: 'text' must be a non-empty string, found None"
    assert reasons[9] == "a GSM8K answer must have a number: 'two'"
    assert reasons[11] == "uid 'b' is already used by line 3"
    assert reasons[12] == "a row is a JSON object, found list"
    assert reasons[13] == "teacher 0: 'probs' must be a list of numbers above 0 and at most 1, or null"
    assert reasons[14].startswith("'prompt' must be a string or a list of chat messages")
    assert summary == [
        "14 rows, 10 bad",
        "usable: 3 (gsm8k 3), 3 different problems, 1 without teachers, 1 repeated rows, which training leaves out",
        "teachers: 2 (r1 2), not verified here",
    ]


def test_luffys_files_are_checked_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        _luffy(0),
        _luffy(1, ability="logic"),
        _luffy(2, target=None),
        _luffy(3, reward_model={"style": "rule", "ground_truth": " "}),
        _luffy(4, prompt=None, target=None),
    ]
    path = tmp_path / "luffy.parquet"
    pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    code, reasons, summary = _validate(capsys, path)
    assert (code, list(reasons)) == (1, [2, 4, 5])
    assert reasons[2].startswith("no verifier is known for data_source '' and ability 'logic'")
    assert reasons[4] == "a math answer must not be empty: ' '"
    assert reasons[5].startswith("'prompt' must be a string or a list of chat messages")
    assert summary[0] == "5 rows, 3 bad"
    assert summary[1].startswith("usable: 2 (math 2), 2 different problems, 1 without teachers")
    assert _validate(capsys, path, "--task_name", "math")[1].keys() == {4, 5}


def test_the_users_verifiers_are_known_and_read_the_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "verifier_of_rows.py").write_text("""
from oger_recipe.grading.verifiers import UnreadableAnswer
def grade(response, answer):
    if answer != "2":
        raise UnreadableAnswer(f"odd: {answer}")
    return float(response)
""")
    monkeypatch.syspath_prepend(tmp_path)
    path = _write(tmp_path / "rows.jsonl", _row("a"), _row("b", task="mine"), _row("c", task="mine", answer="3"))
    assert _validate(capsys, path)[1][2].startswith("unknown task 'mine'")
    code, reasons, summary = _validate(capsys, path, "--verifiers", "mine=verifier_of_rows:grade")
    assert (code, reasons) == (1, {3: "odd: 3"})
    # What the verifier says of an empty response is no word on the answer.
    assert summary[-1] == (
        "the reference answers of mine were not checked: its verifier fails on an empty response "
        "(ValueError: could not convert string to float: '')"
    )


def test_what_cannot_be_read_at_all_is_one_sentence(tmp_path: Path) -> None:
    for name, content, message in (
        ("none.jsonl", None, "no such dataset file"),
        ("empty.jsonl", "", "the dataset has no rows"),
        ("rows.parquet", "no parquet", "not a readable parquet file"),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(SystemExit) as stop:
            data.main(["validate", str(tmp_path / name)])
        assert str(stop.value).startswith(f"oger data: {tmp_path / name}: {message}")


def test_what_prepare_writes_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = {"name": "own", "path": str(_write(tmp_path / "rows.jsonl", _row("a"), _row("b")))}
    (tmp_path / "mix.yaml").write_text(json.dumps({"sources": [source]}))
    out = tmp_path / "out.parquet"
    data.main(["prepare", str(tmp_path / "mix.yaml"), "--out", str(out)])
    capsys.readouterr()
    assert _validate(capsys, out)[0] == 0


def test_what_is_wrong_with_many_rows_is_said_once() -> None:
    many = [f"f:{number}: no column 'x'" for number in range(1, 12)]
    few = [f"f:{number}: 'prompt' is missing" for number in range(20, 30)]
    said = "f:1: no column 'x' (and so in 10 more rows: 2, 3, 4, 5, 6, ...)"
    assert list(without_repetitions([*few, *many])) == [*few, said]


LONG = "what is seen here is long " * 600
KINDS: dict[str, Any] = {
    "answers without a number": lambda n: {"answer": f"{LONG} {chr(97 + n % 26)} it's"},
    "an answer of another kind": lambda n: {"answer": [LONG, "x" * n], "task": "json"},
    "a task that there is not": lambda n: {"task": f"chess{'x' * n}"},
    "a uid that is used": lambda n: {"uid": f"u{n // 2}"},
    "a prompt that is none": lambda n: {"prompt": {"turns": [LONG] * n}},
    "teachers without a text": lambda n: {"teachers": [TEACHER] * (n % 5) + [{"source": LONG, "text": ""}]},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_mistake_of_many_rows_is_one_line_of_bounded_length(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [_row(f"u{n}", teachers=None) | KINDS[name](n) for n in range(60)]
    path = _write(tmp_path / "rows.jsonl", *rows)
    code, reasons, summary = _validate(capsys, path)
    assert code == 1 and len(reasons) == 1
    (number, reason), bad = next(iter(reasons.items())), 30 if "uid" in name else 60
    assert number == (2 if "uid" in name else 1) and summary[0] == f"60 rows, {bad} bad"
    assert f" (and so in {bad - 1} more rows: " in reason and reason.endswith(", ...)") and len(reason) < 800
    if "answer" in name:
        return  # a run finds it when it verifies teachers
    with pytest.raises(RecipeError) as refused:  # as a run reads them
        read_dataset(str(path), Columns(), split="train")
    assert f"(and so in {bad - 1} more rows: " in str(refused.value) and len(str(refused.value)) < 1000


def test_mistakes_of_many_kinds_are_bounded_and_different_ones_stay_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [_row(f"u{n}", **{("answer", "prompt")[n % 2]: None}, teachers=None) for n in range(30)]
    reasons = _validate(capsys, _write(tmp_path / "rows.jsonl", *rows))[1]
    assert [*reasons] == [1, 2] and "'answer' must be" in reasons[1] and "'prompt' must be" in reasons[2]
    assert "(and so in 14 more rows: 3, 5, 7, 9, 11, ...)" in reasons[1]
    own = [f"f:{n}: odd {chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(100)]
    lines = list(without_repetitions(own))
    assert lines[:20] == own[:20] and lines[20:] == ["and mistakes of 80 more kinds"]
