"""Rules of the flags that all branches of verl have."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from oger_recipe.convert.values import Get, NoEffect, Rule, Settings, Unsupported, one_of

MODEL = "actor_rollout_ref.model."
ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
REF = "actor_rollout_ref.ref."
TENSOR_PARALLEL = "tensor_model_parallel_size"
KL_KINDS = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3"}
KEEP_ALL = 1_000_000  # checkpoints; OpenRLHF has no value for all
_ALWAYS_WRITTEN = ("console", "tensorboard")


# Data


def paths(target: str):
    """Make a rule that takes a file or a list."""

    def rule(value: Any, get: Get) -> Settings:
        files = value if isinstance(value, list) else [value]
        return {target: ",".join(re.sub("/{2,}", "/", str(file)) for file in files)}

    return rule


def length(target: str):
    """Make a rule that sets the length of prompt or response, and the sum of both as data.max_len."""

    def rule(value: Any, get: Get) -> Settings:
        return {target: value, "data.max_len": get("data.max_prompt_length") + get("data.max_response_length")}

    return rule


def response_length(value: Any, get: Get) -> Settings:
    if value != get("data.max_response_length"):
        raise Unsupported("responses have one length: use data.max_response_length")
    raise NoEffect("the same as data.max_response_length")


# Machines and batches


def machine(setting: str, has_reference: Callable[[Get], Any]) -> Rule:
    """Set ``num_nodes`` or ``num_gpus_per_node`` of every role: verl's trainer and vLLM take turns on all GPUs."""

    def rule(value: Any, get: Get) -> Settings:
        roles = ["actor", *(["ref"] if has_reference(get) else []), *(["critic"] if has_critic(get) else [])]
        return {f"{role}.{setting}": value for role in roles} | engines(value, get)

    return rule


def engines(value: Any, get: Get) -> Settings:
    gpus, width = get("trainer.nnodes") * get("trainer.n_gpus_per_node"), get(ROLLOUT + TENSOR_PARALLEL)
    if gpus % width:
        raise Unsupported(f"{gpus} GPUs do not divide into engines of {width}")
    return {"vllm.tensor_parallel_size": width, "vllm.num_engines": gpus // width}


def ranks(get: Get) -> int:
    gpus: int = get("trainer.nnodes") * get("trainer.n_gpus_per_node")
    return max(gpus // get(ACTOR + "ulysses_sequence_parallel_size"), 1)


def micro_batch(value: Any, get: Get) -> Settings:
    """Convert prompts over all ranks, as verl counts, to rollouts on one."""
    if get(ACTOR + "use_dynamic_bsz"):
        raise NoEffect("use_dynamic_bsz is True: micro-batches are cut by their tokens")
    return {"train.micro_batch_size": max(value * get(ROLLOUT + "n") // ranks(get), 1)}


def forward_micro_batch(value: Any, get: Get) -> Settings:
    if get(ACTOR + "use_dynamic_bsz"):
        raise NoEffect("use_dynamic_bsz is True: micro-batches are cut by their tokens")
    return {"rollout.micro_batch_size": max(value // ranks(get), 1) * get(ROLLOUT + "n")}


def tokens_per_gpu(value: Any, get: Get) -> Settings:
    if not get(ACTOR + "use_dynamic_bsz"):
        raise NoEffect("use_dynamic_bsz is False: micro-batches are cut by their rows")
    training = get(ACTOR + "ppo_max_token_len_per_gpu")
    forward = get(ROLLOUT + "log_prob_max_token_len_per_gpu") or training
    return {"train.max_tokens_per_gpu": training, "rollout.max_tokens_per_gpu": forward}


def schedule(value: Any, get: Get) -> Settings:
    optim = ACTOR + "optim."
    share, style = get(optim + "lr_warmup_steps_ratio"), get(optim + "warmup_style")
    name = one_of(style, {"constant": "constant_with_warmup" if share else "constant", "cosine": "cosine_with_min_lr"})
    settings: Settings = {"actor.lr_scheduler": name, "actor.lr_warmup_ratio": share}
    return settings | ({"actor.min_lr_ratio": get(optim + "min_lr_ratio") or 0.0} if style == "cosine" else {})


def minimum_rate(value: Any, get: Get) -> Settings:
    if get(ACTOR + "optim.warmup_style") != "cosine":
        raise NoEffect("the learning rate is constant")
    return schedule(value, get)


def critic_warmup(value: Any, get: Get) -> Settings:
    if has_critic(get):
        return {"critic.freezing_steps": value}
    if value:
        raise Unsupported("there is no critic to warm up: set it to 0")
    raise NoEffect("there is no critic")


# Critic


def has_critic(get: Get) -> bool:
    return bool(get("algorithm.adv_estimator") == "gae")


def only_gae(get: Get) -> str:
    return "" if has_critic(get) else "advantages of groups have no critic and no discount"


# The run


def logger(value: Any, get: Get) -> Settings:
    names = value if isinstance(value, list) else [value]
    others = [name for name in names if name not in (*_ALWAYS_WRITTEN, "wandb", "swanlab")]
    if others:
        raise Unsupported(f"{', '.join(map(str, others))}: there are console, tensorboard and wandb")
    hint = "; for wandb give --logger.wandb.key env, and set WANDB_API_KEY" if "wandb" in names else ""
    hint += "; SwanLab is not written to" if "swanlab" in names else ""
    raise NoEffect("the console and TensorBoard are always written to" + hint)


def checkpoints(value: Any, get: Get) -> Settings:
    return {"ckpt.max_num": KEEP_ALL if value < 0 else value}


def resume(value: Any, get: Get) -> Settings:
    return {"ckpt.load_enable": one_of(value, {"auto": True, "disable": False})}
