"""Rules for the flags of VeRL-with-RMs that make a setting together: the sources of the reward, and the KL."""

from __future__ import annotations

from collections import Counter
from typing import Any

from oger_recipe.base.machine import ENCODER_SHARE
from oger_recipe.convert.values import Get, NoEffect, Rule, Settings, Unsupported, one_of
from oger_recipe.convert.verl.rules import ACTOR, KEEP_ALL, KL_KINDS, ROLLOUT, TENSOR_PARALLEL

JUDGE = "reward_model."
ENGINE = "reward_model.reward_vllm_rollout."
SOURCES = "oger.reward.sources"
GATE = {"gate": "rule_equals_1"}
# A list has an entry for each judge; one value is the same for all.
_OF_EACH = (
    *("reward_function", "model.path", "reward_weight", "reward_combine_func"),
    *("reward_vllm_rollout.temperature", "reward_vllm_rollout.gpu_memory_utilization"),
)
# There it is 0.3 + 0.7 x the curve, which begins at 0.1.
SIMILARITY_FLOOR = 0.37
ENCODER = {
    "oger.embedding_model": "BAAI/bge-large-zh-v1.5",
    "oger.embedding_num_gpus": ENCODER_SHARE,
    "oger.embedding_max_tokens": 512,
    "oger.embedding_long_texts": "head",
}


# The sources of the reward


def sources(value: Any, get: Get) -> Settings:
    """Make the list of sources: the rule, the similarity, and the judges, in the order in which they are added there.

    Raises:
        Unsupported: the lists of the judges are not equally long.
    """
    rule = {"name": "rule", "kind": "verifier"}
    return {SOURCES: [rule, *_similarity(get), *_judges(get)]}


def part_of_sources(value: Any, get: Get) -> Settings:
    """Make the same list; leave it to reward_function to say what is wrong."""
    try:
        return sources(value, get)
    except Unsupported as problem:
        raise NoEffect(str(problem)) from None


def _similarity(get: Get) -> list[dict[str, Any]]:
    if not get(JUDGE + "use_bge"):
        return []
    entry = {"name": "similar", "kind": "similarity", "weight": get(JUDGE + "bge_weight"), "combine": "add"}
    return [entry | GATE | {"floor": SIMILARITY_FLOOR}]


def _judges(get: Get) -> list[dict[str, Any]]:
    return [_judge(number, own, get) for number, own in enumerate(_spread(get))]


def _spread(get: Get) -> list[dict[str, Any]]:
    """Return each judge's own values, by name."""
    values = {name: get(JUDGE + name) for name in _OF_EACH}
    lengths = {name: len(value) for name, value in values.items() if isinstance(value, list)}
    if len(set(lengths.values())) > 1:
        raise Unsupported(
            "the lists under reward_model must be equally long, there as well, and one that is left out has one "
            f"entry: {', '.join(f'{name} {length}' for name, length in lengths.items())}"
        )
    count = next(iter(lengths.values()), 1)
    judges = [
        {name: value[number] if isinstance(value, list) else value for name, value in values.items()}
        for number in range(count)
    ]
    names = Counter(_name(judge) for judge in judges)
    for number, judge in enumerate(judges):
        name = _name(judge)
        judge["name"] = f"{name}_{number}" if names[name] > 1 else name
    return judges


def _name(judge: dict[str, Any]) -> str:
    return str(judge["reward_function"]).removesuffix("_reward")


def _judge(number: int, own: dict[str, Any], get: Get) -> dict[str, Any]:
    top_p = get(ENGINE + "top_p")
    return {
        "name": own["name"],
        "kind": "judge",
        "model": own["model.path"],
        "plugin": f"{own['reward_function']}.py",
        "weight": own["reward_weight"],
        "combine": one_of(own["reward_combine_func"], {"add": "add", "mul": "mul"}),
        **GATE,
        "prompt_column": f"rm_prompt_{number}",
        "temperature": own["reward_vllm_rollout.temperature"],
        **({} if top_p == 1 else {"top_p": top_p}),
        "max_new_tokens": get(ENGINE + "rollout_response_length"),
        "max_model_len": _context(get),
        "tensor_parallel_size": get(JUDGE + "model." + TENSOR_PARALLEL),
        "gpu_memory_utilization": own["reward_vllm_rollout.gpu_memory_utilization"],
    }


def _context(get: Get) -> int:
    """Return the tokens of a judge's prompt and reply; there the sum of both lengths, by default the policy's."""
    prompt = get(ENGINE + "prompt_length") or get("data.max_prompt_length")
    response = get(ENGINE + "response_length") or get("data.max_response_length")
    return int(get(ENGINE + "max_model_len") or prompt + response)


def enabled(value: Any, get: Get) -> Settings:
    if not value:
        raise Unsupported(
            "without reward models that trainer stops at its first step, and nothing says what it would train; for "
            "rules alone leave oger.reward.sources out of a recipe (configs/grpo.yaml)"
        )
    return part_of_sources(value, get)


def combined(value: Any, get: Get) -> Settings:
    """Take the rule, whose verifier is code there that the user has to name here."""
    if not value:
        raise Unsupported(
            "that trainer stops there, because every model's score counts only where the rule gave 1: leave it "
            "True, or write oger.reward.sources yourself, the judges alone with gate: always (docs/rewards.md)"
        )
    return part_of_sources(value, get) | {"oger.task_name": "<your rule>"}


def similarity(value: Any, get: Get) -> Settings:
    return part_of_sources(value, get) | (ENCODER if value else {})


def similarity_weight(value: Any, get: Get) -> Settings:
    if not get(JUDGE + "use_bge"):
        raise NoEffect("use_bge is False")
    return part_of_sources(value, get)


def judge_type(value: Any, get: Get) -> Settings:
    if value == "grm":
        return part_of_sources(value, get)
    kinds = {"BT": "classifier", "scalar": "classifier", "cloud": "judge with a url"}
    if value in kinds:
        raise Unsupported(
            f"that trainer has no code for it and stops; here it is a source of kind {kinds[value]}: convert with "
            "grm, and change the entry in oger.reward.sources (docs/rewards.md)"
        )
    return {"": one_of(value, {"grm": 0, **kinds})}


def engine_width(value: Any, get: Get) -> Settings:
    other = get(JUDGE + "model." + TENSOR_PARALLEL)
    if value != other:
        raise Unsupported(
            f"it is not reward_model.model.{TENSOR_PARALLEL}, {other}: there weights are cut by the one and the "
            "engine by the other; give both the same"
        )
    return part_of_sources(value, get)


# Advantage, KL, loss


def estimator(value: Any, get: Get) -> Settings:
    known = {
        "grpo": "group_norm" if get("algorithm.norm_adv_by_std_in_grpo") else "dr_grpo",
        "reinforce_plus_plus": "reinforce",
        "reinforce_plus_plus_baseline": "reinforce_baseline",
        "rloo": "rloo",
        "gae": "gae",
    }
    return {"algo.advantage.estimator": one_of(get("algorithm.adv_estimator"), known)}


def use_std(value: Any, get: Get) -> Settings:
    if get("algorithm.adv_estimator") != "grpo":
        raise NoEffect("it is for the estimator grpo")
    return estimator(value, get)


def discount(value: Any, get: Get) -> Settings:
    if get("algorithm.adv_estimator") not in ("gae", "reinforce_plus_plus"):
        raise NoEffect("this estimator has no discount")
    return {"algo.advantage.gamma": value}


def kl_coefficient(get: Get) -> float:
    """Return the coefficient of the KL in the loss, else of that in the reward; 0 loads no reference."""
    in_reward = float(get("algorithm.kl_ctrl.kl_coef")) if get("algorithm.use_kl_in_reward") else 0.0
    return _in_loss(get) or in_reward


def _in_loss(get: Get) -> float:
    return float(get(ACTOR + "kl_loss_coef")) if get(ACTOR + "use_kl_loss") else 0.0


def kl(value: Any, get: Get) -> Settings:
    """Put the KL into the loss, the reward, or both."""
    in_loss, in_reward = bool(_in_loss(get)), get("algorithm.use_kl_in_reward")
    if not kl_coefficient(get):
        return {"algo.kl.init_coef": 0.0}
    kind = one_of(get(ACTOR + "kl_loss_type" if in_loss else "algorithm.kl_penalty"), KL_KINDS)
    settings = {"algo.kl.init_coef": kl_coefficient(get), "algo.kl.use_loss": in_loss, "algo.kl.estimator": kind}
    if in_loss and in_reward:
        return settings | _beside_the_loss(get)
    if in_reward and get("algorithm.kl_ctrl.type") == "adaptive":
        horizon, target = get("algorithm.kl_ctrl.horizon"), get("algorithm.kl_ctrl.target_kl")
        return settings | {"algo.kl.target": target, "algo.kl.horizon": horizon}
    return settings


def _beside_the_loss(get: Get) -> Settings:
    if get("algorithm.kl_penalty") != "kl" or get("algorithm.kl_ctrl.type") != "fixed":
        raise Unsupported(
            "beside a KL in the loss the one in the reward is k1 with a fixed coefficient (oger.kl_penalty_coef): use "
            "algorithm.kl_penalty=kl with algorithm.kl_ctrl.type=fixed, or one of the two KLs"
        )
    return {"oger.kl_penalty_coef": float(get("algorithm.kl_ctrl.kl_coef"))}


def only_loss_kl(get: Get) -> str:
    return "" if get(ACTOR + "use_kl_loss") else "use_kl_loss is False"


def only_reward_kl(get: Get) -> str:
    if get("algorithm.use_kl_in_reward"):
        return ""
    return "use_kl_in_reward is False, there the default: nothing else reads it"


def only_adaptive(get: Get) -> str:
    fixed = get("algorithm.kl_ctrl.type") == "fixed"
    return only_reward_kl(get) or ("kl_ctrl.type is fixed" if fixed else "")


def controller(value: Any, get: Get) -> Settings:
    one_of(value, dict.fromkeys(("fixed", "adaptive")))
    return kl(value, get)


def clip(value: Any, get: Get) -> Settings:
    """Set the two bounds; clip_ratio is for one that is null."""
    ratio = get(ACTOR + "clip_ratio")
    low, high = (get(ACTOR + f"clip_ratio_{end}") for end in ("low", "high"))
    low, high = ratio if low is None else low, ratio if high is None else high
    return {"actor.eps_clip": low} | ({} if low == high else {"actor.eps_clip_low_high": [low, high]})


def clip_ratio(value: Any, get: Get) -> Settings:
    if None not in (get(ACTOR + "clip_ratio_low"), get(ACTOR + "clip_ratio_high")):
        raise NoEffect("clip_ratio_low and clip_ratio_high are set, there by default to 0.2")
    return clip(value, get)


def aggregation(value: Any, get: Get) -> Settings:
    if value in ("seq-mean-token-sum", "seq-mean-token-sum-norm"):
        raise Unsupported(
            "sums of tokens are divided by rollout.max_new_tokens here (oger.loss_aggregation constant): use "
            "token-mean or seq-mean-token-mean, or set that in the recipe and adapt the learning rate"
        )
    known = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean"}
    return {"oger.loss_aggregation": one_of(value, known)}


# Data, batches, evaluation


def overlong(value: Any, get: Get) -> Settings:
    """Set what becomes of prompts that are too long: they are left out, or the run is refused."""
    if get("data.filter_overlong_prompts"):
        return {"oger.overlong_prompts": "drop"}
    if get("data.truncation") != "error":
        one_of(get("data.truncation"), dict.fromkeys(("error", "left", "right", "middle")))
        raise Unsupported("prompts are not cut: use error, or leave long ones out (data.filter_overlong_prompts=True)")
    return {"oger.overlong_prompts": "refuse"}


def rows_of_gpu(target: str) -> Rule:
    """Make a rule for a micro-batch, in rollouts of one GPU, here as there."""

    def rule(value: Any, get: Get) -> Settings:
        if get(ACTOR + "use_dynamic_bsz"):
            raise NoEffect("use_dynamic_bsz is True: micro-batches are cut by their tokens")
        if value is None:
            raise Unsupported("it is needed without use_dynamic_bsz, there as well")
        return {target: value}

    return rule


def deprecated(value: Any, get: Get) -> Settings:
    if value is None:
        raise NoEffect("it is not set")
    raise Unsupported("it is deprecated there: give the micro-batch of one GPU, by the flag that ends in _per_gpu")


def greedy_or(value: Any, get: Get) -> Settings:
    """Set the evaluation's temperature; without do_sample it is greedy."""
    sampled, temperature = get(ROLLOUT + "val_kwargs.do_sample"), get(ROLLOUT + "val_kwargs.temperature")
    return {"eval.temperature": float(temperature) if sampled else 0.0}


def target_modules(value: Any, get: Get) -> Settings:
    """Take one name or a list of them."""
    return {} if value == "all-linear" else {"ds.lora.target_modules": value if isinstance(value, list) else [value]}


def kept(value: Any, get: Get) -> Settings:
    return {"ckpt.max_num": KEEP_ALL if value is None else value}


def template(value: Any, get: Get) -> Settings:
    if value:
        raise Unsupported("write chat_template into tokenizer_config.json in a copy of the model's folder")
    raise NoEffect("the model's own chat template is used")
