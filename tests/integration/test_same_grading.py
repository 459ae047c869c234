"""A response is graded alike wherever it is graded: as a run's teacher and rollout, by `oger eval`, `oger data` and
`oger serve-reward`, under every setting that verifiers have."""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from forks import Forks
from transformers import AutoTokenizer

from oger_recipe.base.files import read_jsonl
from oger_recipe.cli import data, eval
from oger_recipe.cli.shared import settings_of_run
from oger_recipe.data.train_files import Budget, PromptFormat, TeacherChoice, write_train_files
from oger_recipe.evaluation.sampling import Model, Request, Response, Sampling
from oger_recipe.grading import pool as grading_pool
from oger_recipe.grading.pool import GradingPool
from oger_recipe.offline import eval as evaluation
from oger_recipe.rewards.reward_func import reward_func
from oger_recipe.run.inputs import grading_settings
from oger_recipe.settings.grading import grading_rules
from oger_recipe.teachers.store import TeacherStore

OWN = """
import time
from oger_recipe.grading.verifiers import TaskSpec

def grade(response, answer, strict_oat=False):
    return float(answer == response if strict_oat else answer in response)

def judge(response, answer):
    time.sleep(1.0)
    return float(answer in response)

hasty = TaskSpec(judge, time_limit_s=0.5)
patient = TaskSpec(judge, time_limit_s=60)
strict = TaskSpec(grade, options={"strict_oat": "gsm8k_strict_oat"})
"""
COUNTDOWN = '{"numbers": [4, 0, 2], "target": 3}'
# Flags, task, reference answer, response, score (None: it is not graded). Neighbours differ by a setting alone.
CASES: list[tuple[list[str], str, str, str, float | None]] = [
    ([], "math", "1", r"it is \boxed{1}", 1.0),
    (["--oger.math_rule", "math_verify_think"], "math", "1", r"it is \boxed{1}", 0.0),
    (["--oger.prompt_template", "r1"], "math", "1", r"\boxed{2} or <answer>1</answer>", 1.0),
    ([], "gsm8k", "18", "18.0 STOP 7", 0.0),
    (["--oger.stop", "STOP"], "gsm8k", "18", "18.0 STOP 7", 1.0),
    (["--oger.stop", "STOP", "--oger.gsm8k_strict_oat"], "gsm8k", "18", "18.0 STOP 7", 0.0),
    (["--oger.gsm8k_answer_format", "hashes"], "gsm8k", "18", "it is 18", 0.0),
    ([], "countdown", COUNTDOWN, "<answer>4**0+2</answer>", 0.0),
    (["--oger.countdown_strict_oat"], "countdown", COUNTDOWN, "<answer>4**0+2</answer>", 1.0),
    (["--oger.verifiers", "gsm8k=same_grading:grade"], "gsm8k", "yes", "yes!", 1.0),
    (["--oger.verifiers", "gsm8k=same_grading:grade", "--oger.gsm8k_strict_oat"], "gsm8k", "yes", "yes!", 1.0),
    (["--oger.verifiers", "mine=same_grading:strict"], "mine", "yes", "yes!", 1.0),
    (["--oger.verifiers", "mine=same_grading:strict", "--oger.gsm8k_strict_oat"], "mine", "yes", "yes!", 0.0),
    (["--oger.verifiers", "mine=same_grading:hasty"], "mine", "yes", "yes", None),  # it takes a second
    (["--oger.verifiers", "mine=same_grading:patient", "--oger.grading_time_limit=0.5"], "mine", "yes", "yes", 1.0),
]
NAMES = [" ".join([case[1], *case[0]]).replace("--oger.", "") for case in CASES]


class Parrot:
    """An engine whose every answer is one text."""

    text = ""

    def __init__(self, model: Model) -> None:
        self.model, self.dtype = model, "float32"

    def context(self) -> int:
        return 1000

    def load(self, max_model_len: int) -> None: ...

    def generate(self, requests: Sequence[Request], sampling: Sampling, name: str) -> list[Response]:
        return [Response(self.text, 5, False) for _ in requests]


@pytest.fixture(scope="module", autouse=True)
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "same_grading.py").write_text(OWN)
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    patch.syspath_prepend(str(folder))
    yield folder
    patch.undo()


@pytest.fixture(scope="module")
def service(own: Path, forks: Forks) -> Iterator[str]:
    """`oger serve-reward`, which has no settings: options come with the labels, limits with the tasks."""
    words = ["-m", "oger_recipe.cli.serve_reward", "--port", "0", "--workers", "1"]
    words += [f"--allow_task=same_grading:{name}" for name in ("grade", "strict", "hasty", "patient")]
    log = own / "service.log"
    with log.open("w") as file:
        process = forks.start(*words, cwd=own, stdout=file, stderr=file)
    while "remote_url" not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    found = re.search(r"http://\S+/get_reward", log.read_text())
    assert found
    yield found[0]
    process.terminate()
    process.wait()


def _settings(flags: list[str]) -> Any:
    return settings_of_run(None, flags, eval.build_parser())


def _score(score: float, error: Any) -> float | None:
    """None: it was not graded."""
    return None if error else score


def of_a_teacher(flags: list[str], row: dict[str, Any], response: str, tmp_path: Path, policy: Path) -> float | None:
    settings = _settings(flags)
    with GradingPool(grading_settings(settings, [row])) as pool:
        counts = write_train_files(
            [row | {"teachers": [{"source": "r1", "text": response}]}],
            tokenizer=AutoTokenizer.from_pretrained(policy),
            prompt_format=PromptFormat(False, None),
            budget=Budget(1000, 500),
            prompts_path=tmp_path / "prompts.jsonl",
            teachers_path=tmp_path / "teachers.arrow",
            rules=grading_rules(settings),
            pool=pool,
            choice=TeacherChoice(keep_wrong_teachers=True),
        )
    if counts["teachers_ungraded"]:
        return None
    (teacher,) = TeacherStore(tmp_path / "teachers.arrow")[row["uid"]]
    return teacher.score


def of_a_rollout(
    flags: list[str], row: dict[str, Any], response: str, monkeypatch: pytest.MonkeyPatch
) -> float | None:
    settings = _settings(flags)
    monkeypatch.setenv(grading_pool.ENVIRONMENT, grading_settings(settings, [row]).to_json())
    monkeypatch.setattr(grading_pool, "_shared", None)
    found = reward_func([row["prompt"] + response], [row["prompt"]], [json.dumps(grading_rules(settings).label(row))])
    grading_pool.shared_pool().close()
    return _score(found["scores"], found["extra_logs"]["reward_error"])


def of_the_service(flags: list[str], row: dict[str, Any], response: str, url: str) -> float | None:
    label = json.dumps(grading_rules(_settings(flags)).label(row))
    body = {"query": [row["prompt"] + response], "prompts": [row["prompt"]], "labels": [label]}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as reply:
        found = json.load(reply)
    return _score(found["scores"], found["errors"][0])


def of_an_evaluation(
    flags: list[str], row: dict[str, Any], response: str, tmp_path: Path, policy: Path
) -> float | None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    Parrot.text = response
    out = tmp_path / "evaluation"
    with contextlib.suppress(SystemExit):  # where nothing could be graded
        eval.main([str(policy), f"--benchmark=mine={tmp_path / 'rows.jsonl'}", "--n=1", "--out", str(out), *flags])
    (record,) = read_jsonl(out / "answers" / "mine.jsonl")
    return _score(record["score"], not record["graded"])


def of_a_dataset(flags: list[str], row: dict[str, Any], response: str, tmp_path: Path) -> float | None:
    (tmp_path / "mixed.jsonl").write_text(json.dumps(row | {"teachers": [{"source": "r1", "text": response}]}))
    (tmp_path / "mix.yaml").write_text(
        f"sources: [{{name: x, path: {tmp_path / 'mixed.jsonl'}}}]\nkeep_wrong_teachers: true\n"
    )
    data.main(["prepare", str(tmp_path / "mix.yaml"), "--out", str(tmp_path / "out.jsonl"), *flags])
    (written,) = read_jsonl(tmp_path / "out.jsonl")
    return float(written["teachers"][0]["correct"]) if written["teachers"] else None


@pytest.mark.parametrize(("flags", "task", "answer", "response", "score"), CASES, ids=NAMES)
def test_a_response_has_one_score(
    flags: list[str],
    task: str,
    answer: str,
    response: str,
    score: float | None,
    service: str,
    policy_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "Sampler", Parrot)
    row = {"uid": "u", "prompt": "What?", "answer": answer, "task": task}
    found = {
        "teacher": of_a_teacher(flags, row, response, tmp_path, policy_folder),
        "rollout": of_a_rollout(flags, row, response, monkeypatch),
        "service": of_the_service(flags, row, response, service),
        "evaluation": of_an_evaluation(flags, row, response, tmp_path, policy_folder),
        "dataset": of_a_dataset(flags, row, response, tmp_path),
    }
    assert found == dict.fromkeys(found, score)
