"""Which settings need which others to have an effect on the run: one table, from which notes are made."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oger_recipe.algorithm.hybrid_group import REPLACE_MODES
from oger_recipe.algorithm.policy_loss import TEACHER_LOSSES
from oger_recipe.algorithm.prefix import PREFIX_STRATEGIES
from oger_recipe.algorithm.reshape import RESHAPES

Settings = Mapping[str, Any]  # of the recipe's section by name, without "oger."


def own_section(value: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's section of all flags, by names without "oger."."""
    return {name.removeprefix("oger."): setting for name, setting in value.items() if name.startswith("oger.")}


def has_bonus(oger: Settings) -> bool:
    """Whether the exploration bonus is ever anything but 0."""
    ends_elsewhere = oger["bonus_schedule"] != "constant" and oger["bonus_weight_end"] != 0
    return oger["bonus_weight"] != 0 or ends_elsewhere


def compares(oger: Settings) -> bool:
    """Whether anything of the run depends on how close rollouts are to teachers."""
    replaces = oger["max_replace_num"] > 0 and oger["replace_after_rm"]
    return has_bonus(oger) or (replaces and REPLACE_MODES[oger["replace_mode"]].similarity is not None)


def teachers_enter(oger: Settings) -> bool:
    """Whether tokens of teachers are trained on."""
    return oger["max_replace_num"] > 0 or oger["n_prefix"] != 0


def needs_teachers(oger: Settings) -> bool:
    """Whether a run without any teacher would be another method than the one that is asked for."""
    return teachers_enter(oger) or oger["sft.epochs"] > 0 or (has_bonus(oger) and not oger["use_history_samples"])


def _uses_teachers(oger: Settings) -> bool:
    return teachers_enter(oger) or compares(oger) or oger["sft.epochs"] > 0


def embeds(oger: Settings) -> bool:
    """Whether the encoder of trajectories is used."""
    return compares(oger) and not oger["similarity_reranker"]


def _strategies_that_read(knob: str) -> tuple[tuple[str, ...], str, Callable[[Settings], bool]]:
    readers = [name for name, strategy in PREFIX_STRATEGIES.items() if knob in strategy.reads]
    return (knob,), f"oger.prefix_strategy {_either(readers)}", lambda oger: oger["prefix_strategy"] in readers


def _reshapes_that_read(knob: str) -> tuple[tuple[str, ...], str, Callable[[Settings], bool]]:
    chosen = f"{knob.partition('_reshape')[0]}_reshape"  # off_policy_reshape_weight is for off_policy_reshape
    readers = [name for name, reshape in RESHAPES.items() if knob in reshape.reads]
    return (knob,), f"oger.{chosen} {_either(readers)}", lambda oger: oger[chosen] in readers


def _either(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


_TEACHER_LOSS = "tokens of teachers (oger.max_replace_num or oger.n_prefix)"
_COMPARISON = "a comparison of rollouts with teachers (oger.bonus_weight, or a similarity in oger.replace_mode)"
_EMBEDDING = f"{_COMPARISON}, by embeddings and not by oger.similarity_reranker"

# (settings, what they need, whether it is there); a name is the recipe's unless OpenRLHF has such a flag.
NEEDS: tuple[tuple[tuple[str, ...], str, Callable[[Settings], bool]], ...] = (
    (("replace_mode", "replace_after_rm"), "oger.max_replace_num above 0", lambda oger: oger["max_replace_num"] > 0),
    (("all_correct_group", "teacher_draw"), _TEACHER_LOSS, teachers_enter),
    (
        ("keep_wrong_teachers", "teacher_key", "teacher_sources", "max_prefix_len", "long_teachers"),
        "teachers (oger.max_replace_num, oger.n_prefix, a bonus, or oger.sft.epochs)",
        _uses_teachers,
    ),
    (("use_history_samples",), _COMPARISON, compares),
    (("history_size",), "oger.use_history_samples", lambda oger: oger["use_history_samples"]),
    # Prefix guidance
    (
        (
            "prefix_strategy", "min_prefix_ratio", "max_prefix_ratio", "prefix_steps", "prefix_linear_max_ratio",
            "prefix_share_across_samples",
        ),
        "oger.n_prefix",
        lambda oger: oger["n_prefix"] != 0,
    ),
    _strategies_that_read("min_prefix_ratio"),
    _strategies_that_read("max_prefix_ratio"),
    _strategies_that_read("prefix_steps"),
    _strategies_that_read("prefix_linear_max_ratio"),
    # Advantages and losses of teacher tokens
    (("advantage_baseline", "prefix_reward_weight_alpha", "use_sft_prefix_reward"), _TEACHER_LOSS, teachers_enter),
    (
        ("prefix_reward_weight_alpha", "use_sft_prefix_reward"),
        "oger.off_policy_loss reshape or ppo: the supervised one has no advantages",
        lambda oger: not TEACHER_LOSSES[oger["off_policy_loss"]].apart,
    ),
    (("sft_prefix_reward_weight",), "oger.use_sft_prefix_reward", lambda oger: oger["use_sft_prefix_reward"]),
    (
        (
            "off_policy_loss", "off_policy_reshape", "off_policy_reshape_weight", "off_policy_reshape_pow_exp",
            "off_policy_max_clip", "off_policy_min_clip", "use_off_policy_probs", "sft_loss_coef",
        ),
        _TEACHER_LOSS,
        teachers_enter,
    ),
    (
        (
            "off_policy_reshape", "off_policy_reshape_weight", "off_policy_reshape_pow_exp", "off_policy_max_clip",
            "off_policy_min_clip", "use_off_policy_probs",
        ),
        "oger.off_policy_loss reshape",
        lambda oger: TEACHER_LOSSES[oger["off_policy_loss"]].reshapes,
    ),
    _reshapes_that_read("off_policy_reshape_weight"),
    _reshapes_that_read("off_policy_reshape_pow_exp"),
    (("sft_loss_coef",), "oger.off_policy_loss sft", lambda oger: TEACHER_LOSSES[oger["off_policy_loss"]].apart),
    _reshapes_that_read("on_policy_reshape_weight"),
    _reshapes_that_read("on_policy_reshape_pow_exp"),
    (
        ("actor.eps_clip", "actor.eps_clip_low_high"),
        "PPO's clipping: leave oger.loss_remove_clip",
        lambda oger: not oger["loss_remove_clip"],
    ),
    # The bonus
    (
        (
            "similarity_reverse", "similarity_reverse_fail", "similarity_shaping", "repeating_check",
            "last_token_enp_reward", "entropy_position", "entropy_top_share",
        ),
        "a bonus (oger.bonus_weight)",
        has_bonus,
    ),
    (
        ("bonus_weight_end", "bonus_schedule_steps"),
        "oger.bonus_schedule linear or cosine",
        lambda oger: oger["bonus_schedule"] != "constant",
    ),
    (
        ("entropy_position", "entropy_top_share"),
        "an entropy weight (oger.last_token_enp_reward)",
        lambda oger: oger["last_token_enp_reward"] != "none",
    ),
    (("entropy_top_share",), "oger.entropy_position top", lambda oger: oger["entropy_position"] == "top"),
    (
        ("similarity_reranker", "embedding_max_tokens", "embedding_part", "embedding_batch_size"),
        _COMPARISON,
        compares,
    ),
    (
        (
            "embedding_model", "embedding_revision", "embedding_long_texts", "embedding_cache", "embedding_url",
            "max_embedding_error_rate",
        ),
        _EMBEDDING,
        embeds,
    ),
    # Before the first step
    (
        ("sft.max_samples", "sft.batch_size", "sft.micro_batch_size", "sft.lr"),
        "oger.sft.epochs above 0",
        lambda oger: oger["sft.epochs"] > 0,
    ),
)  # fmt: skip


def without_effect(value: Mapping[str, Any], default: Callable[[str], Any]) -> Iterator[str]:
    """A sentence for every flag of ``value`` that is set to something else than its default and changes nothing."""
    oger = own_section(value)
    said = set()
    for settings, need, is_met in NEEDS:
        for setting in settings:
            name = setting if setting in value else f"oger.{setting}"
            if name not in said and value[name] != default(name) and not is_met(oger):
                said.add(name)
                yield f"{name} has no effect: it needs {need}"
