"""Settings that an estimator of advantages does not go with, because of the rewards that it takes."""

from collections.abc import Iterator, Mapping
from typing import Any

from oger_recipe.algorithm.credit import RIGHT_ESTIMATORS
from oger_recipe.grading.rules import MATH_RULES
from oger_recipe.rewards.kinds import kind_of
from oger_recipe.settings.oger import OgerSettings


def estimator_problems(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Yield a sentence for each setting, by flag, that the run's estimator does not go with."""
    estimator = value["algo.advantage.estimator"]
    if estimator == "max_rl":
        yield from _of_max_rl(value, oger)
    if estimator in RIGHT_ESTIMATORS:
        yield from _of_right_rows(value, oger, estimator)


def _of_max_rl(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Yield what would bring the mean, by which it divides, near 0 or below, and what would cut its advantages."""
    for what in _below_zero(value, oger):
        yield (
            f"{what} gives rewards below 0, and algo.advantage.estimator max_rl divides by their mean: leave it out, "
            "or use group_norm or dr_grpo"
        )
    largest, clip = value["rollout.n_samples_per_prompt"] - 1, value["reward.clip_range"]
    if clip and clip[1] < largest:
        yield (
            f"reward.clip_range {clip[0]:g} {clip[1]:g} would cut the advantages of max_rl, which reach "
            f"rollout.n_samples_per_prompt - 1 = {largest}: set reward.clip_range {clip[0]:g} {largest}"
        )


def _below_zero(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Name the settings that surely make some rewards negative. Models and the user's own code may do so, too."""
    negative = {
        "oger.non_stop_penalty": oger.advantage.non_stop_penalty,
        "oger.non_stop_fixed_reward": oger.advantage.non_stop_fixed_reward,
        "reward.stop_properly_penalty_coef": value["reward.stop_properly_penalty_coef"],
    }
    yield from (f"{flag} {number:g}" for flag, number in negative.items() if number is not None and number < 0)
    if value["reward.overlong_buffer_len"] is not None:
        yield "reward.overlong_buffer_len"
    rule = MATH_RULES.get(oger.verifiers.math_rule or "")
    if rule is not None and min(rule.wrong, rule.unformatted) < 0:
        yield f"oger.math_rule {oger.verifiers.math_rule}"
    for entry in oger.reward.sources:
        kind, weight = kind_of(entry), entry.get("weight", 1)
        if kind is None or kind.is_bonus or weight == 0 or [*kind.problems(entry)]:
            continue
        where = f"oger.reward.sources: {entry['name']!r}"
        values = (*(kind.of(entry).bounds or (0, 1)), entry.get("worst", 0))
        if entry.get("normalize", "none") != "none":
            yield f"{where} with normalize {entry['normalize']}"
        elif min(weight * each for each in values) < 0:
            yield f"{where} with weight {weight}" if weight < 0 else f"{where} of kind {entry['kind']}"


def _of_right_rows(value: Mapping[str, Any], oger: OgerSettings, estimator: str) -> Iterator[str]:
    """Yield what would be without effect, as rows are only right or wrong, and a k with which nothing is learnt."""
    for what in _beside_right(value, oger):
        yield (
            f"{what} changes rewards, and algo.advantage.estimator {estimator} takes only which rows are right: leave "
            "it out, or use max_rl, group_norm or dr_grpo"
        )
    k, samples, text = oger.advantage.pass_at_k, value["rollout.n_samples_per_prompt"], "rows"
    if oger.advantage.advantage_baseline == "rollouts":
        samples -= max(oger.teachers.max_replace_num, oger.prefix.n_prefix)
        text = "rollouts without a teacher"
    if samples <= k:
        yield (
            f"oger.pass_at_k {k} is not below the {samples} {text} of a group, so no row is better than another: set "
            "a smaller oger.pass_at_k, or a larger rollout.n_samples_per_prompt"
        )


def _beside_right(value: Mapping[str, Any], oger: OgerSettings) -> Iterator[str]:
    """Name the settings that change a reward beyond right and wrong."""
    numbers = {
        "oger.non_stop_penalty": oger.advantage.non_stop_penalty or None,
        "oger.non_stop_fixed_reward": oger.advantage.non_stop_fixed_reward,
        "reward.stop_properly_penalty_coef": value["reward.stop_properly_penalty_coef"],
        "reward.overlong_buffer_len": value["reward.overlong_buffer_len"],
    }
    yield from (f"{flag} {number:g}" for flag, number in numbers.items() if number is not None)
    if oger.has_bonus:
        yield f"oger.bonus_weight {oger.bonus.bonus_weight:g}"
    for entry in oger.reward.sources:
        kind = kind_of(entry)
        if kind is not None and not (kind.is_rule or kind.is_bonus) and entry.get("weight", 1) != 0:
            yield f"oger.reward.sources: {entry['name']!r} of kind {entry['kind']}"
