"""Weights that grade in the policy's place (oger.grader), in the policy's own processes, beside it."""

from typing import Any

from openrlhf.trainer.ray import ppo_actor

from oger_recipe.settings.grades import INITIAL, GradeSettings


def has_initial_policy(args: Any) -> bool:
    """Say whether a run keeps its initial policy to grade; ``args``: OpenRLHF's namespace."""
    return GradeSettings.of(args.oger).grader == INITIAL


def initial_policy(strategy: Any, pretrain: str) -> Any:
    """Load the policy as it is before the run's first step, without an optimizer, or adapters, which begin at 0.

    A run that resumes loads the same: no checkpoint needs it. Under ZeRO 3 it is sharded as the policy is.
    """
    args = strategy.args
    model = ppo_actor.Actor(
        pretrain,
        attn_implementation=args.ds.attn_implementation,
        experts_implementation=args.ds.experts_implementation,
        param_dtype=args.ds.param_dtype,
        load_in_4bit=args.ds.load_in_4bit,
        ds_config=strategy.get_ds_eval_config(offload=False),
        packing_samples=args.ds.packing_samples,
        temperature=args.rollout.temperature,
        use_liger_kernel=args.ds.use_liger_kernel,
    )
    return strategy.prepare(model)
