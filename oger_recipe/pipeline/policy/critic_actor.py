"""OpenRLHF's critic with dynamic batches that accumulate, and with metrics that do not depend on the cut."""

import torch
from openrlhf.models import ValueLoss, aggregate_loss
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_critic
from openrlhf.utils.loss_utils import get_loss_batch_info

from oger_recipe.algorithm.credit import STEP_ESTIMATORS
from oger_recipe.algorithm.step_tensors import first_tokens
from oger_recipe.algorithm.value import clipped_huber_loss, clipped_tokens, explained_variance, value_sums
from oger_recipe.pipeline import undecorated
from oger_recipe.pipeline.policy import HoldsPort
from oger_recipe.pipeline.policy.updates import UpdateHealth, accumulate_until_last, seed_from_step, sum_together
from oger_recipe.pipeline.policy.value_head import value_heads
from oger_recipe.run_folder.checkpoints import place
from oger_recipe.settings.critic import CriticSettings


class CountingValueLoss(ValueLoss):
    """OpenRLHF's loss of values, or Huber's, which also counts the tokens of its last call that clipping decided."""

    clipped: torch.Tensor

    def __init__(self, clip_eps: float, huber_delta: float | None) -> None:
        super().__init__(clip_eps)
        self.huber_delta = huber_delta

    def forward(self, values, old_values, returns, action_mask=None, **totals):
        with torch.no_grad():
            self.clipped = clipped_tokens(values, old_values, returns, action_mask, self.clip_eps)
        if self.huber_delta is None:
            return super().forward(values, old_values, returns, action_mask, **totals)
        losses = clipped_huber_loss(values, old_values, returns, clip=self.clip_eps, delta=self.huber_delta)
        return aggregate_loss(losses, action_mask, token_level_loss=self.token_level_loss, **totals)


class OgerCriticPPOTrainer(ppo_critic.CriticPPOTrainer):
    """OpenRLHF's critic trainer."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        sum_together(self.strategy)
        self.critic_loss_fn = CountingValueLoss(self.value_clip, CriticSettings.of(self.args.oger).huber_delta)

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
        sums = (experience.action_mask.sum(), loss_batch_info["batch_num_tokens"], self.critic_loss_fn.clipped)
        tokens, of_step, clipped = torch.stack(sums).tolist()
        of_token = per_step * loss_batch_info["dp_size"] / of_step
        status["critic_loss"] *= per_step
        status["values"] *= of_token * tokens
        status["value_clip_share"] = of_token * clipped
        return status

    def ppo_train(self) -> dict[str, float]:
        estimator = STEP_ESTIMATORS.get(self.args.algo.advantage.estimator)
        if estimator is not None and estimator.values_steps:
            self._keep_first_tokens()
        explained = self._explained_variance()
        status = super().ppo_train()
        if status:  # of the last optimizer step, as the policy's; upstream's mean has stale ones in it
            status["critic_grad_norm"] = self.strategy.get_grad_norm(self.critic)
            status["explained_variance"] = explained
        return status

    def _keep_first_tokens(self) -> None:
        """Narrow the rows' masks to the first token of each step, whose value is that of the state in which the step
        is taken: nothing else has a return, and every total and metric counts what is in the mask."""
        for row in self.replay_buffer.items:
            if row.step_index is None:
                raise ValueError(
                    "the critic values steps of reasoning, and the experience that came does not say them"
                )
            row.action_mask = row.action_mask * first_tokens(row.step_index.unsqueeze(0) - 1).squeeze(0)

    def _explained_variance(self) -> float:
        """Compute it of all ranks' rows by the values that made their advantages: the critic had not seen them."""
        sums = torch.zeros(5, dtype=torch.float64)
        for row in self.replay_buffer.items:
            sums += value_sums(row.values, row.returns, row.action_mask).cpu()
        return explained_variance(self.strategy.all_reduce(sums, op="sum"))


# CriticModelActor builds its trainer by this name, which is looked up in this process.
ppo_critic.CriticPPOTrainer = OgerCriticPPOTrainer


class OgerCriticModelActor(HoldsPort, undecorated(ppo_critic.CriticModelActor)):  # type: ignore[misc]
    """Has the recipe's value head, and saves as the policy does; the worker imports this module first."""

    def init_model_from_pretrained(self, strategy, *args, **kwargs):
        with value_heads(CriticSettings.of(strategy.args.oger)):
            super().init_model_from_pretrained(strategy, *args, **kwargs)
        self.health = UpdateHealth(self.strategy, self.critic)

    def fit(self) -> dict[str, float]:
        seed_from_step(self.strategy, self.critic)
        self.health.begin()
        return super().fit() | {f"critic_{name}": value for name, value in self.health.since().items()}

    def save_checkpoint(self, tag, *args, **kwargs) -> None:
        with place(self.strategy.args.ckpt, tag) as name:
            super().save_checkpoint(name, *args, **kwargs)
