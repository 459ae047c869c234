"""What a run will do, in numbers, before anything is started: ``oger train --dry-run``."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS, STEP_ESTIMATORS
from oger_recipe.checks import disk, memory
from oger_recipe.checks.machine import gpus_by_role, judge_engines, policy_ranks
from oger_recipe.data.rows import Row
from oger_recipe.rewards.kinds.entries import sources_of
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.settings.run import EvalSettings


@dataclass(frozen=True)
class Size:
    """Rows of a dataset, and teachers of them all; ``prepared``: without those that are left out."""

    rows: int
    teachers: int
    prepared: bool = False

    @classmethod
    def of_rows(cls, rows: Sequence[Row]) -> "Size":
        return cls(len(rows), sum(len(row.get("teachers") or ()) for row in rows))

    @classmethod
    def of_counts(cls, counts: Mapping[str, int]) -> "Size":
        return cls(counts["prompts"], counts.get("teachers", 0), prepared=True)


def describe(value: Mapping[str, Any], training: Size | None, evaluation: Size | None, *, cpu: bool = False) -> str:
    """Describe a run in lines of text: GPUs by role, the arithmetic of a step, number of steps, memory.

    ``value``: the checked settings by flag; a dataset's size is None where it is not known; ``cpu``: there
    is no CUDA.
    """
    return "\n".join(
        [
            *_gpus(value),
            "",
            *_step(value),
            *_reward(value),
            *_steps_of_reasoning(value),
            *_steps(value, training),
            *_evaluation(value, evaluation),
            "",
            *_memory(value, cpu),
            *_disk(value, training),
        ]
    )


def _gpus(value: Mapping[str, Any]) -> list[str]:
    asked = gpus_by_role(value)
    layout = {
        role: f"{value[f'{key}.num_nodes']} nodes x {value[f'{key}.num_gpus_per_node']}" for role, key in _GROUPS
    }
    layout["vLLM engines"] = f"{value['vllm.num_engines']} engines x {value['vllm.tensor_parallel_size']}"
    engines = {keys.of_engine() for _, keys in judge_engines(value)}
    layout["judges"] = f"{len(engines)} engines in turn"
    layout["encoder"] = f"{value['oger.embedding_num_gpus']:g} of one"
    lines = ["GPUs by role:"]
    lines += [f"  {role:<14}{layout[role]:<20}{count:>4}" for role, count in asked.items()]
    shared = [role for role in layout if role not in asked and _is_used(role, value)]
    lines += [f"  {role:<14}{layout[role]:<20}   on the actor's" for role in shared]
    return [*lines, f"  {'together':<34}{sum(asked.values()):>4}"]


_GROUPS = (("actor", "actor"), ("reference", "ref"), ("critic", "critic"))


def _is_used(role: str, value: Mapping[str, Any]) -> bool:
    used = {
        "reference": value["algo.kl.init_coef"] > 0,
        "critic": value["algo.advantage.estimator"] in CRITIC_ESTIMATORS,
        "vLLM engines": value["train.colocate_all"],
        "judges": bool(judge_engines(value)),
        "encoder": OgerSettings.of(value).embeds and value["oger.embedding_num_gpus"] > 0,
    }
    return used.get(role, False)


def _step(value: Mapping[str, Any]) -> list[str]:
    prompts, samples = value["rollout.batch_size"], value["rollout.n_samples_per_prompt"]
    rows, batch, ranks = prompts * samples, value["train.batch_size"], policy_ranks(value)
    cut = (
        f"{batch // ranks // value['train.micro_batch_size']} micro-batches of {value['train.micro_batch_size']} rows"
    )
    if value["train.dynamic_batch_enable"]:
        cut = f"micro-batches of up to {value['train.max_tokens_per_gpu']} tokens"
    guided = samples if value["oger.n_prefix"] == -1 else value["oger.n_prefix"]
    teachers = prompts * (max(value["oger.max_replace_num"], 0) + guided)  # one of the two is 0
    return [
        "one step:",
        f"  {prompts} prompts x {samples} rollouts = {rows} rows, at most {teachers} with teachers' tokens",
        f"  {rows // batch * value['train.max_epochs']} optimizer steps of {batch} rows ({batch / samples:g} prompts)",
        f"  on each of {ranks} policy ranks: {batch // ranks} rows per optimizer step, in {cut}",
        f"  at most {rows * (value['rollout.max_new_tokens'] or value['data.max_len']):,} response tokens",
    ]


def _reward(value: Mapping[str, Any]) -> list[str]:
    """List the sources in their order: what is added or multiplied, and where."""
    reward = OgerSettings.of(value).reward
    specs = sources_of(reward.sources, value["algo.advantage.estimator"]) if reward.sources else ()
    lines: list[str] = []
    for spec in specs:
        models = spec.keys.models
        asked = "".join(f", {keys.model} ({keys.runs_on})" for keys in models)
        weight = value["oger.bonus_weight"] if spec.keys.is_bonus else spec.weight
        gate = "" if spec.gate == "always" else f", where {spec.gate}"
        sign = "x" if spec.combine == "mul" else "+" if lines else " "
        normalized = "" if spec.normalize == "none" else f", normalized ({spec.normalize})"
        lines.append(f"  {sign} {weight:g} * {spec.name}: {spec.kind}{asked}{normalized}{gate}")
    return (
        [
            "",
            "reward:",
            *lines,
            f"  if a source fails: {reward.on_error}; if the answer causes the failure: the source's worst value",
        ]
        if lines
        else []
    )


def _steps_of_reasoning(value: Mapping[str, Any]) -> list[str]:
    """Say how responses are cut, ended and sampled, and what a step is to the estimator and the loss."""
    settings, estimator = OgerSettings.of(value), value["algo.advantage.estimator"]
    rule, by_step = settings.steps.rule, settings.steps.sample_by_step
    if not settings.cuts_steps(estimator) and settings.steps.sampling is None:
        return []
    ends = [repr(text) for text in rule.delimiters] + [f"token {token}" for token in rule.delimiter_token_ids]
    ends += [f"{rule.max_step_tokens} tokens"] * (rule.max_step_tokens is not None)
    lines = [f"  a step ends after {' or '.join(ends)}"] if ends else ["  every response is one step"]
    responses = [f"step {rule.max_steps}"] * (rule.max_steps is not None)
    responses += [f"the step with {rule.last_step_text!r}"] * (rule.last_step_text is not None)
    lines += [f"  a response ends with {' or '.join(responses)}"] if responses else []
    lines += ["  each step is its own request"] if by_step else []
    lines += [f"  {estimator} pays each step"] if estimator in STEP_ESTIMATORS else []
    lines += ["  the loss has one ratio for each step"] if settings.loss.ratio_level == "step" else []
    return ["", "steps of reasoning:", *lines, ""]


def planned_steps(value: Mapping[str, Any], rows: int) -> int:
    """Count the rollout steps of a run whose dataset keeps ``rows`` prompts, as OpenRLHF's loader cuts them."""
    passes = min(rows, value["data.max_samples"]) // value["rollout.batch_size"] * value["train.num_episodes"]
    limit = value["oger.total_training_steps"]
    return passes if limit is None else min(passes, limit)


def _steps(value: Mapping[str, Any], size: Size | None) -> list[str]:
    episodes, limit = value["train.num_episodes"], value["oger.total_training_steps"]
    passes = f"{episodes} pass{'es' if episodes > 1 else ''} over the prompts"
    if size is None:
        return [f"steps: {passes}" if limit is None else f"steps: at most {limit}, and {passes}"]
    what = f"{size.rows:,} rows with {size.teachers:,} teachers"
    steps = planned_steps(value, size.rows)
    if steps == limit:
        return [f"data: {what}", f"steps: {steps} (oger.total_training_steps)"]
    left_out = "" if size.prepared else "; fewer if too long prompts are left out"
    asked = "" if limit is None else f"; oger.total_training_steps asks for {limit}"
    return [f"data: {what}", f"steps: {steps} ({passes}, {value['rollout.batch_size']} a step{left_out}{asked})"]


def _evaluation(value: Mapping[str, Any], size: Size | None) -> list[str]:
    samples, greedy = value["eval.n_samples_per_prompt"], EvalSettings.of(value).is_greedy(value["eval.temperature"])
    each = "one greedy sample" if greedy else f"{samples} samples"
    return [] if size is None else [f"evaluation: {size.rows:,} problems, {each} each"]


def _memory(value: Mapping[str, Any], cpu: bool) -> list[str]:
    shape = memory.shape_of(value["actor.model_name_or_path"])
    if shape is None:
        return ["memory: not estimated, the policy is not in a local folder"]
    need = memory.estimate(value, shape, memory.shape_of(value["critic.model_name_or_path"]), cpu=cpu)
    tokens = value["rollout.batch_size"] * value["rollout.n_samples_per_prompt"] * value["data.max_len"]
    cache = memory.readable(need.kv_cache_per_token * tokens / value["vllm.num_engines"])
    lines = [
        f"memory, estimated for {shape.parameters / 1e6:,.4g} million parameters (without what libraries take):",
        *_parts("policy", need.policy),
        *_parts("critic", need.critic),
    ]
    if need.offloaded:
        lines.append(f"  main memory for each policy rank: Adam {memory.readable(need.offloaded)}")
    if need.reference or need.offloaded_reference:
        where = "on each of its GPUs" if need.reference else "in main memory, of each rank"
        lines.append(f"  the reference: {memory.readable(need.reference or need.offloaded_reference)} {where}")
    lines.append(
        f"  an engine: weights {memory.readable(need.engine_weights)}, KV cache "
        f"{memory.readable(need.kv_cache_per_token)} a token; {cache} for all rollouts of a step at full length"
    )
    lines += [f"  {name}: weights {memory.readable(size)}" for name, size in memory.beside(value, cpu=cpu).items()]
    engines = {name: keys for name, keys in judge_engines(value)}
    if cpu and engines:
        lines.append("  and up to 1 GiB (VLLM_CPU_KVCACHE_SPACE) of KV cache for the engine of each of these models")
    elif engines:
        lines += [
            f"  the engine of {name}: {keys.gpu_memory_utilization:g} of each of its "
            f"{keys.tensor_parallel_size} GPUs, while it is its turn"
            for name, keys in engines.items()
        ]
    return lines + (_shared_gpu(value, need) if value["train.colocate_all"] else [])


def _parts(role: str, parts: Mapping[str, float]) -> list[str]:
    if not parts:
        return []
    each = ", ".join(f"{what} {memory.readable(size)}" for what, size in parts.items() if size)
    uncounted = "" if "activations" in parts else "; without activations, which could not be counted"
    return [f"  a {role} rank: {memory.readable(sum(parts.values()))}: {each}{uncounted}"]


def _shared_gpu(value: Mapping[str, Any], need: memory.Memory) -> list[str]:
    there = memory.of_a_gpu()
    lines = []
    for turn, (taken, engine) in memory.shared_gpu(value, need).items():
        beside = f" and the engine's {engine:g} of it (vllm.gpu_memory_utilization)" if engine else ""
        of = f" of {memory.readable(there)}" if there else ""
        lines.append(f"  a GPU that all share, {turn}: {memory.readable(taken)}{of}{beside}")
    if there:
        room = memory.room_for_tokens(value, need, there)
        lines.append(f"  the KV cache has room for about {room:,} tokens of each rollout at once")
    return lines


def _disk(value: Mapping[str, Any], training: Size | None) -> list[str]:
    """Say what the run will write, where the number of its steps is known, next to what is free."""
    shape = memory.shape_of(value["actor.model_name_or_path"])
    steps = value["oger.total_training_steps"] if training is None else planned_steps(value, training.rows)
    if shape is None or steps is None or not value["oger.run_dir"]:
        return []
    critic = memory.shape_of(value["critic.model_name_or_path"] or value["actor.model_name_or_path"])
    one, most = disk.checkpoint_bytes(value, shape, critic), disk.kept(value, shape, critic, steps)
    lines = [
        "disk, at most:",
        f"  {disk.saves(value, steps):g} checkpoints of {memory.readable(one)} (ckpt.save_steps); {most:g} are kept "
        f"at once (ckpt.max_num, the best one): {memory.readable(most * one)}",
        f"  samples of rollouts (oger.samples_steps {value['oger.samples_steps']}): "
        f"{memory.readable(disk.samples(value, steps))}",
    ]
    for folder, each in disk.by_disk(disk.written(value, shape, critic, steps)).items():
        free = shutil.disk_usage(folder).free
        too_much = "" if each.at_most <= free else "; it does not fit: lower ckpt.max_num, or write elsewhere"
        line = f"{memory.readable(each.at_most)} in all, {memory.readable(free)} free in {folder}"
        lines.append(f"  {line}{too_much}")
    return lines
