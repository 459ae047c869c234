"""Settings of the policy loss (LUFFY, arXiv 2504.14945, and OGER)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from oger_recipe.algorithm.batches import RATIO_LEVELS
from oger_recipe.algorithm.exploration import SCHEDULES, scheduled_weight
from oger_recipe.algorithm.policy_loss import AGGREGATIONS, TEACHER_LOSSES, TOKEN_WEIGHTS
from oger_recipe.algorithm.reshape import RESHAPES
from oger_recipe.base.ranges import COUNT, COUNT_OR_NONE, PART, POSITIVE, WEIGHT
from oger_recipe.settings.fields import Need, Section, need, need_reader, setting
from oger_recipe.settings.teachers import TAUGHT

_RESHAPED = (
    TAUGHT,
    need("oger.off_policy_loss", *(name for name, each in TEACHER_LOSSES.items() if each.reshapes)),
)
_SUPERVISED = (
    TAUGHT,
    need("oger.off_policy_loss", *(name for name, each in TEACHER_LOSSES.items() if each.supervised)),
)
OLD_LOG_PROBS = BEFORE_UPDATE, OF_UPDATE = "before_update", "of_update"
_SCHEDULED = (*_SUPERVISED, need("oger.sft_loss_schedule", *(name for name in SCHEDULES if name != "constant")))


def _read(name: str) -> Need:
    chosen = f"{name.partition('_reshape')[0]}_reshape"  # off_policy_reshape_weight is for off_policy_reshape
    return need_reader(f"oger.{chosen}", name, RESHAPES)


def updates_again(oger: Any, value: Mapping[str, Any]) -> bool:
    """Whether a batch of rollouts is trained in more than one optimizer step."""
    rows = value["rollout.batch_size"] * value["rollout.n_samples_per_prompt"]
    return bool(rows // value["train.batch_size"] * value["train.max_epochs"] > 1)


@dataclass(frozen=True)
class LossSettings(Section):
    title: ClassVar[str] = "oger.loss"
    about: ClassVar[str] = "loss of teacher tokens and of rollouts"

    off_policy_reshape: str = setting(
        "p_div_p_0.1", "f(p) of teacher tokens: no_reshape, logp, ..., p_div_p_<gamma>", needs=_RESHAPED
    )
    off_policy_reshape_weight: float = setting(
        0.1, "c of logp and p_logp", range=WEIGHT, needs=(*_RESHAPED, _read("off_policy_reshape_weight"))
    )
    off_policy_reshape_pow_exp: float = setting(
        0.5, "k of pow", range=WEIGHT, needs=(*_RESHAPED, _read("off_policy_reshape_pow_exp"))
    )
    off_policy_max_clip: float | None = setting(None, "upper bound of f(p)", range=WEIGHT, needs=_RESHAPED)
    off_policy_min_clip: float | None = setting(None, "lower bound of f(p)", range=WEIGHT, needs=_RESHAPED)
    use_off_policy_probs: bool = setting(
        False, "use p / (the teacher's own probability) in place of f(p), where the data has it", needs=_RESHAPED
    )
    off_policy_reshape_ratio: bool = setting(
        False,
        "with use_off_policy_probs: f(r) of the ratio r = p / the teacher's own probability, not r itself (ExGRPO)",
        needs=(*_RESHAPED, need("oger.use_off_policy_probs")),
    )
    off_policy_loss: str = setting(
        "reshape",
        "loss of teacher tokens: -A f(p), PPO's, supervised, or the first and the supervised one",
        choices=TEACHER_LOSSES,
        needs=TAUGHT,
    )
    off_policy_top_entropy_share: float = setting(
        1.0,
        "share of each row's teacher tokens that are learnt, those of the policy's highest entropy (Prefix-RFT); the "
        "others' loss is 0, and they still count where the loss is divided",
        range=PART,
        needs=TAUGHT,
    )
    sft_token_weight: str = setting(
        "none",
        "weight of each token's -log p in the supervised loss: none, p_times_1mp (CHORD's p (1 - p)), or "
        "exp_neg_entropy (SRFT's exp(-H), H the policy's mean entropy over the teacher's response)",
        choices=TOKEN_WEIGHTS,
        needs=_SUPERVISED,
    )
    sft_loss_coef: float = setting(1.0, "mu: the weight of the supervised loss", range=WEIGHT, needs=_SUPERVISED)
    sft_loss_mixture: bool = setting(
        False, "weigh the other loss by 1 - mu, so that mu moves between the two (CHORD)", needs=_SUPERVISED
    )
    sft_loss_schedule: str = setting(
        "constant",
        "schedule of mu over the steps, from sft_loss_coef to sft_loss_coef_end",
        choices=SCHEDULES,
        needs=_SUPERVISED,
    )
    sft_loss_coef_end: float = setting(
        0.0, "mu at the end of a linear or cosine schedule", range=WEIGHT, needs=_SCHEDULED
    )
    sft_loss_schedule_steps: int | None = setting(
        None, "steps of the schedule (default: all steps of the run after the warm-up)", range=COUNT, needs=_SCHEDULED
    )
    sft_loss_warmup_steps: int = setting(
        0, "steps before the schedule over which mu grows from 0", range=COUNT_OR_NONE, needs=_SUPERVISED
    )
    on_policy_reshape: str = setting(
        "no_reshape", "reshape the ratio of rollout tokens: one of the same names; no_reshape: the plain ratio"
    )
    on_policy_reshape_weight: float = setting(
        0.1, "c of p_logp", range=WEIGHT, needs=_read("on_policy_reshape_weight")
    )
    on_policy_reshape_pow_exp: float = setting(0.5, "k of pow", range=WEIGHT, needs=_read("on_policy_reshape_pow_exp"))
    all_max_clip: float | None = setting(None, "leave tokens with a larger probability out of the loss", range=WEIGHT)
    loss_remove_clip: bool = setting(False, "do not clip rollout tokens (PPO's clipping)")
    loss_aggregation: str = setting(
        "constant", "how token losses are aggregated; constant: sum / (rows * L_max)", choices=AGGREGATIONS
    )
    ratio_level: str = setting(
        "token",
        "what has its own ratio, clip and loss: each token, or each step of reasoning of a rollout. With step, "
        "ppo_kl, approx_kl, clip_fraction and on_policy_* are over steps; the entropy bonus is still over tokens",
        choices=RATIO_LEVELS,
    )
    old_log_probs: str = setting(
        BEFORE_UPDATE,
        "old log-probabilities of the ratio: of a forward pass before the update, or the update's own, with which "
        "every ratio is 1. Before it, of_update passes the rollouts whose entropy weighs a bonus, and one of each "
        "group; it needs one optimizer step on a batch of rollouts",
        choices=OLD_LOG_PROBS,
    )
    kl_stop: float | None = setting(
        None,
        "skip the remaining optimizer steps on a batch of rollouts once approx_kl (k3 from the rollouts' policy to "
        "the trained one, per ratio_level, in the last optimizer step) is above this; the critic keeps training",
        range=POSITIVE,
        needs=Need(
            "more than one optimizer step on a batch of rollouts: train.max_epochs, or a smaller train.batch_size",
            updates_again,
        ),
    )
    chunked_token_stats: bool = setting(
        True, ("compute logits for a few tokens at a time and keep none, to save memory")
    )

    @property
    def sft_loss_moves(self) -> bool:
        """Whether the weight of the supervised loss depends on the step."""
        moves = self.sft_loss_schedule != "constant" or self.sft_loss_warmup_steps > 0
        return TEACHER_LOSSES[self.off_policy_loss].supervised and moves

    def sft_loss_coef_at(self, step: int, planned_steps: int) -> float:
        """Return the weight of the supervised loss at a step (from 1) of a run."""
        warmup = self.sft_loss_warmup_steps
        return scheduled_weight(
            step,
            start=self.sft_loss_coef,
            end=self.sft_loss_coef_end,
            steps=self.sft_loss_schedule_steps or planned_steps - max(warmup - 1, 0),
            schedule=self.sft_loss_schedule,
            warmup=warmup,
        )
