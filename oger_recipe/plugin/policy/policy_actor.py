"""The policy's side: entropies from the forward pass that gives log-probabilities, and the hybrid loss."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.loss_utils import get_loss_batch_info

from oger_recipe.algorithm.batches import longest_first, off_policy_mask
from oger_recipe.algorithm.policy_loss import AGGREGATIONS, TEACHER_LOSSES, hybrid_policy_loss
from oger_recipe.algorithm.token_stats import response_entropy
from oger_recipe.plugin.policy.accumulation import accumulate_until_last
from oger_recipe.plugin.policy.chunked_actor import ChunkedActor
from oger_recipe.plugin.policy.update_health import UpdateHealth
from oger_recipe.plugin.ray_actor import undecorated
from oger_recipe.run_folder.checkpoints import place


def experience_off_policy_mask(experience: Experience) -> torch.Tensor:
    tokens = torch.stack(list(experience.info["off_policy_tokens"])).to(experience.action_mask.device)
    return off_policy_mask(experience.action_mask, tokens)


def experience_on_policy_mask(experience: Experience) -> torch.Tensor:
    return experience.action_mask.bool() & ~experience_off_policy_mask(experience)


@dataclass(frozen=True)
class _Totals:
    """Tokens of one kind in an optimizer step, over all ranks, and the rows that have one; None: not known."""

    tokens: torch.Tensor | None = None
    rows: torch.Tensor | None = None

    @classmethod
    def of(cls, upstream: dict[str, Any]) -> "_Totals":
        return cls(upstream["batch_num_tokens"], upstream["global_batch_size"])


class HybridPolicyLoss(torch.nn.Module):
    """hybrid_policy_loss behind OpenRLHF's PolicyLoss; the trainer sets ``off_policy_mask`` and the totals first."""

    def __init__(self, args) -> None:
        super().__init__()
        self.max_response_length = args.rollout.max_new_tokens or args.data.max_len
        self.settings = dict(
            reshape=args.oger.off_policy_reshape,
            reshape_weight=args.oger.off_policy_reshape_weight,
            reshape_power=args.oger.off_policy_reshape_pow_exp,
            clip_low=args.actor.eps_clip_low_high[0],
            clip_high=args.actor.eps_clip_low_high[1],
            use_clip=not args.oger.loss_remove_clip,
            aggregation=args.oger.loss_aggregation,
            teacher_loss=args.oger.off_policy_loss,
            sft_loss_coef=args.oger.sft_loss_coef,
            off_policy_max_clip=args.oger.off_policy_max_clip,
            off_policy_min_clip=args.oger.off_policy_min_clip,
            all_max_clip=args.oger.all_max_clip,
            on_policy_reshape=args.oger.on_policy_reshape,
            on_policy_reshape_weight=args.oger.on_policy_reshape_weight,
            on_policy_reshape_power=args.oger.on_policy_reshape_pow_exp,
        )
        self.off_policy_mask: torch.Tensor | None = None
        self.of_teachers = self.of_rollouts = _Totals()  # of the optimizer step, as upstream's totals are
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
        """OpenRLHF's five values: loss, clip ratio, policy KL, and None twice (no engine correction).

        ``batch_num_tokens`` and ``global_batch_size`` are the totals of the optimizer step, divided by the number of
        micro-batches where DeepSpeed scales every loss by that (not with dynamic batches); ``dp_size`` undoes the
        averaging over ranks.
        ``rollout_log_probs`` is None, or the teachers' own log-probabilities (see ``teacher_log_probs``).
        """
        teacher_probs = None
        if rollout_log_probs is not None:
            teacher_probs = torch.where(rollout_log_probs <= 0, rollout_log_probs.exp(), torch.nan)
        num_rows, num_tokens = global_batch_size, batch_num_tokens
        if TEACHER_LOSSES[self.settings["teacher_loss"]].apart:
            num_tokens = self.of_rollouts.tokens
            if AGGREGATIONS[self.settings["aggregation"]].rows_with_tokens:
                num_rows = self.of_rollouts.rows
        loss, self.metrics = hybrid_policy_loss(
            log_probs,
            old_log_probs,
            advantages,
            action_mask,
            self.off_policy_mask,
            num_rows=num_rows,
            num_tokens=num_tokens,
            max_response_length=self.max_response_length,
            teacher_probs=teacher_probs,
            num_teacher_tokens=self.of_teachers.tokens,
            **self.settings,
        )
        return loss * dp_size, self.metrics["clip_fraction"], self.metrics["ppo_kl"], None, None


class LengthSortedBatches(torch.utils.data.Sampler[list[int]]):
    """Micro-batches of random optimizer steps, sorted by length within each step.

    An optimizer step's gradient does not depend on how its rows are cut (its loss is normalised over all of them), so
    that only padding is saved. Rows that do not fill a micro-batch are left out, as OpenRLHF does.
    """

    def __init__(self, lengths: list[int], batch_size: int, accumulated: int) -> None:
        self.lengths, self.batch_size, self.accumulated = lengths, batch_size, accumulated

    def __len__(self) -> int:
        return len(self.lengths) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        rows = torch.randperm(len(self.lengths))[: len(self) * self.batch_size].tolist()
        of_step = self.batch_size * self.accumulated
        for start in range(0, len(rows), of_step):
            step = rows[start : start + of_step]
            ranked = [step[position] for position in longest_first([self.lengths[row] for row in step])]
            for first in range(0, len(step), self.batch_size):
                yield ranked[first : first + self.batch_size]


_LOADER = ppo_actor.DataLoader
_ITERATE = ppo_actor.iter_grad_accum_global_norm
_KINDS = (experience_off_policy_mask, experience_on_policy_mask)

# The rest of the loss's metrics: means over the teacher's tokens or over the rollouts' tokens.
OFF_POLICY_METRICS = (
    "off_policy_loss", "off_policy_prob", "off_policy_ratio", "off_policy_ratio_max_clip_fraction",
    "off_policy_ratio_min_clip_fraction",
)  # fmt: skip
ON_POLICY_METRICS = ("on_policy_loss", "on_policy_prob", "on_policy_ratio", "clip_fraction", "ppo_kl")


class OgerActorPPOTrainer(ppo_actor.ActorPPOTrainer):
    """OpenRLHF's policy trainer with the hybrid loss."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.actor_loss_fn = HybridPolicyLoss(self.args)

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Upstream's; it would wait for an engine that could not start until the group's time limit."""
        ray.get([engine.__ray_ready__.remote() for engine in self.vllm_engines])
        super()._init_vllm_sync_group(backend)

    def training_step(self, experience: Experience, kl_ctl: float, step: int, loss_batch_info=None):
        if loss_batch_info is None:  # dynamic batches
            loss_batch_info = get_loss_batch_info(
                self.strategy, experience.action_mask, replay_buffer=self.replay_buffer, step=step, dynamic_batch=True
            )
            self._set_totals_of_dynamic_step(step)
            accumulate_until_last(self.actor.model, self.replay_buffer, step)
        self.actor_loss_fn.off_policy_mask = experience_off_policy_mask(experience)
        status = super().training_step(experience, kl_ctl, step, loss_batch_info)
        self._add_loss_metrics(status)
        self._even_out(status, loss_batch_info)
        return status

    @staticmethod
    def _even_out(status, totals) -> None:
        """Upstream's losses are shares of a step's mean and are then averaged by tokens; shares are to be summed.

        So they become means over the micro-batch's own tokens.
        """
        share = totals["dp_size"] * status["num_action_tokens"] / totals["batch_num_tokens"]
        for name in status["metrics"].keys() & {"policy_loss", "entropy_loss", "kl"}:
            if status["weights"][name] != "token":  # a KL that is no part of the loss: a mean of every row
                continue
            status["metrics"][name] = status["metrics"][name] / share if share > 0 else status["metrics"][name]

    def _add_loss_metrics(self, status) -> None:
        """A mean over one kind of token is reported as mean * share of that kind; ppo_train divides by the share."""
        metrics = self.actor_loss_fn.metrics
        off_share = metrics["off_policy_token_share"]
        shares = {name: off_share for name in OFF_POLICY_METRICS} | {name: 1 - off_share for name in ON_POLICY_METRICS}
        for name in ("off_policy_token_share", "all_clip_fraction"):
            status["metrics"][name], status["weights"][name] = metrics[name], "token"
        for name, share in shares.items():
            status["metrics"][name] = metrics[name] * share
            status["weights"][name] = "token"
        # Upstream's name for clip_fraction; its ppo_kl is overwritten above.
        del status["metrics"]["ppo_clip_ratio"], status["weights"]["ppo_clip_ratio"]

    def _set_totals_of_dynamic_step(self, step: int) -> None:
        """The loss learns the totals of the optimizer step that micro-batch ``step`` belongs to."""
        buffer, first, last = self.replay_buffer, step, step
        while first > 0 and not buffer.dynamic_optimizer_step[first - 1]:
            first -= 1
        if first < step:  # known from the step's first micro-batch
            return
        while not buffer.dynamic_optimizer_step[last]:
            last += 1
        rows = itertools.chain.from_iterable(buffer.dynamic_indices[first : last + 1])
        whole_step = make_experience_batch([buffer.items[row] for row in rows])
        self.actor_loss_fn.of_teachers, self.actor_loss_fn.of_rollouts = (
            _Totals.of(get_loss_batch_info(self.strategy, mask_of(whole_step))) for mask_of in _KINDS
        )

    def _with_totals(self, micro_batches: Iterable, strategy, steps: int, mask_of) -> Iterator:
        """OpenRLHF's micro-batches with the totals of their optimizer step; the loss learns those of each kind."""
        masks = (mask_of, *_KINDS)
        copies = itertools.tee(micro_batches, len(masks))
        with_totals = (_ITERATE(copy, strategy, steps, mask) for copy, mask in zip(copies, masks, strict=True))
        for (experience, totals), (_, of_teachers), (_, of_rollouts) in zip(*with_totals, strict=True):
            self.actor_loss_fn.of_teachers = _Totals.of(of_teachers)
            self.actor_loss_fn.of_rollouts = _Totals.of(of_rollouts)
            yield experience, totals

    def _loader(self, buffer, batch_size: int, shuffle: bool, drop_last: bool, **settings):
        """OpenRLHF's loader of micro-batches; where it would shuffle rows, sorted by length within a step."""
        if not shuffle:
            return _LOADER(buffer, batch_size=batch_size, shuffle=False, drop_last=drop_last, **settings)
        lengths = [len(item.sequences) for item in buffer.items]
        batches = LengthSortedBatches(lengths, batch_size, self.strategy.accumulated_gradient)
        return _LOADER(buffer, batch_sampler=batches, **settings)

    def ppo_train(self, kl_ctl: float):
        # ppo_train finds these two by their names in the module.
        ppo_actor.DataLoader = self._loader
        ppo_actor.iter_grad_accum_global_norm = self._with_totals
        status = super().ppo_train(kl_ctl)
        off_share = status.get("off_policy_token_share", 0.0)
        for names, share in ((OFF_POLICY_METRICS, off_share), (ON_POLICY_METRICS, 1 - off_share)):
            for name in status.keys() & set(names):
                status[name] = status[name] / share if share > 0 else 0.0
        return status


# PolicyModelActor builds its trainer by this name, which is looked up in this process.
ppo_actor.ActorPPOTrainer = OgerActorPPOTrainer


class OgerPolicyModelActor(undecorated(ppo_actor.PolicyModelActor)):  # type: ignore[misc]
    """OpenRLHF's policy actor whose forward pass also returns the entropies that weigh the bonus."""

    def init_model_from_pretrained(self, strategy, *args, **kwargs):
        if strategy.args.oger.chunked_token_stats:
            ppo_actor.Actor = ChunkedActor  # upstream builds its model by this name
        return super().init_model_from_pretrained(strategy, *args, **kwargs)

    def fit(self, kl_ctl: float = 0) -> dict[str, float]:
        health = UpdateHealth(self.strategy, self.actor.model)
        return super().fit(kl_ctl) | health.since()

    def save_checkpoint(self, tag, *args, **kwargs) -> None:
        with place(self.strategy.args.ckpt, tag) as name:
            super().save_checkpoint(name, *args, **kwargs)

    def forward(self, sequences, action_mask, attention_mask, **kwargs) -> tuple[torch.Tensor, ...]:
        """Log-probabilities [B, A] (0 where masked) and two entropies [B] (nats) of the response: at
        ``oger.entropy_position``, and the mean over its tokens.

        Rows without response tokens do not pass through the model; their entropies are nan.
        """
        device = torch.cuda.current_device()
        asked = action_mask.any(dim=1)
        rows = asked.clone()
        rows[0] |= not asked.any()  # with sharded weights every rank takes part in every forward pass
        log_probs, entropies = torch.zeros(action_mask.shape), torch.full((2, len(asked)), torch.nan)
        log_probs[rows], entropies[:, rows] = self._forward(
            sequences[rows].to(device), action_mask[rows].to(device), attention_mask[rows].to(device)
        )
        entropies[:, ~asked] = torch.nan
        return log_probs, *entropies

    def _forward(self, sequences, action_mask, attention_mask) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [B, A], and the two entropies of each row, [2, B]."""
        oger = self.strategy.args.oger
        self.actor.eval()
        with torch.no_grad():
            log_probs, output = self.actor(
                sequences,
                action_mask,
                attention_mask,
                ring_attn_group=self.strategy.ring_attn_group,
                return_output=True,
                return_entropy=True,
            )
            of_tokens = output.entropy[:, -action_mask.shape[1] :]
            entropies = [
                response_entropy(of_tokens, action_mask, position=position, top_share=oger.entropy_top_share)
                for position in (oger.entropy_position, "mean")
            ]
        self.actor.train()
        return log_probs.float().cpu(), torch.stack(entropies).float().cpu()
