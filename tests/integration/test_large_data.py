"""A training set larger than memory: what is held grows by what is noted of a row, not by its texts."""

from __future__ import annotations

import argparse
import json
import random
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import read_jsonl
from oger_recipe.data import sources, train_files
from oger_recipe.data.disk_list import DiskList
from oger_recipe.data.train_files_cache import content_key
from oger_recipe.grading.pool import GradingPool
from oger_recipe.run.inputs import budget_of, grading_settings, preparation, write_data
from oger_recipe.run.rows import training_rows
from oger_recipe.run.sft import _write_examples
from oger_recipe.teachers.store import Teacher, write_teacher_store

TEXT = 4000  # characters of a teacher
ROW = 3 * TEXT
BATCH = 32  # rows


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a tokenizer of one token a word."""
    model = Tokenizer(WordLevel({"?": 0, "<end>": 1, "so": 2, "#": 3}, unk_token="?"))
    model.pre_tokenizer = Whitespace()
    folder = tmp_path_factory.mktemp("words")
    PreTrainedTokenizerFast(tokenizer_object=model, unk_token="?", eos_token="<end>").save_pretrained(folder)
    return folder


@pytest.fixture()
def settings(parser: argparse.ArgumentParser, words: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def of(path: Path, *flags: str) -> dict[str, Any]:
        flags = (*flags, "--data.prompt_dataset", str(path), "--oger.task_name", "gsm8k", "--rollout.batch_size", "2")
        places = ("--actor.model_name_or_path", str(words), "--oger.data_cache", str(tmp_path / "cache"))
        return vars(parser.parse_args([*flags, *places]))

    return of


def _row(number: int) -> dict[str, Any]:
    """Three teachers of a few long words; no two texts are equal."""
    text = " ".join(["x" * (TEXT // 8)] * 8)
    texts = [f"{place} {text} #### {number}" for place in range(3)]
    return {"prompt": f"Which number is {number}?", "answer": str(number), "teachers": texts}


def _luffy(number: int) -> dict[str, Any]:
    row = _row(number)
    return {
        "data_source": "openai/gsm8k", "ability": "math", "prompt": [{"role": "user", "content": row["prompt"]}],
        "reward_model": {"style": "rule", "ground_truth": row["answer"]}, "target_lst": row["teachers"],
        "target": None, "extra_info": {"split": "train", "index": number},
    }  # fmt: skip


def _jsonl(path: Path, rows: Iterator[dict[str, Any]]) -> Path:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def _parquet(path: Path, rows: Iterator[dict[str, Any]]) -> Path:
    pa.parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def _saved(path: Path, rows: Iterator[dict[str, Any]]) -> Path:
    import datasets

    datasets.Dataset.from_list(list(rows)).save_to_disk(path)
    return path


WAYS = {
    "rows.jsonl": (_jsonl, _row, ()),
    "rows.parquet": (_parquet, _row, ()),
    "saved": (_saved, _row, ()),
    "luffy.parquet": (_parquet, _luffy, ("--oger.prompt_template", "none")),
}


def _peak(work: Callable[[], Any]) -> int:
    """Bytes that Python held at most at once for it."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", WAYS)
def test_the_memory_of_preparation_does_not_grow_with_the_texts(
    settings: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Three times the rows may cost what is noted of each (uids, numbers), less than one more batch's texts."""
    write, row, flags = WAYS[name]
    monkeypatch.setattr(train_files, "_TOKENS", 0)  # verified after every batch
    for module in (sources, train_files):
        monkeypatch.setattr(module, "_BATCH", BATCH)
    peaks = {}
    for rows in (BATCH, 2 * BATCH, 6 * BATCH):  # the first also pays for what is imported and built once
        folder = tmp_path / str(rows)
        folder.mkdir()
        value = settings(write(folder / name, map(row, range(rows))), *flags)
        peaks[rows // BATCH] = _peak(lambda value=value, folder=folder: write_data(value, folder / "run"))
        counts = json.loads((folder / "run" / "data" / "counts.json").read_text())
        assert (counts["prompts"], counts["teachers"]) == (rows, 3 * rows)
    assert peaks[6] - peaks[2] < BATCH * ROW, peaks


def test_rows_on_disk_are_prepared_as_rows_in_memory_are(
    settings: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """File by file and byte by byte, with the same key in the cache: what was prepared before is found."""
    records = [_row(number) | {"uid": f"{number}-\u2028é", "seen": None} for number in range(5)]
    value = settings(_jsonl(tmp_path / "rows.jsonl", iter(records)))
    on_disk = training_rows(value)
    teachers = [
        [{"source": f"teachers_{place}", "text": text, "correct": None} for place, text in enumerate(each["teachers"])]
        for each in records
    ]
    in_memory = [each | {"teachers": own, "task": "gsm8k"} for each, own in zip(records, teachers, strict=True)]
    assert isinstance(on_disk, DiskList) and list(on_disk) == in_memory
    assert [list(row) for row in on_disk] == [list(row) for row in in_memory]  # the columns' order
    keys, files = [], []
    for name, rows in (("disk", on_disk), ("memory", in_memory)):
        with GradingPool(grading_settings(value, rows)) as pool:
            how = {**preparation(value), "pool": pool, "budget": budget_of(value, 512)}
            keys.append(content_key(rows, how))
            paths = {"prompts_path": tmp_path / name / "p.jsonl", "teachers_path": tmp_path / name / "t.arrow"}
            counts = train_files.write_train_files(rows, **paths, **how)
        files.append((counts, *(path.read_bytes() for path in paths.values())))
    assert files[0] == files[1] and files[0][0]["teachers"] == 15
    assert keys[0] == keys[1] is not None


def _supervised(folder: Path, rows: int) -> list[dict[str, Any]]:
    """The run's files, and the examples of them: two teachers a prompt of one token."""
    tokens = {f"p{number}": [[number] * TEXT, [number + 1] * TEXT] for number in range(rows)}
    prompts = [{"prompt": "so", "label": json.dumps({"uid": uid})} for uid in tokens]
    _jsonl(folder / "train.jsonl", iter(prompts))
    store = {uid: [Teacher(uid, "", each, 1.0, 1.0) for each in both] for uid, both in tokens.items()}
    write_teacher_store(store, folder / "teachers.arrow")
    return [{"prompt": [2], "response": each} for both in tokens.values() for each in both]


def test_supervised_examples_keep_their_seeded_order_and_their_number(
    settings: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    expected = _supervised(tmp_path, 20)
    random.Random(7).shuffle(expected)
    for limit, flags in ((40, ()), (11, ("--oger.sft.max_samples", "11"))):
        value = settings(tmp_path, "--train.seed", "7", *flags)
        assert _write_examples(value, tmp_path, tmp_path / "out.jsonl") == limit
        assert read_jsonl(tmp_path / "out.jsonl") == expected[:limit]


def test_the_memory_of_supervised_examples_does_not_grow_with_their_tokens(
    settings: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """A token of a list takes 8 bytes, where it is the same number; of ten prompts' teachers no more is held."""
    peaks = {}
    for rows in (1, 10, 50):
        _supervised(tmp_path, rows)
        peaks[rows] = _peak(lambda: _write_examples(settings(tmp_path), tmp_path, tmp_path / "out.jsonl"))
    assert peaks[50] - peaks[10] < 10 * 2 * TEXT * 8, peaks


# ---- the list


def test_a_list_on_disk_is_the_list_that_went_into_it() -> None:
    items = [{"a": [1, None, "é\ud800"]}, RecipeError("a.jsonl:2: no"), b"\x00" * 100_000, (3, {"b": 2.5}), ""]
    there: DiskList[Any] = DiskList(items)
    read = list(there)
    assert [*map(repr, read)] == [*map(repr, items)] and type(read[1]) is RecipeError
    assert len(there) == 5 and there[-1] == "" and there[3] == (3, {"b": 2.5})
    for part in (slice(1, 3), slice(None), slice(None, None, -2), slice(9, None), slice(-2, None)):
        assert [*map(repr, there[part])] == [*map(repr, items[part])]
    there[3][1]["b"] = 0.0  # a copy
    part = there[2:]
    there.append("more")
    assert there[3] == (3, {"b": 2.5}) and there[5] == "more" and len(part) == 3 and part[-1] == ""
    with pytest.raises(IndexError):
        there[6]
    assert list(DiskList()) == []


def test_a_disk_without_room_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    there: DiskList[bytes] = DiskList([b"first"])
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(
            RecipeError,
            match="has no room for a dataset's rows while they are prepared .File too large.: set TMPDIR to a folder",
        ) as error:
            there.append(b"x" * 200_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert str(tmp_path) in str(error.value)
    there.append(b"second")
    assert list(there) == [b"first", b"second"]
