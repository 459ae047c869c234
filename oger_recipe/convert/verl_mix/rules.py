"""Rules for flags that make a setting together, or that count in other units than ours."""

from __future__ import annotations

import re
from typing import Any

from oger_recipe.algorithm.hybrid_group import REPLACE_MODES
from oger_recipe.base.machine import ENCODER_SHARE
from oger_recipe.convert.values import Get, NoEffect, Settings, Unsupported, one_of
from oger_recipe.convert.verl.rules import ACTOR, KL_KINDS, REF, ROLLOUT, ranks


def reward(value: Any, get: Get) -> Settings:
    names = ["deepscaler", "deepscaler_format", "deepscaler_no_think", "math_verify_think", "math_verify"]
    names += ["math_verify", "math_verify"]  # HPT's, of boxes alone
    settings: Settings = {"oger.task_name": "math", "oger.math_rule": one_of(value, dict(enumerate(names)))}
    return settings | ({"oger.math_extract": ["boxed" if value >= 5 else "anywhere"]} if value >= 3 else {})


def engine(value: Any, get: Get) -> Settings:
    one_of(value, {"vllm": "vllm", "vllm_exp": "vllm"})
    raise NoEffect("rollouts come from vLLM")


def top_p(value: Any, get: Get) -> Settings:
    return {"rollout.top_p": value} | ({"oger.eval.top_p": 1.0} if value != 1 else {})


# Advantage and KL


def estimator(value: Any, get: Get) -> Settings:
    name = get("algorithm.adv_estimator")
    if name == "reinforce":
        raise Unsupported("rewards as advantages, without any baseline, are not available: use grpo")
    group = "group_norm" if get("algorithm.grpo_use_std") else "dr_grpo"
    known = {"grpo": group, "grpo_split": group, "gae": "gae", "reinforce_plus_plus": "reinforce"}
    baseline = {"oger.advantage_baseline": "rollouts"} if name == "grpo_split" else {}
    return {"algo.advantage.estimator": one_of(name, known)} | baseline


def use_std(value: Any, get: Get) -> Settings:
    if get("algorithm.adv_estimator") not in ("grpo", "grpo_split"):
        raise NoEffect("it is for the grpo estimators")
    return estimator(value, get)


def kl_coefficient(get: Get) -> float:
    if get(ACTOR + "use_kl_loss"):
        return in_steps_unit(float(get(ACTOR + "kl_loss_coef")), get)
    return float(get("algorithm.kl_ctrl.kl_coef")) if get(REF + "use_ref") else 0.0


def kl(value: Any, get: Get) -> Settings:
    """Put the KL into the loss or the reward, never both; a coefficient of 0 loads no reference."""
    in_loss, coefficient = get(ACTOR + "use_kl_loss"), kl_coefficient(get)
    if not coefficient:
        return {"algo.kl.init_coef": 0.0}
    if not get(REF + "use_ref"):
        raise Unsupported("a KL loss needs the reference: set ref.use_ref=True, or use_kl_loss=False")
    kind = get(ACTOR + "kl_loss_type" if in_loss else "algorithm.kl_penalty")
    formula = one_of(kind, KL_KINDS)
    return {"algo.kl.init_coef": coefficient, "algo.kl.use_loss": in_loss, "algo.kl.estimator": formula}


def only_loss_kl(get: Get) -> str:
    return "" if get(ACTOR + "use_kl_loss") else "use_kl_loss is False"


def only_reward_kl(get: Get) -> str:
    return "use_kl_loss is True: the KL is in the loss alone" if get(ACTOR + "use_kl_loss") else ""


def kl_kind(value: Any, get: Get) -> Settings:
    settings = kl(value, get)
    if not settings["algo.kl.init_coef"]:
        raise NoEffect("the KL's coefficient is 0")
    return settings


# Terms that LUFFY takes as a mean of each micro-batch


def of_micro_batches(target: str):
    """Make a rule that converts such a mean's coefficient to our unit: the step's mean beside our policy loss.

    On each rank LUFFY adds up its micro-batches: of the policy loss (loss_remove_token_mean) the sum over rows of
    sum_t loss / L_max, of this term a mean each. We divide the first by the rows, so this term as well:

        dynamic batches:  K micro-batches of T tokens for the rows' tokens: K / rows = tokens of a row / T
        else:             both are divided by the number of micro-batches: 1 / rows of a micro-batch

    The tokens of a row are not known before the run; a quarter of max_response_length is taken for them. Where the
    policy loss is a token mean as well, the coefficient is the same.
    """

    def rule(value: Any, get: Get) -> Settings:
        return {target: in_steps_unit(value, get)}

    return rule


def in_steps_unit(value: float, get: Get) -> float:
    """Convert the coefficient as `of_micro_batches` says."""
    if not get(ACTOR + "loss_remove_token_mean"):
        return value
    if get(ACTOR + "use_dynamic_bsz"):
        return float(value * get("data.max_response_length") / 4 / get(ACTOR + "ppo_max_token_len_per_gpu"))
    return float(value / max(get(ACTOR + "ppo_micro_batch_size") * get(ROLLOUT + "n") // ranks(get), 1))


# The loss of teacher tokens


_OFFLINE = {"off_policy": "reshape", "sft": "sft", "srft": "reshape_sft"}  # HPT's offline_loss_type


def _teacher_loss(get: Get) -> str | None:
    """Return our name for the loss; None for one of HPT's that is not here."""
    offline = get(ACTOR + "offline_loss_type")
    if offline is not None:
        return _OFFLINE.get(offline)
    supervised, shaped = get(ACTOR + "use_sft_multitask_loss"), get(ACTOR + "use_off_policy_loss")
    return "sft" if supervised else "reshape" if shaped else "ppo"


def teacher_loss(value: Any, get: Get) -> Settings:
    if get(ACTOR + "offline_loss_type") is not None:
        raise NoEffect("offline_loss_type says it")
    if get(ACTOR + "use_sft_multitask_loss") and get(ACTOR + "use_off_policy_loss"):
        raise Unsupported("use_sft_multitask_loss and use_off_policy_loss exclude each other: set one to False")
    return {"oger.off_policy_loss": _teacher_loss(get)}


def offline_loss(value: Any, get: Get) -> Settings:
    """Take HPT's loss of teachers; srft (arXiv 2506.19767) brings its weights and the loss of rollouts.

    Under switch a step has as many teachers as it has unsolved prompts, and the mean over their tokens would weigh all
    of them together as much as one alone. So a teacher's row is one of the rows that are added up, with log p in place
    of the ratio and an advantage of its own (sft_coefficient).
    """
    name = one_of(value, _OFFLINE)
    if name == "sft" and not only_switch(get):
        return {
            "oger.off_policy_loss": "reshape",
            "oger.off_policy_reshape": "logp",
            "oger.off_policy_reshape_weight": 1.0,
            "oger.use_sft_prefix_reward": True,
        }
    if name != "reshape_sft":
        return {"oger.off_policy_loss": name}
    return {
        "oger.off_policy_loss": name,
        "oger.sft_token_weight": "exp_neg_entropy",
        "oger.sft_loss_coef": in_steps_unit(0.5, get),
        "oger.rollout_advantage": "sign_exp_entropy",
        "oger.on_policy_reshape": "logp",
    }


def reshape(target: str):
    """Take one of the named functions; p_div_p_<gamma> with any number."""

    def rule(value: Any, get: Get) -> Settings:
        names = ["no_reshape", "logp", "p_logp", "square_root", "pow", "p_div_p_0.1", "p_div_p_0.3", "p_div_p_0.5"]
        if not re.fullmatch(r"p_div_p_(\d+\.?\d*|\.\d+)", value):
            one_of(value, dict.fromkeys(names))
        return {target: value}

    return rule


def only_shaped(get: Get) -> str:
    if _teacher_loss(get) in ("reshape", "reshape_sft"):
        return ""
    offline = get(ACTOR + "offline_loss_type")
    return "use_off_policy_loss is False" if offline is None else f"offline_loss_type is {offline}"


def only_shaped_rollouts(get: Get) -> str:
    has_its_own = _teacher_loss(get) == "reshape_sft"
    return "offline_loss_type is srft, whose rollouts have a loss of their own" if has_its_own else only_shaped(get)


def only_supervised(get: Get) -> str:
    if _teacher_loss(get) == "sft":
        return ""
    offline = get(ACTOR + "offline_loss_type")
    return "use_sft_multitask_loss is False" if offline is None else f"offline_loss_type is {offline}"


def sft_coefficient(value: Any, get: Get) -> Settings:
    """Take the supervised loss's coefficient; under HPT's switch it is the advantage of a teacher's tokens."""
    if only_switch(get):
        return {"oger.sft_loss_coef": in_steps_unit(value, get)}
    return {"oger.sft_prefix_reward_weight": float(value * get(ROLLOUT + "n"))}


def only_with_advantage(get: Get) -> str:
    supervised = get(ACTOR + "offline_loss_type") == "sft"
    return "offline_loss_type is sft: a teacher's advantage is no part of its loss" if supervised else ""


def teacher_probs(value: Any, get: Get) -> Settings:
    if not only_replay(get):
        raise NoEffect("trainer.experience is True: exp_is_correct says it")
    return {"oger.use_off_policy_probs": value}


def clip(value: Any, get: Get) -> Settings:
    """Set the ratio's upper bound to the larger of clip_upper_bound and 1 + clip_ratio."""
    if get(ACTOR + "loss_remove_clip"):
        raise NoEffect("loss_remove_clip is True")
    low, upper = get(ACTOR + "clip_ratio"), get(ACTOR + "clip_upper_bound")
    if get(ACTOR + "use_off_policy_loss") and upper > 1 + low:
        return {"actor.eps_clip": low, "actor.eps_clip_low_high": [low, round(upper - 1, 12)]}
    return {"actor.eps_clip": low}


# Teachers


def in_whole_rows(get: Get) -> str:
    """Say why no flag of LUFFY's brings teachers into a group: those of ExGRPO or of HPT do."""
    if not only_replay(get):
        return "trainer.experience is True: an earlier success takes the place of a whole rollout"
    if not only_switch(get):
        return "unify_strategy is switch: teachers take the places of whole rollouts"
    return ""


def only_replay(get: Get) -> str:
    return "" if get("trainer.experience") else "trainer.experience is not True"


def replay(value: Any, get: Get) -> Settings:
    """Let the policy's own earlier successes, and nothing else, enter groups (ExGRPO)."""
    if not value:
        raise NoEffect("there is no replay")
    if get(ROLLOUT + "n_prefix") != 1:
        raise Unsupported("one earlier success enters a group: set rollout.n_prefix=1")
    own: Settings = {"oger.use_history_samples": True, "oger.history_enters": True}
    own |= {"oger.history_size": get(ROLLOUT + "n"), "oger.teacher_sources": ["history"]}
    return own | {"oger.max_replace_num": 1, "oger.replace_mode": "random"}


def replay_ratio(value: Any, get: Get) -> Settings:
    if not value:
        raise Unsupported("the ratio is to the policy that sampled the success, not to that of the step: leave it out")
    return {"oger.use_off_policy_probs": True, "oger.off_policy_reshape_ratio": True}


def replay_draw(value: Any, get: Get) -> Settings:
    metric, select = get("trainer.exp_metric"), get("trainer.exp_select_mode")
    if metric == "random":
        return {"oger.teacher_draw": "uniform"}
    if (metric, select) == ("ent", "argmin"):
        return {"oger.teacher_draw": "lowest_entropy"}
    raise Unsupported(
        "a prompt's successes are drawn by exp_metric=ent with exp_select_mode=argmin, or exp_metric=random"
    )


def replay_gate(value: Any, get: Get) -> Settings:
    """Let successes enter where a share of rollouts is right whose prompts ExGRPO's buckets make likely."""
    n, buckets = get(ROLLOUT + "n"), get("trainer.exp_bucket_manager")
    low, high = get("trainer.experience_lbound") + 1, min(get("trainer.experience_rbound"), n - 1)
    if buckets not in (None, "normal"):
        raise Unsupported("prompts come in the order of the data: use exp_bucket_manager=normal, or null")
    if buckets == "normal":
        low, high = max(low, n / 2 - 2), min(high, n / 2 + 2)
    return {"oger.teacher_gate_low": low / n, "oger.teacher_gate": high / n}


def only_switch(get: Get) -> str:
    return "" if get("trainer.unify_strategy") == "switch" else "unify_strategy is not switch"


def unify(value: Any, get: Get) -> Settings:
    """Train unsolved prompts by their teachers alone (HPT's switch), or let teachers enter as LUFFY's do (no)."""
    if value == "no":
        raise NoEffect("teachers enter as LUFFY's do")
    if value != "switch":
        raise Unsupported("it is one of switch, no")
    return {"oger.max_replace_num": 1, "oger.replace_mode": "random", "oger.taught_group": "teachers"}


def switch_gate(value: Any, get: Get) -> Settings:
    return {"oger.teacher_gate": value / get(ROLLOUT + "n_verify")}


def switch_gate_off(value: Any, get: Get) -> Settings:
    if value > get("trainer.switch_gate"):
        raise Unsupported(
            "prompts between the two gates would have another loss than those at or below switch_gate: set it to the "
            "value of switch_gate"
        )
    raise NoEffect("no prompt lies between the two gates")


def switch_rollouts(value: Any, get: Get) -> Settings:
    if value != get(ROLLOUT + "n"):
        raise Unsupported("the rollouts that decide are those that are trained: set it to the value of rollout.n")
    raise NoEffect("the same as rollout.n")


def guidance(value: Any, get: Get) -> Settings:
    """Set how many rollouts begin with a teacher's tokens."""
    reason = prefix_is_inert(get)
    if reason:
        raise NoEffect(reason)
    count, shared = get(ROLLOUT + "n_prefix"), get(ROLLOUT + "prefix_share_across_samples")
    return {"oger.n_prefix": -1 if shared and count <= 0 else count}


def prefix_is_inert(get: Get) -> str:
    if reason := in_whole_rows(get):
        return reason
    windowed = get(ROLLOUT + "prefix_strategy") in ("linear_max", "reverse_linear")
    key = "prefix_linear_max_ratio" if windowed else "max_prefix_ratio"
    if get(ROLLOUT + key) == 0:
        return f"{key} is 0: no rollout begins with a teacher's tokens"
    if get(ROLLOUT + "n_prefix") == 0 and not get(ROLLOUT + "prefix_share_across_samples"):
        return "n_prefix is 0: no rollout begins with a teacher's tokens"
    return ""


def strategy(value: Any, get: Get) -> Settings:
    shared = get(ROLLOUT + "prefix_share_across_samples")
    known = ("random", "linear", "linear_max", "reverse_linear", "fixed")
    name = one_of(value, dict(zip(known, known, strict=True)))
    if name == "linear" and not shared:
        raise Unsupported("linear needs prefix_share_across_samples=True, there as well")
    return {"oger.prefix_strategy": name if name == "linear" or not shared else "random"}


def only_windowed(get: Get) -> str:
    used = get(ROLLOUT + "prefix_strategy") in ("linear", "linear_max", "reverse_linear")
    return prefix_is_inert(get) or ("" if used else "the prefix strategy does not change over the steps")


def replacement(value: Any, get: Get) -> Settings:
    if reason := in_whole_rows(get):
        raise Unsupported(f"{reason}: leave one of the two out") if value else NoEffect(reason)
    if value:
        return {"oger.replace_after_rm": True}
    return {"oger.max_replace_num": 0}


def only_replacement(get: Get) -> str:
    return "" if get(ROLLOUT + "replace_after_rm") else "replace_after_rm is not True: nothing is replaced"


def replace_mode(value: Any, get: Get) -> Settings:
    return {"oger.replace_mode": one_of(value, {mode: mode for mode in REPLACE_MODES})}


def _measures(get: Get) -> bool:
    """Say whether the command compares rollouts with teachers at all."""
    replaces = not only_replacement(get) and get("trainer.max_replace_num") != 0
    mode = REPLACE_MODES.get(get("trainer.replace_mode"))
    ranks = replaces and (mode is None or mode.similarity is not None)
    return bool(get("trainer.use_similarity_score") or ranks)


def only_teachers(get: Get) -> str:
    replaces = not only_replacement(get) and get("trainer.max_replace_num") != 0
    used = replaces or _measures(get) or in_whole_rows(get) or not prefix_is_inert(get)
    return "" if used else "no teacher is used"


def embedding(value: Any, get: Get) -> Settings:
    model = get("trainer.similarity_embedding_model")
    if get("trainer.similarity_reranker"):
        raise NoEffect("similarity_reranker is True: it measures instead")
    if not get("trainer.similarity_embedding"):
        if not _measures(get):
            raise NoEffect("nothing is compared")
        raise Unsupported("embeddings or a reranker measure similarity: set it, or similarity_reranker, to True")
    if model is None:
        raise NoEffect("no model is named: oger.embedding_model is the default")
    on_the_policys = get("actor_rollout_ref.hybrid_engine")
    return {"oger.embedding_model": model, "oger.embedding_num_gpus": ENCODER_SHARE if on_the_policys else 0.0}


def similarity_model(value: Any, get: Get) -> Settings:
    return reranker(value, get) if get("trainer.similarity_reranker") else embedding(value, get)


def reranker(value: Any, get: Get) -> Settings:
    if not get("trainer.similarity_reranker"):
        return {"oger.similarity_reranker": None}
    model = get("trainer.similarity_embedding_model")
    if model is None:
        raise Unsupported("name the cross-encoder by trainer.similarity_embedding_model")
    return {"oger.similarity_reranker": model}


def only_bonus(get: Get) -> str:
    return "" if get("trainer.use_similarity_score") else "use_similarity_score is not True: there is no bonus"


def entropy_weight(value: Any, get: Get) -> Settings:
    known = {"exp_neg_enp": "exp_neg_entropy", "neg_enp": "neg_entropy", "enp": "entropy"}
    return {"oger.last_token_enp_reward": one_of(value, known) if value else "none"}


def mu_schedule(value: Any, get: Get) -> Settings:
    if not value:
        return {"oger.bonus_schedule": "constant"}
    return {"oger.bonus_schedule": "linear", "oger.bonus_weight_end": 0.0}
