"""OpenRLHF's critic with dynamic batches that accumulate, and with figures that do not depend on the cut."""

from oger_recipe.imports import without_garbage_collection
from oger_recipe.plugin.ray_actor import give_way_to_engine, undecorated

give_way_to_engine()

with without_garbage_collection():
    from oger_recipe.patches import apply_training_patches

    apply_training_patches()

    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ray import ppo_critic
    from openrlhf.utils.loss_utils import get_loss_batch_info

    from oger_recipe.plugin.accumulation import accumulate_until_last


class OgerCriticPPOTrainer(ppo_critic.CriticPPOTrainer):
    """OpenRLHF's critic trainer."""

    def training_step(self, experience: Experience, step: int, loss_batch_info=None) -> dict[str, float]:
        buffer, per_step = self.replay_buffer, 1.0
        if loss_batch_info is None:  # dynamic batches
            loss_batch_info = get_loss_batch_info(
                self.strategy, experience.action_mask, replay_buffer=buffer, step=step, dynamic_batch=True
            )
            accumulate_until_last(self.critic, buffer, step)
            per_step = len(buffer) / sum(buffer.dynamic_optimizer_step)
        status = super().training_step(experience, step, loss_batch_info)
        # ppo_train averages over micro-batches: of the loss these are shares of a step, which are to be summed, of the
        # values they are means over unequal numbers of tokens.
        tokens = experience.action_mask.sum().item()
        share = loss_batch_info["dp_size"] * tokens / loss_batch_info["batch_num_tokens"].item()
        status["critic_loss"] *= per_step
        status["values"] *= per_step * share
        return status

    def ppo_train(self) -> dict[str, float]:
        status = super().ppo_train()
        if status:  # of the last optimizer step, as the policy's; upstream's mean has stale ones in it
            status["critic_grad_norm"] = self.strategy.get_grad_norm(self.critic)
        return status


# CriticModelActor builds its trainer by this name, which is looked up in this process.
ppo_critic.CriticPPOTrainer = OgerCriticPPOTrainer


class OgerCriticModelActor(undecorated(ppo_critic.CriticModelActor)):  # type: ignore[misc]
    """Unchanged: exists so that the worker imports this module first."""
