"""OpenRLHF's actors of models: the policy's gives entropies from the forward pass that gives log-probabilities."""

from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.trainer.ray import launcher, ppo_actor
from ray.util.placement_group import PlacementGroup

from oger_recipe.algorithm.token_stats import response_entropy
from oger_recipe.pipeline import undecorated
from oger_recipe.pipeline.policy import HoldsPort
from oger_recipe.pipeline.policy.adapters import ALL_LINEAR, save_merged
from oger_recipe.pipeline.policy.chunked_actor import ChunkedActor
from oger_recipe.pipeline.policy.grader import Average, initial_policy
from oger_recipe.pipeline.policy.policy_trainer import OgerActorPPOTrainer
from oger_recipe.pipeline.policy.updates import UpdateHealth, seed_from_step
from oger_recipe.run_folder.checkpoints import place
from oger_recipe.settings.credit import BonusSettings
from oger_recipe.settings.grades import AVERAGE, OWN_WEIGHTS, GradeSettings
from oger_recipe.settings.loss import LossSettings

# PolicyModelActor builds its trainer by this name, which is looked up in this process.
ppo_actor.ActorPPOTrainer = OgerActorPPOTrainer


class OgerPolicyModelActor(HoldsPort, undecorated(ppo_actor.PolicyModelActor)):  # type: ignore[misc]
    """OpenRLHF's policy actor whose forward pass also returns the entropies that weigh the bonus."""

    def placement_group(self) -> PlacementGroup | None:
        """Return the group whose GPUs it shares."""
        return ray.util.get_current_placement_group()

    def init_model_from_pretrained(self, strategy, pretrain, *args, **kwargs):
        self.bonus = BonusSettings.of(strategy.args.oger)
        if LossSettings.of(strategy.args.oger).chunked_token_stats:
            ppo_actor.Actor = ChunkedActor  # upstream builds its model by this name
        lora = strategy.args.ds.lora
        if lora.target_modules == [ALL_LINEAR]:  # as the command line gives it; PEFT knows the word alone
            lora.target_modules = ALL_LINEAR
        super().init_model_from_pretrained(strategy, pretrain, *args, **kwargs)
        self.health = UpdateHealth(self.strategy, self.actor.model)
        self._grade_with(GradeSettings.of(strategy.args.oger), pretrain)
        if lora.rank:  # upstream would write the adapter alone
            self.strategy.save_model = self._save_merged

    def _grade_with(self, settings: GradeSettings, pretrain: str) -> None:
        """Load the weights that grade where they are not the policy's own, and keep their average up to date."""
        self.average: Average | None = None
        self.grader: Any = None
        if settings.grader not in OWN_WEIGHTS:
            return
        self.grader = initial_policy(self.strategy, pretrain)
        if settings.grader != AVERAGE:
            return
        policy, grader = self.actor.model.module, self.grader.model.module
        self.average = Average(policy.parameters(), grader.parameters(), settings.grade_average_rate)
        ckpt = self.strategy.args.ckpt
        latest = Path(ckpt.path) / "_actor" / "latest"
        if ckpt.load_enable and latest.exists():  # which OpenRLHF has loaded
            self.average.load(latest.with_name(latest.read_text()))
        self.strategy.optimizer_step = self.average.after_updates(self.actor.model, self.strategy.optimizer_step)

    def _save_merged(self, actor, tokenizer, folder: str) -> None:
        save_merged(actor.model.module, tokenizer, folder, writes=self.strategy.is_rank_0())

    def fit(self, kl_ctl: float = 0) -> dict[str, float]:
        seed_from_step(self.strategy, self.actor.model)
        self.health.begin()
        return super().fit(kl_ctl) | self.health.since()

    def save_checkpoint(self, tag, *args, **kwargs) -> None:
        with place(self.strategy.args.ckpt, tag) as name:
            super().save_checkpoint(name, *args, **kwargs)
            if self.average is not None and self.strategy.is_rank_0() and not self.disable_ds_ckpt:
                self.average.save(Path(self.strategy.args.ckpt.path) / "_actor" / name)

    def forward(self, sequences, action_mask, attention_mask, **kwargs) -> tuple[torch.Tensor, ...]:
        """Return log-probabilities [B, A] (0 where masked) and two entropies [B] (nats) of the response: at
        ``oger.entropy_position``, and the mean over its tokens.

        Rows without response tokens do not pass through the model; their entropies are nan.
        """
        return self._answered(self.actor, sequences, action_mask, attention_mask)

    def forward_grader(self, sequences, action_mask, attention_mask) -> tuple[torch.Tensor, ...]:
        """Return what ``forward`` does, of the weights that grade in the policy's place (oger.grader)."""
        return self._answered(self.grader, sequences, action_mask, attention_mask)

    def _answered(self, model, sequences, action_mask, attention_mask) -> tuple[torch.Tensor, ...]:
        device = torch.cuda.current_device()
        asked = action_mask.any(dim=1)
        rows = asked.clone()
        rows[0] |= not asked.any()  # with sharded weights every rank takes part in every forward pass
        log_probs, entropies = torch.zeros(action_mask.shape), torch.full((2, len(asked)), torch.nan)
        log_probs[rows], entropies[:, rows] = self._forward(
            model, sequences[rows].to(device), action_mask[rows].to(device), attention_mask[rows].to(device)
        )
        entropies[:, ~asked] = torch.nan
        return log_probs, *entropies

    def _forward(self, model, sequences, action_mask, attention_mask) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities [B, A], and the two entropies of each row, [2, B]."""
        model.eval()
        with torch.no_grad():
            log_probs, output = model(
                sequences,
                action_mask,
                attention_mask,
                ring_attn_group=self.strategy.ring_attn_group,
                return_output=True,
                return_entropy=True,
            )
            of_tokens = output.entropy[:, -action_mask.shape[1] :]
            entropies = [
                response_entropy(of_tokens, action_mask, position=position, top_share=self.bonus.entropy_top_share)
                for position in (self.bonus.entropy_position, "mean")
            ]
        model.train()
        return log_probs.float().cpu(), torch.stack(entropies).float().cpu()


class OgerReferenceModelActor(HoldsPort, undecorated(launcher.ReferenceModelActor)):  # type: ignore[misc]
    """Unchanged: exists so that the worker applies the machine's patches first, by importing this package."""


class OgerRewardModelActor(HoldsPort, undecorated(launcher.RewardModelActor)):  # type: ignore[misc]
    """Unchanged, for the same reason."""
