"""The reward function, loaded and called the way OpenRLHF does: by path, from threads, one sample at a time."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oger_recipe.grading import samples, verifiers
from oger_recipe.grading.samples import worst_examples

PROMPT = "<|im_start|>user\nUsing the numbers [3, 5, 12], ...<|im_end|>\n<|im_start|>assistant\n"
RIGHT = "<think>need 96=8*12, need 8=3+5, found.</think>\n<answer>(3+5)*12</answer><|im_end|>"
WRONG = "<answer>3+5+12</answer><|im_end|>"
LABEL = json.dumps({"uid": "c-1", "answer": '{"numbers":[3,5,12],"target":96}', "task": "countdown"})
FAILED = {
    "rewards": 0.0,
    "scores": 0.0,
    "extra_logs": {"reward_format": 0.0, "reward_error": 1.0, "reward_timeout": 0.0},
}

BAD_LABELS: list[Any] = [
    None,
    "",
    "not json",
    "7",
    "[]",
    "{}",
    json.dumps({"uid": "c-1", "task": "countdown"}),
    json.dumps({"uid": "c-1", "task": "countdown", "answer": {"numbers": [3, 5, 12], "target": 96}}),
    json.dumps({"uid": "c-1", "task": "countdown", "answer": "96"}),
    json.dumps({"uid": "c-1", "task": "chess", "answer": "e4"}),
    json.dumps({"uid": "c-1", "task": None, "answer": "e4"}),
    json.dumps({"uid": "c-1", "task": ["countdown"], "answer": "e4"}),
    {"uid": "c-1", "answer": "96", "task": "countdown"},
    object(),
    "[" * 100_000,
]


@pytest.fixture()
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("OGER_RUN_DIR", raising=False)
    path = Path(samples.__file__).parents[1] / "rewards" / "reward_func.py"
    spec = importlib.util.spec_from_file_location("reward_func", str(path))
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture()
def grade(module: ModuleType) -> Callable[..., dict[str, Any]]:
    def one(query: Any, prompt: Any = PROMPT, label: Any = LABEL) -> dict[str, Any]:
        result: dict[str, Any] = module.reward_func([query], [prompt], [label])
        return result

    return one


def _error_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "reward_errors.jsonl").read_text().splitlines()]


def test_one_query_gives_plain_floats(grade: Callable[..., dict[str, Any]]) -> None:
    result = grade(PROMPT + RIGHT)
    assert result == {
        "rewards": 1.0,
        "scores": 1.0,
        "extra_logs": {"reward_format": 1.0, "reward_error": 0.0, "reward_timeout": 0.0},
    }
    values = [result["rewards"], result["scores"], *result["extra_logs"].values()]
    assert [type(value) for value in values] == [float] * 5


def test_wrong_and_missing_answers_have_oats_rewards(grade: Callable[..., dict[str, Any]]) -> None:
    wrong, missing = grade(PROMPT + WRONG), grade(PROMPT + "no idea")
    assert (wrong["rewards"], wrong["scores"], wrong["extra_logs"]["reward_format"]) == (0.1, 0.0, 1.0)
    assert (missing["rewards"], missing["scores"], missing["extra_logs"]["reward_format"]) == (0.0, 0.0, 0.0)


def test_several_queries_give_lists_in_the_same_order(module: ModuleType) -> None:
    result = module.reward_func([PROMPT + RIGHT, PROMPT + WRONG, PROMPT], [PROMPT] * 3, [LABEL, LABEL, "bad"])
    assert result == {
        "rewards": [1.0, 0.1, 0.0],
        "scores": [1.0, 0.0, 0.0],
        "extra_logs": {"reward_format": [1.0, 1.0, 0.0], "reward_error": [0.0, 0.0, 1.0], "reward_timeout": [0.0] * 3},
    }
    assert module.reward_func([], [], [])["rewards"] == []


def test_an_answer_in_the_prompt_is_not_the_response(grade: Callable[..., dict[str, Any]]) -> None:
    prompt = "Answer like <answer>(3+5)*12</answer>"
    assert grade(prompt, prompt)["rewards"] == 0.0
    assert grade(f"{prompt} no", prompt)["rewards"] == 0.0


def test_a_prompt_that_is_no_prefix_is_cut_at_the_last_assistant_turn(grade: Callable[..., dict[str, Any]]) -> None:
    example = "<|im_start|>user\nlike <answer>(3+5)*12</answer> <|im_start|>assistant\n"
    assert grade(example[5:], example)["rewards"] == 0.0
    assert grade(example[5:] + RIGHT, example)["rewards"] == 1.0


def test_without_prompt_and_assistant_turn_nothing_is_graded_for_the_prompt_may_hold_the_answer(
    grade: Callable[..., dict[str, Any]],
) -> None:
    assert grade("like " + RIGHT + " cut off ... I do not know", "another prompt") == FAILED


def test_stop_texts_that_are_no_part_of_a_response_are_cut_off(grade: Callable[..., dict[str, Any]]) -> None:
    label = json.loads(LABEL) | {"options": {"strict_oat": True}}
    response = RIGHT.rpartition("\n")[2] + "\nUser: and"
    assert grade(PROMPT + response, PROMPT, json.dumps(label))["rewards"] == 0.0  # as OAT grades that text
    assert grade(PROMPT + response, PROMPT, json.dumps(label | {"cut": ["</s>", "\nUser:"]}))["rewards"] == 1.0
    spaced = RIGHT.rpartition("\n")[2] + "\n"
    assert grade(PROMPT + spaced, PROMPT, json.dumps(label))["rewards"] == 0.0
    assert grade(PROMPT + spaced, PROMPT, json.dumps(label | {"strip": True}))["rewards"] == 1.0  # its evaluation


@pytest.mark.parametrize("label", BAD_LABELS, ids=range(len(BAD_LABELS)))
def test_bad_labels_never_raise_and_are_counted_logged_and_written(
    label: Any,
    grade: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OGER_RUN_DIR", str(tmp_path))
    with caplog.at_level(logging.ERROR):
        assert grade(PROMPT + RIGHT, PROMPT, label) == FAILED
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    (entry,) = _error_lines(tmp_path)
    assert set(entry) == {"error", "uid", "seconds", "query", "label"}
    assert entry["error"] and entry["query"] == PROMPT + RIGHT
    assert entry["uid"] == ("c-1" if isinstance(label, str) and "uid" in label else None)
    assert entry["label"] == (label if label is None or isinstance(label, str | dict) else repr(label))


def test_the_keys_are_the_same_for_every_sample(grade: Callable[..., dict[str, Any]]) -> None:
    results = [
        grade(PROMPT + RIGHT),
        grade(PROMPT + WRONG),
        grade(PROMPT),
        *(grade("", "", bad) for bad in BAD_LABELS),
    ]
    assert {tuple(result) for result in results} == {("rewards", "scores", "extra_logs")}
    assert {tuple(result["extra_logs"]) for result in results} == {("reward_format", "reward_error", "reward_timeout")}


@pytest.mark.parametrize(("query", "prompt"), [(None, PROMPT), (7, PROMPT), (PROMPT + RIGHT, None), (b"x", "x")])
def test_queries_and_prompts_that_are_no_text_never_raise(
    query: Any, prompt: Any, grade: Callable[..., dict[str, Any]]
) -> None:
    assert grade(query, prompt) == FAILED


def test_missing_prompts_and_labels_never_raise(module: ModuleType) -> None:
    assert module.reward_func([PROMPT + RIGHT], [PROMPT], []) == FAILED
    assert module.reward_func([PROMPT + RIGHT], [], [LABEL]) == FAILED


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["reward", "score"])
def test_values_that_are_not_finite_count_as_errors(
    field: str, value: float, grade: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verifiers.Verdict(**{"reward": 1.0, "score": 1.0, "reason": "", "components": {}, field: value})
    monkeypatch.setitem(verifiers.VERIFIERS, "countdown", verifiers.TaskSpec(lambda *texts: verdict, bounded=True))
    assert grade(PROMPT + RIGHT) == FAILED


def test_a_verifier_without_a_format_component_logs_zero(
    grade: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verifiers.Verdict(reward=1, score=1, reason="", components={})
    monkeypatch.setitem(verifiers.VERIFIERS, "countdown", verifiers.TaskSpec(lambda *texts: verdict, bounded=True))
    result = grade(PROMPT + RIGHT)
    assert result["extra_logs"] == {"reward_format": 0.0, "reward_error": 0.0, "reward_timeout": 0.0}
    assert type(result["rewards"]) is float and type(result["scores"]) is float


def test_nothing_is_written_without_a_failure_or_without_a_run_folder(
    grade: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert grade("", "", "bad") == FAILED
    monkeypatch.setenv("OGER_RUN_DIR", str(tmp_path))
    grade(PROMPT + RIGHT)
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_that_cannot_be_written_does_not_raise(
    grade: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OGER_RUN_DIR", str(tmp_path / "absent"))
    assert grade("", "", "bad") == FAILED
    assert "could not write reward_errors.jsonl" in caplog.text


def test_text_that_no_codec_takes_is_written_all_the_same(
    grade: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OGER_RUN_DIR", str(tmp_path))
    assert grade("\ud800 \u2028 \n", "", "bad") == FAILED
    assert _error_lines(tmp_path)[0]["query"] == "\ud800 \u2028 \n"


def test_worker_threads_grade_apart_and_write_whole_lines(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OGER_RUN_DIR", str(tmp_path))
    samples = [(RIGHT, LABEL, 1.0), (WRONG, LABEL, 0.1), ("x" * 20_000, "bad", 0.0)] * 60

    async def grade_all() -> list[dict[str, Any]]:
        calls = [
            asyncio.to_thread(module.reward_func, [PROMPT + response], [PROMPT], [label])
            for response, label, _ in samples
        ]
        return await asyncio.gather(*calls)

    results = asyncio.run(grade_all())
    assert [result["rewards"] for result in results] == [reward for _, _, reward in samples]
    lines = _error_lines(tmp_path)
    assert len(lines) == 60 and all(len(line["query"]) == len(PROMPT) + 20_000 for line in lines)


def test_options_of_the_label_reach_the_verifier(grade: Callable[..., dict[str, Any]]) -> None:
    label = json.loads(LABEL) | {"options": {"no_such_option": True}}
    assert grade(PROMPT + RIGHT, PROMPT, json.dumps(label)) == FAILED
    assert grade(PROMPT + RIGHT, PROMPT, json.dumps(label | {"options": {}}))["rewards"] == 1.0


def test_the_worst_examples_are_of_different_kinds_and_the_slowest(tmp_path: Path) -> None:
    assert worst_examples(tmp_path) == []
    entries = [("a", "slow", 5.0), ("b", "slow", 6.0), ("c", "crash", 0.5), ("d", "slow", 5.5)]
    lines = [
        json.dumps({"uid": uid, "error": error, "seconds": seconds, "query": "x" * 500, "label": ""})
        for uid, error, seconds in entries
    ]
    torn = lines[0][:40]  # by a full disk
    (tmp_path / "reward_errors.jsonl").write_text("".join(line + "\n" for line in [*lines, torn]))
    assert [example[0] for example in worst_examples(tmp_path)] == ["b", "c", "d"]
    assert all(len(example) < 300 for example in worst_examples(tmp_path, n=10))
