"""Settings that a list of reward sources does not go with, what is noted of one, and that a run keeps it as it is."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from oger_recipe.algorithm.credit import ESTIMATORS, group_estimators
from oger_recipe.checks.combinations import combination_problems
from oger_recipe.checks.notes import notes as notes_of
from oger_recipe.checks.notes import without_effect

RULE = {"name": "rule", "kind": "verifier"}
SIMILAR = {"name": "similar", "kind": "similarity"}
SHORT = {"name": "short", "kind": "length", "budget": 16, "limit": 32}
HEAD = {"name": "head", "kind": "classifier", "model": "me/head"}
GDPO = ["--algo.advantage.estimator", "gdpo"]
MAX_RL = ["--algo.advantage.estimator", "max_rl"]
PASS_AT_K = ["--algo.advantage.estimator", "pass_at_k", "--rollout.n_samples_per_prompt=8"]
RIGHT_ALONE = [*PASS_AT_K, "--oger.bonus_weight=0"]
ALONE = [
    "--rollout.n_samples_per_prompt",
    "1",
    "--oger.max_replace_num",
    "0",
    "--algo.advantage.estimator",
    "reinforce",
]


def listed_names(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def listed(*entries: dict[str, Any]) -> str:
    return f"--oger.reward.sources={json.dumps(entries)}"


@pytest.fixture()
def said(parser: argparse.ArgumentParser):
    return lambda *flags: list(combination_problems(vars(parser.parse_args(list(flags)))))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            [*GDPO, "--oger.advantage_baseline", "rollouts"],
            f"oger.advantage_baseline rollouts is for {listed_names(group_estimators())}, not gdpo",
        ),
        ([*GDPO, "--oger.all_correct_group", "clip"], f"clip is for {listed_names([*ESTIMATORS])}, not gdpo"),
        (
            [*GDPO, "--oger.reward.on_error", "drop_group"],
            f"drop_group is for {listed_names([*group_estimators(), 'rloo'])}, not gdpo, which compares",
        ),
        (
            [*GDPO, listed(RULE, SIMILAR | {"normalize": "running"})],
            "gdpo compares every source within its group, and 'similar' has normalize running: leave it out",
        ),
        ([*GDPO, listed(RULE | {"normalize": "none"})], "and 'rule' has normalize none: leave it out"),
        (
            [*GDPO, listed(RULE, SIMILAR | {"combine": "mul"})],
            "algo.advantage.estimator gdpo adds up its sources, and 'similar' has combine mul: use add",
        ),
        *(
            (
                [*GDPO, f"--{flag}=0.5"],
                f"{flag} changes the sum of the sources, and algo.advantage.estimator gdpo compares each source",
            )
            for flag in (
                "oger.non_stop_fixed_reward", "reward.stop_properly_penalty_coef", "reward.overlong_buffer_len",
            )
        ),
        *(
            ([*MAX_RL, *flags], f"{what} gives rewards below 0, and algo.advantage.estimator max_rl divides by their")
            for flags, what in (
                (["--oger.non_stop_penalty=-0.5"], "oger.non_stop_penalty -0.5"),
                (["--oger.non_stop_fixed_reward=-1"], "oger.non_stop_fixed_reward -1"),
                (["--reward.stop_properly_penalty_coef=-0.5"], "reward.stop_properly_penalty_coef -0.5"),
                (["--reward.overlong_buffer_len=16"], "reward.overlong_buffer_len"),
                (["--oger.math_rule=deepscaler_format"], "oger.math_rule deepscaler_format"),
                ([listed(RULE, SHORT)], "'short' of kind length"),
                ([listed(RULE, SIMILAR | {"weight": -0.5})], "'similar' with weight -0.5"),
                ([listed(RULE, SIMILAR | {"normalize": "running"})], "'similar' with normalize running"),
                ([listed(RULE, HEAD | {"worst": -1.0})], "'head' of kind classifier"),
            )
        ),
        (
            [*MAX_RL, "--rollout.n_samples_per_prompt=16"],
            "reward.clip_range -10 10 would cut the advantages of max_rl, which reach "
            "rollout.n_samples_per_prompt - 1 = 15: set reward.clip_range -10 15",
        ),
        *(
            (flags, f"{what} changes rewards, and algo.advantage.estimator pass_at_k takes only which rows are right")
            for flags, what in (
                (PASS_AT_K, "oger.bonus_weight 1"),
                ([*RIGHT_ALONE, "--oger.non_stop_penalty=-0.5"], "oger.non_stop_penalty -0.5"),
                ([*RIGHT_ALONE, "--oger.non_stop_fixed_reward=0"], "oger.non_stop_fixed_reward 0"),
                ([*RIGHT_ALONE, "--reward.stop_properly_penalty_coef=0.5"], "reward.stop_properly_penalty_coef 0.5"),
                ([*RIGHT_ALONE, "--reward.overlong_buffer_len=16"], "reward.overlong_buffer_len 16"),
                ([*RIGHT_ALONE, listed(RULE, HEAD)], "oger.reward.sources: 'head' of kind classifier"),
            )
        ),
        *(
            ([*RIGHT_ALONE, *flags], f"{what} of a group, so no row is better than another: set a smaller")
            for flags, what in (
                (["--oger.pass_at_k=8"], "oger.pass_at_k 8 is not below the 8 rows"),
                (
                    ["--oger.pass_at_k=7", "--oger.advantage_baseline=rollouts"],
                    "oger.pass_at_k 7 is not below the 7 rollouts without a teacher",
                ),
            )
        ),
        (
            [*ALONE, listed(RULE, SIMILAR | {"normalize": "group"})],
            "oger.reward.sources: 'similar' has normalize group, and a group of one (rollout.n_samples_per_prompt ",
        ),
        ([listed(RULE | {"weight": 0}, SIMILAR | {"weight": 0.0})], "every weight is 0 (the bonus"),
        (
            [listed(RULE, SHORT), "--rollout.max_new_tokens=16"],
            "'short' has budget 16, and responses have at most 16 tokens (rollout.max_new_tokens)",
        ),
        (
            [listed(RULE, SHORT), "--reward.overlong_buffer_len=8"],
            "reward.overlong_buffer_len and 'short' of oger.reward.sources, of kind length, both charge for tokens",
        ),
        (
            ["--rollout.max_new_tokens=16", "--reward.overlong_buffer_len=17"],
            "reward.overlong_buffer_len 17 is above the 16 tokens that a response may have (rollout.max_new_tokens)",
        ),
        ([listed({"name": "b", "kind": "bonus"}), "--oger.bonus_weight=0"], "oger.reward.sources: every weight is 0"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_the_sources_is_refused(said, flags: list[str], sentence: str) -> None:
    (problem,) = said(*flags)
    assert sentence in problem


@pytest.mark.parametrize(
    "flags",
    [
        GDPO,
        [*GDPO, listed(RULE, SIMILAR | {"normalize": "group", "weight": 0.5, "gate": "rule_equals_1"})],
        [*GDPO, "--oger.non_stop_penalty=-1"],
        [*GDPO, listed(RULE, SHORT), "--rollout.max_new_tokens=17"],
        [*ALONE, listed(RULE, SIMILAR | {"normalize": "running"})],
        [listed(RULE, SIMILAR | {"weight": 0})],  # to be watched
        MAX_RL,
        [*RIGHT_ALONE, "--oger.pass_at_k=7"],
        [*RIGHT_ALONE, "--oger.pass_at_k=6", "--oger.advantage_baseline=rollouts"],
        [*RIGHT_ALONE, listed(RULE, HEAD | {"weight": 0}), "--oger.pass_at_k=7"],
        [*MAX_RL, listed(RULE, SHORT | {"weight": 0, "normalize": "running"}, HEAD), "--oger.non_stop_fixed_reward=0"],
        [*MAX_RL, "--rollout.n_samples_per_prompt=16", "--reward.clip_range", "-1", "15"],
        [listed({"name": "b", "kind": "bonus"})],
        ["--rollout.max_new_tokens=16", "--reward.overlong_buffer_len=16"],
        [listed(SIMILAR | {"gate": "rule_equals_1"})],  # the rule is known although it is not listed
    ],
)
def test_what_goes_with_them_is_not(said, flags: list[str]) -> None:
    assert said(*flags) == []


def test_the_encoder_has_an_effect_where_a_source_embeds(parser: argparse.ArgumentParser) -> None:
    def notes(*flags: str) -> list[str]:
        value = vars(parser.parse_args(["--oger.bonus_weight=0", "--oger.max_replace_num=0", *flags]))
        return [note for note in without_effect(value, parser.get_default) if note.startswith("oger.embedding")]

    flags = ["--oger.embedding_model", "a/model", "--oger.embedding_max_tokens", "64"]
    assert {note.split(" has no effect")[0] for note in notes(*flags)} == {
        "oger.embedding_model", "oger.embedding_max_tokens",
    }  # fmt: skip
    assert notes(*flags, listed(RULE, SIMILAR)) == []
    assert [note.split(" has")[0] for note in notes("--oger.embedding_part=answer", listed(RULE, SIMILAR))] == [
        "oger.embedding_part"
    ]


def test_a_bonus_that_is_listed_and_adds_nothing_is_noted(parser: argparse.ArgumentParser) -> None:
    def notes(*flags: str) -> list[str]:
        return list(without_effect(vars(parser.parse_args(list(flags))), parser.get_default))

    bonus = {"name": "explore", "kind": "bonus"}
    (note,) = notes("--oger.bonus_weight=0", listed(RULE, bonus))
    assert note == "oger.reward.sources: 'explore' adds nothing: oger.bonus_weight is 0"
    assert notes(listed(RULE, bonus)) == []


@pytest.mark.parametrize(
    ("flags", "charges"),
    [
        (["--reward.overlong_buffer_len=8"], "reward.overlong_buffer_len the rewards"),
        (["--reward.stop_properly_penalty_coef=0.5"], "reward.stop_properly_penalty_coef the rewards"),
        ([listed(RULE, HEAD)], "oger.reward.sources the rewards"),
        (["--reward.overlong_buffer_len=8", "--algo.dynamic_filtering_range", "0.01", "0.99"], None),
        (["--reward.overlong_buffer_len=8", "--no-algo.dynamic_filtering_enable"], None),
        (
            ["--algo.advantage.estimator=reinforce"],
            "algo.advantage.estimator reinforce and oger.rollout_advantage estimator groups",
        ),
        (
            ["--oger.rollout_advantage=sign_exp_entropy"],
            "algo.advantage.estimator dr_grpo and oger.rollout_advantage sign_exp_entropy groups",
        ),
        ([], None),
    ],
)
def test_a_filter_that_leaves_nothing_out_is_noted(
    parser: argparse.ArgumentParser, flags: list[str], charges: str | None
) -> None:
    known = ["--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_range", "0", "1", *flags]
    said = notes_of(vars(parser.parse_args(known)), parser.get_default)
    found = [note for note in said if note.startswith("algo.dynamic_filtering_enable leaves no group out")]
    assert [f"with {charges} " in note for note in found] == ([] if charges is None else [True])


def test_answers_of_a_task_with_one_right_answer_tell_nothing_apart(parser: argparse.ArgumentParser) -> None:
    def found(task: str, **entry: str) -> list[str]:
        flags = ["--oger.task_name", task, listed(RULE, {"name": "rare", "kind": "uniqueness", **entry})]
        return [note for note in notes_of(vars(parser.parse_args(flags)), parser.get_default) if "'rare'" in note]

    (note,) = found("math", by="answer")
    assert note.endswith("a problem of math has one right answer: only its spellings would be paid")
    assert found("math") == found("countdown", by="answer") == []
