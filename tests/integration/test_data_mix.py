"""``oger data prepare``: several datasets become one row a problem, with the right teachers of all of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli import data
from oger_recipe.data.mix import read_mix
from oger_recipe.data.sources import Columns, read_dataset

GSM8K = Path(__file__).parents[2] / ".." / "shared" / "data" / "gsm8k"
MIX = Path(__file__).parents[2] / "docs" / "mixes" / "gsm8k.yaml"

# "people" has right solutions of three problems; "models" asks two of them, one in other spacing, and one of its own.
PEOPLE = [
    {"question": "1 + 1?", "solution": "That is #### 2"},
    {"question": "2 + 2?", "solution": "That is #### 4"},
    {"question": "3 + 3?", "solution": "That is #### 6"},
]
MODELS = [
    {
        "id": "m1",
        "problem": " 1 +  1?\n",
        "label": 2,
        "tries": ["it is 2", "it is 3", "That is #### 2"],
        "ok": [1, 1, 1],
    },
    {"id": "m2", "problem": "2 + 2?", "label": 5.0, "tries": ["it is 5", None, "well: 4"], "ok": [1, 0, 0]},
    {"id": "m4", "problem": "4 + 4?", "label": 8, "tries": [], "ok": []},
]
PEOPLES = {"prompt": "question", "answer": "solution", "teacher": "solution"}
MODELS_COLUMNS = {"prompt": "problem", "answer": "label", "teacher": "tries", "correct": "ok", "uid": "id"}


@pytest.fixture()
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, records in (("people", PEOPLE), ("models", MODELS)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def _sources(**more: Any) -> list[dict[str, Any]]:
    people = {"name": "people", "path": "people.jsonl", "task": "gsm8k", "columns": PEOPLES, "answer_from": "hashes"}
    return [people, {"name": "models", "path": "models.jsonl", "task": "gsm8k", "columns": MODELS_COLUMNS} | more]


Prepared = tuple[list[dict[str, Any]], dict[str, dict[str, str]]]


def test_a_mix_may_hold_anchors_in_keys_of_their_own(folder: Path) -> None:
    text = "x-task: &task gsm8k\n_columns: &columns {prompt: question, answer: solution}\nsources:\n  - {name: a, "
    text += "path: people.jsonl, task: *task, columns: *columns, answer_from: hashes}\n"
    (folder / "mix.yaml").write_text(text)
    (source,) = read_mix(folder / "mix.yaml").sources
    assert (source.task, source.columns) == ("gsm8k", {"prompt": "question", "answer": "solution"})
    (folder / "mix.yaml").write_text(text.replace("x-task", "kind"))
    with pytest.raises(RecipeError, match="a top-level key that only holds anchors begins with x- or _"):
        read_mix(folder / "mix.yaml")


@pytest.fixture()
def prepare(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Prepared]:
    """Runs the command on a mix; the rows it wrote, read back as a run would, and its table."""

    def run(mix: dict[str, Any], *flags: str, out: str = "out.parquet", read: str | None = None) -> Prepared:
        (folder / "mix.yaml").write_text(yaml.safe_dump(mix))
        data.main(["prepare", "mix.yaml", "--out", out, *flags])
        table = _table(capsys.readouterr().out, out)
        return list(read_dataset(read or out, Columns(), split="train")), table

    return run


def _table(output: str, file: str) -> dict[str, dict[str, str]]:
    """The table below the line of a file: cells by source and column."""
    block = (
        next(part for part in output.split("\n\n\n") if part.startswith(f"{file}: ")) if "\n\n\n" in output else output
    )
    lines = [line.strip("| ").split("|") for line in block.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


@pytest.fixture()
def refused(prepare: Callable[..., Any]) -> Callable[..., str]:
    def message(mix: dict[str, Any], *flags: str, **settings: Any) -> str:
        with pytest.raises(SystemExit) as error:
            prepare(mix, *flags, **settings)
        return str(error.value)

    return message


def _teachers(rows: list[dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    return {row["prompt"]: [(teacher["source"], teacher["text"]) for teacher in row["teachers"]] for row in rows}


@pytest.mark.parametrize("out", ["out.parquet", "out.jsonl", "new/folder/out.jsonl"])
def test_rows_that_ask_the_same_become_one_with_the_right_teachers_of_all(
    prepare: Callable[..., Prepared], out: str
) -> None:
    rows, table = prepare({"sources": _sources()}, out=out)
    assert _teachers(rows) == {
        "1 + 1?": [("people", "That is #### 2"), ("models", "it is 2")],
        "2 + 2?": [("people", "That is #### 4"), ("models", "well: 4")],
        "3 + 3?": [("people", "That is #### 6")],
        "4 + 4?": [],
    }
    assert [(row["uid"], row["answer"]) for row in rows if row["prompt"] != "3 + 3?"] == [
        ("m1", "2"), ("m2", "4"), ("m4", "8"),
    ]  # fmt: skip
    assert {row["task"] for row in rows} == {row["datasource"] for row in rows} == {"gsm8k"}
    assert all(teacher["correct"] is True for row in rows for teacher in row["teachers"])
    # models: 5 trajectories, of which "it is 3" and "it is 5" are wrong, and one is people's; "it is 3" and "it is 5"
    # were marked right and "well: 4" wrong; the second label is 5 where people say 4.
    assert table["people"] == {
        "source": "people", "rows": "3", "other answer": "0", "problems": "3", "kept": "3", "wrong": "0",
        "duplicates": "0", "too long": "0", "accuracy": "100.0 %", "said otherwise": "0",
    }  # fmt: skip
    assert table["models"] == {
        "source": "models", "rows": "3", "other answer": "1", "problems": "3", "kept": "2", "wrong": "2",
        "duplicates": "1", "too long": "0", "accuracy": "60.0 %", "said otherwise": "3",
    }  # fmt: skip
    assert (table["all"]["rows"], table["all"]["problems"], table["all"]["kept"]) == ("6", "4", "5")


def test_wrong_trajectories_are_kept_where_they_are_asked_for(prepare: Callable[..., Prepared]) -> None:
    rows, table = prepare({"sources": _sources(), "keep_wrong_teachers": True})
    teachers = [(teacher["text"], teacher["correct"]) for teacher in rows[0]["teachers"]]
    assert teachers == [("That is #### 2", True), ("it is 2", True), ("it is 3", False)]
    assert (table["models"]["kept"], table["models"]["wrong"]) == ("4", "2")


def test_what_is_held_out_is_in_no_row_however_it_is_spaced(prepare: Callable[..., Prepared]) -> None:
    mix = {"sources": _sources(held_out=True)}
    rows, table = prepare(mix)
    assert list(_teachers(rows)) == ["3 + 3?"]
    assert table["people"] | {"rows": "3", "held out": "2", "problems": "1", "kept": "1"} == table["people"]
    held_out = prepare(mix, "--held_out", "rest.jsonl", "--force", read="rest.jsonl")[0]
    # Among themselves the answer is the models' own: 5.
    assert _teachers(held_out) == {
        " 1 +  1?\n": [("models", "it is 2"), ("models", "That is #### 2")],
        "2 + 2?": [("models", "it is 5")],
        "4 + 4?": [],
    }


def test_trajectories_and_problems_beyond_their_tokens_are_left_out(
    prepare: Callable[..., Prepared], letters: Any, folder: Path
) -> None:
    """One token a character: people's solutions have 14 and the end of sequence, the model's right ones 7."""
    letters.save_pretrained(folder / "tokenizer")
    limits = {"tokenizer": "tokenizer", "max_prefix_len": 14, "max_prompt_length": 6}
    rows, table = prepare({"sources": _sources()} | limits)
    assert _teachers(rows)["1 + 1?"] == [("models", "it is 2")]
    assert (table["people"]["too long"], table["people"]["kept"], table["people"]["accuracy"]) == ("3", "0", "100.0 %")
    assert (table["people"]["tokens"], table["models"]["tokens"]) == ("", "8")
    _, table = prepare({"sources": _sources()} | limits | {"max_prefix_len": 15}, "--force")
    assert (table["people"]["too long"], table["people"]["tokens"], table["all"]["tokens"]) == ("0", "15", "12")
    message = "no problem is left: all are held out or longer than max_prompt_length"
    with pytest.raises(SystemExit, match=message):
        prepare({"sources": _sources()} | limits | {"max_prompt_length": 5}, "--force")


def test_a_problem_that_is_too_long_takes_its_teachers_with_it(
    prepare: Callable[..., Prepared], letters: Any, folder: Path
) -> None:
    letters.save_pretrained(folder / "tokenizer")
    (folder / "people.jsonl").write_text(json.dumps({"question": "10 + 1?", "solution": "#### 11"}) + "\n")
    rows, table = prepare({"sources": _sources(), "tokenizer": "tokenizer", "max_prompt_length": 6})
    assert "10 + 1?" not in _teachers(rows) and len(rows) == 3
    assert table["people"] | {"problem too long": "1", "problems": "0", "kept": "0"} == table["people"]


def test_rows_of_ours_and_of_luffy_are_sources_without_columns(prepare: Callable[..., Prepared], folder: Path) -> None:
    """Where one prompt is a chat, all are; a teacher's name says from which source it came."""
    teacher = {"source": "r1", "text": "so 6", "correct": None}
    own = {
        "uid": "own",
        "prompt": "3 + 3?",
        "answer": "6",
        "task": "gsm8k",
        "datasource": "mine",
        "teachers": [teacher],
    }
    chat = [{"role": "system", "content": "Think."}, {"role": "user", "content": "4 + 4?"}]
    luffy = {
        "data_source": "openai/gsm8k", "prompt": chat, "target": [{"role": "assistant", "content": "so 8"}],
        "ability": "math", "reward_model": {"style": "rule", "ground_truth": "8"},
        "extra_info": {"split": "default", "index": 0}, "target_ds_qwen_7b_probs": [0.5] * 5,
    }  # fmt: skip
    pa.parquet.write_table(pa.Table.from_pylist([own]), folder / "own.parquet")
    pa.parquet.write_table(pa.Table.from_pylist([luffy]), folder / "luffy.parquet")
    files = [{"name": name, "path": f"{name}.parquet"} for name in ("own", "luffy")]
    rows, table = prepare({"sources": [*_sources()[:1], *files]})
    assert [row["prompt"] for row in rows] == [
        *([{"role": "user", "content": f"{number} + {number}?"}] for number in (1, 2, 3)), chat,
    ]  # fmt: skip
    assert [teacher["source"] for row in rows[2:] for teacher in row["teachers"]] == [
        "people",
        "own/r1",
        "luffy/target",
    ]
    assert (rows[2]["uid"], rows[3]["datasource"], table["luffy"]["kept"]) == ("own", "openai/gsm8k", "1")
    assert rows[3]["teachers"][0]["probs"] == [0.5] * 5 and rows[2]["teachers"][0]["probs"] is None


@pytest.mark.parametrize(
    ("record", "answer_from", "answer"),
    [
        ({"a": "x #### 3 #### 4"}, "hashes", "4"),
        ({"a": "so \\boxed{1} and \\boxed{\\frac{1}{2}}."}, "boxed", "\\frac{1}{2}"),
        ({"a": "1 and then\nA: 1,234.0"}, "last_number", "1234"),
        ({"a": {"label": 7.0}}, None, "7"),
        ({"a.label": "8", "a": {"label": "7"}}, None, "8"),
    ],
)
def test_the_answer_is_found_inside_its_column(
    prepare: Callable[..., Prepared], folder: Path, record: dict[str, Any], answer_from: str | None, answer: str
) -> None:
    (folder / "a.jsonl").write_text(json.dumps(record | {"q": "?"}) + "\n")
    column = "a.label" if answer_from is None else "a"
    source = {"name": "a", "path": "a.jsonl", "task": "math", "columns": {"prompt": "q", "answer": column}}
    rows, _ = prepare({"sources": [source | ({"answer_from": answer_from} if answer_from else {})]})
    assert [(row["answer"], row["task"], row["teachers"]) for row in rows] == [(answer, "math", [])]


# ---- refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": PEOPLES | {"techer": "x"}}, "(models): columns: unknown key 'techer'; did you mean 'teacher'?"),
        ({"columns": {"prompt": "problem"}}, "(models): 'columns' names no answer column"),
        ({"task": None}, "(models): 'task' is missing"),
        ({"columns": None, "answer_from": "boxed"}, "(models): 'answer_from' needs 'columns'"),
        ({"answer_from": "box"}, "(models): answer_from must be one of hashes, boxed, last_number, found 'box'"),
        ({"colums": {}}, ": unknown key 'colums'; did you mean 'columns'?"),
        ({"path": None}, ": 'path' must be a text, found None"),
        ({"held_out": "yes"}, ": 'held_out' must be true or false, found 'yes'"),
    ],
)
def test_a_mistake_in_the_mix_is_named_with_its_source(
    refused: Callable[..., str], change: dict[str, Any], message: str
) -> None:
    assert refused({"sources": _sources(**change)}).startswith(
        f"oger data: mix.yaml: source 2{'' if message[0] == ':' else ' '}{message}"
    )


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({}, "mix.yaml: 'sources' must be a list, found None"),
        ({"sources": []}, "mix.yaml: 'sources' must be a list, found []"),
        ({"sources": ["people.jsonl"]}, "mix.yaml: source 1: expected a mapping, found str"),
        ({"sources": [_sources(held_out=True)[1]]}, "mix.yaml: 'sources' lists only held-out sources"),
        ({"sources": _sources(), "max_prefix_len": 5}, "mix.yaml: max_prefix_len and max_prompt_length count tokens"),
        ({"sources": _sources(), "max_prefix_len": 0}, "mix.yaml: 'max_prefix_len' must be a number of 1 or more"),
        ({"sources": _sources(), "tokenizer": "/none/here"}, "tokenizer: cannot load one from /none/here"),
    ],
)
def test_a_mix_that_cannot_work_is_refused(refused: Callable[..., str], mix: dict[str, Any], message: str) -> None:
    assert refused(mix).startswith(f"oger data: {message}")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"problem": "?"}, "no column 'label'; the columns are 'problem'"),
        ({"label": None}, "1 teachers for no problem: 'answer' is missing"),
        ({"label": None, "tries": [], "ok": []}, "'answer' must be a non-empty string, found None"),
        ({"tries": ["x"], "ok": [1, 0]}, "1 trajectories, but 2 marks of correctness"),
        ({"tries": [["x"]], "ok": [1]}, "teacher 0: 'text' must be a non-empty string, found ['x']"),
        ({"id": "m1"}, "uid 'm1' belongs to another problem, models.jsonl:1"),
        ({"label": "none"}, "a GSM8K answer must have a number: 'none'"),
        ({"label": "none", "tries": [], "ok": []}, "a GSM8K answer must have a number: 'none'"),
    ],
)
def test_a_defect_in_a_dataset_is_named_with_its_row(
    refused: Callable[..., str], folder: Path, record: dict[str, Any], message: str
) -> None:
    complete = {"id": "m9", "problem": "9?", "label": 9, "tries": ["9"], "ok": [1]}
    bad = record if "problem" in record else complete | record
    with (folder / "models.jsonl").open("a") as file:
        file.write(json.dumps(bad) + "\n")
    assert refused({"sources": _sources()}).startswith(f"oger data: models.jsonl:4: {message}")
    assert not (folder / "out.parquet").exists()


def test_files_are_replaced_only_by_force_and_never_the_sources(
    refused: Callable[..., str], prepare: Callable[..., Prepared], folder: Path
) -> None:
    mix = {"sources": _sources()}
    (folder / "out.parquet").write_text("precious")
    assert refused(mix) == "oger data: out.parquet exists; choose another file, or replace it with --force"
    assert (folder / "out.parquet").read_text() == "precious"
    assert len(prepare(mix, "--force")[0]) == 4
    assert refused(mix, "--force", out="people.jsonl").startswith("oger data: people.jsonl is one of the sources")
    assert refused(mix, out="out.csv") == "oger data: out.csv: a file of rows ends in .jsonl or .parquet"
    assert refused(mix, "--held_out", "rest.jsonl", "--force").startswith(
        "oger data: --held_out: mix.yaml holds no source out"
    )
    held_out = {"sources": _sources(held_out=True)}
    assert "are the same file" in refused(held_out, "--held_out", "out.parquet", "--force")


def test_a_run_that_is_stopped_leaves_the_old_file_and_nothing_beside_it(
    prepare: Callable[..., Prepared], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare({"sources": _sources()})
    before = (folder / "out.parquet").read_bytes(), sorted(folder.iterdir())

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pa.parquet.ParquetWriter, "write_table", interrupted)
    with pytest.raises(SystemExit, match="oger data: interrupted"):
        prepare({"sources": _sources()}, "--force")
    assert ((folder / "out.parquet").read_bytes(), sorted(folder.iterdir())) == before


# ---- GSM8K


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GSM8K / name).read_text().splitlines()]


def test_gsm8k_by_its_mix_file_is_what_a_count_over_the_raw_files_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The models' marks of correctness come with the data; they, not our verifier, say what is to be expected."""
    if not GSM8K.exists():
        pytest.skip("GSM8K is not beside the checkout")
    monkeypatch.chdir(GSM8K)
    train, test = tmp_path / "train.parquet", tmp_path / "test.parquet"
    data.main(["prepare", str(MIX.resolve()), "--out", str(train), "--held_out", str(test)])
    tables = capsys.readouterr().out.split(f"{test}: ")
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    expected: dict[str, set[tuple[str, str]]] = defaultdict(set)
    marked = dict.fromkeys(models, 0)
    for record in _lines("example_model_solutions.jsonl"):
        taken: set[str] = set()
        for model in models:
            solution = record[model]["solution"].strip()
            marked[model] += record[model]["is_correct"]
            if record[model]["is_correct"] and solution not in taken:
                expected[model].add((record["question"], solution))
            taken.add(solution)
    for name in ("test.jsonl", "test_socratic.jsonl"):
        source = "human" if name == "test.jsonl" else "socratic"
        expected[source] = {(record["question"], record["answer"].strip()) for record in _lines(name)}
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    rows = read_dataset(str(test), Columns(), split="train")
    for row in rows:
        for teacher in row["teachers"]:
            found[teacher["source"]].add((row["prompt"], teacher["text"].strip()))
    assert found == expected
    assert len(rows) == 1319 and {len(row["teachers"]) for row in rows} == {2, 3, 4, 5, 6}
    table = _table(f"{test}: {tables[1]}", str(test))
    assert {model: table[model]["accuracy"] for model in models} == {
        model: f"{100 * marked[model] / 1319:.1f} %" for model in models
    }
    assert "said otherwise" not in table["human"] and "other answer" not in table["human"]
    humans = read_dataset(str(train), Columns(), split="train")
    assert {(row["prompt"], row["teachers"][0]["text"]) for row in humans} == {
        (record["question"], record["answer"]) for record in _lines("train.jsonl")
    }, "every human solution is right"
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in humans}
