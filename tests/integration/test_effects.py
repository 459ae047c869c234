"""Settings that another one switches off are named, in each way that the table knows; no shipped recipe has one."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.checks.notes import without_effect
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.oger import RULES
from oger_recipe.settings.parser import build_parser
from oger_recipe.settings.recipe_file import read_recipe

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))

# The issue's list and more: what is set without effect, and flags that say so or give it one.
#   (flags that switch it off, the setting with a value, flags that switch it on)
OFF = {"bonus_weight": 0.0}
NO_BONUS = {"reward.sources": ({"name": "rule", "kind": "verifier"},)}
SIMILAR = {"reward.sources": ({"name": "similar", "kind": "similarity"},)}
JUDGED = {"reward.sources": ({"name": "a", "kind": "judge", "model": "me/judge", "plugin": "binary"},)}
JUDGE = {"name": "judge", "kind": "judge", "model": "m", "plugin": "zero_one"}
JUDGED = {"reward.sources": (JUDGE,)}
NO_TEACHERS = {"max_replace_num": 0}
KL = {"algo.kl.init_coef": 0.1}
GUIDED = {"max_replace_num": 0, "n_prefix": 2}
ESTIMATOR = "algo.advantage.estimator"
ONE_STEP = {"rollout.batch_size": 2, "rollout.n_samples_per_prompt": 8, "train.batch_size": 16}
CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    *(
        ({"off_policy_loss": loss}, {name: value}, {})
        for loss in ("ppo", "sft")
        for name, value in (
            ("off_policy_reshape", "logp"), ("use_off_policy_probs", True), ("off_policy_max_clip", 1.0),
            ("off_policy_min_clip", 0.1),
        )
    ),
    ({}, {"off_policy_reshape_ratio": True}, {"use_off_policy_probs": True}),
    ({}, {"dynamic_filtering_max_batches": 3}, {"algo.dynamic_filtering_enable": True}),
    ({}, {"pass_at_k": 2}, {ESTIMATOR: "pass_at_k"}),
    ({}, {"off_policy_reshape_weight": 0.3}, {"off_policy_reshape": "p_logp"}),
    ({}, {"off_policy_reshape_pow_exp": 0.3}, {"off_policy_reshape": "pow"}),
    ({}, {"on_policy_reshape_weight": 0.3}, {"on_policy_reshape": "p_logp"}),
    ({}, {"on_policy_reshape_pow_exp": 0.3}, {"on_policy_reshape": "pow"}),
    *(
        ({}, {name: value}, {"off_policy_loss": loss})
        for loss in ("sft", "reshape_sft")
        for name, value in (
            ("sft_loss_coef", 0.3), ("sft_token_weight", "p_times_1mp"), ("sft_loss_mixture", True),
            ("sft_loss_schedule", "cosine"), ("sft_loss_warmup_steps", 3),
        )
    ),
    *(
        ({"off_policy_loss": "sft"}, {name: value}, {"off_policy_loss": "sft", "sft_loss_schedule": "linear"})
        for name, value in (("sft_loss_coef_end", 0.3), ("sft_loss_schedule_steps", 5))
    ),
    ({"off_policy_loss": "sft"}, {"prefix_reward_weight_alpha": 2.0}, {}),
    ({"off_policy_loss": "sft"}, {"use_sft_prefix_reward": True}, {}),
    ({}, {"sft_prefix_reward_weight": 2.0}, {"use_sft_prefix_reward": True}),
    *(
        ({}, {name: value}, GUIDED | more)
        for name, value, more in (
            ("prefix_strategy", "fixed", {}), ("min_prefix_ratio", 0.2, {}), ("max_prefix_ratio", 0.2, {}),
            ("prefix_steps", 7, {"prefix_strategy": "linear"}), ("prefix_share_across_samples", True, {}),
            ("prefix_linear_max_ratio", 0.5, {"prefix_strategy": "linear_max"}),
        )
    ),
    (GUIDED, {"prefix_steps": 7}, GUIDED | {"prefix_strategy": "linear_max"}),
    (GUIDED | {"prefix_strategy": "linear_max"}, {"max_prefix_ratio": 0.5}, GUIDED),
    *(
        (OFF, {name: value}, {})
        for name, value in (
            ("similarity_shaping", "ratio"), ("similarity_reverse_fail", True), ("repeating_check", True),
            ("similarity_reverse", False), ("last_token_enp_reward", "none"), ("entropy_position", "mean"),
        )
    ),
    (NO_BONUS, {"bonus_weight": 0.5}, {}),
    (NO_BONUS, {"bonus_schedule": "linear"}, {}),
    (NO_BONUS, {"similarity_shaping": "ratio"}, {}),
    ({"reward.sources": ({"name": "a", "kind": "bonus"},)}, {"non_stop_penalty": -1.0}, {}),
    (NO_BONUS | NO_TEACHERS, {"embedding_model": "a/model"}, NO_TEACHERS),
    ({}, {"bonus_weight_end": 0.5}, {"bonus_schedule": "linear"}),
    ({}, {"bonus_schedule_steps": 5}, {"bonus_schedule": "cosine"}),
    ({}, {"entropy_top_share": 0.5}, {"entropy_position": "top"}),
    ({"last_token_enp_reward": "none"}, {"entropy_position": "mean"}, {}),
    ({"similarity_reranker": "a/model"}, {"embedding_long_texts": "tail"}, {}),
    ({"similarity_reranker": "a/model"}, {"embedding_revision": "main"}, {}),
    (OFF | NO_TEACHERS | SIMILAR, {"similarity_centred": True}, {}),
    (OFF | NO_TEACHERS, {"embedding_model": "a/model"}, {}),
    (OFF | {"replace_mode": "random"}, {"embedding_part": "answer"}, {}),
    (OFF | NO_TEACHERS, {"embedding_layers": 1}, OFF | NO_TEACHERS | SIMILAR),
    (OFF | NO_TEACHERS, {"embedding_max_tokens": 64}, OFF | NO_TEACHERS | SIMILAR),
    (OFF | NO_TEACHERS, {"embedding_url": "http://127.0.0.1:1/v1"}, OFF | NO_TEACHERS | SIMILAR),
    (SIMILAR, {"reward.cache": ""}, JUDGED),
    (NO_BONUS, {"reward.max_error_rate": 0.1}, SIMILAR),
    ({}, {"reward.max_error_rate": 0.1}, JUDGED),
    (OFF | NO_TEACHERS | SIMILAR, {"max_embedding_error_rate": 0.5}, {}),
    ({}, {"grade_model": ({"model": "b/c"},)}, {"grader": "model"}),
    ({}, {"grade_average_rate": 0.5}, {"grader": "average"}),
    *(
        ({}, {name: value}, {"grader": grader})
        for grader in ("self", "model")
        for name, value in (
            ("grade_divergence", "forward_kl"), ("grade_max", 3.0), ("grade_weight", 0.3),
            ("grade_schedule", "cosine"),
        )
    ),
    *(
        ({"grader": "self"}, {name: value}, {"grader": "self", "grade_schedule": "linear"})
        for name, value in (("grade_weight_end", 0.3), ("grade_schedule_steps", 5))
    ),
    (NO_TEACHERS | OFF, {"teacher_draw": "shortest"}, NO_TEACHERS | OFF | {"grader": "self"}),
    ({}, {"history_size": 2}, {"use_history_samples": True}),
    (OFF | NO_TEACHERS, {"use_history_samples": True}, {}),
    (OFF | {"replace_mode": "random"}, {"use_history_samples": True}, OFF | {"history_enters": True}),
    ({}, {"history_enters": True}, {"use_history_samples": True}),
    (NO_TEACHERS, {"history_enters": True}, GUIDED | {"use_history_samples": True}),
    (NO_TEACHERS, {"teacher_gate_low": 0.5}, {}),
    (NO_TEACHERS, {"teacher_draw": "shortest"}, {}),
    (NO_TEACHERS, {"teacher_draw": "shortest"}, NO_TEACHERS | {"hint_share": 0.5}),
    (NO_TEACHERS | OFF, {"teacher_sources": ("a",)}, NO_TEACHERS | OFF | {"hint_share": 0.5}),
    ({}, {"shown_template": "{question} {teacher}"}, {"hint_share": 0.5}),
    (NO_TEACHERS, {"off_policy_top_entropy_share": 0.2}, GUIDED),
    ({}, {"hint_schedule": "linear"}, {"hint_share": 0.5}),
    *(
        ({"hint_share": 0.5}, {name: value}, {"hint_share": 0.5, "hint_schedule": "linear"})
        for name, value in (("hint_share_end", 0.2), ("hint_schedule_steps", 5))
    ),
    (NO_TEACHERS, {"replace_mode": "random"}, {}),
    (NO_TEACHERS, {"all_correct_group": "clip"}, {}),
    (NO_TEACHERS, {"teacher_gate": 0.5}, {}),
    (NO_TEACHERS, {"taught_group": "teachers"}, GUIDED),
    (NO_TEACHERS | OFF, {"teacher_sources": ("a",)}, NO_TEACHERS | OFF | {"sft.epochs": 1}),
    ({"loss_remove_clip": True}, {"actor.eps_clip": 0.3}, {}),
    ({"loss_remove_clip": True}, {"actor.eps_clip_low_high": [0.1, 0.2]}, {}),
    ({}, {"sft.lr": 1e-4}, {"sft.epochs": 1}),
    ({}, {"algo.kl.estimator": "abs"}, {"algo.kl.init_coef": 0.1}),
    *(
        ({}, {f"algo.advantage.is_correction_{name}": value}, {"algo.advantage.is_correction_level": "token"})
        for name, value in (("mode", "clip"), ("gating", "tv"), ("threshold", [0.0, 2.0]))
    ),
    (KL, {"algo.kl.unbiased_gradient": True}, KL | {"algo.kl.use_loss": True}),
    (KL, {"algo.kl.horizon": 50}, KL | {"algo.kl.target": 0.2}),
    ({}, {"reward.cache": "/tmp/verdicts"}, JUDGED),
    ({}, {"reward.overlong_penalty_factor": 0.5}, {"reward.overlong_buffer_len": 8.0}),
    ({}, {"reward.engine_memory_gb": 4.0}, {"reward.sources": ({"name": "a", "kind": "classifier", "model": "b/c"},)}),
    (NO_BONUS | NO_TEACHERS, {"embedding_num_gpus": 1.0}, {}),
    *(
        (off, {f"algo.advantage.{name}": value}, {ESTIMATOR: estimator})
        for name, value, off, readers in (
            ("gamma", 0.9, {}, ("gae", "reinforce", "appo", "tppo")),
            ("lambd", 0.9, {ESTIMATOR: "process_rloo"}, ("gae", "appo", "tppo")),
            ("no_std_norm", True, {ESTIMATOR: "process_grpo"}, ("gae", "appo", "tppo", "process_rloo")),
        )
        for estimator in readers
    ),
    *(
        ({}, {f"oger.steps.{name}": value}, on)
        for (name, value), on in zip(
            (("delimiters", (".",)), ("delimiter_token_ids", (7,)), ("max_step_tokens", 9)),
            ({ESTIMATOR: "process_grpo_batch"}, {"ratio_level": "step"}, {"steps.last_step_text": "answer"}),
            strict=True,
        )
    ),
    ({"steps.delimiters": ()}, {"steps.max_steps": 3}, {}),
    ({"steps.delimiters": ()}, {"steps.last_step_text": "so"}, {"steps.delimiters": (), "steps.max_step_tokens": 9}),
    ({}, {"critic.huber_delta": 10.0}, {ESTIMATOR: "gae"}),
    ({}, {"critic.hidden_sizes": (8,)}, {ESTIMATOR: "appo"}),
    (ONE_STEP, {"kl_stop": 0.02}, ONE_STEP | {"train.max_epochs": 2}),
    (ONE_STEP, {"kl_stop": 0.02}, ONE_STEP | {"train.batch_size": 8}),
]  # fmt: skip


def _notes(parser: argparse.ArgumentParser, *settings: dict[str, Any]) -> list[str]:
    value = vars(parser.parse_args([]))
    for name, setting in (item for part in settings for item in part.items()):
        value[name if name in value else f"oger.{name}"] = setting
    return list(without_effect(value, parser.get_default))


@pytest.mark.parametrize(("off", "setting", "on"), CASES, ids=str)
def test_what_changes_nothing_is_named_and_what_does_is_not(parser, off, setting, on) -> None:
    (name,) = setting
    said = [note for note in _notes(parser, off, setting) if note.startswith(("oger." + name, name))]
    assert len(said) == 1 and " has no effect: it needs " in said[0]
    assert not [note for note in _notes(parser, on, setting) if note.startswith(("oger." + name, name))]
    assert not [note for note in _notes(parser, off) if note.startswith(("oger." + name, name))]  # not set, not said


def test_everything_that_a_setting_needs_has_a_case_with_one_that_needs_it(parser) -> None:
    known = vars(parser.parse_args([]))
    assert RULES.keys() <= known.keys()
    held = {name if name in known else f"oger.{name}" for _, setting, _ in CASES for name in setting}
    for need in {need for rules in RULES.values() for need in rules.needs}:
        assert any(need in RULES[flag].needs for flag in held), need.text


@pytest.mark.parametrize("flag", RULES)
def test_what_a_setting_needs_is_named_as_it_is_typed(parser, flag: str) -> None:
    choices = {each.dest: each.choices for each in parser._actions}
    for text in (need.text for need in RULES[flag].needs):
        named = re.findall(r"(?:oger|algo|train|critic|actor|reward)\.[\w.]*\w", text)
        assert named and all(any(each == flag or flag.startswith(f"{each}.") for flag in choices) for each in named)
        first, _, words = text.partition(" ")
        if words and choices.get(first):
            assert set(re.split(", | or ", words.removeprefix("other than "))) < {*choices[first]}


CHOICES = next(each.choices for each in build_parser(cpu=True)._actions if each.dest == ESTIMATOR)
ESTIMATORS = [name for name in CHOICES or () if ":" not in name]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("setting", "value"), [("gamma", 0.5), ("lambd", 0.5), ("no_std_norm", True)])
def test_what_an_estimator_reads_changes_its_advantages(
    parser, controller, rollout, estimator, setting, value
) -> None:
    """Responses of several steps of reasoning, and a critic whose values differ from token to token."""

    def advantages(*flags: str) -> list[list[float]]:
        given = ["--oger.max_replace_num=0", "--oger.bonus_weight=0", "--oger.steps.delimiters", "."]
        maker = controller(
            *given, f"--algo.advantage.estimator={estimator}", *flags,
            critic=(lambda tokens: (tokens % 11) / 10) if estimator in CRITIC_ESTIMATORS else None,
        )  # fmt: skip
        rows = zip(("a.bb.c", "dd", "e.f", "g.hh"), (1.0, 0.0, 1.0, 0.0), strict=True)
        (experience,) = maker.make_experience_batch([rollout(text, reward) for text, reward in rows])
        return experience.advantages.tolist()

    flag = f"--algo.advantage.{setting}"
    changed = advantages(*([flag] if value is True else [flag, str(value)])) != advantages()
    name = f"algo.advantage.{setting}"
    said = [note for note in _notes(parser, {ESTIMATOR: estimator}, {name: value}) if note.startswith(name)]
    assert changed == (not said)


PRM = {"name": "prm", "kind": "process", "model": "org/prm", "credit": "min"}


def test_credit_of_steps_and_estimators_of_steps_need_each_other(parser) -> None:
    said = _notes(parser, {"reward.sources": (PRM,)})
    assert said == [
        "oger.reward.sources: credit of 'prm' has no effect: it needs algo.advantage.estimator appo, tppo, "
        "process_grpo, process_grpo_batch or process_rloo; under dr_grpo a row gets its aggregate"
    ]
    by_steps = {ESTIMATOR: "process_rloo"}
    assert not _notes(parser, {"reward.sources": (PRM,)}, by_steps)
    assert not _notes(parser, {"reward.sources": ({"name": "a", "kind": "mine:of"},)}, by_steps)
    (alone,) = _notes(parser, {"reward.sources": ({"name": "rule", "kind": "verifier"},)}, by_steps)
    assert "no source of oger.reward.sources scores steps" in alone


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_no_shipped_recipe_sets_what_has_no_effect(parser, path: Path) -> None:
    value = defaults(parser) | read_recipe(path, parser)
    assert list(without_effect(value, parser.get_default)) == []
