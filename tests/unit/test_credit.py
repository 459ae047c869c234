"""From rewards, similarity, entropy and masks to bonus and advantages; values by hand."""

import math

import pytest
import torch

from oger_recipe.algorithm import credit
from oger_recipe.algorithm.credit import (
    BATCH_ESTIMATORS,
    earned_bonus,
    hybrid_advantages,
    penalise_truncated,
    token_advantages,
)

REWARDS = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
TRUNCATED = torch.tensor([[False, False, True, True]])
TEACHER = torch.tensor([[False, True, False, False]])
SIMILARITY = torch.tensor([[0.2, 0.4, 0.6, 0.8]])


def test_a_truncated_rollout_is_fined_or_gets_a_fixed_reward_and_the_others_keep_theirs() -> None:
    assert penalise_truncated(REWARDS, TRUNCATED, -0.25, None).tolist() == [[1.0, 0.0, 0.75, -0.25]]
    assert penalise_truncated(REWARDS, TRUNCATED, 0.0, 0.5).tolist() == [[1.0, 0.0, 0.5, 0.5]]
    assert penalise_truncated(REWARDS, TRUNCATED, 0.0, 0.0).tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert penalise_truncated(REWARDS, TRUNCATED, 0.0, None).tolist() == REWARDS.tolist()


# The bonus; row 1 is a teacher's, and so may earn none.


def _bonus(
    *,
    rewards: torch.Tensor = REWARDS,
    scores: torch.Tensor | None = None,
    may_earn: torch.Tensor = ~TEACHER,
    entropy: torch.Tensor | None = None,
    **settings,
) -> list[float]:
    names = {"entropy_weight": "none", "reverse": True, "reverse_fail": False, "shaping": "none"} | settings
    scores = rewards if scores is None else scores
    entropy = torch.zeros(1, 4) if entropy is None else entropy
    return earned_bonus(SIMILARITY, entropy, rewards, scores, may_earn, **names)[0].tolist()


def test_right_rollouts_earn_their_divergence_and_teachers_nothing() -> None:
    assert _bonus() == pytest.approx([0.8, 0.0, 0.4, 0.0])
    assert _bonus(reverse=False) == pytest.approx([0.2, 0.0, 0.6, 0.0])
    assert _bonus(rewards=torch.ones(1, 4)) == pytest.approx([0.8, 0.0, 0.4, 0.2])  # the teacher is right, too


def test_the_bonus_is_weighed_by_entropy_and_reward() -> None:
    entropy = torch.tensor([[math.log(2), 0.0, 0.0, 0.0]])
    found = _bonus(rewards=torch.tensor([[1.0, 1.0, 0.5, 0.0]]), entropy=entropy, entropy_weight="exp_neg_entropy")
    assert found == pytest.approx([0.4, 0.0, 0.2, 0.0])


def test_wrong_rollouts_may_earn_their_closeness() -> None:
    assert _bonus(reverse_fail=True) == pytest.approx([0.8, 0.0, 0.4, 0.8])
    assert _bonus(reverse_fail=True, may_earn=torch.tensor([[True, True, True, False]])) == pytest.approx(
        [0.8, 0.4, 0.4, 0.0]
    )


def test_rows_that_may_not_earn_do_not_count_in_the_groups_shaping_either() -> None:
    assert _bonus(shaping="group_minmax") == pytest.approx([1.0, 0.0, 0.0, 0.0])
    alone = torch.tensor([[True, False, False, False]])
    assert _bonus(shaping="group_minmax", may_earn=alone) == pytest.approx([0.8, 0.0, 0.0, 0.0])


def test_a_consolation_prize_for_a_wrong_answer_earns_no_bonus() -> None:
    """Countdown gives 0.1 for a well-formed wrong answer: reward 0.1, score 0."""
    found = _bonus(rewards=torch.tensor([[1.0, 1.0, 0.1, 0.1]]), scores=torch.tensor([[1.0, 1.0, 0.0, 0.0]]))
    assert found == pytest.approx([0.8, 0.0, 0.0, 0.0])


# Advantages over the hybrid group


def _advantages(rewards, scores=None, is_teacher=TEACHER, **settings) -> list[list[float]]:
    names = {"estimator": "dr_grpo", "baseline": "group", "all_correct_group": "keep"} | settings
    scores = rewards if scores is None else scores
    return hybrid_advantages(rewards, scores, is_teacher, **names).tolist()


def test_the_baseline_is_the_groups_mean_or_that_of_its_rollouts() -> None:
    assert _advantages(REWARDS) == [pytest.approx([0.5, -0.5, 0.5, -0.5])]
    # Of the rollouts 1, 1, 0 the mean is 2/3; the teacher is measured by it too.
    assert _advantages(REWARDS, baseline="rollouts") == [pytest.approx([1 / 3, -2 / 3, 1 / 3, -2 / 3])]


@pytest.mark.parametrize("name", ["estimator", "baseline", "all_correct_group", "rollout_advantage"])
@pytest.mark.parametrize("estimator", ["dr_grpo", *BATCH_ESTIMATORS])
def test_an_unknown_name_is_answered_with_the_known_ones(name: str, estimator: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='grpoo' is unknown; valid values: [a-z]"):
        _advantages(REWARDS, **{"estimator": estimator, name: "grpoo"})


def test_an_estimator_of_right_rows_takes_scores_whatever_these_earn() -> None:
    """One of four is right, draws of two: half of them hold it, so 1 and -1/3. Rewards: a bonus, prizes for form."""
    rewards, scores = torch.tensor([[0.1, 1.8, 0.1, 0.0]]), torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    third = pytest.approx(-1 / 3)
    assert _advantages(rewards, scores, estimator="pass_at_k", k=2) == [[third, 1.0, third, third]]
    # The only right row is the teacher's: the rollouts' draws all earn 0.
    assert _advantages(rewards, scores, estimator="pass_at_k", k=2, baseline="rollouts") == [[0.0] * 4]


def test_max_rl_divides_by_the_mean_of_the_rows_that_set_the_baseline() -> None:
    """Rewards 1, 1 (the teacher's), 0, 0: the mean is 1/2, that of the rollouts 1/3."""
    rewards = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    assert _advantages(rewards, estimator="max_rl") == [pytest.approx([1.0, 1.0, -1.0, -1.0])]
    assert _advantages(rewards, estimator="max_rl", baseline="rollouts") == [pytest.approx([2.0, 2.0, -1.0, -1.0])]


def test_rollouts_may_have_the_advantage_of_their_sign_and_entropy() -> None:
    """SRFT's (arXiv 2506.19767): 0.1 exp(H) where right, -1 where wrong; the teacher keeps r - mean(r)."""
    entropy = torch.tensor([[math.log(2), math.nan, math.log(3), 5.0]])
    srft = {"rollout_advantage": "sign_exp_entropy"}
    assert _advantages(REWARDS, entropy=entropy, **srft) == [pytest.approx([0.2, -0.5, 0.3, -1.0])]
    unknown = torch.tensor([[math.inf, 0.0, math.nan, 0.0]])
    assert _advantages(REWARDS, entropy=unknown, **srft)[0][::2] == pytest.approx([0.1, 0.1])
    paid_for_form = torch.tensor([[1.0, 0.0, 1.0, 0.1]])
    assert _advantages(paid_for_form, REWARDS, entropy=entropy, **srft)[0][3] == -1.0
    with pytest.raises(ValueError, match="needs the entropy"):
        _advantages(REWARDS, **srft)


def test_the_estimator_is_chosen_by_name() -> None:
    # Two groups of mean 0.5; deviations of 0.5 and 0.1 give a std (over n - 1) of 1/sqrt(3) and 0.2/sqrt(3).
    rewards = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.6, 0.4, 0.6, 0.4]])
    teachers = TEACHER.repeat(2, 1)
    assert _advantages(rewards, is_teacher=teachers) == [
        pytest.approx([0.5, -0.5, 0.5, -0.5]),
        pytest.approx([0.1, -0.1, 0.1, -0.1]),
    ]
    root = 3**0.5 / 2
    expected = pytest.approx([root, -root, root, -root], abs=1e-4)
    assert _advantages(rewards, is_teacher=teachers, estimator="group_norm") == [expected, expected]


def test_a_registered_estimator_gets_rewards_and_baseline_and_decides(monkeypatch) -> None:
    def ranks(rewards: torch.Tensor, baseline: torch.Tensor | None) -> torch.Tensor:
        counted = torch.ones_like(rewards, dtype=torch.bool) if baseline is None else baseline
        beaten = (rewards.unsqueeze(2) > rewards.unsqueeze(1)) & counted.unsqueeze(1)
        return beaten.sum(dim=2).float() - 1

    monkeypatch.setitem(credit.ESTIMATORS, "ranks", ranks)
    rewards = torch.tensor([[0.3, 0.2, 0.9, 0.1]])
    assert _advantages(rewards, estimator="ranks") == [[1.0, 0.0, 2.0, -1.0]]
    assert _advantages(rewards, estimator="ranks", baseline="rollouts") == [[0.0, 0.0, 1.0, -1.0]]


def test_clipping_spares_right_rows_of_solved_groups_alone() -> None:
    """A teacher's right row is spared; a wrong row that a teacher began is pushed down all the same."""

    def clipped(is_teacher: list[int], scores: list[float], bonus: list[float]) -> list[float]:
        of_scores = torch.tensor([scores])
        rewards = of_scores + torch.tensor([bonus])
        teachers = torch.tensor([is_teacher]).bool()
        return _advantages(rewards, of_scores, teachers, all_correct_group="clip")[0]

    # A solved group, 1.2, 1.4, 1.4 and the teacher's 1: its -0.25 goes.
    assert clipped([0, 0, 0, 1], [1, 1, 1, 1], [0.2, 0.4, 0.4, 0]) == pytest.approx([-0.05, 0.15, 0.15, 0.0])
    # Two guided rows, one of them wrong; the policy's own two are right.
    assert clipped([0, 0, 1, 1], [1, 1, 1, 0], [0.2, 0.4, 0, 0]) == pytest.approx([0.3, 0.5, 0.1, -0.9])
    # Every row guided, two wrong: not solved, nothing is spared.
    assert clipped([1, 1, 1, 1], [1, 0, 1, 0], [0] * 4) == pytest.approx([0.5, -0.5, 0.5, -0.5])
    # A group whose own rollouts are not all right keeps its teacher's advantage.
    assert clipped([0, 0, 0, 1], [1, 0, 1, 0.5], [0.6, 0, 0.9, 0])[3] == pytest.approx(0.5 - 1.0)


# Advantages of tokens; row 1 is a teacher's, row 3 begins with two tokens of one.

TOKENS = torch.tensor([[0.5] * 3, [-0.5] * 3, [0.5] * 3, [-0.5] * 3])
OF_TEACHERS = torch.tensor([[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0]]).bool()
NOBODY = torch.zeros(4, dtype=torch.bool)


def test_teacher_tokens_have_their_own_weight() -> None:
    found = token_advantages(TOKENS, OF_TEACHERS, NOBODY, alpha=2.0, beta=0.5, fixed=None)
    assert found.tolist() == [[0.25] * 3, [-1.0] * 3, [0.25] * 3, [-1.0, -1.0, -0.25]]
    found = token_advantages(TOKENS.bfloat16(), OF_TEACHERS, NOBODY, alpha=0.1, beta=0.7, fixed=None)
    assert found.dtype == torch.bfloat16


def test_teacher_tokens_may_have_a_fixed_advantage_whatever_their_weight() -> None:
    found = token_advantages(TOKENS, OF_TEACHERS, NOBODY, alpha=3.0, beta=1.0, fixed=0.25)
    assert found.tolist() == [[0.5] * 3, [0.25] * 3, [0.5] * 3, [0.25, 0.25, -0.5]]
    unknown = torch.where(OF_TEACHERS, torch.nan, TOKENS)
    assert torch.equal(token_advantages(unknown, OF_TEACHERS, NOBODY, alpha=3.0, beta=1.0, fixed=0.25), found)


def test_rows_that_are_left_out_have_no_advantage_not_even_a_fixed_one() -> None:
    left_out = torch.tensor([False, True, True, False])
    found = token_advantages(TOKENS, OF_TEACHERS, left_out, alpha=1.0, beta=1.0, fixed=0.25)
    assert found.tolist() == [[0.5] * 3, [0.0] * 3, [0.0] * 3, [0.25, 0.25, -0.5]]
    assert TOKENS.tolist() == [[0.5] * 3, [-0.5] * 3, [0.5] * 3, [-0.5] * 3]  # the input is not written into
