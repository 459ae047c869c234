"""The hybrid loss in the place of OpenRLHF's policy loss."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch

from oger_recipe.algorithm.batches import step_log_probs, unit_mask
from oger_recipe.algorithm.policy_loss import AGGREGATIONS, TEACHER_LOSSES, TOKEN_WEIGHTS, hybrid_policy_loss
from oger_recipe.settings.loss import OF_UPDATE, LossSettings


@dataclass(frozen=True)
class Totals:
    """Tokens (or steps) of one kind in an optimizer step, over all ranks, and rows that have any; None: not known."""

    tokens: torch.Tensor | None = None
    rows: torch.Tensor | None = None

    @classmethod
    def of(cls, upstream: dict[str, Any]) -> Self:
        return cls(upstream["batch_num_tokens"], upstream["global_batch_size"])


@dataclass(frozen=True)
class Given:
    """What the loss has to know of a micro-batch beside what OpenRLHF hands it.

    off_policy_mask [B, A] marks teacher tokens. step_index, engine_weights and teacher_log_probs [B, A] are the
    experience's, None where a run does not use them. Totals are of the optimizer step: of teacher tokens, of what the
    loss counts (units), by rollouts and in all, and of every row, left out or not. sft_loss_coef is the
    step's; None: it is the same at all steps.
    """

    off_policy_mask: torch.Tensor
    step_index: torch.Tensor | None = None
    engine_weights: torch.Tensor | None = None
    teacher_log_probs: torch.Tensor | None = None
    of_teachers: Totals = Totals()
    of_rollouts: Totals = Totals()
    of_units: Totals = Totals()
    of_every_row: Totals = Totals()
    sft_loss_coef: torch.Tensor | None = None


class HybridPolicyLoss(torch.nn.Module):
    """hybrid_policy_loss behind OpenRLHF's PolicyLoss; the trainer says what is ``given`` first, and, where the loss
    reads it, the ``entropy`` [B, A or more] of the tokens as the forward pass found it."""

    given: Given
    entropy: torch.Tensor | None = None

    def __init__(self, args: Any) -> None:
        super().__init__()
        settings = LossSettings.of(args.oger)
        clip_low, clip_high = args.actor.eps_clip_low_high
        how, aggregation = TEACHER_LOSSES[settings.off_policy_loss], AGGREGATIONS[settings.loss_aggregation]
        self.by_step = settings.ratio_level == "step"
        self._old_of_update = settings.old_log_probs == OF_UPDATE
        weighs_entropy = how.supervised and TOKEN_WEIGHTS[settings.sft_token_weight].reads_entropy
        self.reads_entropy = weighs_entropy or settings.off_policy_top_entropy_share < 1
        self._sft_loss_coef, self._is_mixture = settings.sft_loss_coef, settings.sft_loss_mixture
        self._counts_rollout_tokens = how.apart
        self._counts_rollout_rows = how.apart and aggregation.rows_with_tokens
        self.counts_every_row = aggregation.every_row
        self._loss = partial(
            hybrid_policy_loss,
            reshape=settings.off_policy_reshape,
            reshape_weight=settings.off_policy_reshape_weight,
            reshape_power=settings.off_policy_reshape_pow_exp,
            reshape_teacher_ratio=settings.off_policy_reshape_ratio,
            clip_low=clip_low,
            clip_high=clip_high,
            use_clip=not settings.loss_remove_clip,
            dual_clip=args.actor.dual_clip,
            aggregation=settings.loss_aggregation,
            teacher_loss=settings.off_policy_loss,
            sft_token_weight=settings.sft_token_weight if how.supervised else "none",
            teacher_top_entropy_share=settings.off_policy_top_entropy_share,
            off_policy_max_clip=settings.off_policy_max_clip,
            off_policy_min_clip=settings.off_policy_min_clip,
            all_max_clip=settings.all_max_clip,
            on_policy_reshape=settings.on_policy_reshape,
            on_policy_reshape_weight=settings.on_policy_reshape_weight,
            on_policy_reshape_power=settings.on_policy_reshape_pow_exp,
            max_response_length=args.rollout.max_new_tokens or args.data.max_len,
        )
        self.metrics: dict[str, torch.Tensor] = {}

    def forward(
        self,
        log_probs,
        old_log_probs,
        advantages,
        action_mask,
        rollout_log_probs,
        dp_size,
        batch_num_tokens,
        global_batch_size,
    ):
        """Return OpenRLHF's five values: loss, clip ratio, policy KL, and None for both metrics of the engine, which
        the controller measures.

        Tensors of tokens are [B, A]. ``batch_num_tokens`` and ``global_batch_size`` are the totals of the optimizer
        step, divided by the number of micro-batches where DeepSpeed scales every loss by that (not with dynamic
        batches); ``dp_size`` undoes the averaging over ranks.
        ``rollout_log_probs`` is None: what the engine says is in the weights that are ``given``.
        """
        given, teacher_probs = self.given, None
        if self._old_of_update:
            old_log_probs = log_probs.detach()
        if given.teacher_log_probs is not None:
            teacher_probs = given.teacher_log_probs.exp()  # nan: unknown
        units, num_units = action_mask, batch_num_tokens
        if self.by_step:
            where = (action_mask, given.off_policy_mask, given.step_index)
            log_probs, old_log_probs = (step_log_probs(each, *where) for each in (log_probs, old_log_probs))
            units, num_units = unit_mask(*where), given.of_units.tokens
        rows = global_batch_size if given.of_every_row.rows is None else given.of_every_row.rows
        mu = self._sft_loss_coef if given.sft_loss_coef is None else given.sft_loss_coef
        loss, self.metrics = self._loss(
            log_probs,
            old_log_probs,
            advantages,
            units,
            given.off_policy_mask,
            num_rows=given.of_rollouts.rows if self._counts_rollout_rows else rows,
            num_tokens=given.of_rollouts.tokens if self._counts_rollout_tokens else num_units,
            teacher_probs=teacher_probs,
            rollout_weights=given.engine_weights,
            num_teacher_tokens=given.of_teachers.tokens,
            sft_loss_coef=mu,
            rollout_loss_coef=1 - mu if self._is_mixture else 1.0,
            entropy=self.entropy[:, -action_mask.shape[1] :] if self.entropy is not None else None,
        )
        return loss * dp_size, self.metrics["clip_fraction"], self.metrics["ppo_kl"], None, None
