"""Puts the recipe's classes in the places where OpenRLHF's command line looks for its own."""

# First these packages, which prepare the process.
from oger_recipe.pipeline.controller import trainer
from oger_recipe.pipeline.engine import rollout_engine
from oger_recipe.pipeline.policy import critic_actor, policy_actor

# isort: split
import openrlhf.utils.config
import ray
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic, vllm_engine

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.base.cpu import is_without_cuda


def install() -> None:
    """Put the recipe's classes in place; must run in the driver before openrlhf.cli.train_ppo_ray is executed."""
    on_gpu = ray.remote(num_gpus=1)
    ppo_trainer.PPOTrainer = ray.remote(trainer.OgerPPOTrainer)
    ppo_actor.PolicyModelActor = on_gpu(policy_actor.OgerPolicyModelActor)
    ppo_critic.CriticModelActor = on_gpu(critic_actor.OgerCriticModelActor)
    vllm_engine.RolloutRayActor = ray.remote(rollout_engine.OgerRolloutActor)
    if is_without_cuda():
        launcher.ReferenceModelActor = on_gpu(policy_actor.OgerReferenceModelActor)
        launcher.RewardModelActor = on_gpu(policy_actor.OgerRewardModelActor)
    _keep_settings()


def _keep_settings() -> None:
    """Keep what OpenRLHF's command line overwrites: the critic's model, which it takes from all estimators but its own
    gae; without CUDA, ds.attn_implementation, which becomes flash attention when packing."""
    to_tree, upstream = openrlhf.utils.config.hierarchize, openrlhf.utils.get_strategy
    named: list[str | None] = []

    def hierarchize(args):
        tree = to_tree(args)
        named.append(tree.critic.model_name_or_path)
        return tree

    def get_strategy(args):
        if args.algo.advantage.estimator in CRITIC_ESTIMATORS and args.critic.model_name_or_path is None:
            args.critic.model_name_or_path = named[-1] or args.actor.model_name_or_path
        if is_without_cuda() and "flash" in args.ds.attn_implementation:
            args.ds.attn_implementation = "sdpa"
        return upstream(args)

    openrlhf.utils.config.hierarchize, openrlhf.utils.get_strategy = hierarchize, get_strategy
