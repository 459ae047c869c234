"""What is prepared once is not prepared again, and nothing that was prepared in another way is ever taken for it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.data import train_files_cache
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.data.train_files import Budget, PromptFormat, TeacherChoice, write_train_files
from oger_recipe.data.train_files_cache import content_key, write_train_files_once
from oger_recipe.rewards.grading.pool import GradingPool, GradingSettings
from oger_recipe.rewards.rules import GradingRules

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
        counts = write_train_files_once(rows, cache=tmp_path / "cache", **files, **(how | other))
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
        ],
        "budget": [Budget(101, 30), Budget(100, 31), Budget(100, None), Budget(100, 30, 20)],
        "rules": [dataclasses.replace(how["rules"], **{n: v}) for n, v in _other_rules().items() if n != "own"],
        "pool": [GradingPool(GradingSettings(time_limit_s=1)), GradingPool(GradingSettings(memory_limit_mb=64))],
        "overlong_prompts": ["refuse"],
        "choice": [
            TeacherChoice(keep_wrong_teachers=True), TeacherChoice(max_prefix_len=10),
            TeacherChoice(long_teachers="truncate"), TeacherChoice(teacher_sources=("s0",)),
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
    assert write_train_files_once(ROWS, cache=tmp_path / "cache", prompts_path=prompts, teachers_path=None, **how) == {
        "prompts": 3, "prompts_too_long": 1,
    }  # fmt: skip
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
