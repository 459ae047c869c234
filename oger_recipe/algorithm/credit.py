"""The credit of a step: from rewards, scores, similarity, entropy and masks to bonus and advantages.

Rows of a step are [groups, n]: the rollouts of each prompt, some of them replaced by teachers (`is_teacher`).

    B_i = D_i * w_i * R_i      for rows that may earn it and are right
    A_i = r_i - mean(r)        over the hybrid group, or over its rollouts; by name, see ESTIMATORS
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oger_recipe.algorithm.advantage import (
    BASELINES,
    group_advantage,
    keep_teacher_nonnegative,
    max_rl_advantage,
    pass_at_k_advantage,
)
from oger_recipe.algorithm.exploration import exploration_bonus
from oger_recipe.algorithm.hybrid_group import ALL_CORRECT_GROUPS, solve_rates
from oger_recipe.algorithm.normalize import batch_normalized
from oger_recipe.algorithm.step_credit import StepEstimator, appo, process_grpo, process_grpo_batch, process_rloo, tppo


@dataclass(frozen=True)
class Estimator:
    """Rewards [groups, n] and the rows that set the baseline (bool [groups, n], None: all) to advantages [groups, n].

    What holds for the advantages of a group whose rows all set the baseline: shift_invariant: a number added to all
    its rewards changes none; scale_invariant: nor does a factor above 0; sums_to_zero: they add up to 0.
    """

    advantages: Callable[[Tensor, Tensor | None], Tensor]
    shift_invariant: bool = True
    scale_invariant: bool = False
    sums_to_zero: bool = True

    def __call__(self, rewards: Tensor, baseline: Tensor | None) -> Tensor:
        return self.advantages(rewards, baseline)


# A new estimator is a function and a line here; those of OpenRLHF that are missing here are computed by OpenRLHF.
ESTIMATORS: dict[str, Estimator] = {
    "group_norm": Estimator(
        lambda rewards, baseline: group_advantage(rewards, use_std=True, baseline_mask=baseline), scale_invariant=True
    ),
    "dr_grpo": Estimator(lambda rewards, baseline: group_advantage(rewards, use_std=False, baseline_mask=baseline)),
    "max_rl": Estimator(
        lambda rewards, baseline: max_rl_advantage(rewards, baseline_mask=baseline),
        shift_invariant=False,
        scale_invariant=True,
    ),
}

# Right rows (score above 0, bool [groups, n]), the rows that set the baseline and k to advantages [groups, n]: what a
# row earns besides being right does not count.
RIGHT_ESTIMATORS: dict[str, Callable[[Tensor, Tensor | None, int], Tensor]] = {"pass_at_k": pass_at_k_advantage}

# Rewards [groups, n] to advantages [groups, n], where all groups are compared with each other. Each source of the
# reward has been compared within its group before, and the reward is their weighted sum.
# gdpo: GDPO (arXiv 2601.05242), A = z over the batch of sum_k w_k z_k, with z_k of source k over the group.
BATCH_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"gdpo": batch_normalized}

# Rewards of steps of reasoning to advantages of their tokens.
STEP_ESTIMATORS: dict[str, StepEstimator] = {
    "appo": StepEstimator(with_values=appo, values_steps=True, whitened="steps"),
    "tppo": StepEstimator(with_values=tppo, whitened="tokens"),
    "process_grpo": StepEstimator(in_group=process_grpo),
    "process_grpo_batch": StepEstimator(in_group=process_grpo_batch, compares_groups=True),
    "process_rloo": StepEstimator(in_group=process_rloo, whitened="tokens"),
}

# Estimators of OpenRLHF and of the recipe for which a critic is trained.
CRITIC_ESTIMATORS = ("gae", *(name for name, each in STEP_ESTIMATORS.items() if each.needs_critic))


def group_estimators() -> list[str]:
    """Name the recipe's estimators, and the user's, that compare the rows of a group, and no group with another."""
    of_steps = [name for name, each in STEP_ESTIMATORS.items() if each.in_group and not each.compares_groups]
    return [*ESTIMATORS, *RIGHT_ESTIMATORS, *of_steps]


def equal_rewards_teach(estimator: str, rollout_advantage: str) -> bool:
    """Say whether a group whose rows all earn the same may have advantages: its rows are compared with more than each
    other (a critic, the batch), or by more than their rewards (steps of reasoning, a sign)."""
    in_group = (*ESTIMATORS, *RIGHT_ESTIMATORS, *BATCH_ESTIMATORS, "rloo", "reinforce_baseline")
    signed = estimator in ESTIMATORS and ROLLOUT_ADVANTAGES[rollout_advantage] is not None
    return estimator not in in_group or signed


def penalise_truncated(rewards: Tensor, truncated: Tensor, penalty: float, fixed: float | None) -> Tensor:
    """Give truncated rows (bool) the reward `fixed`, or add `penalty` to theirs (OAT's rules); all have one shape."""
    if fixed is not None:
        return torch.where(truncated, torch.full_like(rewards, fixed), rewards)
    return rewards + penalty * truncated


def earned_bonus(
    similarity: Tensor,
    entropy: Tensor,
    rewards: Tensor,
    scores: Tensor,
    may_earn: Tensor,
    *,
    entropy_weight: str,
    reverse: bool,
    reverse_fail: bool,
    shaping: str,
) -> Tensor:
    """Compute the bonus B of every row, before its weight beta; tensors are [groups, n], may_earn is bool.

    Right rows (score above 0) of may_earn earn it; with `reverse_fail` wrong ones earn the opposite measure. A reward
    without a score, Countdown's for form, earns none.
    Raises ValueError for differing shapes, an unknown entropy_weight or shaping.
    """
    return exploration_bonus(
        similarity,
        entropy,
        rewards * (scores > 0) * may_earn,
        weight=entropy_weight,
        reverse=reverse,
        shaping=shaping,
        fails=may_earn & (scores <= 0) & reverse_fail,
    )


# Scores and the policy's mean entropies over responses (nats) to the advantages of rollouts; all have one shape.
# None: they are the estimator's. sign_exp_entropy: SRFT's (arXiv 2506.19767).
ROLLOUT_ADVANTAGES: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "estimator": None,
    "sign_exp_entropy": lambda scores, entropy: torch.where(scores > 0, 0.1 * entropy.exp(), -1.0),
}


def hybrid_advantages(
    rewards: Tensor,
    scores: Tensor,
    is_teacher: Tensor,
    *,
    estimator: str,
    baseline: str,
    all_correct_group: str,
    k: int = 1,
    rollout_advantage: str = "estimator",
    entropy: Tensor | None = None,
) -> Tensor:
    """Compute advantages [groups, n] of rewards [groups, n], by names of ESTIMATORS, BASELINES and ALL_CORRECT_GROUPS,
    and of ROLLOUT_ADVANTAGES for rows without a teacher.

    scores, is_teacher (bool) and entropy are [groups, n] too; an entropy that is not finite counts as 0. An estimator
    of BATCH_ESTIMATORS has no baseline and spares no teacher; one of RIGHT_ESTIMATORS takes k, and has none to spare.
    Both are the rollouts' as well, whatever rollout_advantage is.
    Raises ValueError for an unknown name, and for a rollout_advantage that reads the entropy where none is given.
    """
    for name, given, known in (
        ("estimator", estimator, (*ESTIMATORS, *RIGHT_ESTIMATORS, *BATCH_ESTIMATORS)),
        ("baseline", baseline, BASELINES),
        ("all_correct_group", all_correct_group, ALL_CORRECT_GROUPS),
        ("rollout_advantage", rollout_advantage, ROLLOUT_ADVANTAGES),
    ):
        if given not in known:
            raise ValueError(f"{name}={given!r} is unknown; valid values: {', '.join(known)}")
    if estimator in BATCH_ESTIMATORS:
        return BATCH_ESTIMATORS[estimator](rewards)
    if estimator in RIGHT_ESTIMATORS:
        return RIGHT_ESTIMATORS[estimator](scores > 0, BASELINES[baseline](is_teacher), k)
    advantages = ESTIMATORS[estimator](rewards, BASELINES[baseline](is_teacher))
    if ALL_CORRECT_GROUPS[all_correct_group].spares_teachers:
        solved = solve_rates(scores, ~is_teacher) == 1
        advantages = keep_teacher_nonnegative(advantages, is_teacher & (scores > 0), solved)
    own = ROLLOUT_ADVANTAGES[rollout_advantage]
    if own is None:
        return advantages
    if entropy is None:
        raise ValueError(f"rollout_advantage={rollout_advantage!r} needs the entropy of rollouts")
    return torch.where(is_teacher, advantages, own(scores, torch.nan_to_num(entropy, 0.0, 0.0, 0.0)))


def token_advantages(
    advantages: Tensor, of_teachers: Tensor, left_out: Tensor, *, alpha: float, beta: float, fixed: float | None
) -> Tensor:
    """Weigh advantages [B, A] (LUFFY): alpha on teacher tokens (bool mask [B, A]), beta elsewhere, 0 on rows
    `left_out` [B].

    `fixed` takes the place of the advantage on teacher tokens, whatever the weights are.
    """
    of_teacher = alpha * advantages if fixed is None else torch.full_like(advantages, fixed)
    weighed = torch.where(of_teachers, of_teacher, beta * advantages)
    return torch.where(left_out.unsqueeze(1), 0.0, weighed)
