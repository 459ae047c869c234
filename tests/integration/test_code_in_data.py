"""Rows that name code as their task: it is not imported before the user has named it, whichever way the rows come."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import Forks

from oger_recipe.grading.pool import ENVIRONMENT, GradingPool, GradingSettings, Limits
from oger_recipe.grading.rules import GradingRules
from oger_recipe.grading.verifiers import allow, verify

CODE = """
import pathlib

pathlib.Path({marker!r}).touch()


def grade(response, answer):
    return 1.0 if response == answer else 0.0
"""
TASK = "hidden:grade"
REFUSAL = f"task {TASK!r} is code, and data alone do not make it run: read it, then set --oger.allow_task {TASK!r}"
TEACHER = {"source": "t", "text": "4"}
Oger = Callable[..., tuple[int, str]]


@pytest.fixture()
def marker(tmp_path: Path) -> Path:
    """The file that there is when the module was imported, which lies where a run looks for modules."""
    marker = tmp_path / "the code was run"
    (tmp_path / "hidden.py").write_text(CODE.format(marker=str(marker)))
    return marker


def _rows(folder: Path, *tasks: str) -> Path:
    rows = [
        {"prompt": f"{n} + 2?", "answer": "4", "task": task, "teachers": [TEACHER]} for n, task in enumerate(tasks)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


@pytest.fixture()
def oger(forks: Forks, tmp_path: Path) -> Oger:
    def run(*words: str) -> tuple[int, str]:
        done = forks.run("-m", f"oger_recipe.cli.{words[0]}", *words[1:], cwd=tmp_path)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    return run


def _mix(folder: Path, source: str = "") -> None:
    (folder / "mix.yaml").write_text(f"sources: [{{name: a, path: rows.jsonl{source}}}]\n")


def _recipe(folder: Path, policy: Path) -> None:
    (folder / "recipe.yaml").write_text(
        f"actor: {{model_name_or_path: {policy}}}\ndata: {{prompt_dataset: rows.jsonl}}\n"
        "rollout: {batch_size: 1}\ntrain: {batch_size: 8}\noger: {bonus_weight: 0, max_replace_num: 0}\n"
    )
    (folder / "responses.jsonl").write_text("")


PREPARE = ("data", "prepare", "mix.yaml", "--out", "out.jsonl")
COMMANDS = {
    "validate": ("data", "validate", "rows.jsonl"),
    "prepare": PREPARE,
    "eval": ("eval", "model", "--benchmark", "mine=rows.jsonl"),
    "eval of a recipe": ("eval", "model", "--recipe", "recipe.yaml", "--eval.dataset", "rows.jsonl"),
    "score": ("score", "--recipe", "recipe.yaml", "--responses", "responses.jsonl", "--out", "scores.jsonl"),
    "dry run": ("train", "--recipe", "recipe.yaml", "--dry-run"),
    "train": ("train", "--recipe", "recipe.yaml"),
    "train with evaluation": (
        "train", "--recipe", "recipe.yaml", "--data.prompt_dataset", "good.jsonl", "--eval.dataset", "rows.jsonl",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_rows_that_name_code_before_it_is_imported(
    name: str, tmp_path: Path, marker: Path, policy_folder: Path, oger: Oger
) -> None:
    _rows(tmp_path, "math").rename(tmp_path / "good.jsonl")
    _rows(tmp_path, TASK, TASK)
    _mix(tmp_path)
    _recipe(tmp_path, policy_folder)
    status, said = oger(*COMMANDS[name])
    assert status == 1 and f"rows.jsonl:1: {REFUSAL}" in said, said
    assert not marker.exists()


@pytest.mark.parametrize("flag", ["--allow_task", "--oger.allow_task"])
def test_what_the_user_allows_is_run(flag: str, tmp_path: Path, marker: Path, oger: Oger) -> None:
    _rows(tmp_path, TASK)
    _mix(tmp_path)
    status, said = oger(*COMMANDS["validate"], flag, TASK)
    assert status == 0 and f"usable: 1 ({TASK} 1)" in said, said
    assert marker.exists()
    assert oger(*PREPARE, flag, TASK)[0] == 0
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [teacher["correct"] for teacher in row["teachers"]] == [True]


@pytest.mark.parametrize(
    "flags", [("--oger.task_name", TASK), ("--oger.verifiers", f"mine={TASK}")], ids=lambda flags: flags[0]
)
def test_rows_may_name_what_other_settings_name(
    flags: tuple[str, ...], tmp_path: Path, marker: Path, oger: Oger
) -> None:
    _rows(tmp_path, TASK, *(["mine"] if flags[1] != TASK else []))
    status, said = oger(*COMMANDS["validate"], *flags)
    assert status == 0, said
    _rows(tmp_path, "hidden:other")
    assert oger(*COMMANDS["validate"], *flags)[0] == 1


def test_the_task_of_a_mix_is_the_users_own(tmp_path: Path, marker: Path, oger: Oger) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "2 + 2?", "a": "4", "t": "4"}\n')
    _mix(tmp_path, f', task: "{TASK}", columns: {{prompt: q, answer: a, teacher: t}}')
    status, said = oger(*PREPARE)
    assert status == 0 and marker.exists(), said


def test_a_path_that_is_allowed_and_leads_nowhere_is_refused(tmp_path: Path, oger: Oger) -> None:
    _rows(tmp_path, "math")
    status, said = oger(*COMMANDS["validate"], "--allow_task", "nowhere:grade")
    assert status == 1 and "oger.allow_task: task 'nowhere:grade' is not a verifier: No module named" in said


def test_many_rows_with_one_task_are_one_sentence(tmp_path: Path, policy_folder: Path, oger: Oger) -> None:
    _rows(tmp_path, *[TASK] * 30)
    _recipe(tmp_path, policy_folder)
    _, said = oger(*COMMANDS["dry run"])
    assert said.count("is code") == 1 and "rows.jsonl:1: " in said and "(and so in 29 more rows: 2, " in said


# ---- behind the check of rows


@pytest.fixture()
def importable(marker: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The marker of a module that could be imported."""
    monkeypatch.syspath_prepend(str(marker.parent))
    monkeypatch.delitem(sys.modules, "hidden", raising=False)
    allow(())
    yield marker
    allow(())


def test_no_task_is_resolved_that_is_not_allowed(importable: Path) -> None:
    with pytest.raises(ValueError, match="is code, and data alone do not make it run"):
        verify(TASK, "4", "4")
    rules = GradingRules()
    row = {"uid": "a", "prompt": "2 + 2?", "answer": "4", "task": TASK}
    assert rules.call(row)[0] == TASK  # makes a label of it, for the pool to refuse
    assert not importable.exists()
    allow([TASK])
    assert verify(TASK, "4", "4") == 1.0 and importable.exists()


@pytest.mark.parametrize("bounded", [False, True])
def test_the_pool_grades_no_task_that_is_not_allowed(importable: Path, bounded: bool) -> None:
    limits = {TASK: Limits(20.0, 512, bounded)}
    with GradingPool(GradingSettings(1, preload=(TASK,), own=limits)) as pool:
        graded = pool.grade(TASK, "4", "4")
    assert graded.verdict.reward == 0.0 and REFUSAL in str(graded.error)
    assert not importable.exists()
    with GradingPool(GradingSettings(1, preload=(TASK,), own=limits, allowed=(TASK,))) as pool:
        allow(pool.settings.allowed if bounded else ())  # a bounded one is graded in this process
        assert pool.grade(TASK, "4", "4").verdict.reward == 1.0
    assert importable.exists()


def test_a_label_that_names_code_is_not_graded_by_a_run(tmp_path: Path, marker: Path, forks: Forks) -> None:
    """As OpenRLHF calls the reward function, whose process gets the settings of the run by its environment."""
    label = json.dumps({"uid": "a", "answer": "4", "task": TASK})
    program = (
        "from oger_recipe.rewards.reward_func import reward_func\n"
        f"print(reward_func(['What? 4'], ['What? '], [{label!r}])['rewards'])"
    )
    for allowed, reward in (((), "0.0"), ((TASK,), "1.0")):
        settings = GradingSettings(1, allowed=allowed, path=(str(tmp_path),))
        environment = os.environ | {ENVIRONMENT: settings.to_json()}
        done = forks.run("-c", program, env=environment)
        assert done.stdout.strip() == reward, done.stderr
        assert marker.exists() == bool(allowed) and (REFUSAL in done.stderr) != bool(allowed)
