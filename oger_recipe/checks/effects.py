"""Which settings need which others to have an effect on the run: one table, from which notes are made."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS, STEP_ESTIMATORS
from oger_recipe.algorithm.policy_loss import TEACHER_LOSSES
from oger_recipe.algorithm.prefix import PREFIX_STRATEGIES
from oger_recipe.algorithm.reshape import RESHAPES
from oger_recipe.rewards.kinds import kind_of
from oger_recipe.rewards.kinds.entries import models_of
from oger_recipe.rewards.spec import Keys
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.settings.steps import StepSettings

Need = tuple[tuple[str, ...], str, Callable[[OgerSettings], bool]]
UpstreamNeed = tuple[tuple[str, ...], str, Callable[[Mapping[str, Any]], bool]]


def _strategies_that_read(name: str) -> Need:
    readers = [strategy for strategy, each in PREFIX_STRATEGIES.items() if name in each.reads]
    return (name,), f"oger.prefix_strategy {_either(readers)}", lambda oger: oger.prefix.prefix_strategy in readers


def _reshapes_that_read(name: str) -> Need:
    chosen = f"{name.partition('_reshape')[0]}_reshape"  # off_policy_reshape_weight is for off_policy_reshape
    readers = [reshape for reshape, each in RESHAPES.items() if name in each.reads]
    return (name,), f"oger.{chosen} {_either(readers)}", lambda oger: getattr(oger.loss, chosen) in readers


def _either(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _estimators_that_read(name: str, *readers: str) -> UpstreamNeed:
    need = f"algo.advantage.estimator {_either([*readers])}"
    return (name,), need, lambda value: value["algo.advantage.estimator"] in readers


def _teachers_enter(oger: OgerSettings) -> bool:
    return oger.teachers_enter


_TEACHER_LOSS = "tokens of teachers (oger.max_replace_num or oger.n_prefix)"
_COMPARISON = "a comparison of rollouts with teachers (oger.bonus_weight, or a similarity in oger.replace_mode)"
_EMBEDDING = f"{_COMPARISON}, by embeddings and not by oger.similarity_reranker"
_ENCODER = f"{_EMBEDDING}, or a reward source of kind similarity"

# (settings, what they need, whether it is there); a name is the recipe's unless OpenRLHF has such a flag.
NEEDS: tuple[Need, ...] = (
    (
        ("replace_mode", "replace_after_rm"),
        "oger.max_replace_num above 0",
        lambda oger: oger.teachers.max_replace_num > 0,
    ),
    (("all_correct_group", "teacher_draw"), _TEACHER_LOSS, _teachers_enter),
    (
        ("keep_wrong_teachers", "teacher_key", "teacher_sources", "max_prefix_len", "long_teachers"),
        "teachers (oger.max_replace_num, oger.n_prefix, a bonus, or oger.sft.epochs)",
        lambda oger: oger.uses_teachers,
    ),
    (("use_history_samples",), _COMPARISON, lambda oger: oger.compares),
    (("history_size",), "oger.use_history_samples", lambda oger: oger.teachers.use_history_samples),
    # Prefix guidance
    (
        (
            "prefix_strategy", "min_prefix_ratio", "max_prefix_ratio", "prefix_steps", "prefix_linear_max_ratio",
            "prefix_share_across_samples",
        ),
        "oger.n_prefix",
        lambda oger: oger.prefix.n_prefix != 0,
    ),
    _strategies_that_read("min_prefix_ratio"),
    _strategies_that_read("max_prefix_ratio"),
    _strategies_that_read("prefix_steps"),
    _strategies_that_read("prefix_linear_max_ratio"),
    # Advantages and losses of teacher tokens
    (("advantage_baseline", "prefix_reward_weight_alpha", "use_sft_prefix_reward"), _TEACHER_LOSS, _teachers_enter),
    (
        ("prefix_reward_weight_alpha", "use_sft_prefix_reward"),
        "oger.off_policy_loss reshape or ppo: the supervised one has no advantages",
        lambda oger: not TEACHER_LOSSES[oger.loss.off_policy_loss].apart,
    ),
    (("sft_prefix_reward_weight",), "oger.use_sft_prefix_reward", lambda oger: oger.advantage.use_sft_prefix_reward),
    (
        (
            "off_policy_loss", "off_policy_reshape", "off_policy_reshape_weight", "off_policy_reshape_pow_exp",
            "off_policy_max_clip", "off_policy_min_clip", "use_off_policy_probs", "sft_loss_coef",
        ),
        _TEACHER_LOSS,
        _teachers_enter,
    ),
    (
        (
            "off_policy_reshape", "off_policy_reshape_weight", "off_policy_reshape_pow_exp", "off_policy_max_clip",
            "off_policy_min_clip", "use_off_policy_probs",
        ),
        "oger.off_policy_loss reshape",
        lambda oger: TEACHER_LOSSES[oger.loss.off_policy_loss].reshapes,
    ),
    _reshapes_that_read("off_policy_reshape_weight"),
    _reshapes_that_read("off_policy_reshape_pow_exp"),
    (("sft_loss_coef",), "oger.off_policy_loss sft", lambda oger: TEACHER_LOSSES[oger.loss.off_policy_loss].apart),
    _reshapes_that_read("on_policy_reshape_weight"),
    _reshapes_that_read("on_policy_reshape_pow_exp"),
    (
        ("actor.eps_clip", "actor.eps_clip_low_high"),
        "PPO's clipping: leave oger.loss_remove_clip",
        lambda oger: not oger.loss.loss_remove_clip,
    ),
    # The bonus, and what else a source of the reward reads
    (
        ("bonus_weight", "bonus_schedule"),
        "a source of kind bonus (oger.reward.sources)",
        lambda oger: "bonus" in oger.reward.kinds,
    ),
    (
        ("non_stop_penalty",),
        "a source of kind verifier (oger.reward.sources)",
        lambda oger: "verifier" in oger.reward.kinds,
    ),
    (
        (
            "similarity_reverse", "similarity_reverse_fail", "similarity_shaping", "repeating_check",
            "last_token_enp_reward", "entropy_position", "entropy_top_share",
        ),
        "a bonus (oger.bonus_weight, and its place in oger.reward.sources)",
        lambda oger: oger.has_bonus,
    ),
    (
        ("bonus_weight_end", "bonus_schedule_steps"),
        "oger.bonus_schedule linear or cosine",
        lambda oger: oger.bonus.bonus_schedule != "constant",
    ),
    (
        ("entropy_position", "entropy_top_share"),
        "an entropy weight (oger.last_token_enp_reward)",
        lambda oger: oger.bonus.last_token_enp_reward != "none",
    ),
    (("entropy_top_share",), "oger.entropy_position top", lambda oger: oger.bonus.entropy_position == "top"),
    (
        ("similarity_reranker", "embedding_part"),
        _COMPARISON,
        lambda oger: oger.compares,
    ),
    (
        ("embedding_max_tokens", "embedding_batch_size"),
        f"{_COMPARISON}, or a reward source of kind similarity",
        lambda oger: oger.compares or oger.embeds,
    ),
    (
        (
            "embedding_model", "embedding_revision", "embedding_long_texts", "embedding_cache", "embedding_url",
            "embedding_num_gpus",
        ),
        _ENCODER,
        lambda oger: oger.embeds,
    ),
    (("max_embedding_error_rate",), _EMBEDDING, lambda oger: oger.embeds_references),
    (
        ("reward.max_error_rate",),
        "a source besides verifier and bonus (oger.reward.sources)",
        lambda oger: bool({*oger.reward.kinds} - {"verifier", "bonus"}),
    ),
    (("reward.cache",), "a source that asks a model (oger.reward.sources)", lambda oger: oger.reward.asks_models),
    (
        ("reward.engine_memory_gb",),
        "a source whose model runs in an engine (oger.reward.sources)",
        lambda oger: any(keys.runs_on == "engine" for _, keys in models_of(oger.reward.sources)),
    ),
    (
        ("steps.max_steps", "steps.last_step_text"),
        "something that ends a step: oger.steps.delimiters, oger.steps.delimiter_token_ids or "
        "oger.steps.max_step_tokens",
        lambda oger: oger.steps.cuts,
    ),
    # Before the first step
    (
        ("sft.max_samples", "sft.batch_size", "sft.micro_batch_size", "sft.lr"),
        "oger.sft.epochs above 0",
        lambda oger: oger.sft.epochs > 0,
    ),
)  # fmt: skip


def _optimizer_steps(value: Mapping[str, Any]) -> int:
    """Count the optimizer steps of a training step."""
    rows: int = value["rollout.batch_size"] * value["rollout.n_samples_per_prompt"]
    return rows // value["train.batch_size"] * value["train.max_epochs"]


def _knows_steps(value: Mapping[str, Any]) -> bool:
    steps = StepSettings.of(value)
    ends = steps.sample_by_step or steps.max_steps is not None or steps.last_step_text is not None
    return ends or OgerSettings.of(value).cuts_steps(value["algo.advantage.estimator"])


# The same for needs that are read from all settings of a run.
UPSTREAM_NEEDS: tuple[UpstreamNeed, ...] = (
    (
        ("algo.kl.estimator", "algo.kl.use_loss", "algo.kl.unbiased_gradient"),
        "algo.kl.init_coef above 0",
        lambda value: value["algo.kl.init_coef"] > 0,
    ),
    (("algo.kl.unbiased_gradient",), "algo.kl.use_loss", lambda value: value["algo.kl.use_loss"]),
    (("algo.kl.horizon",), "algo.kl.target", lambda value: value["algo.kl.target"] is not None),
    # Advantages
    _estimators_that_read("algo.advantage.gamma", "reinforce", *CRITIC_ESTIMATORS),
    _estimators_that_read("algo.advantage.lambd", *CRITIC_ESTIMATORS),
    _estimators_that_read(
        "algo.advantage.no_std_norm", "gae", "reinforce", "reinforce_baseline",
        *(name for name, each in STEP_ESTIMATORS.items() if each.whitened is not None),
    ),
    # The critic, and when a batch of rollouts has been trained on enough
    (
        ("critic.huber_delta", "critic.hidden_sizes", "critic.head_only"),
        f"a critic: algo.advantage.estimator {_either([*CRITIC_ESTIMATORS])}",
        lambda value: value["algo.advantage.estimator"] in CRITIC_ESTIMATORS,
    ),
    (
        ("kl_stop",),
        "more than one optimizer step on a batch of rollouts: train.max_epochs, or a smaller train.batch_size",
        lambda value: _optimizer_steps(value) > 1,
    ),
    # Steps of reasoning
    (
        ("oger.steps.delimiters", "oger.steps.delimiter_token_ids", "oger.steps.max_step_tokens"),
        "steps of reasoning: a source that reads them (oger.reward.sources), algo.advantage.estimator "
        f"{_either([*STEP_ESTIMATORS])}, oger.ratio_level step, or a response that ends by them (oger.steps)",
        _knows_steps,
    ),
)  # fmt: skip


def without_effect(value: Mapping[str, Any], default: Callable[[str], Any]) -> Iterator[str]:
    """Yield a sentence for every flag of ``value`` that is not at its default and changes nothing, and for a bonus
    that is listed and adds nothing."""
    oger = OgerSettings.of(value)
    needs = [(settings, need, is_met(oger)) for settings, need, is_met in NEEDS]
    needs += [(settings, need, is_met(value)) for settings, need, is_met in UPSTREAM_NEEDS]
    said = set()
    for settings, need, is_met in needs:
        for setting in settings:
            name = setting if setting in value else f"oger.{setting}"
            if name not in said and value[name] != default(name) and not is_met:
                said.add(name)
                yield f"{name} has no effect: it needs {need}"
    for entry in oger.reward.sources:
        if entry["kind"] == "bonus" and not oger.bonus.is_on:
            yield f"oger.reward.sources: {entry['name']!r} adds nothing: oger.bonus_weight is 0"
    yield from _steps_unpaid(oger, value["algo.advantage.estimator"])


def _steps_unpaid(oger: OgerSettings, estimator: str) -> Iterator[str]:
    """Yield sentences for step rewards that no estimator takes, and for an estimator of them that gets none."""
    pays = [entry for entry in oger.reward.sources if (kind_of(entry) or Keys).reads_steps]
    if estimator not in STEP_ESTIMATORS:
        for entry in pays:
            if entry.get("credit", "sum") != "sum":
                yield (
                    f"oger.reward.sources: credit of {entry['name']!r} has no effect: it needs "
                    f"algo.advantage.estimator {_either([*STEP_ESTIMATORS])}; with {estimator} a row has its aggregate"
                )
    elif not pays and not any(":" in entry["kind"] for entry in oger.reward.sources):  # a user's kind may pay steps
        yield (
            f"algo.advantage.estimator {estimator} goes by steps of reasoning, and no source of oger.reward.sources "
            "speaks of them: all rewards are at the last step; a source of kind process says them"
        )
