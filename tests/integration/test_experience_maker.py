"""Rewards, KL and advantages between rollout and loss, on OpenRLHF's own experience objects."""

from __future__ import annotations

from oger_recipe.patches import apply_training_patches

apply_training_patches()

import math  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController  # noqa: E402

from oger_recipe.plugin.experience_maker import (  # noqa: E402
    OgerExperienceMaker,
    penalise_truncated,
    unexplained_difference,
)

REWARDS = torch.tensor([1.0, 0.0, 1.0, 0.0])
TRUNCATED = torch.tensor([False, False, True, True])


def test_a_truncated_rollout_is_fined_or_gets_a_fixed_reward_and_the_others_keep_theirs():
    assert penalise_truncated(REWARDS, TRUNCATED, -0.25, None).tolist() == [1.0, 0.0, 0.75, -0.25]
    assert penalise_truncated(REWARDS, TRUNCATED, 0.0, 0.5).tolist() == [1.0, 0.0, 0.5, 0.5]
    assert penalise_truncated(REWARDS, TRUNCATED, 0.0, 0.0).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert penalise_truncated(REWARDS, TRUNCATED, 0.0, None).tolist() == REWARDS.tolist()


def test_a_nucleus_explains_log_probabilities_that_are_higher_by_its_missing_mass_and_no_more():
    delta = torch.tensor([0.0, 0.1, -math.log(0.9), 0.2, -0.1])
    assert unexplained_difference(delta, 1.0, -1).tolist() == pytest.approx(delta.abs().tolist())
    assert unexplained_difference(delta, 0.9, -1).tolist() == pytest.approx(
        [0.0, 0.0, 0.0, 0.2 + math.log(0.9), 0.1], abs=1e-6
    )
    assert unexplained_difference(delta, 1.0, 20).tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.1])


def _maker(estimator: str = "dr_grpo", **oger) -> OgerExperienceMaker:
    """A maker as far as rewards and advantages need one: no processes, no encoder."""
    settings = {
        "bonus_weight": 0.0, "last_token_enp_reward": "none", "similarity_reverse": True, "all_correct_group": "keep",
        "non_stop_penalty": 0.0, "non_stop_fixed_reward": None, "disable_truncation_advantage": False,
        "kl_penalty_coef": 0.0, "bonus_schedule": "constant", "bonus_weight_end": 0.0, "bonus_schedule_steps": None,
        "similarity_reverse_fail": False, "similarity_shaping": "none", "advantage_baseline": "group",
        "prefix_reward_weight_alpha": 1.0, "prefix_reward_weight_beta": 1.0, "use_sft_prefix_reward": False,
        "sft_prefix_reward_weight": 1.0,
    }  # fmt: skip
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=True)
    maker = object.__new__(OgerExperienceMaker)
    maker.args = SimpleNamespace(
        oger=SimpleNamespace(**(settings | oger)),
        algo=SimpleNamespace(advantage=advantage),
        reward=SimpleNamespace(clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None),
        rollout=SimpleNamespace(n_samples_per_prompt=4),
    )
    maker.strategy = SimpleNamespace(args=maker.args)
    maker.advantage_estimator = estimator
    maker.kl_ctl = FixedKLController(0.5)
    maker.entropy = torch.zeros(4)
    maker.step, maker.planned_steps, maker.repetitive = 1, 1, torch.zeros(4, dtype=torch.bool)
    maker.batch = SimpleNamespace(
        left_alone=torch.zeros(4, dtype=torch.bool),
        rewards=REWARDS,
        scores=REWARDS,
        truncated=TRUNCATED,
        is_teacher=torch.zeros(4, dtype=torch.bool),
        similarity=torch.full((4,), float("nan")),
    )
    return maker


def _experiences(*indices: list[int]) -> list[Experience]:
    """Micro-batches of a group of four with three action tokens each; values of a critic are a half everywhere."""
    return [
        Experience(
            index=index,
            action_mask=torch.ones(len(index), 3, dtype=torch.long),
            rewards=REWARDS[index],
            kl=torch.zeros(len(index), 3),
            values=torch.full((len(index), 3), 0.5),
            info={"reward": REWARDS[index], "off_policy_tokens": torch.zeros(len(index))},
        )
        for index in indices
    ]


def _advantages(experiences: list[Experience]) -> torch.Tensor:
    result = torch.empty(4, 3)
    for experience in experiences:
        result[experience.index] = experience.advantages
    return result


@pytest.mark.parametrize("cut", [([0, 1, 2, 3],), ([3, 0], [2, 1])], ids=["whole", "shuffled halves"])
def test_the_fine_enters_the_group_mean(cut):
    maker = _maker(non_stop_penalty=-1.0)  # rewards 1, 0, 0, -1: their mean is 0
    advantages = _advantages(maker.compute_advantages_and_returns(_experiences(*cut)))
    assert advantages[:, 0].tolist() == pytest.approx([1.0, 0.0, 0.0, -1.0])


@pytest.mark.parametrize("estimator", ["dr_grpo", "rloo", "gae"])
def test_truncated_rollouts_can_be_left_out_of_the_policy_loss(estimator):
    kept = _advantages(_maker(estimator).compute_advantages_and_returns(_experiences([0, 1, 2, 3])))
    masked = _advantages(
        _maker(estimator, disable_truncation_advantage=True).compute_advantages_and_returns(
            _experiences([2, 0], [1, 3])
        )
    )
    assert (masked[TRUNCATED] == 0).all() and (kept[TRUNCATED] != 0).any()
    assert torch.allclose(masked[~TRUNCATED], kept[~TRUNCATED])


def test_gae_with_a_critic_is_the_reward_at_the_end_less_the_value():
    """gamma = lambda = 1: every token's advantage is R - V; their mean over the batch is 0, so nothing is shifted."""
    advantages = _advantages(_maker("gae").compute_advantages_and_returns(_experiences([0, 1, 2, 3])))
    assert torch.allclose(advantages, (REWARDS - 0.5).unsqueeze(1).expand(4, 3))


def test_the_in_reward_kl_has_its_own_coefficient_beside_the_loss_sides():
    """compute_reward subtracts kl_ctl.value * kl; with a coefficient of 2 that has to be 2 * (log p - log base)."""
    maker = _maker(kl_penalty_coef=2.0)
    (experience,) = _experiences([0, 1, 2, 3])
    experience.action_log_probs = torch.full((4, 3), -1.0)
    experience.base_action_log_probs = torch.full((4, 3), -1.5)
    experience.action_mask[:, 2] = 0
    maker._add_reward_kl([experience])
    assert torch.allclose(maker.kl_ctl.value * experience.kl, torch.tensor([1.0, 1.0, 0.0]).expand(4, 3))


# ---- the hybrid group's advantages and bonus; rewards are 1, 0, 1, 0 and row 1 is a teacher's


def _hybrid_maker(**oger) -> OgerExperienceMaker:
    maker = _maker(**oger)
    maker.batch.is_teacher = torch.tensor([False, True, False, False])
    return maker


def _hybrid_advantages(**oger) -> torch.Tensor:
    (experience,) = _experiences([0, 1, 2, 3])
    experience.info["off_policy_tokens"] = torch.tensor([0.0, 3.0, 0.0, 2.0])  # a teacher, and one begun by a teacher
    return _advantages(_hybrid_maker(**oger).compute_advantages_and_returns([experience]))


def test_the_baseline_may_leave_teachers_out():
    assert _hybrid_advantages()[:, 0].tolist() == pytest.approx([0.5, -0.5, 0.5, -0.5])
    # Of the rollouts 1, 1, 0 the mean is 2/3; the teacher is measured by it too.
    expected = [1 / 3, -2 / 3, 1 / 3, -2 / 3]
    assert _hybrid_advantages(advantage_baseline="rollouts")[:, 0].tolist() == pytest.approx(expected)


def test_teacher_tokens_have_their_own_weight():
    advantages = _hybrid_advantages(prefix_reward_weight_alpha=2.0, prefix_reward_weight_beta=0.5)
    assert advantages.tolist() == [[0.25] * 3, [-1.0] * 3, [0.25] * 3, [-1.0, -1.0, -0.25]]


def test_teacher_tokens_may_have_a_fixed_advantage():
    advantages = _hybrid_advantages(use_sft_prefix_reward=True, sft_prefix_reward_weight=2.0)
    assert advantages.tolist() == [[0.5] * 3, [0.5] * 3, [0.5] * 3, [0.5, 0.5, -0.5]]  # 2 / 4 rows


def _bonus(repetitive: int | None = None, left_alone: bool = False, step: int = 1, **oger) -> list[float]:
    """The bonus of similarities 0.2, 0.4, 0.6, 0.8."""
    maker = _hybrid_maker(bonus_weight=1.0, **oger)
    maker.step, maker.planned_steps = step, 11
    maker.batch.similarity = torch.tensor([0.2, 0.4, 0.6, 0.8])
    maker.batch.left_alone = torch.full((4,), left_alone)
    if repetitive is not None:
        maker.repetitive[repetitive] = True
    maker.compute_advantages_and_returns(_experiences([0, 1, 2, 3]))
    return maker.bonus.tolist()


def test_correct_rollouts_earn_their_divergence_and_teachers_nothing():
    assert _bonus() == pytest.approx([0.8, 0.0, 0.4, 0.0])
    assert _bonus(similarity_reverse=False) == pytest.approx([0.2, 0.0, 0.6, 0.0])


def test_wrong_rollouts_may_earn_their_closeness():
    assert _bonus(similarity_reverse_fail=True) == pytest.approx([0.8, 0.0, 0.4, 0.8])


def test_degenerate_repetition_and_groups_that_are_left_alone_earn_nothing():
    assert _bonus(repetitive=0) == pytest.approx([0.0, 0.0, 0.4, 0.0])
    assert _bonus(left_alone=True) == [0.0] * 4


def test_a_truncated_rollout_with_a_fixed_reward_has_that_reward_and_no_bonus_on_top():
    """Rows 2 and 3 are truncated, row 2 of them correct."""
    assert _bonus(non_stop_fixed_reward=-1.0) == pytest.approx([0.8, 0.0, 0.0, 0.0])
    assert _bonus(non_stop_fixed_reward=-1.0, similarity_reverse_fail=True) == pytest.approx([0.8, 0.0, 0.0, 0.0])
    assert _bonus(non_stop_penalty=-1.0) == pytest.approx([0.8, 0.0, 0.4, 0.0])  # a fine comes on top


def test_the_divergence_may_be_shaped_within_the_group():
    assert _bonus(similarity_shaping="group_minmax") == pytest.approx([1.0, 0.0, 0.0, 0.0])


def test_the_bonus_weight_follows_its_schedule():
    assert _bonus(step=6, bonus_schedule="linear") == pytest.approx([0.4, 0.0, 0.2, 0.0])  # half way to 0 in 11 steps
    assert _bonus(step=3, bonus_schedule="linear", bonus_schedule_steps=5, bonus_weight_end=0.5) == pytest.approx(
        [0.6, 0.0, 0.3, 0.0]
    )
    assert _bonus(step=11, bonus_schedule="cosine") == pytest.approx([0.0] * 4)


@pytest.mark.parametrize(
    ("critic", "reference", "loss", "skipped"),
    [
        (None, None, "reshape", True),
        (None, None, "sft", True),
        (None, None, "ppo", False),
        ("there", None, "reshape", False),
        (None, "there", "reshape", False),
    ],
)
def test_teachers_pass_through_the_policy_only_where_their_old_log_probs_are_used(
    monkeypatch, critic, reference, loss, skipped
):
    asked = []

    def forward_passes(self, samples_list):
        for samples in samples_list:
            asked.append(samples.action_mask.tolist())
            tokens = samples.action_mask.sum(dim=1)
            samples.action_log_probs = samples.rollout_log_probs = torch.zeros(samples.action_mask.shape)
            samples.info |= {"kl": 0.0 / tokens, "logprobs_diff": 0.0 / tokens}  # 0 / 0 is nan
        self._policy_entropies = [torch.zeros(len(samples.index)) for samples in samples_list]
        return samples_list

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", forward_passes)
    maker = _hybrid_maker(off_policy_loss=loss, use_off_policy_probs=False, top_k=-1, max_logprob_difference=1.0)
    maker.critic_model_group, maker.initial_model_group = critic, reference
    maker.args.rollout.top_p = 1.0
    maker.batch.teachers = {3: "a teacher"}
    experiences = maker.make_experience(_experiences([0, 3], [2, 1]))
    teacher = [0, 0, 0] if skipped else [1, 1, 1]
    assert asked == [[[1, 1, 1], teacher], [[1, 1, 1], [1, 1, 1]]]
    for experience in experiences:
        assert experience.action_mask.tolist() == [[1, 1, 1]] * 2
        assert experience.info["kl"].tolist() == experience.info["logprobs_diff"].tolist() == [0.0, 0.0]
