"""No row of the table of metrics is one that nothing writes. That everything written has a row is asked of every run:
by tests/e2e/runs.py and test_replay.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import replay
from metric_rows import names_in, without_row

from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.pipeline.controller.answers import logs_of
from oger_recipe.report.metric_table import TABLE, lookup

# Whatever a setting switches on, beside a critic and a reference; and, in a run with teachers, what is about them.
OPTIONS = {
    "oat_gsm8k_ppo_cpu with options": [
        "--algo.kl.target=0.1", "--oger.kl_stop=100", "--actor.entropy_coef=0.01", "--algo.dynamic_filtering_enable",
        # Less than a letter: the recorded answers are to prompts without hints.
        "--oger.hint_share=0.001", "--oger.shown_template={question}{teacher}",
    ],
    "oger_cpu with options": ["--oger.teacher_draw=likeliest_answer"],
    "luffy_cpu with options": ["--oger.sft_loss_schedule=linear", "--algo.advantage.is_correction_level=token"],
}  # fmt: skip
# Every kind of source that writes numbers about a step. The models are untrained, and no judge's verdict can be read.
HERE = {"place": "in_process", "max_new_tokens": 4}
SOURCES = [
    {"name": "rule", "kind": "verifier"},
    {"name": "prime", "kind": "process", "scorer": "implicit", "place": "in_process", "learning_rate": 1e-3},
    {"name": "judge", "kind": "judge", "plugin": "binary", **HERE},
    {"name": "better", "kind": "pairwise", **HERE},
    {"name": "rubric", "kind": "rubric", **HERE},
]


def _of_a_run(case: str, folder: Path) -> set[str]:
    """Steps in OpenRLHF's trainer."""
    folder.mkdir()
    recipe, inputs, flags = replay.CASES[case]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(replay.CASES, "every option", (recipe, inputs, [*flags, *OPTIONS[case]]))
        replay.replayed("every option", folder)
    assert not without_row(folder / "run")
    return names_in(folder / "run")


def _of_sources(controller: Callable[..., Any], rollout: Callable[..., Any], policy_folder: Path) -> set[str]:
    """A step of reasoning with models in this process."""
    listed = [each if each["kind"] == "verifier" else each | {"model": str(policy_folder)} for each in SOURCES]
    maker = controller(
        f"--oger.reward.sources={json.dumps(listed)}", '--oger.steps.delimiters=["."]', "--oger.steps.max_steps=3",
        "--algo.advantage.estimator=process_grpo", "--oger.reward.max_error_rate=1", "--oger.max_replace_num=0",
        "--oger.grader=self", f"--actor.model_name_or_path={policy_folder}",
    )  # fmt: skip
    label = {"question": "ask>", "row": {"rubric": [{"description": "is short"}]}}
    texts = [("a.bb.c", 1.0), ("dd", 0.0), ("ee.f", 1.0), ("g.h", 0.0)]
    maker.make_experience_batch([rollout(text, reward, label=label) for text, reward in texts])
    assert not without_row(maker.run_dir, set(maker.current.metrics))
    return set(maker.current.metrics)


def _of_evaluations() -> set[str]:
    record = {"uid": "p", "benchmark": "mine", "text": "", "answer": "", "score": 1.0, "extracted": "1", "format": 1.0,
              "response_length": 3, "truncated": False, "graded": True, "solution": "1"}  # fmt: skip
    result = evaluate_answers([record | {"sample": number} for number in range(2)])
    return set(logs_of(result))


def test_every_row_is_of_a_metric_that_something_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controller, rollout, policy_folder
) -> None:
    sources = _of_sources(controller, rollout, policy_folder)
    monkeypatch.undo()  # of ``controller``
    runs = (_of_a_run(case, tmp_path / case) for case in OPTIONS)
    written = sources.union(_of_evaluations(), *runs)
    rows = {row.name for row in map(lookup, written) if row}
    assert {each.name for each in TABLE} - rows == set()
