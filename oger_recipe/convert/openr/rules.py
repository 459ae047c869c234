"""Rules for OpenR's flags: batches and lengths, which several flags make together, the process reward, evaluation."""

from __future__ import annotations

import math
from typing import Any

from oger_recipe.convert.values import Get, NoEffect, Rule, Settings, Unsupported, one_of, where

SOURCES = "oger.reward.sources"
MOST_STEPS = 10  # of a response in OpenR's environment
VALUE_HEAD = (1024, 512)  # widths of the hidden layers in OpenR's critic
BUFFER_STEPS = 8  # OpenR's code sets episode_length to it
UNCLIPPED = 1e6  # values move less in an update; OpenRLHF has no value for no bound
BETAS = (0.9, 0.999)  # of Adam
PROMPT_TOKENS = 2048  # room for a prompt; OpenR has no bound
TEMPERATURE, TOP_K = 0.5, 50
_FORWARD_ROWS = 16  # rows of a forward pass without gradients

# --algorithm_name: our estimator, and what has a probability ratio of its own
ALGORITHMS = {"APPO": ("appo", "step"), "TPPO": ("tppo", "token"), "GRPO": ("process_grpo_batch", "step")}


# The algorithm and its critic


def has_critic(get: Get) -> bool:
    return bool(get("--algorithm_name") != "GRPO")


def _only_critic(get: Get) -> str:
    return "" if has_critic(get) else "GRPO has no critic"


def of_critic(rule: Rule) -> Rule:
    """Limit the rule to commands with a critic."""
    return where(_only_critic, rule)


def algorithm(value: Any, get: Get) -> Settings:
    estimator, level = one_of(value, ALGORITHMS)
    settings = {"algo.advantage.estimator": estimator, "oger.ratio_level": level}
    if not has_critic(get):
        return settings
    critic = {"oger.critic.head_only": True, "critic.num_gpus_per_node": 1, "critic.adam.betas": list(BETAS)}
    return settings | value_head(value, get) | critic


def value_head(value: Any, get: Get) -> Settings:
    """Set the value head's hidden layers: those of its code, unless the command says a width or a number."""
    width, layers = get("--hidden_size"), get("--layer_N")
    given = width is not None or layers is not None
    sizes = [64 if width is None else width] * (2 if layers is None else layers)  # OpenR's parser has these defaults
    return {"oger.critic.hidden_sizes": sizes if given else list(VALUE_HEAD)}


def both(setting: str) -> Rule:
    """Make a rule that sets ``setting`` of the policy, and of the critic if any."""

    def rule(value: Any, get: Get) -> Settings:
        return {f"{role}.{setting}": value for role in (["actor", "critic"] if has_critic(get) else ["actor"])}

    return rule


def clip(value: Any, get: Get) -> Settings:
    """Set one bound for ratios and values, or for ratios alone."""
    bound = get("--clip_param")
    of_values = bound if get("--use_clipped_value_loss") else UNCLIPPED
    return {"actor.eps_clip": bound} | ({"critic.value_clip": of_values} if has_critic(get) else {})


def max_norm(value: Any, get: Get) -> Settings:
    """Bound the norm of gradients; 0 is no bound."""
    bound = get("--max_grad_norm") if get("--use_max_grad_norm") else 0.0
    return both("max_norm")(bound, get)


def huber(value: Any, get: Get) -> Settings:
    """Set the critic's error beyond which its loss is linear; None without Huber's loss."""
    return {"oger.critic.huber_delta": get("--huber_delta") if get("--use_huber_loss") else None}


def schedule(value: Any, get: Get) -> Settings:
    return both("lr_scheduler")("linear" if value else "constant", get) | both("lr_warmup_ratio")(0.0, get)


# Lengths and batches


def lengths(value: Any, get: Get) -> Settings:
    """Bound a response by the steps of an episode, each of at most max_new_tokens."""
    steps, tokens = min(get("--episode_length") or MOST_STEPS, MOST_STEPS), get("--max_new_tokens")
    return {
        "oger.steps.max_steps": steps,
        "oger.steps.max_step_tokens": tokens,
        "rollout.max_new_tokens": steps * tokens,
        "data.max_len": PROMPT_TOKENS + steps * tokens,
    }


def episode_length(value: Any, get: Get) -> Settings:
    return lengths(value, get) | rollouts(value, get) | updates(value, get)


def _buffer_steps(get: Get) -> int:
    return get("--episode_length") or BUFFER_STEPS


def _responses(get: Get) -> int:
    """Return the responses of an update: as many as fill the threads' parts of the buffer, if all have all steps."""
    return int(get("--n_rollout_threads") * math.ceil(_buffer_steps(get) / MOST_STEPS))


def threads(value: Any, get: Get) -> Settings:
    return rollouts(value, get) | updates(value, get)


def rollouts(value: Any, get: Get) -> Settings:
    responses = _responses(get)
    return {"rollout.batch_size": responses, "rollout.micro_batch_size": math.gcd(responses, _FORWARD_ROWS)}


def updates(value: Any, get: Get) -> Settings:
    """Set the number of updates, and as many passes as a bound: there problems are drawn at random."""
    count = get("--num_env_steps") // (_buffer_steps(get) * get("--n_rollout_threads"))
    if count < 1:
        raise Unsupported("that is not one update: an update takes episode_length x n_rollout_threads steps")
    return {"oger.total_training_steps": count, "train.num_episodes": count}


def mini_batches(value: Any, get: Get) -> Settings:
    """Divide an update's responses into optimizer steps; there their steps are divided."""
    responses, parts = _responses(get), get("--num_mini_batch")
    if parts < 1 or responses % parts:
        raise Unsupported(
            f"the {responses} responses of an update do not divide into {parts} mini-batches: a mini-batch has whole "
            "responses here; choose --n_rollout_threads as a multiple of --num_mini_batch"
        )
    rows, passes = responses // parts, get("--gradient_cp_steps")
    return {"train.batch_size": rows, "train.micro_batch_size": math.gcd(rows, max(rows // passes, 1))}


def number(least: int, rule: Rule) -> Rule:
    """Make a rule that refuses numbers below ``least``."""

    def bounded(value: Any, get: Get) -> Settings:
        if value < least:
            raise Unsupported(f"it is {least} or more")
        return rule(value, get)

    return bounded


# The process reward


def process_reward(value: Any, get: Get) -> Settings:
    """Make the list of sources: the process reward alone, each step's own score."""
    kind = get("--prm_type")
    written = {"MS": "math_shepherd", "Qwen": "openr_qwen"}.get(kind)
    entry = {"name": "prm", "kind": "process", "model": get("--prm_model_name_or_path"), "format": written}
    return {SOURCES: [entry | ({"adapter": get("--prm_checkpoint_path")} if kind == "Qwen" else {})]}


def reward_model(value: Any, get: Get) -> Settings:
    if not value:
        raise Unsupported("the only reward is that of a process reward model: name it")
    return process_reward(value, get)


def reward_type(value: Any, get: Get) -> Settings:
    one_of(value, dict.fromkeys(("MS", "Qwen")))
    return process_reward(value, get)


def adapter(value: Any, get: Get) -> Settings:
    if get("--prm_type") != "Qwen":
        raise NoEffect("prm_type MS loads no adapter, there as well; an entry of any format may have one (adapter)")
    if not value:
        raise Unsupported("prm_type Qwen is a model with an adapter, without which that trainer stops: name it")
    return process_reward(value, get)


def named_otherwise(get: Get) -> list[str]:
    """Warn of a model of Qwen's read in Math-Shepherd's format; the page's own command names such a one."""
    model = get("--prm_model_name_or_path") or ""
    if get("--prm_type") != "MS" or "qwen" not in model.lower():
        return []
    return [
        f"oger.reward.sources: {model} is read in Math-Shepherd's format, as --prm_type MS says, there the default. "
        "With a tokenizer of Qwen's that trainer gives every step the reward 1, so that nothing is learnt. Name "
        "a process reward model of that format, or, for OpenR's own of Qwen, convert with --prm_type Qwen and "
        "--prm_checkpoint_path; Qwen's own PRMs have format: qwen_prm"
    ]


# Evaluation and the run


def evaluates(get: Get) -> bool:
    return bool(get("--use_eval") or get("--eval_interval") is not None)


def evaluation(value: Any, get: Get) -> Settings:
    """Evaluate on the training file, as its environment for evaluation would, sampled as rollouts are."""
    if not evaluates(get):
        raise NoEffect("nothing is evaluated without --use_eval or --eval_interval")
    return {
        "eval.dataset": get("--dataset_path"),
        "eval.steps": get("--eval_interval") or 5,
        "eval.n_samples_per_prompt": 1,
        "eval.temperature": TEMPERATURE,
        "oger.eval.top_k": TOP_K,
        "oger.eval.max_samples": get("--eval_episodes"),
    }


def held_out(get: Get) -> list[str]:
    if not evaluates(get):
        return []
    return ["eval.dataset is the training file, as it is there: name a held-out one"]


def run_folder(value: Any, get: Get) -> Settings:
    parts = [get(f"--{name}") for name in ("experiment_name", "dataset_name", "algorithm_name")]
    return {"oger.run_dir": "/".join(["runs", *parts])}


def experiment(value: Any, get: Get) -> Settings:
    return run_folder(value, get) | {"logger.wandb.run_name": value}
