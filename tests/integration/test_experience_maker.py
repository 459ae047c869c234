"""From rollouts to rewards, KL and advantages: the controller's experience maker, whole, over models that say what a
test tells them (see Models in conftest.py)."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oger_recipe.algorithm import alarms, credit
from oger_recipe.algorithm.hybrid_group import ALL_CORRECT_GROUPS
from oger_recipe.base.errors import SourceFailed
from oger_recipe.base.files import read_jsonl
from oger_recipe.embedding.similarity import EmbeddingSimilarity
from oger_recipe.grading.verdict import Graded, Verdict, as_verdict
from oger_recipe.pipeline.controller.guards import share_read, stop_on_reward_errors
from oger_recipe.pipeline.controller.metrics import metrics_of as metrics_of_step
from oger_recipe.pipeline.controller.training_step import HybridBatch, Rollouts, TrainingStep
from oger_recipe.rewards.compose import Rewards
from oger_recipe.settings.parser import build_parser
from oger_recipe.settings.recipe_file import read_recipe
from oger_recipe.teachers.store import Teacher

CONFIGS = Path(__file__).parents[2] / "configs"
PLUGINS = Path(__file__).with_name("plugins")
TEXTS = ["ab", "cd", "ef", "gh"]  # three tokens each, with the end of sequence
REWARDS = [1.0, 0.0, 1.0, 0.0]
TRUNCATED = [False, False, True, True]
NO_BONUS = ["--oger.bonus_weight", "0", "--oger.max_replace_num", "0"]


@pytest.fixture()
def group(rollout):
    """A group of four: right, wrong, right, wrong; the last two are truncated."""
    return [
        rollout(text, reward, truncated=truncated)
        for text, reward, truncated in zip(TEXTS, REWARDS, TRUNCATED, strict=True)
    ]


def by_row(experiences: list[Any], name: str = "advantages") -> list[list[float]]:
    """The values on the response tokens of every row."""
    rows: dict[int, list[float]] = {}
    for experience in experiences:
        for position, row in enumerate(experience.index):
            mask = experience.action_mask[position].bool()
            rows[row] = getattr(experience, name)[position][mask].tolist()
    return [rows[row] for row in sorted(rows)]


def first_tokens(experiences: list[Any]) -> list[float]:
    return [values[0] for values in by_row(experiences)]


def lines(maker: Any) -> list[dict[str, Any]]:
    return read_jsonl(maker.run_dir / "samples" / f"step_{maker.step:05d}.jsonl")


@pytest.mark.parametrize("micro_batch", ["4", "2", "1"])
def test_the_fine_enters_the_group_mean_however_the_step_is_cut(controller, group, micro_batch):
    maker = controller(*NO_BONUS, "--oger.non_stop_penalty=-1", f"--rollout.micro_batch_size={micro_batch}")
    advantages = by_row(maker.make_experience_batch(group))  # rewards 1, 0, 0, -1: their mean is 0
    assert advantages == [pytest.approx([value] * 3) for value in (1.0, 0.0, 0.0, -1.0)]
    assert maker.current.rewards.total.tolist() == [[1.0, 0.0, 0.0, -1.0]]
    assert [line["reward"] for line in lines(maker)] == REWARDS  # as it was verified


@pytest.mark.parametrize("estimator", ["dr_grpo", "rloo", "gae"])
def test_truncated_rollouts_can_be_left_out_of_the_policy_loss(controller, group, estimator):
    flags = [*NO_BONUS, "--algo.advantage.estimator", estimator, "--algo.advantage.no_std_norm"]
    critic = 0.5 if estimator == "gae" else None
    kept = by_row(controller(*flags, critic=critic).make_experience_batch(group))
    maker = controller(*flags, "--oger.disable_truncation_advantage", critic=critic)
    masked = by_row(maker.make_experience_batch(group))
    assert masked[2:] == [[0.0] * 3] * 2 and any(kept[2]) and any(kept[3])
    assert masked[:2] == kept[:2]


def test_gae_with_a_critic_is_the_reward_at_the_end_less_the_value(controller, group):
    """gamma = lambda = 1: every token's advantage is R - V; their mean over the batch is 0, so nothing is shifted."""
    maker = controller(
        *NO_BONUS, "--algo.advantage.estimator", "gae", "--algo.advantage.no_std_norm", critic=0.5
    )  # fmt: skip
    advantages = by_row(maker.make_experience_batch(group))
    assert advantages == [pytest.approx([reward - 0.5] * 3) for reward in REWARDS]


def test_the_in_reward_kl_has_its_own_coefficient_beside_the_loss_sides(controller, group):
    """The policy says -0.5 of a token, the reference -1: a coefficient of 2 takes 1 from it and all before it."""
    kl = ["--algo.kl.use_loss", "--algo.kl.init_coef", "0.25", "--oger.kl_penalty_coef", "2"]
    maker = controller(*NO_BONUS, *kl, reference=-1.0)
    advantages = by_row(maker.make_experience_batch(group))
    assert advantages == [pytest.approx([reward - 3.5, reward - 2.5, reward - 1.5]) for reward in REWARDS]


@pytest.mark.parametrize(("estimator", "of_token"), [("abs", 0.25), ("k1", -0.25), ("k2", 0.03125)])
def test_the_in_reward_kl_is_of_the_chosen_estimator(controller, group, estimator, of_token):
    """The policy says -0.5 of a token, the reference -0.25."""
    flags = ["--algo.kl.init_coef", "2", "--algo.kl.estimator", estimator]
    advantages = by_row(controller(*NO_BONUS, *flags, reference=-0.25).make_experience_batch(group))
    centred = (0.5, -0.5, 0.5, -0.5)
    assert advantages == [pytest.approx([value - 2 * of_token * left for left in (3, 2, 1)]) for value in centred]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("reinforce", [1.4375, -0.5625, 1.4375, -0.0625, *[-0.5625] * 4]),  # less the mean of the batch, 4.5 / 8
        ("reinforce_baseline", [0.875, -1.125, 0.875, -0.625, *[0.0] * 4]),  # less that of the group, 4.5 / 4 and 0
    ],
)
def test_reinforce_trains_on_what_all_sources_say_where_their_gates_are_open(
    controller, rollout, tmp_path, estimator, expected
):
    """The rule says 1, 0, 1, 0.5, and four times 0; the other source says 1, and counts where the rule said 1."""
    (tmp_path / "says_one.py").write_text("def score(group):\n    return [1.0] * len(group.responses)\n")
    sources = [{"name": "rule", "kind": "verifier"}]
    sources += [{"name": "ones", "kind": "says_one:score", "gate": "rule_equals_1"}]
    flags = ["--oger.max_replace_num=0", f"--oger.reward.sources={json.dumps(sources)}"]
    flags += [f"--oger.verifier_path={tmp_path}", "--algo.advantage.no_std_norm"]
    rows = [rollout(text, reward) for text, reward in zip(TEXTS, [1.0, 0.0, 1.0, 0.5], strict=True)]
    rows += [rollout(text, 0.0, uid="v") for text in TEXTS]
    maker = controller(*flags, "--algo.advantage.estimator", estimator)
    assert first_tokens(maker.make_experience_batch(rows)) == pytest.approx(expected)
    assert maker.current.rewards.total.tolist() == [[2.0, 0.0, 2.0, 0.5], [0.0] * 4]


def test_an_estimator_that_is_registered_can_be_chosen_and_trains(controller, group, monkeypatch):
    monkeypatch.setitem(credit.ESTIMATORS, "doubled", lambda rewards, baseline: 2 * rewards)
    flags = ["--algo.advantage.estimator", "doubled", "--rollout.micro_batch_size=2"]
    maker = controller(*NO_BONUS, *flags, parser=build_parser(cpu=True))
    assert first_tokens(maker.make_experience_batch(group)) == [2.0, 0.0, 2.0, 0.0]


def test_dapos_advantages_are_those_of_its_paper(controller, rollout):
    """Answers earn 1 or -1, less a share of the last 4 of 8 tokens (eq. 13); the group's mean, and std over n - 1."""
    recipe = read_recipe(CONFIGS / "dapo_cpu.yaml", build_parser(cpu=True))
    method = ("algo.advantage.estimator", "reward.overlong_penalty_factor")
    flags = [*NO_BONUS, *(f"--{key}={recipe[key]}" for key in method)]
    flags += ["--rollout.max_new_tokens=8", "--reward.overlong_buffer_len=4"]
    texts, right = ("abc", "abcdef", "abcde", "abcdefg"), (True, True, False, False)  # 4, 7, 6 and 8 tokens
    rewards = [1 - 0, 1 - 3 / 4, -1 - 2 / 4, -1 - 4 / 4]
    rows = [rollout(text, float(is_right)) for text, is_right in zip(texts, right, strict=True)]
    expected = [(reward - mean(rewards)) / stdev(rewards) for reward in rewards]
    assert first_tokens(controller(*flags).make_experience_batch(rows)) == pytest.approx(expected, abs=1e-5)


# ---- the bonus; similarities to the teacher are 0.2, 0.4, 0.6, 0.8, and no teacher takes a place

TEACHER = Teacher("teacher", "teach", [1, 2, 3], 1.0, 1.0)


@pytest.fixture()
def bonus(controller, models, rollout):
    """The bonus of four rollouts by flags, with similarities of 0.2 to 0.8 and no entropy."""

    def found(*flags: str, texts=TEXTS, rewards=REWARDS, scores=None, step: int = 1) -> list[float]:
        models.similarity |= dict(zip(texts, (0.2, 0.4, 0.6, 0.8), strict=True))
        maker = controller("--oger.max_replace_num=0", *flags, teachers={"u": [TEACHER]}, steps=11)
        maker.step = step
        rows = zip(texts, rewards, scores or rewards, TRUNCATED, strict=True)
        maker.make_experience_batch([rollout(t, r, score=float(s > 0), truncated=cut) for t, r, s, cut in rows])
        return [line["bonus"] for line in lines(maker)]

    return found


def test_right_rollouts_earn_their_divergence(bonus):
    assert bonus() == pytest.approx([0.8, 0.0, 0.4, 0.0])


def test_degenerate_repetition_and_groups_that_are_skipped_earn_nothing(bonus):
    texts = ["So 1 + 1 = 2. " * 100, *TEXTS[1:]]
    assert bonus("--oger.repeating_check", texts=texts) == pytest.approx([0.0, 0.0, 0.4, 0.0])
    assert bonus("--oger.all_correct_group", "skip", rewards=[1.0] * 4) == [0.0] * 4
    assert bonus("--oger.all_correct_group", "online", rewards=[1.0] * 4) == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_a_truncated_rollout_with_a_fixed_reward_has_that_reward_and_no_bonus_on_top(bonus):
    """Rows 2 and 3 are truncated, row 2 of them correct."""
    assert bonus("--oger.non_stop_fixed_reward=-1") == pytest.approx([0.8, 0.0, 0.0, 0.0])
    flags = ["--oger.non_stop_fixed_reward=-1", "--oger.similarity_reverse_fail"]
    assert bonus(*flags) == pytest.approx([0.8, 0.4, 0.0, 0.0])
    assert bonus("--oger.non_stop_penalty=-1") == pytest.approx([0.8, 0.0, 0.4, 0.0])  # a fine comes on top


def test_the_bonus_weight_follows_its_schedule(bonus):
    linear = ["--oger.bonus_schedule", "linear"]
    assert bonus(*linear, step=6) == pytest.approx([0.4, 0.0, 0.2, 0.0])  # half way to 0 in 11 steps
    ends = [*linear, "--oger.bonus_schedule_steps=5", "--oger.bonus_weight_end=0.5"]
    assert bonus(*ends, step=3) == pytest.approx([0.6, 0.0, 0.3, 0.0])
    assert bonus("--oger.bonus_schedule", "cosine", step=11) == pytest.approx([0.0] * 4)


def test_a_consolation_prize_for_a_wrong_answer_earns_no_bonus(bonus):
    """Countdown gives 0.1 for a well-formed wrong answer: reward 0.1, score 0."""
    assert bonus(rewards=[1.0, 1.0, 0.1, 0.1], scores=[1, 1, 0, 0]) == pytest.approx([0.8, 0.6, 0.0, 0.0])


def test_weight_shaping_and_estimator_of_the_users_own_make_bonus_and_advantages(controller, models, rollout):
    """Right ones earn D squared / (1 + H): 0.64 / 2 and 0.16 / 4; the mean of 1.32, 0, 1.04 and 0 is 0.59."""
    models.similarity = dict(zip(TEXTS, (0.2, 0.4, 0.6, 0.8), strict=True))
    models.entropy = dict(zip(TEXTS, (1.0, 0.5, 3.0, 0.5), strict=True))
    flags = ["--algo.advantage.estimator=own_method:over_mean", "--oger.last_token_enp_reward=own_method:half"]
    flags += ["--oger.similarity_shaping=own_method:squared", f"--oger.verifier_path={PLUGINS}"]
    maker = controller("--oger.max_replace_num=0", *flags, teachers={"u": [TEACHER]})
    rows = [rollout(text, reward) for text, reward in zip(TEXTS, REWARDS, strict=True)]
    advantages = first_tokens(maker.make_experience_batch(rows))
    assert [line["bonus"] for line in lines(maker)] == pytest.approx([0.32, 0.0, 0.04, 0.0])
    assert advantages == pytest.approx([1.32 / 0.59 - 1, -1.0, 1.04 / 0.59 - 1, -1.0])


# ---- 0.1 is paid for form: what a rollout is worth is not whether it is right


@pytest.mark.parametrize("rule", [name for name, how in ALL_CORRECT_GROUPS.items() if not how.teachers_enter])
def test_a_group_that_is_paid_for_form_alone_is_not_solved(controller, models, rollout, rule):
    """With these rules a solved group stays without teachers and, with one of them, without a bonus."""
    teachers = {"u": [TEACHER], "v": [TEACHER]}
    maker = controller("--oger.all_correct_group", rule, teachers=teachers)
    rows = [rollout(text, 0.1, score=0.0) for text in TEXTS]
    rows += [rollout(text, 1.0, uid="v") for text in TEXTS]
    maker.make_experience_batch(rows)
    assert [row // 4 for row in maker.current.batch.injected] == [0]
    assert maker.current.batch.skipped.tolist() == [False] * 4 + [not ALL_CORRECT_GROUPS[rule].bonus] * 4
    assert (maker.current.metrics["rollout/solve_none"], maker.current.metrics["rollout/solve_all"]) == (
        0.5,
        0.5,
    )


def test_wrong_ones_that_are_paid_for_form_make_room_first(controller, models, rollout):
    models.similarity = dict(zip(TEXTS, (0.2, 0.4, 0.6, 0.8), strict=True))
    maker = controller("--oger.replace_mode", "wrong_first_similarity_mean_des", teachers={"u": [TEACHER]})
    rows = zip(TEXTS, (0.1, 1.0, 0.1, 1.0), (0.0, 1.0, 0.0, 1.0), strict=True)
    maker.make_experience_batch([rollout(text, reward, score=score) for text, reward, score in rows])
    assert list(maker.current.batch.injected) == [2]


def test_a_group_with_one_that_is_paid_for_form_does_not_spare_its_teacher(controller, models, rollout):
    """Rewards 1 + 3 * 0.8, 1 + 3 * 0.6, 0.1, and the teacher's 1: their mean is 1.825."""
    models.similarity = dict(zip(TEXTS, (0.2, 0.4, 0.6, 0.8), strict=True))
    maker = controller("--oger.all_correct_group", "clip", "--oger.bonus_weight", "3", teachers={"u": [TEACHER]})
    rows = zip(TEXTS, (1.0, 1.0, 0.1, 0.0), (1.0, 1.0, 0.0, 0.0), strict=True)
    experiences = maker.make_experience_batch([rollout(text, reward, score=score) for text, reward, score in rows])
    assert first_tokens(experiences)[3] == pytest.approx(-0.825)


def test_the_figures_of_a_step_with_a_teacher_in_the_place_of_a_right_rollout(controller, models, rollout, letters):
    """Right, wrong with 0.1 for form, right, right; the last gives way to a teacher whose text is worth 0.9."""
    models.similarity = dict(zip(TEXTS, (0.2, 0.4, 0.5, 0.9), strict=True))
    models.entropy = dict(zip(TEXTS, (0.1, 0.5, 0.3, 0.9), strict=True))
    teacher = Teacher("a", "okay", [*letters.encode("okay"), letters.eos_token_id], 0.9, 1.0)
    maker = controller(teachers={"u": [teacher]})
    rows = zip(TEXTS, (1.0, 0.1, 1.0, 1.0), (1.0, 0.0, 1.0, 1.0), strict=True)
    maker.make_experience_batch([rollout(text, reward, score=score) for text, reward, score in rows])
    weights = [math.exp(-entropy) for entropy in (0.1, 0.5, 0.3)]
    bonus = [0.8 * weights[0], 0.0, 0.5 * weights[2]]
    rewards = [1 + bonus[0], 0.1, 1 + bonus[2]]
    advantages = [reward - (sum(rewards) + 0.9) / 4 for reward in (*rewards, 0.9)]
    expected = {
        "bonus_weight": 1.0, "replaced": 1.0, "replaced_correct": 1.0, "replaced_wrong": 0.0,
        "taught_groups": 1.0, "prompts_without_teacher": 0.0, "prefix_ratio": 1 / 4, "off_on_ratio": 1 / 3,
        "on_response_length": 3.0, "off_response_length": 5.0, "on_score": 2 / 3, "off_score": 1.0,
        "on_reward": mean(rewards), "teacher_reward": 0.9, "teacher_advantage": advantages[3],
        "rollout_advantage_abs": mean(map(abs, advantages[:3])), "advantage_max": max(advantages),
        "advantage_min": min(advantages), "equal_groups": 0.0,
        "similarity": 1.1 / 3, "similarity_std": stdev((0.2, 0.4, 0.5)),
        "divergence": 1.9 / 3, "divergence_std": stdev((0.8, 0.6, 0.5)), "entropy": 0.3, "entropy_p90": 0.46,
        "entropy_weight": mean(weights), "entropy_weight_std": stdev(weights), "bonus": mean(bonus),
        "bonus_of_correct": mean((bonus[0], bonus[2])), "bonus_of_correct_std": stdev((bonus[0], bonus[2])),
        "bonus_of_correct_std_in_group": stdev((bonus[0], bonus[2])), "embedding_share_read": 1.0,
    }  # fmt: skip
    found = {
        name.removeprefix("oger/"): value for name, value in maker.current.metrics.items() if name.startswith("oger/")
    }
    assert found == pytest.approx(expected, abs=1e-6)
    of_rollouts = {
        "solve_rate": 3 / 4, "solve_all": 0.0, "solve_none": 0.0, "reward": 3.1 / 4, "entropy": 3.0,
        "response_length": 3.0, "response_tokens": 12.0,
    }  # fmt: skip
    assert {name: maker.current.metrics[f"rollout/{name}"] for name in of_rollouts} == pytest.approx(
        of_rollouts, abs=1e-6
    )


# ---- what the forward passes are asked, and what is kept of them; the teacher takes the place of "gh"


@pytest.fixture()
def taught(controller, models, group, letters):
    """A step in which the teacher takes the place of the most similar rollout, the last one."""

    def step(*flags: str, probs: list[float] | None = None, **others: Any) -> tuple[Any, list[Any]]:
        models.similarity = dict(zip(TEXTS, (0.2, 0.4, 0.6, 0.8), strict=True))
        tokens = [*letters.encode("ok"), letters.eos_token_id]
        teacher = Teacher("a source", "ok", tokens, 1.0, 1.0, probs)
        maker = controller(*flags, teachers={"u": [teacher]}, **others)
        return maker, maker.make_experience_batch(group)

    return step


@pytest.mark.parametrize(
    ("flags", "others", "skipped"),
    [
        ([], {}, True),
        (["--oger.off_policy_loss", "sft"], {}, True),
        (["--oger.off_policy_loss", "ppo"], {}, False),
        (["--algo.advantage.estimator", "gae"], {"critic": 0.5}, False),
        (["--algo.kl.init_coef", "0.1"], {"reference": -0.5}, False),
    ],
)
def test_teachers_pass_through_the_policy_only_where_their_old_log_probs_are_used(
    taught, models, flags, others, skipped
):
    _, (experience,) = taught(*flags, **others)
    assert sorted(models.asked) == [0 if skipped else 3, 3, 3, 3]
    assert experience.action_mask.sum(dim=1).tolist() == [3] * 4
    assert experience.info["kl"].tolist() == experience.info["logprobs_diff"].tolist() == [0.0] * 4


OF_UPDATE = "--oger.old_log_probs=of_update"
RIGHT = [False, True, True, False]


@pytest.mark.parametrize("cut", [4, 2, 1])
@pytest.mark.parametrize(
    ("flags", "teachers", "read"),
    [
        ([], True, [False, True, True, False]),  # the right ones, whose entropy weighs the bonus
        (["--oger.bonus_weight=0"], True, [False, True, False, False]),
        (["--oger.last_token_enp_reward=none"], True, [False, True, False, False]),
        (["--oger.similarity_reverse_fail"], True, [False, True, True, True]),
        ([], False, [True, False, False, False]),  # nothing to differ from, so no bonus
    ],
)
def test_with_old_log_probs_of_the_update_only_rows_that_something_reads_pass_before_it(
    controller, models, rollout, letters, flags, teachers, read, cut
):
    """The teacher takes the place of "ab". The engine's numbers of rows that do not pass are compared with nothing."""
    models.similarity = dict(zip(TEXTS, (0.8, 0.6, 0.4, 0.2), strict=True))
    models.entropy = dict(zip(TEXTS, (0.1, 0.2, 0.3, 0.4), strict=True))
    tokens = [*letters.encode("ok"), letters.eos_token_id]
    given = {"u": [Teacher("a source", "ok", tokens, 1.0, 1.0)]} if teachers else {}
    found = []
    for more in ([], [OF_UPDATE]):
        models.asked.clear()
        models.difference = dict.fromkeys(
            text for text, passes in zip(TEXTS, read, strict=True) if not passes and more
        )
        models.difference = dict.fromkeys(models.difference, 5.0)
        maker = controller(*flags, *more, f"--rollout.micro_batch_size={cut}", teachers=given)
        rows = [rollout(text, float(right)) for text, right in zip(TEXTS, RIGHT, strict=True)]
        advantages = by_row(maker.make_experience_batch(rows))
        found.append((advantages, maker.current.rewards.total.tolist(), maker.current.bonus.tolist()))
    assert found[0] == found[1]
    assert sorted(models.asked) == sorted(3 * passes for passes in read)
    step, first = maker.current, read.index(True)
    assert step.entropy.isfinite().tolist() == step.log_prob.isfinite().tolist() == read
    assert step.metrics["rollout/entropy"] == pytest.approx(10 * models.entropy[TEXTS[first]])
    assert step.metrics["vllm_logprob_difference"] == 0.0
    assert step.metrics["nonfinite/entropies"] == step.metrics["nonfinite/log_probs"] == 0.0


def test_the_engine_is_still_compared_with_the_policy_where_old_log_probs_are_of_the_update(controller, models, group):
    models.difference = {"ab": 5.0}
    with pytest.raises(RuntimeError, match="weights that vLLM samples from"):
        controller(*NO_BONUS, OF_UPDATE, "--oger.max_logprob_difference=1").make_experience_batch(group)


def test_a_fair_sample_has_an_own_rollout_where_a_teacher_began_others(controller, models, rollout):
    models.entropy = dict(zip(TEXTS, (0.1, 0.2, 0.3, 0.4), strict=True))
    flags = ("--oger.bonus_weight=0", "--oger.max_replace_num=0", "--oger.n_prefix=2", OF_UPDATE)
    maker = controller(*flags)
    guided = [rollout(text, guided=2 * (place < 2)) for place, text in enumerate(TEXTS)]
    maker.make_experience_batch([*guided, *(rollout(text, uid="v", guided=2) for text in TEXTS)])
    assert maker.current.read.tolist() == [False, False, True, False, True, False, False, False]
    assert maker.current.metrics["rollout/entropy"] == pytest.approx(3.0)


@pytest.mark.parametrize("cut", [4, 1])
@pytest.mark.parametrize("teacher_loss", ["reshape", "sft"])
def test_of_a_taught_group_only_the_teacher_enters_a_loss(controller, models, rollout, letters, cut, teacher_loss):
    """Unsolved, solved by half, and unsolved without a teacher: the teacher takes the place of "gh"."""
    models.similarity = dict(zip(TEXTS, (0.2, 0.4, 0.6, 0.8), strict=True))
    teacher = Teacher("a", "okay", [*letters.encode("okay"), letters.eos_token_id], 1.0, 1.0)
    maker = controller(
        "--oger.bonus_weight=0", "--oger.teacher_gate=0.25", "--oger.taught_group=teachers",
        f"--oger.off_policy_loss={teacher_loss}", f"--rollout.micro_batch_size={cut}",
        teachers={"u": [teacher], "v": [teacher]},
    )  # fmt: skip
    rewards = {"u": [0.0] * 4, "v": REWARDS, "w": [0.0] * 4}
    rows = [rollout(text, value, uid=uid) for uid in rewards for text, value in zip(TEXTS, rewards[uid], strict=True)]
    trained = by_row(maker.make_experience_batch(rows))
    assert trained[:4] == [[], [], [], pytest.approx([0.75] * 5)]  # its reward less the mean of the hybrid group
    assert trained[4:8] == [pytest.approx([value] * 3) for value in (0.5, -0.5, 0.5, -0.5)]
    assert trained[8:] == [[0.0] * 3] * 4
    assert [line["advantage"] for line in lines(maker)[:3]] == [0.0] * 3
    assert maker.current.metrics["oger/taught_groups"] == pytest.approx(1 / 3)


def test_the_weight_of_the_supervised_loss_follows_its_schedule(controller, group):
    """Of 21 steps; a run that resumes at a step begins there."""
    sft = ["--oger.off_policy_loss=sft", "--oger.sft_loss_coef=0.5"]
    ends = ["--oger.sft_loss_schedule=linear", "--oger.sft_loss_coef_end=0.1", "--oger.sft_loss_schedule_steps=5"]
    whole = ["--oger.sft_loss_schedule=cosine", "--oger.sft_loss_warmup_steps=2"]
    cases = {
        (1, *ends): 0.5, (4, *ends): 0.2, (5, *ends): 0.1, (9, *ends): 0.1,
        (1, *whole): 0.25, (2, *whole): 0.5, (21, *whole): 0.0, (1, "--oger.sft_loss_warmup_steps=5"): 0.1,
    }  # fmt: skip
    for (step, *flags), weight in cases.items():
        maker = controller(*sft, *flags, steps=21)
        maker.step = step
        (experience,) = maker.make_experience_batch(list(group))
        assert experience.info["sft_loss_coef"].tolist() == pytest.approx([weight] * 4, abs=1e-7), (step, flags)
    for flags in (sft, ends):  # a constant one travels nowhere, nor does one of another loss
        (experience,) = controller(*flags).make_experience_batch(list(group))
        assert "sft_loss_coef" not in experience.info


def test_the_share_of_a_teacher_in_the_hints_is_a_metric_where_there_are_hints(controller, group):
    maker = controller("--oger.hint_share=0.8", "--oger.hint_schedule=linear", steps=5)
    maker.step = 2
    maker.make_experience_batch(list(group))
    assert maker.current.metrics["oger/hint_share"] == pytest.approx(0.6)
    maker = controller()
    maker.make_experience_batch(list(group))
    assert "oger/hint_share" not in maker.current.metrics


@pytest.mark.parametrize("cut", [4, 1])
def test_rollouts_may_have_the_advantage_of_their_sign_and_entropy(taught, models, cut):
    """Right, wrong, right, and the teacher; the mean over a response is ten times the entropy at its end."""
    models.entropy = dict(zip(TEXTS, (0.01, 0.2, 0.05, 0.9), strict=True))
    flags = ["--oger.bonus_weight=0", "--oger.rollout_advantage=sign_exp_entropy", f"--rollout.micro_batch_size={cut}"]
    _, experiences = taught(*flags)
    of_teacher = 1 - 0.75  # its reward less the mean of 1, 0, 1 and 1
    expected = [0.1 * math.exp(0.1), -1.0, 0.1 * math.exp(0.5), of_teacher]
    assert first_tokens(experiences) == pytest.approx(expected)


def test_entropies_are_kept_by_row_and_the_engine_is_compared_on_the_policys_own_rollouts(taught, models):
    models.entropy = dict(zip(TEXTS, (0.1, 0.2, 0.3, 0.9), strict=True))
    # The mean of 0.03, -0.01 and 0.01; the teacher's row has log-probabilities of its own.
    models.difference = {"ab": 0.03, "cd": -0.01, "ef": 0.01, "ok": 50.0}
    maker, experiences = taught("--oger.off_policy_loss", "ppo", "--rollout.micro_batch_size=2")
    trained = [line for line in lines(maker) if not line.get("replaced")]
    assert [line["entropy"] for line in trained] == pytest.approx([0.1, 0.2, 0.3, 0.0])
    assert maker.current.metrics["rollout/entropy"] == pytest.approx(2.0)  # the response's means are ten times as much
    assert maker.current.metrics["vllm_logprob_difference"] == pytest.approx(0.05 / 3, rel=1e-4)
    assert maker.current.metrics["vllm_kl"] == pytest.approx(0.01, rel=1e-4)
    assert maker.current.metrics["vllm_logprob_limit"] == pytest.approx(0.05 + 0.002, rel=1e-4)
    for name in ("rollout_log_probs", "teacher_log_probs", "engine_weights"):  # nothing asks for them
        assert all(getattr(experience, name) is None for experience in experiences)


@pytest.mark.parametrize("cut", [4, 1])
def test_what_is_known_of_a_rollout_is_the_log_probability_of_its_whole_response(
    controller, models, rollout, letters, cut
):
    """Of the end of sequence as well; a teacher has none, also where the policy says one. It takes the last place."""
    texts = ["abcd", "e", "fgh", "ij"]
    models.similarity = dict(zip(texts, (0.2, 0.4, 0.6, 0.8), strict=True))
    models.difference = {"abcd": 0.1, "e": 0.3, "fgh": -0.2, "ok": 5.0}
    teacher = Teacher("a source", "ok", [*letters.encode("ok"), letters.eos_token_id], 1.0, 1.0)
    flags = ("--oger.off_policy_loss=ppo", f"--rollout.micro_batch_size={cut}", "--oger.max_logprob_difference=1")
    maker = controller(*flags, teachers={"u": [teacher]})
    maker.make_experience_batch([rollout(text, 0.0) for text in texts])
    expected = [-0.6 * 5, -0.8 * 2, -0.3 * 4, math.nan]
    assert maker.current.log_prob.tolist() == pytest.approx(expected, nan_ok=True)
    assert [line.get("log_prob") for line in lines(maker)[:3]] == pytest.approx(expected[:3])


def test_a_teachers_own_probabilities_reach_the_loss_only_where_that_is_asked_for(taught):
    _, experiences = taught("--oger.use_off_policy_probs", probs=[0.5, 0.25, 0.125])
    assert experiences[0].rollout_log_probs is None
    found = by_row(experiences, "teacher_log_probs")
    assert all(math.isnan(each) for row in found[:3] for each in row)
    assert found[3] == pytest.approx([math.log(0.5), math.log(0.25), math.log(0.125)])


def test_a_run_stops_where_engine_and_policy_part(controller, models, group):
    maker = controller(*NO_BONUS)

    def step(size: float) -> None:
        models.difference = dict(zip(TEXTS, (size, -size, size, -size), strict=True))
        maker.make_experience_batch(group)

    step(0.001)
    assert maker.current.metrics["vllm_logprob_limit"] == pytest.approx(0.005, abs=1e-6)
    step(0.0045)
    assert maker.current.metrics["vllm_logprob_limit"] == pytest.approx(0.005, abs=1e-6)  # the first step's
    before, maker = maker, controller(*NO_BONUS)
    maker.resume(2, 5, before.state())  # that of the run's first step, not of the attempt's
    with pytest.raises(RuntimeError, match="the weights that vLLM samples from are not those that are trained"):
        step(0.006)


def test_the_engine_is_compared_on_what_it_has_written_behind_a_teachers_tokens(controller, models, rollout):
    """One token of three, and none of the last row. A first step in which teachers wrote everything sets no limit."""
    maker = controller("--oger.n_prefix=-1", "--oger.max_replace_num=0", "--oger.bonus_weight=0")
    maker.make_experience_batch([rollout(text, guided=len(text) + 1) for text in TEXTS])
    assert not [name for name in maker.current.metrics if name.startswith("vllm_")]
    assert maker.engine_guard.limit is None
    models.difference = dict(zip(TEXTS, (0.03, -0.01, 0.02, 50.0), strict=True))
    maker.make_experience_batch([rollout(text, guided=2 if text != "gh" else 3) for text in TEXTS])
    assert maker.current.metrics["vllm_logprob_difference"] == pytest.approx(0.02, rel=1e-4)
    assert maker.current.metrics["vllm_logprob_limit"] == pytest.approx(3 * 0.02 + 0.002, rel=1e-4)


def test_a_run_stops_where_too_many_rollouts_could_not_be_graded(rollout, tmp_path):
    samples = [rollout("a"), rollout("b", error="the verifier died"), rollout("c"), rollout("d")]
    stop_on_reward_errors(samples, 0.25, 3, tmp_path)
    with pytest.raises(RuntimeError, match=r"1 of 4 rollouts of step 3 could not be graded \(limit: 20%"):
        stop_on_reward_errors(samples, 0.2, 3, tmp_path)
    samples[0].rewards = None
    with pytest.raises(RuntimeError, match="2 of 4 rollouts"):
        stop_on_reward_errors(samples, 1.0, 3, tmp_path)


def test_a_limit_is_a_share_as_it_is_written(rollout, tmp_path):
    """29 of 100 are not more than 0.29, though 0.29 * 100 is 28.999999999999996."""
    samples = [rollout("a", error="the verifier died" if number < 29 else None) for number in range(100)]
    stop_on_reward_errors(samples, 0.29, 3, tmp_path)
    with pytest.raises(RuntimeError, match="29 of 100 rollouts"):
        stop_on_reward_errors(samples, 0.28, 3, tmp_path)


def test_rollouts_that_arrive_are_encoded_ahead_where_their_prompt_has_teachers(controller, models, rollout):
    maker = controller("--oger.embedding_max_tokens=8192", teachers={"u": [TEACHER]})
    asked = _asked_of_the_encoder(maker)
    maker.rollout_arrived(rollout("ab"))
    maker.rollout_arrived(rollout("cd", uid="nobody taught this"))
    maker.measure.of_groups([["ab"]], [["teach"]], "mean")
    assert asked == ["ab", "teach"]


def test_teachers_are_encoded_ahead_and_once_when_their_prompts_are_sent(controller):
    other = replace(TEACHER, text="taught otherwise")
    maker = controller("--oger.embedding_max_tokens=8192", teachers={"u": [TEACHER], "v": [other]})
    asked = _asked_of_the_encoder(maker)
    maker.prompts_sent(["u", "nobody taught this"])
    assert maker.measure.of_groups([["ab"]], [["teach"]], "mean").isfinite().all()
    assert asked == ["teach", "ab"]
    maker.prompts_sent(["u", "v"])
    maker.measure.of_groups([["cd"], ["ef"]], [["teach"], ["taught otherwise"]], "mean")
    assert asked[2:] == ["taught otherwise", "cd", "ef"]


def _asked_of_the_encoder(maker) -> list[str]:
    asked: list[str] = []
    encode = maker.measure._encoder.encode_each
    maker.measure._encoder.encode_each = lambda texts: (asked.extend(texts), encode(texts))[1]
    return asked


# ---- what is kept of a step


def test_the_policys_own_right_rollouts_and_no_others_are_remembered(controller, rollout):
    maker = controller("--oger.use_history_samples", *NO_BONUS)
    rows = [rollout("a", 1.0), rollout("b"), rollout("c", 1.0, guided=1), rollout("d", 1.0)]
    maker.make_experience_batch(rows)
    assert maker.history["u"] == ["a", "d"]
    begun = lines(maker)[2]
    assert (begun["off_policy"], begun["off_policy_tokens"], begun["off_policy_characters"]) == (True, 1, 1)
    assert [line["text"] for line in read_jsonl(maker.run_dir / "history.jsonl")] == ["a", "d"]


OWN = ["--oger.use_history_samples", "--oger.history_enters", "--oger.bonus_weight=0", "--oger.replace_mode=random"]


@pytest.fixture()
def by_token(models):
    """The policy gives a token t the log-probability -(t % 7 + 1) / 10, or, after a factor, as often."""

    def forward(sequences, mask):
        log_probs = -(sequences[:, 1:] % 7 + 1) / 10 * mask * by_token.factor
        entropy = torch.tensor([models.entropy.get(text, 0.0) for text in _texts(models, sequences, mask)])
        return log_probs, entropy, 10 * entropy

    by_token.factor = 1.0
    models._forward = forward
    return by_token


def _texts(models: Any, sequences: torch.Tensor, mask: torch.Tensor) -> list[str]:
    pairs = zip(sequences, mask, strict=True)
    return [models.tokenizer.decode(row[1:][on.bool()], skip_special_tokens=True) for row, on in pairs]


@pytest.mark.parametrize("cut", ["4", "1"])
def test_earlier_rollouts_enter_a_later_group_with_the_probabilities_of_then(
    controller, models, rollout, letters, by_token, cut
):
    """Right twice, guided, wrong, and the first again; the other prompt's right, truncated, and wrong. Of the two the
    lower entropy enters."""
    models.entropy = {"ab": 0.03, "cdefg": 0.02, "other": 0.5}
    flags = [*OWN, "--oger.use_off_policy_probs", "--oger.teacher_draw=lowest_entropy"]
    flags += [f"--rollout.micro_batch_size={cut}", "--rollout.n_samples_per_prompt=5"]
    maker = controller(*flags, "--oger.max_logprob_difference=9")
    first = [rollout("ab", 1.0), rollout("cdefg", 0.75), rollout("g", 1.0, guided=1), rollout("w"), rollout("ab", 1.0)]
    first += [rollout("other", 1.0, uid="v"), rollout("cut", 1.0, uid="v", truncated=True)]
    first += [rollout(text, uid="v") for text in "xyz"]
    maker.make_experience_batch(first)
    assert (maker.history["u"], maker.history["v"]) == (["ab", "cdefg"], ["other"])
    for own in (*maker.history.teachers("u"), *maker.history.teachers("v")):
        assert own.probs == pytest.approx([math.exp(-(token % 7 + 1) / 10) for token in own.tokens])
    assert maker.current.batch.injected == {}
    assert maker.current.metrics["oger/prompts_without_teacher"] == 2
    by_token.factor, maker.step = 2.0, 2  # the policy has learnt since
    experiences = maker.make_experience_batch([rollout(text) for text in ("k", "l", "m", "n", "o")])
    ((row, entered),) = maker.current.batch.injected.items()
    tokens = [*letters.encode("cdefg"), letters.eos_token_id]
    assert (entered.source, entered.text, entered.tokens, entered.reward) == ("history", "cdefg", tokens, 0.75)
    stored = [-(token % 7 + 1) / 10 for token in tokens]
    assert by_row(experiences, "teacher_log_probs")[row] == pytest.approx(stored, abs=1e-6)
    advantages = by_row(experiences)  # rewards 0.75 and four times 0
    assert advantages[row] == pytest.approx([0.75 - 0.15] * 6)
    assert maker.current.metrics["oger/prompts_without_teacher"] == 0
    assert [line["source"] for line in lines(maker) if "source" in line] == ["history"]
    assert maker.history["u"] == ["ab", "cdefg"]  # nobody's row of this step: no right rollout of its own
    before = maker.history.teachers("u")
    maker.resume(1, 5, {})
    assert maker.history.teachers("u") == before


@pytest.mark.parametrize("flags", [[], ["--oger.teacher_draw=lowest_entropy"], ["--oger.replace_mode=random"]])
def test_a_resumed_run_trains_on_the_same_earlier_rollouts_to_the_last_bit(
    controller, models, rollout, letters, flags
):
    """Teachers of the data, the bonus and its references are there, too; the third step is that of a resumed run."""
    teacher = Teacher("a", "ok", [*letters.encode("ok"), letters.eos_token_id], 1.0, 1.0, [0.5] * 3)
    flags = ["--oger.use_history_samples", "--oger.history_enters", "--oger.use_off_policy_probs", *flags]
    flags += ["--oger.max_replace_num=2", "--oger.history_size=3"]
    words = "ab ba abc cab bca acb abcd bacd".split()
    models.similarity = {word: 0.1 * place for place, word in enumerate(words)}
    models.entropy = {word: 0.05 * (place * 5 % 7) for place, word in enumerate(words)}
    models.difference = {word: 0.001 * place for place, word in enumerate(words)}

    def step(maker: Any, number: int) -> Any:
        maker.step = number
        texts = [words[(number * 3 + place) % len(words)] for place in range(8)]
        rows = [rollout(text, float(place % 3 > 0), uid="uv"[place // 4]) for place, text in enumerate(texts)]
        experiences = maker.make_experience_batch(rows)
        drawn = {row: (each.source, each.text) for row, each in maker.current.batch.injected.items()}
        numbers = [by_row(experiences, name) for name in ("advantages", "teacher_log_probs")]
        return drawn, repr(numbers), maker.current.metrics["oger/similarity"]

    whole = controller(*flags, teachers={"u": [teacher]})
    for number in (1, 2):
        step(whole, number)
    history = (whole.run_dir / "history.jsonl").read_bytes()
    third = step(whole, 3)
    assert "history" in {source for source, _ in third[0].values()}
    resumed = controller(*flags, teachers={"u": [teacher]})
    (resumed.run_dir / "history.jsonl").write_bytes(history)
    resumed.resume(2, 5, whole.state())
    assert step(resumed, 3) == third


def test_a_rollout_that_made_room_is_no_later_teacher_but_its_words_may_come_again(controller, models, rollout):
    """The policy's forward pass leaves it out, so nothing is known of its probabilities."""
    maker = controller(*OWN)
    models.difference = {"ab": 0.01}
    maker.make_experience_batch([rollout("ab", 1.0), *[rollout(text) for text in "xyz"]])
    maker.step = 2
    maker.make_experience_batch([rollout(text, 1.0) for text in "klmn"])
    (row,) = maker.current.batch.injected
    assert maker.history["u"] == ["ab", *(text for place, text in enumerate("klmn") if place != row)]


@pytest.mark.parametrize(
    ("flags", "kept"),
    [([], ["a", "abc", "ab"]), (["--oger.max_prefix_len=3"], ["a", "ab"]), (["--oger.long_teachers=truncate"], None)],
)
def test_no_earlier_rollout_is_longer_than_teachers_may_be(controller, rollout, flags, kept):
    maker = controller(*OWN, *flags)  # with the end of sequence they have 2, 4 and 3 tokens
    maker.make_experience_batch([rollout("a", 1.0), rollout("abc", 1.0), rollout("ab", 1.0), rollout("x")])
    assert maker.history["u"] == (kept or ["a", "abc", "ab"])


def test_where_the_engine_goes_on_after_a_teacher_only_what_ends_as_teachers_do_may_enter(controller, rollout):
    rows = [rollout("a", 1.0), rollout("b", 1.0), rollout("x"), rollout("y")]
    rows[1].sequences[0, -1] = 5  # ended by a stop token of its own
    text = controller().tokenizer.decode(rows[1].sequences[0, -2:], skip_special_tokens=True)
    for flags, kept in (([], ["a", text]), (["--no-oger.replace_after_rm"], ["a"])):
        maker = controller(*OWN, *flags)
        (maker.run_dir / "history.jsonl").unlink(missing_ok=True)
        maker.resume(0, 5, {})
        maker.make_experience_batch(list(rows))
        assert maker.history["u"] == kept


def test_a_sample_says_how_it_was_graded_and_what_each_source_said(taught, models, rollout, group):
    models.entropy = {"ab": math.log(2)}
    group[0] = rollout("ab", 1.0, reason="equal", components={"format": 1.0}, extracted="42")
    group[3] = rollout("gh", 0.0, reason="differs", components={"format": 0.0}, extracted="41")
    maker, experiences = taught()
    first, _, _, replaced, teacher = lines(maker)
    assert (first["uid"], first["task"], first["answer"], first["prompt"]) == ("u", "gsm8k", "42", "ask>")
    assert (first["reason"], first["extracted"], first["components"]) == ("equal", "42", {"format": 1.0})
    assert (first["response_length"], first["graded"], teacher["response_length"]) == (3, True, 3)
    assert (first["divergence"], first["entropy_weight"]) == pytest.approx((0.8, 0.5))
    assert first["sources"] == pytest.approx({"rule": 1.0, "rule/format": 1.0, "explore": 0.4})
    assert first["total_reward"] == pytest.approx(1.4)
    assert first["advantage"] == pytest.approx(first_tokens(experiences)[0])
    assert (replaced["replaced"], replaced["reason"], replaced["extracted"]) == (True, "differs", "41")
    assert replaced["components"] == {"format": 0.0} and "advantage" not in replaced
    assert (teacher["text"], teacher["source"], teacher["off_policy"]) == ("ok", "a source", True)
    assert (teacher["sources"], teacher["total_reward"]) == ({"rule": 1.0, "explore": 0.0}, 1.0)
    metrics = maker.current.metrics
    assert metrics["reward/rule"] == pytest.approx(2 / 3)  # of the three rollouts that are trained
    assert metrics["reward/rule/format"] == 1.0
    assert metrics["reward/explore"] == pytest.approx((0.4 + 0.4) / 3)
    assert (metrics["reward/rule/failed"], metrics["reward/explore/failed"]) == (0.0, 0.0)


def rollouts_of(scores: list[float], guided: tuple[int, ...] = (), lengths: list[int] | None = None) -> Rollouts:
    """Groups of two; every text is its row's number."""
    rows = [str(row) for row in range(len(scores))]
    samples = [
        SimpleNamespace(
            response_length=torch.tensor([length]), truncated=torch.tensor([False]), attention_mask=torch.ones(5),
            info={},
        )
        for length in lengths or [3] * len(rows)
    ]  # fmt: skip
    labels = [{"uid": f"u{group}", "answer": "42", "task": "gsm8k"} for group in range(len(rows) // 2)]
    graded = [Graded(Verdict(score, score, "")) for score in scores]
    is_guided = torch.tensor([row in guided for row in range(len(rows))])
    values = torch.tensor(scores)
    repetitive, taught = torch.zeros(len(rows)).bool(), [int(row in guided) for row in range(len(rows))]
    return Rollouts(samples, rows, labels, graded, values, values, is_guided, repetitive, taught)


def batch_of(rollouts: Rollouts, teachers: list[list[Teacher]] | None = None) -> HybridBatch:
    """The rollouts as they are, without a teacher in anybody's place."""
    none = torch.zeros(len(rollouts.texts)).bool()
    return HybridBatch(
        rollouts.samples, torch.full((len(none),), 0.5), rollouts.guided, none, none, rollouts.rewards,
        rollouts.scores, none, {}, teachers or [[] for _ in rollouts.labels], 0,
    )  # fmt: skip


def metrics_of(rollouts: Rollouts, bonus: list[float], token_entropy: list[float] | None = None) -> dict[str, float]:
    no = torch.zeros(len(bonus))
    of_tokens = no if token_entropy is None else torch.tensor(token_entropy)
    step = TrainingStep(1, rollouts, batch_of(rollouts), 1.0, {})
    step.entropy, step.token_entropy, step.entropy_weight, step.advantages = no, of_tokens, no + 1, no
    step.rewards, step.bonus = (
        Rewards(no.view(-1, 2), {}, {}, {}, no.view(-1, 2)[:, 0].bool(), {}, {}, no.view(-1, 2).bool()),
        torch.tensor(bonus),
    )
    return metrics_of_step(step)


def test_the_entropy_is_the_mean_over_the_tokens_of_the_policys_own_rollouts():
    """Rows of 2, 8, 5 and 10 tokens. Row 2 began with a teacher's tokens or gave way to one, and so has no say."""
    rollouts = rollouts_of([1.0, 0.0, 1.0, 0.0], guided=(2,), lengths=[2, 8, 5, 10])
    found = metrics_of(rollouts, [0.0] * 4, token_entropy=[1.0, 0.25, math.nan, 0.6])
    assert found["rollout/entropy"] == pytest.approx((2 * 1.0 + 8 * 0.25 + 10 * 0.6) / 20)  # of rows it would be 0.617
    rollouts = rollouts_of([1.0, 0.0, 1.0, 0.0], guided=(2,), lengths=[2, 0, 5, 10])  # an empty response has none
    found = metrics_of(rollouts, [0.0] * 4, token_entropy=[1.0, math.nan, math.nan, 0.6])
    assert found["rollout/entropy"] == pytest.approx((2 * 1.0 + 10 * 0.6) / 12)
    everything = rollouts_of([1.0, 1.0], guided=(0, 1))
    assert math.isnan(metrics_of(everything, [0.0] * 2, token_entropy=[0.5, 0.5])["rollout/entropy"])


def test_groups_are_counted_as_solved_by_all_and_by_none():
    found = metrics_of(rollouts_of([1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]), [0.3, 0.1, 0, 0, 0.9, 0, 0, 0])
    assert (found["rollout/solve_all"], found["rollout/solve_none"]) == (0.25, 0.5)
    assert found["rollout/solve_rate"] == pytest.approx(3 / 8)
    # 0.3, 0.1 and 0.9 of the right ones; only the first group has two to compare.
    assert found["oger/bonus_of_correct_std"] == pytest.approx(torch.tensor([0.3, 0.1, 0.9]).std().item())
    assert found["oger/bonus_of_correct_std_in_group"] == pytest.approx(0.2 / 2**0.5)


def test_groups_that_teachers_began_altogether_are_counted_by_what_the_policy_made_of_it():
    found = metrics_of(rollouts_of([1.0, 1.0, 0.0, 1.0], guided=(0, 1, 2, 3)), [0.0] * 4)
    assert (found["rollout/solve_all"], found["rollout/solve_none"]) == (0.5, 0.0)
    assert found["rollout/solve_rate"] == pytest.approx(0.75)
    found = metrics_of(rollouts_of([1.0, 0.0, 0.0, 1.0], guided=(0, 2)), [0.0] * 4)  # else by its own rollouts
    assert (found["rollout/solve_all"], found["rollout/solve_none"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("rewards", "formats", "equal", "in_form"),
    [([1.0, 0.0, 1.0, 1.0], [1, 1, 0, 1], 0.5, 0.75), ([0.1] * 4, [0, 0, 0, 0], 1.0, 0.0)],
)
def test_groups_without_variance_and_answers_that_were_found_are_counted(
    controller, rollout, rewards, formats, equal, in_form
):
    """Two groups of two rows."""
    maker = controller("--oger.bonus_weight=0", "--oger.max_replace_num=0", "--rollout.n_samples_per_prompt=2")
    rows = zip("abcd", "uuvv", rewards, formats, strict=True)
    maker.make_experience_batch(
        [rollout(text, reward, uid=uid, components={"format": float(ok)}) for text, uid, reward, ok in rows]
    )
    assert maker.current.metrics["oger/equal_groups"] == equal
    assert maker.current.metrics["rollout/format"] == in_form


@pytest.mark.parametrize(
    ("flags", "share"),
    [
        ([], 1.0),
        (["--algo.advantage.estimator=rloo"], 1.0),
        (["--algo.advantage.estimator=gdpo"], 1.0),
        (["--algo.advantage.estimator=reinforce"], None),  # all rows of the step are compared
        (["--oger.rollout_advantage=sign_exp_entropy"], None),  # which reads the score alone
        # Of the 8 tokens that are allowed the last 5 are charged: the rows of 4 and 3 tokens earn 0.8 and 1.
        (["--rollout.max_new_tokens=8", "--reward.overlong_buffer_len=5"], 0.5),
    ],
)
def test_groups_of_equal_rewards_are_counted_where_they_teach_nothing(controller, rollout, flags, share):
    """A group of wrong rows and one of right rows, which have two lengths."""
    maker = controller("--oger.bonus_weight=0", "--oger.max_replace_num=0", "--rollout.n_samples_per_prompt=2", *flags)
    rows = [("ab", 0.0, "u"), ("cd", 0.0, "u"), ("abc", 1.0, "v"), ("ab", 1.0, "v")]
    experiences = maker.make_experience_batch([rollout(text, reward, uid=uid) for text, reward, uid in rows])
    found = maker.current.metrics["oger/equal_groups"]
    assert math.isnan(found) if share is None else found == share
    advantages = torch.tensor(first_tokens(experiences)).view(2, 2)
    assert (advantages == 0).all(dim=1).float().mean() == (share or 0.0)


@pytest.mark.parametrize(
    ("returned", "share"),
    [
        (0.0, None),
        ({"score": 0.0, "acc": False}, None),  # as verl's functions do
        ((1.0, {}), None),
        ({"score": 1.0, "pred": "7"}, 0.25),  # one row of the four has it
        ((0.0, {"format": 0.5, "pred": None}), 0.25),
    ],
)
@pytest.mark.parametrize("other_says", [False, True])
def test_a_verifier_that_says_nothing_of_form_has_no_share_of_found_answers(
    controller, rollout, returned, share, other_says
):
    """The task of the first group gives its last row this verdict, and numbers to the others; that of the second says
    that no row has an answer, or nothing."""
    maker = controller("--oger.bonus_weight=0", "--oger.max_replace_num=0")
    rows = [("u", "own", as_verdict(each)) for each in (0.0, 1.0, 0.0, returned)]
    rows += [("v", "gsm8k", as_verdict((0.0, {"format": 0.0} if other_says else {})))] * 4
    maker.make_experience_batch(
        [
            rollout(text, verdict.reward, uid=uid, label={"task": task}, components=verdict.components,
                    extracted=verdict.extracted)
            for text, (uid, task, verdict) in zip("abcdefgh", rows, strict=True)
        ]
    )  # fmt: skip
    found = maker.current.metrics["rollout/format"]
    expected = (share or 0.0) / 2 if other_says else share
    assert math.isnan(found) if expected is None else found == expected
    raised = alarms.found("never_verified", alarms.History([maker.current.metrics] * 5))
    assert bool(raised) == (expected == 0.0)


def test_a_run_measures_which_share_of_its_texts_the_bonus_speaks_of(controller):
    """The encoder reads four letters of a text."""
    maker = controller("--oger.embedding_long_texts", "head", teachers={"u": [TEACHER]})
    assert isinstance(maker.measure, EmbeddingSimilarity)
    rollouts = rollouts_of([1.0, 0.0, 1.0, 0.0])
    batch = batch_of(rollouts, [[Teacher("a", "twelve of 12", [1], 1.0, 1.0)], []])
    # 4 rollouts of one letter, and the first group's teacher for each of its two rows
    assert share_read(maker.measure, rollouts, batch) == pytest.approx((4 * 1 + 2 * 4) / (4 * 1 + 2 * 12))
    assert share_read(maker.measure, rollouts, batch_of(rollouts)) == 1.0
    assert math.isnan(share_read(None, rollouts, batch))


# ---- sources of reward

SOURCE = """
import torch

from oger_recipe.rewards.sources import Scores


def brevity(group):
    if group.uid == "bad":
        raise KeyError("no such column")
    assert group.prompt == "ask>" and group.answer == "42" and len(group.teachers) == (group.uid == "u")
    assert [graded.verdict.score for graded in group.graded] == [1.0, 0.0, 1.0, 0.0 if group.uid != "u" else 1.0]
    return [1 / len(text) for text in group.responses], {"letters": [len(text) for text in group.responses]}


class Columns:
    def score(self, groups, wanted):
        missing = {(place, row): "no such column" for place, group in enumerate(groups)
                   for row in range(len(group.responses)) if group.uid == "bad"}
        values = torch.ones(wanted.shape)
        for place in missing:
            values[place] = torch.nan
        return Scores(values, errors=missing)
"""


@pytest.fixture()
def sources(controller, models, rollout, tmp_path, letters):
    """A step of three groups, of which the user's source fails on the second; a teacher is in the first."""
    (tmp_path / "mine_of_sources.py").write_text(SOURCE)
    listed = [
        {"name": "rule", "kind": "verifier"},
        {"name": "short", "weight": 0.5},
    ]
    models.similarity = dict(zip(TEXTS, (0.2, 0.4, 0.6, 0.8), strict=True))

    def make(*flags: str, kind: str = "brevity") -> tuple[Any, list[Any]]:
        listed[1]["kind"] = f"mine_of_sources:{kind}"
        tokens = [*letters.encode("solution"), letters.eos_token_id]
        maker = controller(
            f"--oger.reward.sources={json.dumps(listed)}", f'--oger.verifier_path=["{tmp_path}"]', *flags,
            teachers={"u": [Teacher("a", "solution", tokens, 1.0, 1.0)]},
        )  # fmt: skip
        rows = [
            rollout(text, reward, uid=uid)
            for uid in ("u", "bad", "v")
            for text, reward in zip(TEXTS, REWARDS, strict=True)
        ]
        return maker, maker.make_experience_batch(rows)

    return make


def test_a_source_of_the_users_scores_whole_groups_as_they_are_trained(sources):
    maker, experiences = sources()
    # The teacher's eight letters earn 1/16, the rollouts' two 1/4; where the source failed its value is 0.
    expected = [[1.25, 0.25, 1.25, 1.0625], [1.0, 0.0, 1.0, 0.0], [1.25, 0.25, 1.25, 0.25]]
    assert maker.current.rewards.total.tolist() == expected
    means = [sum(rewards) / 4 for rewards in expected]
    centred = [reward - mean for rewards, mean in zip(expected, means, strict=True) for reward in rewards]
    assert first_tokens(experiences) == pytest.approx(centred)
    own = [1.25, 0.25, 1.25, *expected[1], *expected[2]]
    assert (
        maker.current.metrics["oger/on_reward"] == pytest.approx(sum(own) / 11)
        and maker.current.metrics["oger/teacher_reward"] == 1
    )
    assert all(line["bonus"] == 0.0 for line in lines(maker) if "bonus" in line)  # it is not listed
    first = lines(maker)[0]
    assert first["sources"] == {"rule": 1.0, "short": 0.5, "short/letters": 2.0} and "errors" not in first


def test_a_source_that_fails_is_counted_leaves_an_example_and_is_told_each_step(sources, rollout):
    maker, _ = sources()
    assert maker.current.metrics["reward/short/failed"] == 4.0 and maker.current.metrics["reward/rule/failed"] == 0.0
    assert maker.current.metrics["reward/short"] == 0.5  # over the rollouts that it scored
    (failed,) = [line for line in lines(maker) if line["uid"] == "bad" and line["text"] == "ab"]
    assert failed["errors"]["short"].startswith("KeyError: 'no such column'")
    assert "short" not in failed["sources"] and failed["total_reward"] == 1.0
    maker.step = 2
    rows = [rollout(text, reward, uid="bad") for text, reward in zip(TEXTS, REWARDS, strict=True)]
    maker.make_experience_batch(rows)
    first, second = read_jsonl(maker.run_dir / "source_errors.jsonl")
    assert (first["step"], first["source"], first["uid"], first["failed"]) == (1, "short", "bad", 4)
    assert first["error"].startswith("KeyError: 'no such column'") and "mine_of_sources.py:9" in first["error"]
    assert first["responses"] == TEXTS and second["step"] == 2
    said, again = [event for event in read_jsonl(maker.run_dir / "events.jsonl") if event["event"] == "note"]
    assert "reward source short failed on 4 of 12 rows of step 1: KeyError" in said["text"]
    assert "reward source short failed on 4 of 4 rows of step 2: KeyError" in again["text"]
    assert "oger.reward.on_error zero" in said["text"] and "on_error" not in again["text"]


def test_a_group_on_which_a_source_failed_can_be_dropped(sources):
    """By nobody's doing: what an answer brings about is worth the worst value."""
    flags = ("--oger.reward.on_error", "drop_group", "--oger.use_sft_prefix_reward")
    maker, experiences = sources(*flags, kind="Columns")
    found = first_tokens(experiences)
    assert found[4:8] == [0.0] * 4
    assert found[8:] == pytest.approx([0.5, -0.5, 0.5, -0.5])
    assert found[3] == 0.25  # the teacher's fixed one in a group that stays


def test_a_run_can_stop_where_a_source_fails(sources):
    with pytest.raises(SourceFailed, match=r"reward source short failed on 4 of 12 rows of step 1: KeyError.*stop"):
        sources("--oger.reward.on_error", "stop")


def test_a_fixed_reward_of_truncated_rollouts_is_theirs_whatever_the_sources_say(controller, group, tmp_path):
    (tmp_path / "mine_of_lengths.py").write_text("def one(group):\n    return [1] * len(group.responses)\n")
    listed = [{"name": "rule", "kind": "verifier"}, {"name": "one", "kind": "mine_of_lengths:one"}]
    flags = [f"--oger.reward.sources={json.dumps(listed)}", f'--oger.verifier_path=["{tmp_path}"]']
    maker = controller(*NO_BONUS, *flags, "--oger.non_stop_fixed_reward=-0.5")
    maker.make_experience_batch(group)
    assert maker.current.rewards.total.tolist() == [[2.0, 1.0, -0.5, -0.5]]


def test_samples_are_written_of_the_first_step_and_of_every_so_many(controller, group):
    maker = controller(*NO_BONUS, "--oger.samples_steps=3")
    for step in range(1, 8):
        maker.step = step
        maker.make_experience_batch(group)
    assert sorted(path.name for path in (maker.run_dir / "samples").iterdir()) == [
        f"step_0000{step}.jsonl" for step in (1, 3, 6)
    ]
