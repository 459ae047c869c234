"""What is prepared once is not prepared again, and nothing that was prepared in another way is ever taken for it."""

from __future__ import annotations

import copy
import dataclasses
import fcntl
import inspect
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.data import train_files_cache
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.data.train_files import Budget, PromptFormat, TeacherChoice, write_train_files
from oger_recipe.data.train_files_cache import content_key, write_train_files_once
from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.rules import GradingRules

ANSWER = '{"numbers":[3,5,12],"target":96}'
RIGHT, WRONG = "<answer>(3+5)*12</answer>", "<answer>3*5+12</answer>"


def _row(uid: str, *texts: str, **fields: Any) -> dict[str, Any]:
    teachers = [{"source": f"s{place}", "text": text, "correct": None} for place, text in enumerate(texts)]
    return {"uid": uid, "prompt": "Make 96.", "answer": ANSWER, "task": "countdown", "teachers": teachers} | fields


ROWS = [_row("a", RIGHT, WRONG), _row("b", RIGHT * 2), _row("c"), _row("d", prompt="x" * 200)]


@pytest.fixture()
def how(letters: Any) -> dict[str, Any]:
    """Every argument of `write_train_files` but rows and files."""
    return {
        "tokenizer": letters,
        "prompt_format": PromptFormat(apply_chat_template=False, input_template=None),
        "budget": Budget(100, 30),
        "rules": GradingRules(),
        "pool": GradingPool(GradingSettings()),
        "choice": TeacherChoice(),
        "overlong_prompts": "drop",
    }


@pytest.fixture()
def once(tmp_path: Path, how: dict[str, Any]) -> Callable[..., tuple[Counter[str], bytes, bytes]]:
    """Counts and files of `write_train_files_once`, each time in another run's folder."""
    runs = iter(range(100))

    def run(rows: list[dict[str, Any]] = ROWS, **other: Any) -> tuple[Counter[str], bytes, bytes]:
        folder = tmp_path / f"run{next(runs)}"
        folder.mkdir()
        files = {"prompts_path": folder / "train.jsonl", "teachers_path": folder / "teachers.arrow"}
        settings = {"cache": tmp_path / "cache", "cache_gb": 1.0} | how | other
        counts = write_train_files_once(rows, **files, **settings)
        return counts, files["prompts_path"].read_bytes(), files["teachers_path"].read_bytes()

    return run


def test_a_second_run_finds_what_the_first_made_and_both_are_what_prepare_makes(
    once: Callable[..., Any], how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"prompts_path": tmp_path / "train.jsonl", "teachers_path": tmp_path / "teachers.arrow"}
    counts = write_train_files(ROWS, **files, **how)
    plain = (counts, files["prompts_path"].read_bytes(), files["teachers_path"].read_bytes())
    assert counts["teachers"] == 2 and counts["teachers_wrong"] == 1 and counts["prompts_too_long"] == 1
    assert once() == plain
    monkeypatch.setattr(train_files_cache, "write_train_files", None)  # is not called
    assert once() == plain


def _other_rules() -> dict[str, Any]:
    return {
        "options": {"countdown": {"strict_oat": True}},
        "own": {"mine": "a.b:c"},
        "place": "boxed",
        "cut": ("###",),
        "strip": True,
    }


def _others(how: dict[str, Any], letters: Any) -> dict[str, list[Any]]:
    """For each argument of `write_train_files` other values, each of which makes other files of some rows."""
    eos, chat, more = (copy.deepcopy(letters) for _ in range(3))
    eos.eos_token, chat.chat_template = "<think>", "{{ messages[0]['content'] }}"
    more.add_tokens(["(3+5)"])
    return {
        "tokenizer": [eos, chat, more],
        "prompt_format": [
            PromptFormat(True, None), PromptFormat(False, "Q: {}"),
            *(PromptFormat(False, None, template) for template in TEMPLATES.values()),
            PromptFormat(False, None, shown_share=0.5), PromptFormat(False, None, shown_share=1.0),
            PromptFormat(False, None, shows_graders=True),
            PromptFormat(False, None, shown_template="{question} {teacher}", shown_share=1.0),
        ],
        "budget": [Budget(101, 30), Budget(100, 31), Budget(100, None), Budget(100, 30, 20)],
        "rules": [dataclasses.replace(how["rules"], **{n: v}) for n, v in _other_rules().items() if n != "own"],
        "pool": [GradingPool(GradingSettings(time_limit_s=1)), GradingPool(GradingSettings(memory_limit_mb=64))],
        "overlong_prompts": ["refuse"],
        "choice": [
            TeacherChoice(keep_wrong_teachers=True), TeacherChoice(max_prefix_len=10),
            TeacherChoice(long_teachers="truncate"), TeacherChoice(teacher_sources=("s0",)),
            TeacherChoice(only_shown=True),
        ],
    }  # fmt: skip


def test_whatever_prepare_is_given_is_part_of_the_key(how: dict[str, Any], letters: Any) -> None:
    parameters = set(inspect.signature(write_train_files).parameters) - {"rows", "prompts_path", "teachers_path"}
    others = _others(how, letters)
    assert set(others) == set(how) == parameters, "a new argument needs its place here"
    keys = [content_key(ROWS, how)]
    keys += [content_key(ROWS, how | {name: value}) for name, values in others.items() for value in values]
    assert None not in keys and len(set(keys)) == len(keys)
    names = {Budget: "budget", PromptFormat: "prompt_format", GradingRules: "rules", TeacherChoice: "choice"}
    for kind in (Budget, PromptFormat, GradingRules, TeacherChoice, GradingSettings):
        for field in dataclasses.fields(kind):  # those of later days included
            argument = names.get(kind)
            if field.name == "own":
                continue
            given = how[argument] if argument else how["pool"].settings
            changed = dataclasses.replace(given, **{field.name: "another value"})
            other = {argument: changed} if argument else {"pool": GradingPool(dataclasses.replace(given))}
            if not argument:
                other["pool"].settings = changed
            assert content_key(ROWS, how | other) != keys[0], field.name


def test_an_argument_of_an_unknown_kind_is_an_error_and_not_left_out(how: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="the content of a object is not known"):
        content_key(ROWS, how | {"budget": object()})


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:3],
        ROWS[::-1],
        [*ROWS[:3], _row("e", prompt="x" * 200)],
        [_row("a", WRONG, RIGHT), *ROWS[1:]],
        [_row("a", RIGHT, WRONG, answer='{"numbers":[3,5,12],"target":95}'), *ROWS[1:]],
        [_row("a", RIGHT, WRONG, datasource="other"), *ROWS[1:]],
        [_row("a", RIGHT, WRONG, times_asked=4), *ROWS[1:]],
    ],
)
def test_other_rows_have_another_key(how: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    assert content_key(rows, how) != content_key(ROWS, how) == content_key(json.loads(json.dumps(ROWS)), how)


def test_with_and_without_a_teacher_store_are_two_things(once: Callable[..., Any], how: Any, tmp_path: Path) -> None:
    once()
    prompts = tmp_path / "eval.jsonl"
    places = {"cache": tmp_path / "cache", "cache_gb": 1.0, "prompts_path": prompts, "teachers_path": None}
    assert write_train_files_once(ROWS, **places, **how) == {"prompts": 3, "prompts_too_long": 1}
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_other_code_and_other_packages_make_another_key(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    key = content_key(ROWS, how)
    for name in ("_code", "_packages"):
        real = getattr(train_files_cache, name)()
        assert len(real) > 50
        with monkeypatch.context() as changed:
            changed.setattr(train_files_cache, name, lambda real=real: real[:-1])
            assert content_key(ROWS, how) != key
    assert content_key(ROWS, how) == key


@pytest.mark.parametrize(
    ("rows", "rules"),
    [
        (ROWS, GradingRules(own={"mine": "own_rules:grade"})),
        ([*ROWS[:3], _row("e", task="own_rules:grade")], GradingRules()),
    ],
)
def test_what_the_users_own_code_decides_is_not_kept(
    how: dict[str, Any], rows: list[dict[str, Any]], rules: GradingRules
) -> None:
    assert content_key(rows, how | {"rules": rules}) is None


def test_what_could_not_be_graded_is_not_kept(once: Callable[..., Any], tmp_path: Path) -> None:
    """Grading x = x needs longer than the limit that is set here."""
    rows = [_row("a", "so \\boxed{2}", task="math", answer="2")]
    pool = GradingPool(GradingSettings(time_limit_s=1e-4))
    assert once(rows, pool=pool)[0]["teachers_ungraded"] == 1
    pool.close()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("file", ["prompts.jsonl", "teachers.arrow", "counts.json"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")])
def test_a_damaged_copy_is_made_again(
    once: Callable[..., Any], tmp_path: Path, file: str, damage: Callable[[Path], Any]
) -> None:
    first = once()
    [folder] = (tmp_path / "cache").iterdir()
    damage(folder / file)
    assert once() == first
    assert once() == first
    [again] = (tmp_path / "cache").iterdir()
    assert again == folder and len(list(folder.iterdir())) == 3


def test_a_runs_own_files_are_copies(once: Callable[..., Any], tmp_path: Path) -> None:
    first = once()
    for path in (tmp_path / "run0").iterdir():
        path.write_text("spoiled")
    assert once() == first


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_copy(
    once: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file")
    counts, prompts, _ = once()
    assert counts["prompts"] == 3 and prompts.count(b"\n") == 3
    assert "note: the prepared data is not kept for later runs" in capsys.readouterr().out
    (tmp_path / "cache").unlink()
    shutil.rmtree(tmp_path / "run0")


# ---- its bound


SETS = {name: [_row(f"{name}{number}", RIGHT) for number in range(100)] for name in "abcde"}  # of one size


@pytest.fixture()
def one(once: Callable[..., Any], tmp_path: Path) -> Callable[..., Path]:
    """Prepares a set for a cache with room for two sets and a half; its folder there, with the time of its use."""
    cache, folders = tmp_path / "cache", {}
    size = sum(map(len, once(SETS["e"], cache_gb=0.0)[1:])) / 1e9
    assert not cache.exists()

    def prepare(name: str, used: float | None = None, sets: float = 2.5) -> Path:
        once(SETS[name], cache_gb=sets * size)
        for folder in set(cache.glob("*")) - set(folders.values()):
            folders[name] = folder
        if used is not None:
            for file in folders[name].iterdir():
                os.utime(file, (used, used))
        return folders.get(name, Path("none"))

    return prepare


def test_what_was_used_longest_ago_makes_room_in_one_line(
    one: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = one("a", used=1000.0), one("b", used=2000.0)
    assert one("a") == a and a.is_dir()  # used now: b is the older one
    capsys.readouterr()
    c = one("c")
    assert [folder.is_dir() for folder in (a, b, c)] == [True, False, True]
    [line] = [line for line in capsys.readouterr().out.splitlines() if "removed" in line]
    assert line.endswith(f"GB of data prepared for earlier runs from {a.parent} (oger.data_cache_gb)")
    assert one("d", sets=1.5).is_dir() and not a.exists() and not c.exists()


def test_a_set_that_a_run_takes_right_now_stays(
    one: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = one("a", used=1000.0), one("b", used=2000.0)
    with (a / "counts.json").open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        c = one("c", used=3000.0)
        assert [folder.is_dir() for folder in (a, b, c)] == [True, False, True]
        one("d", sets=1.5)  # of the others' room there is not enough
        assert "is not kept for later runs" in capsys.readouterr().out
        assert [path.name for path in a.parent.iterdir()] == [a.name]
    copied, copy_file = [], shutil.copyfile

    def copies(source: Path, target: Path) -> None:
        copied.append(train_files_cache._has_room(a.parent, 0.0))
        copy_file(source, target)

    monkeypatch.setattr(shutil, "copyfile", copies)
    assert one("a") == a and len(list(a.iterdir())) == 3
    assert copied == [False, False]  # both files; the lock is given back with the last one
    assert train_files_cache._has_room(a.parent, 0.0) and not a.exists()


def test_only_what_was_written_here_is_removed(one: Callable[..., Path], tmp_path: Path) -> None:
    a = one("a", used=1000.0)
    cache, day = a.parent, 24 * 3600
    others = [cache / "notes.txt", cache / "models" / "big.bin", a / "mine.txt", cache / ("f" * 32) / "other.bin"]
    half, new = (cache / f".{'0' * 32}-{name}" / "teachers.arrow" for name in ("abcdefgh", "12345678"))
    for path in (*others, half, new, tmp_path / "elsewhere" / "counts.json"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x" * 1_000_000)
    (cache / ("e" * 32)).symlink_to(tmp_path / "elsewhere")
    os.utime(half, (time.time() - 1.1 * day,) * 2)
    os.utime(new, (time.time() - 0.9 * day,) * 2)
    one("b", sets=1.1)
    assert all(path.exists() for path in others) and (tmp_path / "elsewhere" / "counts.json").exists()
    assert new.exists() and not half.parent.exists(), "a copy that ended in the middle, a day ago"
    assert [path.name for path in a.iterdir()] == ["mine.txt"]


def test_a_set_larger_than_the_bound_is_not_kept_and_removes_nothing(
    one: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a = one("a")
    capsys.readouterr()
    one("b", sets=0.9)
    one("b", sets=0.0)
    assert [path.name for path in a.parent.iterdir()] == [a.name] and len(list(a.iterdir())) == 3
    assert "exceed oger.data_cache_gb 0" in capsys.readouterr().out
