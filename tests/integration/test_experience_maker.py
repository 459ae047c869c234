"""Rewards, KL and advantages between rollout and loss, on OpenRLHF's own experience objects."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

from oger_recipe.plugin.controller.experience_maker import OgerExperienceMaker, penalise_truncated
from oger_recipe.plugin.controller.hybrid_batch import UNKNOWN, Rollouts
from oger_recipe.plugin.controller.step_metrics import step_metrics
from oger_recipe.teachers.history import History

REWARDS = torch.tensor([1.0, 0.0, 1.0, 0.0])
TRUNCATED = torch.tensor([False, False, True, True])


def test_a_truncated_rollout_is_fined_or_gets_a_fixed_reward_and_the_others_keep_theirs():
    assert penalise_truncated(REWARDS, TRUNCATED, -0.25, None).tolist() == [1.0, 0.0, 0.75, -0.25]
    assert penalise_truncated(REWARDS, TRUNCATED, 0.0, 0.5).tolist() == [1.0, 0.0, 0.5, 0.5]
    assert penalise_truncated(REWARDS, TRUNCATED, 0.0, 0.0).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert penalise_truncated(REWARDS, TRUNCATED, 0.0, None).tolist() == REWARDS.tolist()


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
    maker.entropy, maker.token_entropy = torch.zeros(4), torch.zeros(4)
    maker.engine_limit = None
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
        self._policy_entropies = [torch.zeros(2, len(samples.index)) for samples in samples_list]
        return samples_list

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", forward_passes)
    maker = _hybrid_maker(off_policy_loss=loss, use_off_policy_probs=False, top_k=-1)
    maker.engine_limit = 1.0
    maker.critic_model_group, maker.initial_model_group = critic, reference
    maker.args.rollout.top_p = 1.0
    maker.batch.teachers = {3: "a teacher"}
    experiences = maker.make_experience(_experiences([0, 3], [2, 1]))
    teacher = [0, 0, 0] if skipped else [1, 1, 1]
    assert asked == [[[1, 1, 1], teacher], [[1, 1, 1], [1, 1, 1]]]
    for experience in experiences:
        assert experience.action_mask.tolist() == [[1, 1, 1]] * 2
        assert experience.info["kl"].tolist() == experience.info["logprobs_diff"].tolist() == [0.0, 0.0]


# ---- what make_experience keeps of the forward passes, and what the step's figures and its history are made of


def _forwarded(monkeypatch, maker, experiences: list[Experience], entropies: list[list[float]]) -> list[Experience]:
    """make_experience with forward passes that return these entropies, ten times as much for the mean over the
    response, and log-probabilities of 0."""

    def forward_passes(self, samples_list):
        for samples in samples_list:
            samples.action_log_probs = torch.zeros(samples.action_mask.shape)
            samples.info |= {"kl": torch.zeros(len(samples.index)), "logprobs_diff": torch.zeros(len(samples.index))}
        self._policy_entropies = [(torch.tensor(values), 10 * torch.tensor(values)) for values in entropies]
        return samples_list

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", forward_passes)
    maker.critic_model_group = maker.initial_model_group = None
    maker.args.rollout.top_p = 1.0
    return maker.make_experience(experiences)


def _sampled(experiences: list[Experience], differences: torch.Tensor) -> list[Experience]:
    """With log-probabilities of the engine: the row's difference on each of its three tokens."""
    for experience in experiences:
        experience.rollout_log_probs = differences[experience.index].unsqueeze(1).expand(-1, 3).clone()
    return experiences


def test_entropies_are_kept_by_row_and_the_engine_is_compared_on_the_policys_own_rollouts(monkeypatch):
    maker = _hybrid_maker(off_policy_loss="reshape", use_off_policy_probs=False, top_k=-1)
    maker.batch.teachers = {1: "a teacher"}
    # Row 1, the teacher's, has log-probabilities of its own; the mean of the others is that of 0.03, -0.01 and 0.01.
    differences = torch.tensor([0.03, 50.0, -0.01, 0.01])
    experiences = _sampled(_experiences([2, 0], [3, 1]), differences)
    found = _forwarded(monkeypatch, maker, experiences, [[0.2, 0.0], [0.3, 0.1]])
    assert maker.entropy.tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert maker.token_entropy.tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0])
    assert maker.metrics["vllm_logprob_difference"] == pytest.approx(0.05 / 3)
    assert maker.metrics["vllm_kl"] == pytest.approx(0.01)
    assert maker.engine_limit == maker.metrics["vllm_logprob_limit"] == pytest.approx(0.05 + 0.002)
    assert all(experience.rollout_log_probs is None for experience in found)  # the knob is off: f(p) is reshaped


def test_a_teachers_own_probabilities_reach_the_loss_only_where_that_is_asked_for(monkeypatch):
    maker = _hybrid_maker(off_policy_loss="reshape", use_off_policy_probs=True, top_k=-1)
    maker.batch.teachers = {1: "a teacher"}
    experiences = _sampled(_experiences([2, 0], [3, 1]), torch.tensor([0.01, -0.7, 0.01, 0.01]))
    first, second = _forwarded(monkeypatch, maker, experiences, [[0.0, 0.0], [0.0, 0.0]])
    assert (first.rollout_log_probs == UNKNOWN).all() and (second.rollout_log_probs[0] == UNKNOWN).all()
    assert second.rollout_log_probs[1].tolist() == pytest.approx([-0.7] * 3)


def test_a_run_stops_where_engine_and_policy_part(monkeypatch):
    maker = _maker(off_policy_loss="reshape", use_off_policy_probs=False, top_k=-1)
    maker.batch.teachers = {}

    def step(size: float) -> None:
        differences = size * torch.tensor([1.0, -1.0, 1.0, -1.0])
        _forwarded(monkeypatch, maker, _sampled(_experiences([0, 1, 2, 3]), differences), [[0.0] * 4])

    step(0.001)
    assert maker.engine_limit == pytest.approx(0.005)
    step(0.0045)
    assert maker.engine_limit == pytest.approx(0.005)  # the first step's
    with pytest.raises(RuntimeError, match="the weights that vLLM samples from are not those that are trained"):
        step(0.006)


def test_a_consolation_prize_for_a_wrong_answer_earns_no_bonus():
    """Countdown gives 0.1 for a well-formed wrong answer: reward 0.1, score 0."""
    maker = _hybrid_maker(bonus_weight=1.0)
    maker.batch.similarity = torch.tensor([0.2, 0.4, 0.6, 0.8])
    maker.batch.rewards = torch.tensor([1.0, 1.0, 0.1, 0.1])
    maker.batch.scores = torch.tensor([1.0, 1.0, 0.0, 0.0])
    maker.compute_advantages_and_returns(_experiences([0, 1, 2, 3]))
    assert maker.bonus.tolist() == pytest.approx([0.8, 0.0, 0.0, 0.0])


def _rollouts(scores: list[float], guided: list[int] = ()) -> Rollouts:
    """Groups of two; every text is its row's number."""
    rows = [str(row) for row in range(len(scores))]
    samples = [
        SimpleNamespace(
            response_length=torch.tensor([3]), truncated=torch.tensor([False]), attention_mask=torch.ones(5), info={}
        )
        for _ in rows
    ]
    uids = [f"u{group}" for group in range(len(rows) // 2)]
    is_guided = torch.tensor([row in guided for row in range(len(rows))])
    return Rollouts(samples, rows, uids, torch.tensor(scores), torch.tensor(scores), is_guided)


def test_the_policys_own_right_rollouts_and_no_others_are_remembered(tmp_path):
    maker = _maker()
    maker.history, maker.measure = History(tmp_path / "history.jsonl", 4, 0), None
    maker._remember(_rollouts([1.0, 0.0, 1.0, 1.0], guided=[2]))
    assert (maker.history["u0"], maker.history["u1"]) == (["0"], ["3"])


def _figures(
    rollouts: Rollouts, bonus: list[float], similarity: float = 0.5, token_entropy: list[float] | None = None
) -> dict[str, float]:
    count = len(rollouts.texts)
    batch = SimpleNamespace(
        samples=rollouts.samples, is_teacher=rollouts.guided, scores=rollouts.scores, rewards=rollouts.rewards,
        similarity=torch.full((count,), similarity), teachers={}, prompts_without_teacher=0,
    )  # fmt: skip
    no = torch.zeros(count)
    oger = SimpleNamespace(last_token_enp_reward="none")
    of_tokens = no if token_entropy is None else torch.tensor(token_entropy)
    return step_metrics(rollouts, batch, torch.tensor(bonus), no, of_tokens, no, no.bool(), oger)


def test_the_entropy_is_the_mean_over_the_tokens_of_the_policys_own_rollouts():
    """Rows of 2, 8, 5 and 10 tokens. Row 2 began with a teacher's tokens or gave way to one, and so has no say."""
    rollouts = _rollouts([1.0, 0.0, 1.0, 0.0], guided=[2])
    for sample, length in zip(rollouts.samples, (2, 8, 5, 10), strict=True):
        sample.response_length = torch.tensor([length])
    found = _figures(rollouts, [0.0] * 4, token_entropy=[1.0, 0.25, math.nan, 0.6])
    assert found["rollout/entropy"] == pytest.approx((2 * 1.0 + 8 * 0.25 + 10 * 0.6) / 20)  # of rows it would be 0.617
    rollouts.samples[1].response_length = torch.tensor([0])  # an empty response never passes through the model
    found = _figures(rollouts, [0.0] * 4, token_entropy=[1.0, math.nan, math.nan, 0.6])
    assert found["rollout/entropy"] == pytest.approx((2 * 1.0 + 10 * 0.6) / 12)
    everything = _rollouts([1.0, 1.0], guided=[0, 1])
    assert math.isnan(_figures(everything, [0.0] * 2, token_entropy=[0.5, 0.5])["rollout/entropy"])


def test_groups_are_counted_as_solved_by_all_and_by_none():
    found = _figures(_rollouts([1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]), [0.3, 0.1, 0, 0, 0.9, 0, 0, 0])
    assert (found["rollout/solve_all"], found["rollout/solve_none"]) == (0.25, 0.5)
    assert found["rollout/solve_rate"] == pytest.approx(3 / 8)
    # 0.3, 0.1 and 0.9 of the right ones; only the first group has two to compare.
    assert found["oger/bonus_of_correct_std"] == pytest.approx(torch.tensor([0.3, 0.1, 0.9]).std().item())
    assert found["oger/bonus_of_correct_std_in_group"] == pytest.approx(0.2 / 2**0.5)


def test_groups_that_teachers_began_altogether_are_counted_by_what_the_policy_made_of_it():
    found = _figures(_rollouts([1.0, 1.0, 0.0, 1.0], guided=[0, 1, 2, 3]), [0.0] * 4)
    assert (found["rollout/solve_all"], found["rollout/solve_none"]) == (0.5, 0.0)
    assert found["rollout/solve_rate"] == pytest.approx(0.75)
    found = _figures(_rollouts([1.0, 0.0, 0.0, 1.0], guided=[0, 2]), [0.0] * 4)  # else by its own rollouts
    assert (found["rollout/solve_all"], found["rollout/solve_none"]) == (0.5, 0.5)


def test_clipping_spares_right_rows_of_solved_groups_alone():
    """A teacher's right row is spared; a wrong row that a teacher began is pushed down all the same."""

    def advantages(is_teacher: list[int], scores: list[float], bonus: list[float]) -> list[float]:
        maker = _maker(all_correct_group="clip", bonus_weight=1.0)
        maker.batch.is_teacher = torch.tensor(is_teacher).bool()
        maker.batch.scores = maker.batch.rewards = torch.tensor(scores).float()
        maker.batch.similarity = 1 - torch.tensor(bonus)
        return _advantages(maker.compute_advantages_and_returns(_experiences([0, 1, 2, 3])))[:, 0].tolist()

    # A solved group, 1.2, 1.4, 1.4 and the teacher's 1: its -0.25 goes.
    assert advantages([0, 0, 0, 1], [1, 1, 1, 1], [0.2, 0.4, 0.4, 0]) == pytest.approx([-0.05, 0.15, 0.15, 0.0])
    # Two guided rows, one of them wrong; the policy's own two are right.
    found = advantages([0, 0, 1, 1], [1, 1, 1, 0], [0.2, 0.4, 0, 0])
    assert found == pytest.approx([0.3, 0.5, 0.1, -0.9])
    # Every row guided, two wrong: not solved, nothing is spared.
    assert advantages([1, 1, 1, 1], [1, 0, 1, 0], [0] * 4) == pytest.approx([0.5, -0.5, 0.5, -0.5])
    # A group whose own rollouts are not all right keeps its teacher's advantage.
    assert advantages([0, 0, 0, 1], [1, 0, 1, 0.5], [0.6, 0, 0.9, 0])[3] == pytest.approx(0.5 - 1.0)


def test_a_run_says_once_which_share_of_its_texts_the_bonus_speaks_of(tmp_path):
    maker = _maker(embedding_long_texts="head", embedding_max_tokens=256)
    maker.run_dir, maker.said_share = tmp_path, False
    maker.store = {"u0": [SimpleNamespace(text="a teacher")], "u1": []}
    asked = []
    maker.measure = SimpleNamespace(share_read=lambda texts: (asked.append(texts), 0.25)[1])
    for _ in range(2):
        assert maker._share_read(_rollouts([1.0, 0.0, 1.0, 0.0])) == 0.25
    assert asked == [["0", "1", "2", "3", "a teacher", "a teacher"]] * 2
    (said,) = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert (
        said["event"] == "note"
        and "the encoder reads 25% (oger.embedding_long_texts head, 256 tokens)" in said["text"]
    )
    maker.measure, maker.said_share = SimpleNamespace(share_read=lambda texts: 1.0), False
    maker._share_read(_rollouts([1.0, 0.0]))
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 1
    maker.measure = None
    assert math.isnan(maker._share_read(_rollouts([1.0, 0.0])))
