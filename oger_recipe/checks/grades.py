"""Settings of grades, and of advantages without any but these, that do not go together."""

from collections.abc import Iterator, Mapping
from typing import Any

from oger_recipe.settings.grades import AVERAGE, OFF
from oger_recipe.settings.oger import OgerSettings


def longest_shown(value: Mapping[str, Any], oger: OgerSettings) -> int:
    """Return how many tokens a row may have that shows its grader a teacher: those of any row, and of the teacher."""
    longest: int = value["data.max_len"]
    return longest + (oger.teachers.max_prefix_len or value["rollout.max_new_tokens"] or longest)


def grade_problems(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Yield a sentence for each mistake in ``value``, settings by flag."""
    yield from oger.grades.model_problems()
    if oger.grades.grader != OFF and oger.loss.ratio_level == "step":
        yield (
            f"oger.grader {oger.grades.grader} grades tokens, and with oger.ratio_level step a whole step of "
            "reasoning has the advantage of its first token: use oger.ratio_level token"
        )
    splits = {
        "ds.zero_stage 3": value["ds.zero_stage"] == 3,
        "ds.tensor_parallel_size above 1": value["ds.tensor_parallel_size"] > 1,
        "ds.lora.rank": value["ds.lora.rank"] > 0,
    }
    for flag in (flag for flag, is_set in splits.items() if is_set and oger.grades.grader == AVERAGE):
        yield (
            f"oger.grader average averages the policy's whole weights on each rank, and cannot be used with {flag}: "
            "use ds.zero_stage 2 without these, or oger.grader initial"
        )
    if oger.advantage.prefix_reward_weight_beta == 0:
        yield from _without_the_estimators(value, oger)


def _without_the_estimators(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Yield what oger.prefix_reward_weight_beta 0 would leave without effect: it weighs all that an estimator gives to
    rollouts, of which a KL in the reward is a part."""
    beta = "oger.prefix_reward_weight_beta 0 takes the estimator's advantage from rollouts"
    if value["algo.kl.init_coef"] > 0 and not value["algo.kl.use_loss"]:
        yield (
            f"{beta}, and with it the KL in the reward (algo.kl.init_coef {value['algo.kl.init_coef']}): set "
            "algo.kl.use_loss, which puts the KL into the loss, or algo.kl.init_coef 0"
        )
    if oger.advantage.kl_penalty_coef > 0:
        yield (
            f"{beta}, and with it the KL of oger.kl_penalty_coef {oger.advantage.kl_penalty_coef}: leave it out, and "
            "raise algo.kl.init_coef, the KL in the loss"
        )
    if not oger.grades.is_on and not oger.teachers_enter:
        yield (
            f"{beta}, and nothing else teaches the policy: grades are off (oger.grader {oger.grades.grader}, "
            f"oger.grade_weight {oger.grades.grade_weight:g}), and no teacher enters a group (oger.max_replace_num, "
            "oger.n_prefix): use oger.prefix_reward_weight_beta 1, or one of these"
        )
