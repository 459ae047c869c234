"""What a run will do, in numbers, before anything is started: ``oger train --dry-run``."""

import argparse

from oger_recipe.machine import gpus_by_role


def describe(args: argparse.Namespace) -> str:
    """GPUs by role, and the arithmetic of a step, as lines of text; ``args`` is the flat, checked namespace."""
    return "\n".join([*_gpus(args), "", *_step(args)])


def _gpus(args: argparse.Namespace) -> list[str]:
    value, asked = vars(args), gpus_by_role(args)
    layout = {
        role: f"{value[f'{key}.num_nodes']} nodes x {value[f'{key}.num_gpus_per_node']}" for role, key in _GROUPS
    }
    layout["vLLM engines"] = f"{value['vllm.num_engines']} engines x {value['vllm.tensor_parallel_size']}"
    lines = ["GPUs by role:"]
    lines += [f"  {role:<14}{layout[role]:<20}{count:>4}" for role, count in asked.items()]
    shared = [role for role in layout if role not in asked and _is_used(role, args)]
    lines += [f"  {role:<14}{layout[role]:<20}   on the actor's" for role in shared]
    return [*lines, f"  {'together':<34}{sum(asked.values()):>4}"]


_GROUPS = (("actor", "actor"), ("reference", "ref"), ("critic", "critic"))


def _is_used(role: str, args: argparse.Namespace) -> bool:
    value = vars(args)
    used = {
        "reference": value["algo.kl.init_coef"] > 0,
        "critic": value["algo.advantage.estimator"] == "gae",
        "vLLM engines": value["train.colocate_all"],
    }
    return used.get(role, False)


def _step(args: argparse.Namespace) -> list[str]:
    value = vars(args)
    prompts, samples = value["rollout.batch_size"], value["rollout.n_samples_per_prompt"]
    rows, batch = prompts * samples, value["train.batch_size"]
    ranks = value["actor.num_nodes"] * value["actor.num_gpus_per_node"]
    ranks //= value["ds.ring_attn_size"] * value["ds.tensor_parallel_size"]
    cut = (
        f"{batch // ranks // value['train.micro_batch_size']} micro-batches of {value['train.micro_batch_size']} rows"
    )
    if value["train.dynamic_batch_enable"]:
        cut = f"micro-batches of up to {value['train.max_tokens_per_gpu']} tokens"
    teachers = max(value["oger.max_replace_num"], 0)
    steps = value["oger.total_training_steps"]
    return [
        "one step:",
        f"  {prompts} prompts x {samples} rollouts = {rows} rows, of them at most {prompts * teachers} teachers'",
        f"  {rows // batch * value['train.max_epochs']} optimizer steps of {batch} rows ({batch / samples:g} prompts)",
        f"  on each of {ranks} policy ranks: {batch // ranks} rows an optimizer step, in {cut}",
        f"  at most {rows * (value['rollout.max_new_tokens'] or value['data.max_len']):,} response tokens",
        f"steps: {steps if steps is not None else str(value['train.num_episodes']) + ' passes over the prompts'}",
    ]
