"""Rules for OAT's flags: what the program decides, machines, batches and lengths, KL, evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from oger_recipe.convert.values import Get, NoEffect, Rule, Settings, Unsupported, one_of, where

# Programs of OAT's page of reasoning examples, with the defaults of its time; those that train on math; all of them.
PAGE = ("run_ppo", "r1_zero_math")
MATH = ("run_math_rl", "train_zero_math")
PROGRAMS = (*PAGE, "r1_zero_countdown", *MATH)

_OF_MATH = "run_math_rl and train_zero_math alone have it"
ALL_ROWS = 999_999  # OAT's commands give such a bound for "all"
BENCHMARKS = ("aime", "amc", "math", "minerva", "olympiad_bench")  # of the suite in both repositories
_BASE_MODEL_STOPS = {
    "oger.stop": ["</s>", "<|im_end|>", "<|endoftext|>", "\nUser:"],
    "oger.stop_token_ids": [151645, 151643],
}
# --prompt_template: our template, and where the answer must be
_TEMPLATES: dict[str, tuple[str, Settings]] = {
    "qwen_math": ("qwen_math", {"oger.math_rule": "deepscaler_no_think"}),
    "qwen3": ("qwen3", {"oger.math_rule": "deepscaler_no_think"}),
    "no": ("none", {"oger.math_rule": "deepscaler_no_think"}),
    "r1": ("r1", {"oger.math_rule": "math_verify_think", "oger.math_extract": ["answer_tag"]}),
    "r1_distill_qwen": ("r1_distill", {"oger.math_rule": "deepscaler"}),
}


# The program


def by_program(page: Any, newest: Any) -> Callable[[Get], Any]:
    """Make a default that a later OAT changed."""
    return lambda get: page if get("program") in PAGE else newest


def of_math(get: Get) -> bool:
    return get("program") in MATH


def program(value: Any, get: Get) -> Settings:
    """Set what the program's code decides: the texts that end a response, and the reward of a truncated one."""
    if of_math(get):
        return {"oger.non_stop_fixed_reward": 0.0}
    if value == "run_ppo":
        return {"oger.stop": ["\n\nQuestion", "\n\nProblem"]}
    return dict(_BASE_MODEL_STOPS) if "qwen" in get("--pretrain").lower() else {}


def oracle(value: Any, get: Get) -> Settings:
    if of_math(get):
        return {"oger.task_name": "math"}
    wanted = "gsm8k" if get("program") == "run_ppo" else "countdown"
    if value != wanted:
        raise Unsupported(
            f"{get('program')} is read with the rule {wanted} alone; for rewards of a model or of your own code see "
            "docs/rewards.md (oger.reward.sources, oger.verifiers)"
        )
    return {"oger.task_name": value, f"oger.{value}_strict_oat": True}


def prompt_template(value: Any, get: Get) -> Settings:
    if not of_math(get):
        raise NoEffect(_OF_MATH)
    template, places = one_of(value, _TEMPLATES)
    return {"oger.prompt_template": template} | places


def chat_template(value: Any, get: Get) -> Settings:
    if of_math(get):
        raise NoEffect("--prompt_template makes the prompt, there as well")
    return {"data.apply_chat_template": value}


def differing(get: Get) -> dict[str, str]:
    """Say what differs whatever the flags say."""
    found = {}
    if of_math(get):
        found["prompt templates"] = (
            "r1, qwen3 and r1_distill are in our own words; for OAT's, put them into the data and give "
            "oger.prompt_template none"
        )
        found["grading"] = (
            "one rule, by text, number and math_verify, for --verifier_version fast as well; r1 takes an answer after "
            "any thought that has ended, there `</think> <answer>` to the letter"
        )
    if has_critic(get) and get("program") not in PAGE and not get("--whiten_adv"):
        found["whitening"] = "the advantages of a critic are whitened; there with --whiten_adv alone"
    return found


def truncated(value: Any, get: Get) -> Settings:
    """Set the reward of a truncated response; there a fixed one and a penalty add up."""
    if of_math(get):
        raise NoEffect("run_math_rl and train_zero_math give a truncated response 0, whatever the command says")
    fixed, penalty = get("--non_stop_fixed_reward"), get("--non_stop_penalty")
    if fixed is None:
        return {"oger.non_stop_penalty": penalty}
    return {"oger.non_stop_fixed_reward": fixed + penalty}


# The algorithm


def has_critic(get: Get) -> bool:
    return bool(get("--critic_type") == "ppo")


def of_critic(rule: Rule) -> Rule:
    """Limit the rule to commands with a critic."""
    return where(lambda get: "" if has_critic(get) else f"{get('--critic_type')} has no critic", rule)


def critic_type(value: Any, get: Get) -> Settings:
    of_groups = "dr_grpo" if get("--remove_std_bias") else "group_norm"
    name = get("--critic_type")
    estimator = one_of(name, {"ppo": "gae", "grpo": of_groups, "drgrpo": "dr_grpo"})
    per_token = name == "drgrpo" or get("--remove_len_bias")
    aggregation = "constant" if per_token else "sequence_mean"
    return {"algo.advantage.estimator": estimator, "oger.loss_aggregation": aggregation}


def both(setting: str) -> Rule:
    """Make a rule that sets ``setting`` of the policy, and of the critic if any."""

    def rule(value: Any, get: Get) -> Settings:
        return {f"{role}.{setting}": value for role in (["actor", "critic"] if has_critic(get) else ["actor"])}

    return rule


def betas(value: Any, get: Get) -> Settings:
    return both("adam.betas")([get("--adam_beta_1"), get("--adam_beta_2")], get)


def schedule(value: Any, get: Get) -> Settings:
    """Set the schedule; there the critic's rate ends at a tenth of the policy's."""
    one_of(value, dict.fromkeys(("cosine_with_min_lr", "polynomial", "constant")))
    settings = both("lr_scheduler")(value, get)
    if value == "cosine_with_min_lr" and has_critic(get):
        settings["critic.min_lr_ratio"] = round(0.1 * get("--learning_rate") / get("--critic_learning_rate"), 9)
    return settings


def horizon(value: Any, get: Get) -> Settings:
    raise NoEffect(
        "it is not needed: OAT plans the learning rate without counting rollouts of a prompt and passes, so that its "
        "user multiplies by both; here the schedule counts them"
    )


def short_horizon(get: Get) -> list[str]:
    """Warn of a schedule that ends early or never in OAT."""
    updates, planned = get("--num_samples") * get("--num_ppo_epochs"), get("--max_step_adjustment")
    if get("--lr_scheduler") == "constant" or updates == planned:
        return []
    return [
        f"actor.lr_scheduler: here it lasts the whole run; in OAT, with --max_step_adjustment {planned:g}, it is "
        f"planned for {planned:g} of {updates} updates a prompt (--num_samples x --num_ppo_epochs)"
    ]


def as_policy(what: str) -> Rule:
    """Make a rule that takes the policy's own name, or none."""

    def rule(value: Any, get: Get) -> Settings:
        if value in (None, "", get("--pretrain")):
            raise NoEffect(f"the {what} is that of --pretrain")
        raise Unsupported(f"the {what} is that of --pretrain: leave it out, or put it into the model's folder")

    return rule


def of_reference(rule: Rule) -> Rule:
    reason = "there is no reference model without --beta or --kl_penalty_coef"
    return where(lambda get: "" if has_reference(get) else reason, rule)


def has_reference(get: Get) -> bool:
    return bool(get("--beta") > 0 or get("--kl_penalty_coef") > 0)


def kl_loss(value: Any, get: Get) -> Settings:
    """Set the KL in the loss (k3); without one, that in the reward has its place."""
    if value > 0:
        return {"algo.kl.use_loss": True, "algo.kl.estimator": "k3", "algo.kl.init_coef": value}
    return {"algo.kl.init_coef": get("--kl_penalty_coef")}


def kl_reward(value: Any, get: Get) -> Settings:
    """Set the KL in the reward (k1), beside one in the loss or alone."""
    if get("--beta") > 0:
        return {"oger.kl_penalty_coef": value}
    return {"algo.kl.init_coef": value} | ({"algo.kl.estimator": "k1"} if value else {})


def engine_correction(value: Any, get: Get) -> Settings:
    """Set truncated importance sampling with the bound ``value``; None: none."""
    if value is None:
        raise NoEffect("nothing is corrected for the difference between engine and policy")
    if get("--top_p") < 1 or get("--top_k") > 0:
        raise Unsupported(
            "with --top_p below 1 or --top_k the engine's log-probabilities are of a part of the vocabulary, and "
            "their ratio to the policy's says nothing of the engine: give --tis_c None, or leave --top_p and "
            "--top_k out"
        )
    wanted = {"level": "token", "mode": "clip", "gating": "ratio", "threshold": [value]}
    return {f"algo.advantage.is_correction_{name}": setting for name, setting in wanted.items()}


# Machines


def learners(get: Get) -> int:
    """Return the GPUs of a group that train; without --collocate the other half samples."""
    gpus: int = get("--gpus")
    return gpus if get("--collocate") else gpus // 2


def roles(get: Get) -> list[str]:
    return ["actor", *(["ref"] if has_reference(get) else []), *(["critic"] if has_critic(get) else [])]


def engines(value: Any, get: Get) -> Settings:
    gpus, width = learners(get), get("--num_gpus_per_actor")
    if gpus % width:
        raise Unsupported(f"{gpus} GPUs do not divide into engines of {width} (--num_gpus_per_actor)")
    return {"vllm.num_engines": get("--num_groups") * gpus // width, "vllm.tensor_parallel_size": width}


def gpus(value: Any, get: Get) -> Settings:
    if not get("--collocate") and (value % 2 or has_critic(get)):
        reason = "the critic has GPUs of its own here" if has_critic(get) else "an odd number has no half"
        raise Unsupported(f"without --collocate one half of the GPUs trains, and {reason}: add --collocate")
    return {f"{role}.num_gpus_per_node": learners(get) for role in roles(get)} | engines(value, get)


def groups(value: Any, get: Get) -> Settings:
    return {f"{role}.num_nodes": value for role in roles(get)} | engines(value, get)


def collocate(value: Any, get: Get) -> Settings:
    if value:
        return {"train.colocate_all": True, "vllm.enable_sleep": True, "ds.enable_sleep": True}
    return {"train.colocate_actor_ref": True} if has_reference(get) else {}


def data_type(value: Any, get: Get) -> Settings:
    if not get("--bf16") and not get("--fp16"):
        raise Unsupported("OpenRLHF trains in bf16 or fp16: leave --no-bf16 out, or add --fp16")
    return {"ds.param_dtype": "fp16" if get("--fp16") else "bf16"}


# Data, lengths, batches


def length(target: str) -> Rule:
    """Make a rule that sets the length of prompt or response, and data.max_len, which holds both."""

    def rule(value: Any, get: Get) -> Settings:
        response = max(get("--generate_max_length"), get("--eval_generate_max_length") if evaluates(get) else 0)
        return {target: value, "data.max_len": get("--prompt_max_length") + response}

    return rule


def max_train(value: Any, get: Get) -> Settings:
    """Bound the rows; up to OAT 0.1 a run also ends after as many rollouts, unless --max_queries is smaller."""
    bounds = [int(part) if part.strip().isdigit() else 0 for part in str(value).split(",")]
    if not all(bounds):
        raise Unsupported("it takes a whole number, or one for each file of --prompt_data, separated by commas")
    if min(bounds) >= ALL_ROWS:
        raise NoEffect("all rows are used")
    if len(bounds) > 1:
        raise Unsupported("one bound holds for all files here: cut the files, or give the last number alone")
    return {"data.max_samples": bounds[0]} | _queries(bounds[0], get)


def max_queries(value: Any, get: Get) -> Settings:
    if value <= 0 or get("program") == "run_math_rl":
        raise NoEffect("the run ends with its prompts")
    rows = get("--max_train")
    return _queries(min(value, int(rows)) if str(rows).isdigit() else value, get)


def _queries(most: int, get: Get) -> Settings:
    """Count OAT's queries, which are rollouts; it stops after the batch of prompts that exceeds them."""
    if get("program") == "run_math_rl":
        return {}
    most = min(most, get("--max_queries")) if get("--max_queries") > 0 else most
    batches = most // (prompts(get) // interval(get) * get("--num_samples")) + 1
    return {"oger.total_training_steps": batches // interval(get)}


def interval(get: Get) -> int:
    """Return how many batches of prompts OAT collects before it trains."""
    at_once = get("--num_groups") * learners(get) * get("--rollout_batch_size_per_device")
    if at_once < 1 or get("--rollout_batch_size") < at_once:
        raise Unsupported(
            f"{at_once} prompts are sampled at once (learning GPUs x --rollout_batch_size_per_device), which is more "
            "than --rollout_batch_size; OAT stops there: lower --rollout_batch_size_per_device"
        )
    return int(get("--rollout_batch_size") // at_once)


def prompts(get: Get) -> int:
    """Return the prompts of a step: whole batches of all devices."""
    return int(interval(get) * get("--num_groups") * learners(get) * get("--rollout_batch_size_per_device"))


def rollout_batch(value: Any, get: Get) -> Settings:
    return {"rollout.batch_size": prompts(get)}


def buffer(value: Any, get: Get) -> Settings:
    rows = prompts(get) * get("--num_samples") // (get("--num_groups") * learners(get))
    if value == rows:
        raise NoEffect("it holds exactly the rollouts of a step, which is what is trained on")
    drops = "drops rollouts of the step" if value < rows else "trains on rollouts of earlier steps again"
    raise Unsupported(f"a step has {rows} rollouts per learning GPU, and with {value} OAT {drops}: give {rows}")


def micro_batch(value: Any, get: Get) -> Settings:
    device, mini = get("--train_batch_size_per_device"), get("--mini_train_batch_size_per_device")
    if mini not in (None, device):
        raise Unsupported(
            f"with --train_batch_size_per_device {device} and --mini_train_batch_size_per_device {mini} OAT's "
            "optimizer step is not the --train_batch_size: give the same value to both, and the size that you want"
        )
    return {"train.micro_batch_size": device, "rollout.micro_batch_size": device}


# Evaluation and checkpoints


def evaluates(get: Get) -> bool:
    return bool(get("--eval_steps") > 0)


def evaluated(rule: Rule) -> Rule:
    return where(lambda get: "" if evaluates(get) else "nothing is evaluated with --eval_steps -1", rule)


def of_page(reason: str, rule: Rule) -> Rule:
    """Limit a rule of evaluation to programs that evaluate on one file."""
    return evaluated(where(lambda get: reason if of_math(get) else "", rule))


def eval_data(value: Any, get: Get) -> Settings:
    if not of_math(get):
        return {"eval.dataset": value or get("--prompt_data")}
    columns = {"oger.eval.input_key": "problem", "oger.eval.label_key": "answer"}
    return benchmarks(get("--test_split"), get) | columns


def benchmarks(value: Any, get: Get) -> Settings:
    """Name each benchmark's folder in the one of --eval_data, or the split of a data set on the Hub."""
    if not of_math(get):
        raise NoEffect(_OF_MATH)
    names, suite = BENCHMARKS if value == "all" else value.split(","), get("--eval_data")
    if not suite:
        raise Unsupported(f"{get('program')} needs --eval_data; give --eval_steps -1 for no evaluation")
    if suite.startswith((".", "/", "~", "$")) or suite.count("/") != 1:
        return {"eval.dataset": ",".join(f"{suite.rstrip('/')}/{name}" for name in names)}
    if len(names) == 1:
        return {"eval.dataset": suite, "eval.split": names[0]}
    raise Unsupported(
        "of a data set on the Hub one split is evaluated here: name it (--test_split math), or save all with "
        "datasets.save_to_disk and give the folder (./NAME)"
    )


def eval_key(target: str) -> Rule:
    """Make a rule for a column; "" is that of the training data."""
    return of_page(
        "its evaluation reads the columns problem and answer, whatever the command says",
        lambda value, get: {target: value or None},
    )


def every(target: str) -> Rule:
    """Make a rule for an interval, which OAT counts in batches of prompts; -1 is never."""

    def rule(value: Any, get: Get) -> Settings:
        return {target: math.lcm(value, interval(get)) // interval(get) if value > 0 else -1}

    return rule


def saves(rule: Rule) -> Rule:
    return where(lambda get: "" if get("--save_steps") > 0 else "nothing is saved with --save_steps -1", rule)


def save_steps(value: Any, get: Get) -> Settings:
    return every("ckpt.save_steps")(value, get) | ({"ckpt.save_hf": True} if value > 0 else {})
