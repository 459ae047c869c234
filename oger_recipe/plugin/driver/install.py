"""Puts the recipe's classes in the places where OpenRLHF's command line looks for its own."""

# First these packages, which prepare the process.
from oger_recipe.plugin.controller import trainer
from oger_recipe.plugin.engine import rollout_engine
from oger_recipe.plugin.policy import critic_actor, policy_actor, reference_actor

# isort: split
import openrlhf.utils
import ray
import torch
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic, vllm_engine


def install() -> None:
    """Rebinds the names; must run in the driver before openrlhf.cli.train_ppo_ray is executed."""
    on_gpu = ray.remote(num_gpus=1)
    ppo_trainer.PPOTrainer = ray.remote(trainer.OgerPPOTrainer)
    ppo_actor.PolicyModelActor = on_gpu(policy_actor.OgerPolicyModelActor)
    ppo_critic.CriticModelActor = on_gpu(critic_actor.OgerCriticModelActor)
    vllm_engine.RolloutRayActor = ray.remote(rollout_engine.OgerRolloutActor)
    if torch.cuda.is_available():
        return
    launcher.ReferenceModelActor = on_gpu(reference_actor.OgerReferenceModelActor)
    launcher.RewardModelActor = on_gpu(reference_actor.OgerRewardModelActor)
    _keep_attention_for_cpu()


def _keep_attention_for_cpu() -> None:
    """With packing, OpenRLHF's command line overwrites ds.attn_implementation by flash attention after parsing."""
    upstream = openrlhf.utils.get_strategy

    def get_strategy(args):
        if "flash" in args.ds.attn_implementation:
            args.ds.attn_implementation = "sdpa"
        return upstream(args)

    openrlhf.utils.get_strategy = get_strategy
