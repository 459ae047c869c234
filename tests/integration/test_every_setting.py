"""Every setting of the method is given another value than its default somewhere, and changes what it is for.

A new one needs a case here or in test_seed_flags.py, or the name of the test that holds it.
"""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oger_recipe.embedding.base import EmbeddingError
from oger_recipe.settings.alarms import AlarmSettings
from oger_recipe.settings.grading import VerifierSettings
from oger_recipe.settings.oger import SECTIONS, SETTINGS
from oger_recipe.settings.rollouts import RolloutSettings
from oger_recipe.settings.run import EvalSettings, RunSettings, SftSettings
from oger_recipe.settings.task import TaskSettings
from oger_recipe.teachers.store import Teacher

TESTS = Path(__file__).parent
PACKAGE = Path(__file__).parents[2] / "oger_recipe"
# Where a setting is named without an effect on a run: conversion, and in settings what only looks at it.
ONLY_NAMED_THERE = ("convert", "checks/settings.py", "checks/notes.py")

# Not of the method, and tested where they are used: alarms, the run, its data and verifiers, and the built-in task.
OTHERS = (AlarmSettings, RunSettings, EvalSettings, RolloutSettings, VerifierSettings, SftSettings, TaskSettings)
# Settings whose effect needs more than the parts here: file and test that hold them, and they.
ELSEWHERE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "test_guided_rollouts.py",
        "test_flags_of_prefixes",
        (
            "n_prefix",
            "prefix_strategy",
            "min_prefix_ratio",
            "max_prefix_ratio",
            "prefix_steps",
            "prefix_linear_max_ratio",
            "prefix_share_across_samples",
        ),
    ),
    (
        "test_guided_rollouts.py",
        "test_a_prompt_whose_only_teachers_have_weight_zero_is_the_policys_alone",
        ("teacher_draw", "teacher_source_weights"),
    ),
    (
        "test_guided_rollouts.py",
        "test_the_prompt_of_training_rollouts_shows_the_first_share_of_a_teacher",
        ("hint_share", "hint_share_end", "hint_schedule", "hint_schedule_steps"),
    ),
    (
        "test_experience_maker.py",
        "test_earlier_rollouts_enter_a_later_group_with_the_probabilities_of_then",
        ("history_enters",),
    ),
    (
        "test_hybrid_batch.py",
        "test_teachers_enter_where_no_less_than_the_gates_lower_end_is_solved",
        ("teacher_gate_low",),
    ),
    (
        "test_experience_maker.py",
        "test_of_a_taught_group_only_the_teacher_enters_a_loss",
        ("teacher_gate", "taught_group"),
    ),
    (
        "test_experience_maker.py",
        "test_rollouts_may_have_the_advantage_of_their_sign_and_entropy",
        ("rollout_advantage",),
    ),
    (
        "test_experience_maker.py",
        "test_the_weight_of_the_supervised_loss_follows_its_schedule",
        ("sft_loss_schedule", "sft_loss_coef_end", "sft_loss_schedule_steps", "sft_loss_warmup_steps"),
    ),
    (
        "test_policy_trainer.py",
        "test_weight_and_mixture_of_the_supervised_loss_however_the_step_is_cut",
        ("sft_token_weight", "sft_loss_mixture"),
    ),
    (
        "test_policy_trainer.py",
        "test_teacher_tokens_of_low_entropy_have_no_loss_and_count_however_the_step_is_cut",
        ("off_policy_top_entropy_share",),
    ),
    (
        "test_policy_trainer.py",
        "test_the_ratio_to_the_policy_that_sampled_a_teachers_row_may_be_reshaped",
        ("off_policy_reshape_ratio",),
    ),
    (
        "test_grades.py",
        "test_grades_are_added_to_each_tokens_advantage",
        (
            "grader",
            "grade_model",
            "grade_divergence",
            "grade_max",
            "grade_weight",
            "grade_schedule",
            "grade_weight_end",
            "grade_schedule_steps",
        ),
    ),
    (
        "test_grading_weights.py",
        "test_the_average_takes_up_its_share_of_the_policy_after_each_update",
        ("grade_average_rate",),
    ),
    ("test_experience_maker.py", "test_the_fine_enters_the_group_mean_however_the_step_is_cut", ("non_stop_penalty",)),
    (
        "test_experience_maker.py",
        "test_a_truncated_rollout_with_a_fixed_reward_has_that_reward_and_no_bonus_on_top",
        ("non_stop_fixed_reward",),
    ),
    (
        "test_experience_maker.py",
        "test_truncated_rollouts_can_be_left_out_of_the_policy_loss",
        ("disable_truncation_advantage",),
    ),
    (
        "test_experience_maker.py",
        "test_the_in_reward_kl_has_its_own_coefficient_beside_the_loss_sides",
        ("kl_penalty_coef",),
    ),
    (
        "test_experience_maker.py",
        "test_a_teachers_own_probabilities_reach_the_loss_only_where_that_is_asked_for",
        ("use_off_policy_probs",),
    ),
    (
        "test_experience_maker.py",
        "test_a_source_of_the_users_scores_whole_groups_as_they_are_trained",
        ("reward.sources",),
    ),
    ("test_experience_maker.py", "test_a_group_on_which_a_source_failed_can_be_dropped", ("reward.on_error",)),
    (
        "test_chunked_actor.py",
        "test_the_entropy_of_a_rollout_is_that_of_its_own_tokens_however_batched",
        ("entropy_position", "entropy_top_share", "chunked_token_stats"),
    ),
    ("test_policy_trainer.py", "test_by_steps_the_gradient_of_a_rollout_is_that_of_its_steps", ("ratio_level",)),
    (
        "test_policy_trainer.py",
        "test_old_log_probs_of_the_update_train_as_those_of_a_pass_before_it",
        ("old_log_probs",),
    ),
    ("test_policy_trainer.py", "test_no_update_follows_the_one_whose_kl_is_above_the_limit", ("kl_stop",)),
    ("test_critic_actor.py", "test_the_figures_of_a_step_are_those_of_what_it_trains", ("critic.huber_delta",)),
    (
        "test_critic_actor.py",
        "test_a_head_with_hidden_layers_is_saved_with_its_sizes_and_says_the_same_when_it_is_loaded",
        ("critic.hidden_sizes",),
    ),
    ("test_critic_actor.py", "test_a_head_may_be_trained_alone", ("critic.head_only",)),
    (
        "test_steps_in_a_run.py",
        "test_training_and_evaluation_ask_the_engine_for_responses_by_the_same_rule",
        ("steps.max_steps", "steps.last_step_text", "steps.sample_by_step"),
    ),
    (
        "test_reward_faults.py",
        "test_the_limit_is_of_the_rows_that_were_asked_about",
        ("reward.max_error_rate",),
    ),
    (
        "test_reward_faults.py",
        "test_a_run_that_goes_on_pays_for_the_verdicts_of_its_lost_step_once",
        ("reward.cache",),
    ),
    (
        "test_trainer.py",
        "test_a_series_of_skipped_updates_ends_the_run_at_the_limit_that_is_set",
        ("max_skipped_updates",),
    ),
)


def test_every_setting_of_the_method_has_a_case_here_or_a_test_that_holds_it() -> None:
    of_method = [each.name for section in SECTIONS if section not in OTHERS for each in section.settings()]
    held = [name for _, _, names in ELSEWHERE for name in names]
    here = Path(__file__).read_text() + (TESTS / "test_seed_flags.py").read_text()
    cases = [name for name in of_method if re.search(rf'"--(no-)?oger\.{re.escape(name)}"', here)]
    assert sorted(set(of_method) - set(cases)) == sorted(held)
    for file, test, names in ELSEWHERE:
        code = (TESTS / file).read_text()
        assert f"def {test}(" in code
        assert [name for name in names if name.rpartition(".")[2] not in code] == [], test


class _WithoutDeclarations(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802
        is_one = getattr(node.func, "id", "") in ("setting", "need", "need_reader", "Need")
        return ast.Constant(None) if is_one else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:  # noqa: N802
        is_field = getattr(getattr(node.value, "func", None), "id", "") == "setting"
        return ast.Pass() if is_field else self.generic_visit(node)


def test_every_setting_is_read_by_the_code_that_it_is_for() -> None:
    names = {path: str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    files = [path for path, name in names.items() if not name.startswith(ONLY_NAMED_THERE)]
    trees = [_WithoutDeclarations().visit(ast.parse(path.read_text())) for path in files]
    code = "\n".join(map(ast.unparse, trees))
    leaves = {each.name: each.name.rpartition(".")[2] for each in SETTINGS}
    assert [name for name, leaf in leaves.items() if not re.search(rf"\b{leaf}\b", code)] == []


@pytest.mark.parametrize(("flags", "kept"), [([], list("abde")), (["--oger.history_size", "2"], ["d", "e"])])
def test_so_many_earlier_rollouts_are_kept(controller, rollout, flags: list[str], kept: list[str]) -> None:
    maker = controller("--oger.use_history_samples", "--oger.max_replace_num", "0", *flags)
    for step, texts in enumerate(("abCD", "deFG"), start=1):
        maker.step = step
        maker.make_experience_batch([rollout(text, float(text.islower())) for text in texts])
    assert maker.history["u"] == kept


def test_a_share_of_texts_without_an_embedding_may_be_borne(controller, models, rollout, letters) -> None:
    """One of four rollouts has none; the teacher, the fifth text, is cached apart."""
    teacher = Teacher("a teacher", "ok", [*letters.encode("ok"), letters.eos_token_id], 1.0, 1.0)
    models.similarity = {"b": math.nan}

    def made(*flags: str) -> Any:
        maker = controller(*flags, teachers={"u": [teacher]})
        maker.make_experience_batch([rollout(text) for text in "abcd"])
        return maker

    with pytest.raises(EmbeddingError, match="1 of 4 texts"):
        made()
    borne = made("--oger.max_embedding_error_rate", "0.25")
    assert borne.current.batch.similarity.isnan().tolist() == [False, True, False, False]


def test_flags_of_the_processes_beside_the_policy(controller, monkeypatch: pytest.MonkeyPatch) -> None:
    place, asked = "oger_recipe.pipeline.controller.experience_maker", []
    engines = SimpleNamespace(place=None, start=lambda: None)
    monkeypatch.setattr(f"{place}.encoders_on", lambda share, _: asked.append(share))
    monkeypatch.setattr(f"{place}.RunEngines", lambda **how: asked.append(how["memory_gb"]) or engines)
    controller("--oger.embedding_num_gpus", "0.5", "--oger.reward.engine_memory_gb", "3")
    assert asked == [0.5, 3.0]


@pytest.mark.parametrize(
    ("flags", "cut"),
    [
        ([], [["ab.c;d"]]),
        (["--oger.steps.delimiters", "."], [["ab.", "c;d"]]),
        (["--oger.steps.delimiter_token_ids", ";"], [["ab.c;", "d"]]),
        (["--oger.steps.max_step_tokens", "4"], [["ab.c", ";d"]]),
    ],
    ids=str,
)
def test_flags_that_cut_a_response_into_steps(controller, rollout, letters, flags: list[str], cut: list) -> None:
    if "--oger.steps.delimiter_token_ids" in flags:
        flags = [flags[0], str(letters.encode(";")[0])]
    maker = controller("--algo.advantage.estimator", "process_rloo", "--oger.max_replace_num", "0", *flags)
    maker.make_experience_batch([rollout("ab.c;d"), *map(rollout, "xyz")])
    assert maker.current.rollouts.steps[:1] == cut


def test_guards_of_a_run(controller, models, rollout) -> None:
    def made(*flags: str) -> None:
        rows = [rollout("a", error="the verifier died"), *map(rollout, "bcd")]
        controller("--oger.max_replace_num", "0", *flags).make_experience_batch(rows)

    models.difference = dict(zip("abcd", (0.006, -0.006, 0.006, -0.006), strict=True))
    bears = ("--oger.max_reward_error_rate", "0.25")
    made(*bears)
    with pytest.raises(RuntimeError, match="1 of 4 rollouts"):
        made()
    with pytest.raises(RuntimeError, match="limit: 0.0050"):
        made(*bears, "--oger.max_logprob_difference", "0.005")
    models.difference = dict.fromkeys("abcd", 0.03)  # the engine's are higher
    with pytest.raises(RuntimeError, match="0.0300 higher .limit: 0.02; oger.max_engine_kl"):
        made(*bears)
    made(*bears, "--oger.max_engine_kl", "0.04")
