"""Settings of what a rollout is worth: exploration bonus, truncation, advantage."""

from dataclasses import dataclass
from typing import ClassVar

from oger_recipe.algorithm.advantage import BASELINES
from oger_recipe.algorithm.credit import RIGHT_ESTIMATORS, ROLLOUT_ADVANTAGES
from oger_recipe.algorithm.exploration import ENTROPY_WEIGHTS, SCHEDULES, SHAPINGS
from oger_recipe.algorithm.policy_loss import TEACHER_LOSSES
from oger_recipe.algorithm.token_stats import ENTROPY_POSITIONS
from oger_recipe.base.ranges import COUNT, FINITE, PART, WEIGHT
from oger_recipe.settings.fields import Need, OrOwn, Section, either, need, setting
from oger_recipe.settings.teachers import TAUGHT

_TEACHER_ADVANTAGES = (
    TAUGHT,
    need("oger.off_policy_loss", *(name for name, each in TEACHER_LOSSES.items() if not each.apart)),
)
_LISTED = Need(
    "a source of kind bonus (oger.reward.sources)",
    lambda oger, value: any(kind.is_bonus for kind in oger.reward.kinds),
)
_BONUS = Need("a bonus (oger.bonus_weight, and its place in oger.reward.sources)", lambda oger, value: oger.has_bonus)
_SCHEDULE = need("oger.bonus_schedule", *(name for name in SCHEDULES if name != "constant"))
_WEIGHTS, _SHAPINGS = OrOwn.of(ENTROPY_WEIGHTS), OrOwn.of(SHAPINGS)
_ENTROPY = (
    _BONUS,
    Need(
        f"oger.last_token_enp_reward {either([name for name in _WEIGHTS if name != 'none'])}",
        lambda oger, value: oger.bonus.last_token_enp_reward != "none",
    ),
)


@dataclass(frozen=True)
class AdvantageSettings(Section):
    title: ClassVar[str] = "oger.advantage"
    about: ClassVar[str] = "penalties of truncated rollouts, the baseline, weights of teacher tokens"

    non_stop_penalty: float = setting(
        0.0,
        "number added to the reward of a truncated rollout",
        range=FINITE,
        needs=Need(
            "a source of kind verifier (oger.reward.sources)",
            lambda oger, value: any(kind.is_rule for kind in oger.reward.kinds),
        ),
    )
    non_stop_fixed_reward: float | None = setting(
        None, "fixed reward of a truncated rollout; it earns no bonus", range=FINITE
    )
    disable_truncation_advantage: bool = setting(False, "leave truncated rollouts out of the policy loss")
    kl_penalty_coef: float = setting(
        0.0, "weight of an in-reward KL (k1), next to a loss-side one (algo.kl.use_loss)", range=WEIGHT
    )
    advantage_baseline: str = setting(
        "group", "take the mean (and std) over the hybrid group, or over its rollouts", choices=BASELINES, needs=TAUGHT
    )
    pass_at_k: int = setting(
        4,
        "k of pass@k training: how many rows of a group share a reward, 1 where one of them is right",
        range=COUNT,
        needs=need("algo.advantage.estimator", *RIGHT_ESTIMATORS),
    )
    rollout_advantage: str = setting(
        "estimator",
        "advantage of rollouts: the estimator's, or sign_exp_entropy (SRFT): 0.1 exp(H) for right ones, H the "
        "policy's mean entropy over the response, and -1 for wrong ones; teachers keep the estimator's",
        choices=ROLLOUT_ADVANTAGES,
    )
    prefix_reward_weight_alpha: float = setting(
        1.0, "weight of the advantage on teacher tokens", range=WEIGHT, needs=_TEACHER_ADVANTAGES
    )
    prefix_reward_weight_beta: float = setting(1.0, "weight of the advantage on the policy's own tokens", range=WEIGHT)
    use_sft_prefix_reward: bool = setting(
        False, "give teacher tokens a fixed advantage instead of the group's", needs=_TEACHER_ADVANTAGES
    )
    sft_prefix_reward_weight: float = setting(
        1.0,
        "the fixed advantage of teacher tokens, times the size of the group",
        range=WEIGHT,
        needs=need("oger.use_sft_prefix_reward"),
    )


@dataclass(frozen=True)
class BonusSettings(Section):
    title: ClassVar[str] = "oger.bonus"
    about: ClassVar[str] = "the exploration bonus"

    bonus_weight: float = setting(
        1.0, "beta: the weight of the exploration bonus; 0 turns it off", range=WEIGHT, needs=_LISTED
    )
    bonus_schedule: str = setting(
        "constant",
        "schedule of beta over the steps, from bonus_weight to bonus_weight_end",
        choices=SCHEDULES,
        needs=_LISTED,
    )
    bonus_weight_end: float = setting(
        0.0, "beta at the end of a linear or cosine schedule", range=WEIGHT, needs=_SCHEDULE
    )
    bonus_schedule_steps: int | None = setting(
        None, "steps of the schedule (default: all steps of the run)", range=COUNT, needs=_SCHEDULE
    )
    similarity_reverse: bool = setting(
        True, "reward divergence (1 - similarity); false rewards similarity", needs=_BONUS
    )
    similarity_reverse_fail: bool = setting(
        False, "pay wrong rollouts for the opposite: closeness to the teachers", needs=_BONUS
    )
    similarity_shaping: str = setting(
        "none", "map applied to the rewarded measure before it is weighted", choices=_SHAPINGS, needs=_BONUS
    )
    repeating_check: bool = setting(False, "pay no bonus for degenerate repetition", needs=_BONUS)
    last_token_enp_reward: str = setting(
        "exp_neg_entropy", "how the entropy weighs the bonus", choices=_WEIGHTS, needs=_BONUS
    )
    entropy_position: str = setting(
        "last",
        "entropy (nats) that weighs the bonus. last: of the distribution that produced the last response token; mean: "
        "over the response; top: the mean of its highest entropy_top_share",
        choices=ENTROPY_POSITIONS,
        needs=_ENTROPY,
    )
    entropy_top_share: float = setting(
        0.2,
        "share of the response's tokens for entropy_position top",
        range=PART,
        needs=(*_ENTROPY, need("oger.entropy_position", "top")),
    )

    @property
    def is_on(self) -> bool:
        """Whether the bonus is ever anything but 0."""
        return self.bonus_weight != 0 or (self.bonus_schedule != "constant" and self.bonus_weight_end != 0)
