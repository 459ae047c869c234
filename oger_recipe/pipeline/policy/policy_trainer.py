"""OpenRLHF's trainer of the policy with the hybrid loss, and with metrics of teachers and rollouts apart."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.loss_utils import get_loss_batch_info
from peft import PeftModel

from oger_recipe.algorithm.batches import LengthSortedBatches, unit_mask
from oger_recipe.pipeline.experiences import compute_approx_kl, teachers_tokens
from oger_recipe.pipeline.policy.adapters import send_merged
from oger_recipe.pipeline.policy.kl_stop import KlStop, UntilReached
from oger_recipe.pipeline.policy.loss import Given, HybridPolicyLoss, Totals
from oger_recipe.pipeline.policy.updates import accumulate_until_last, read_together, sum_together
from oger_recipe.settings.loss import LossSettings

ppo_actor.compute_approx_kl = compute_approx_kl  # training_step finds it by this name
_LOADER = ppo_actor.DataLoader
_ITERATE = ppo_actor.iter_grad_accum_global_norm


# The rest of the loss's metrics: means over the teacher's tokens, or over the rollouts' tokens or steps.
OFF_POLICY_METRICS = (
    "off_policy_loss", "off_policy_prob", "off_policy_ratio", "off_policy_ratio_max_clip_fraction",
    "off_policy_ratio_min_clip_fraction",
)  # fmt: skip
ON_POLICY_METRICS = ("on_policy_loss", "on_policy_prob", "on_policy_ratio", "clip_fraction", "ppo_kl", "approx_kl")
_OF_KINDS = "of_kinds"  # the totals of _kinds, on their way beside OpenRLHF's
# In place of 0 where oger.taught_group leaves out all rows of a micro-batch or a step: upstream divides by it.
_FEWEST_TOKENS = 1e-6
_MERGED = "merged_token_share"  # of tokens that the first of their step stands for, in means over steps


def _with_joined_info(collate: Callable[[list], Experience], rows: list) -> Experience:
    """Make OpenRLHF's micro-batch with one tensor for each metric; else each row's is moved and read alone."""
    experience = collate(rows)
    experience.info = {name: torch.stack(list(values)) for name, values in experience.info.items()}
    return experience


def _every_row(experience: Experience) -> torch.Tensor:
    """Mark a token of each row (bool [B, A]), also of those that are left out of the loss."""
    return torch.ones_like(experience.action_mask, dtype=torch.bool)


class OgerActorPPOTrainer(ppo_actor.ActorPPOTrainer):
    """OpenRLHF's policy trainer with the hybrid loss."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        sum_together(self.strategy)
        self.actor_loss_fn = HybridPolicyLoss(self.args)
        self._of_dynamic_step: dict[str, Totals] = {}  # _totals_of_dynamic_step's, from the first micro-batch on
        if self.actor_loss_fn.reads_entropy:
            if self.args.actor.entropy_coef is None:
                self.args.actor.entropy_coef = 0.0  # upstream's forward pass computes entropies then
            self.actor.register_forward_hook(self._keep_entropy)
        self.kl_stop = KlStop(LossSettings.of(self.args.oger).kl_stop, self.strategy)

    def _keep_entropy(self, actor: torch.nn.Module, inputs: tuple, output: tuple | torch.Tensor) -> None:
        if isinstance(output, tuple):
            self.actor_loss_fn.entropy = output[1].entropy.detach()

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Wait for the engines first: upstream's waits for one that could not start until the time limit."""
        ray.get([engine.__ray_ready__.remote() for engine in self.vllm_engines])
        super()._init_vllm_sync_group(backend)

    def broadcast_to_vllm(self) -> None:
        """Send the policy's weights, with its adapter merged into them if it has one."""
        send = super().broadcast_to_vllm
        if isinstance(self.actor.model.module, PeftModel):
            send_merged(send, self)
        else:
            send()

    def _units(self, experience: Experience) -> torch.Tensor:
        """Mark the tokens that the loss counts (bool [B, A]): all of a response, or the first of each step."""
        if not self.actor_loss_fn.by_step:
            return experience.action_mask.bool()
        if experience.step_index is None:
            raise ValueError("oger.ratio_level is step, and the experience that came does not say its steps")
        return unit_mask(experience.action_mask, teachers_tokens(experience), experience.step_index)

    def _rollouts_units(self, experience: Experience) -> torch.Tensor:
        return self._units(experience) & ~teachers_tokens(experience)

    @property
    def _kinds(self) -> Mapping[str, Callable[[Experience], torch.Tensor]]:
        """Masks of what the loss needs the totals of, by its names for them."""
        more = {"of_units": self._units} if self.actor_loss_fn.by_step else {}
        more |= {"of_every_row": _every_row} if self.actor_loss_fn.counts_every_row else {}
        return {"of_teachers": teachers_tokens, "of_rollouts": self._rollouts_units} | more

    def training_step(self, experience: Experience, kl_ctl: float, step: int, loss_batch_info=None):
        if loss_batch_info is None:  # dynamic batches
            loss_batch_info = get_loss_batch_info(
                self.strategy, experience.action_mask, replay_buffer=self.replay_buffer, step=step, dynamic_batch=True
            )
            of_kinds = self._totals_of_dynamic_step(step, experience.action_mask.device)
            accumulate_until_last(self.actor.model, self.replay_buffer, step)
        else:
            of_kinds = loss_batch_info.pop(_OF_KINDS)
        loss_batch_info["batch_num_tokens"] = loss_batch_info["batch_num_tokens"].clamp(min=_FEWEST_TOKENS)
        mask = teachers_tokens(experience)
        of_rows = experience.info.get("sft_loss_coef")  # one number, of the step
        self.actor_loss_fn.given = Given(
            mask,
            experience.step_index,
            experience.engine_weights,
            experience.teacher_log_probs,
            sft_loss_coef=None if of_rows is None else of_rows[0],
            **of_kinds,
        )
        status = super().training_step(experience, kl_ctl, step, loss_batch_info)
        if self.kl_stop.limit is not None:
            metrics = self.actor_loss_fn.metrics
            self.kl_stop.trained(metrics["approx_kl"], metrics["rollout_tokens"], ends_step=self._ends_step(step))
        self._add_loss_metrics(status, experience)
        self._even_out(status, loss_batch_info)
        counted = max(status["num_action_tokens"], _FEWEST_TOKENS)
        return status | {"metrics": read_together(status["metrics"]), "num_action_tokens": counted}

    def _ends_step(self, micro_batch: int) -> bool:
        if self.args.train.dynamic_batch_enable:
            return bool(self.replay_buffer.dynamic_optimizer_step[micro_batch])
        return (micro_batch + 1) % self.strategy.accumulated_gradient == 0

    @staticmethod
    def _even_out(status, totals) -> None:
        """Turn losses that are shares of a step's mean into means over the micro-batch's own tokens.

        Upstream averages them by tokens; shares would have to be summed.
        """
        if not status["num_action_tokens"]:
            return
        share = totals["dp_size"] * status["num_action_tokens"] / totals["batch_num_tokens"]
        for name in status["metrics"].keys() & {"policy_loss", "entropy_loss", "kl"}:
            if status["weights"][name] == "token":  # a KL that is no part of the loss is a mean of every row
                status["metrics"][name] = status["metrics"][name] / share

    def _add_loss_metrics(self, status, experience: Experience) -> None:
        """Report a mean over one kind of token as mean * share of that kind; ppo_train divides by the share.

        By steps of reasoning the share is that of the tokens which stand for them, in all response tokens.
        """
        metrics = self.actor_loss_fn.metrics
        if self.actor_loss_fn.by_step:
            tokens = experience.action_mask.sum().clamp(min=1)
            metrics["off_policy_token_share"] = teachers_tokens(experience).sum() / tokens
            status["metrics"][_MERGED] = 1 - self._units(experience).sum() / tokens
            status["weights"][_MERGED] = "token"
        off_share = metrics["off_policy_token_share"]
        on_share = 1 - off_share - status["metrics"].get(_MERGED, 0.0)
        shares = {name: off_share for name in OFF_POLICY_METRICS} | {name: on_share for name in ON_POLICY_METRICS}
        for name in ("off_policy_token_share", "all_clip_fraction"):
            status["metrics"][name], status["weights"][name] = metrics[name], "token"
        for name, share in shares.items():
            status["metrics"][name] = metrics[name] * share
            status["weights"][name] = "token"
        # Upstream's name for clip_fraction; its ppo_kl is overwritten above.
        del status["metrics"]["ppo_clip_ratio"], status["weights"]["ppo_clip_ratio"]

    def _totals_of_dynamic_step(self, step: int, device: torch.device) -> dict[str, Totals]:
        """Return the totals of the optimizer step that micro-batch ``step`` belongs to.

        The buffer's rows lie on the CPU; the sums over ranks need the policy's device, since NCCL has no others.
        """
        buffer, last = self.replay_buffer, step
        if step > 0 and not buffer.dynamic_optimizer_step[step - 1]:
            return self._of_dynamic_step
        while not buffer.dynamic_optimizer_step[last]:
            last += 1
        rows = itertools.chain.from_iterable(buffer.dynamic_indices[step : last + 1])
        whole_step = make_experience_batch([buffer.items[row] for row in rows])
        masks = {name: mask_of(whole_step).to(device) for name, mask_of in self._kinds.items()}
        of_kinds = {name: Totals.of(get_loss_batch_info(self.strategy, mask)) for name, mask in masks.items()}
        self._of_dynamic_step = of_kinds
        return of_kinds

    def _with_totals(self, micro_batches: Iterable, strategy, steps: int, mask_of) -> Iterator:
        """Yield OpenRLHF's micro-batches with the totals of their optimizer step, and those of each kind."""
        kinds = self._kinds
        masks = (mask_of, *kinds.values())
        copies = itertools.tee(micro_batches, len(masks))
        with_totals = (_ITERATE(copy, strategy, steps, mask) for copy, mask in zip(copies, masks, strict=True))
        for (experience, totals), *of_kinds in zip(*with_totals, strict=True):
            named = zip(kinds, of_kinds, strict=True)
            yield experience, totals | {_OF_KINDS: {name: Totals.of(of_kind) for name, (_, of_kind) in named}}

    def _loader(self, buffer, batch_size: int, shuffle: bool, drop_last: bool, **settings):
        """Make OpenRLHF's loader of micro-batches; where it would shuffle rows, sort by length within a step."""
        settings["collate_fn"] = functools.partial(_with_joined_info, settings["collate_fn"])
        if shuffle:
            lengths = [len(item.sequences) for item in buffer.items]
            batches = LengthSortedBatches(lengths, batch_size, self.strategy.accumulated_gradient)
            loader = _LOADER(buffer, batch_sampler=batches, **settings)
        else:
            loader = _LOADER(buffer, batch_size=batch_size, shuffle=False, drop_last=drop_last, **settings)
        self.kl_stop.begin(self.max_epochs * sum(map(self._ends_step, range(len(loader)))))
        return UntilReached(loader, self.kl_stop)

    def ppo_train(self, kl_ctl: float):
        # ppo_train finds these two by their names in the module.
        ppo_actor.DataLoader = self._loader
        ppo_actor.iter_grad_accum_global_norm = self._with_totals
        status = super().ppo_train(kl_ctl)
        off_share = status.get("off_policy_token_share", 0.0)
        on_share = 1 - off_share - status.pop(_MERGED, 0.0)
        for names, share in ((OFF_POLICY_METRICS, off_share), (ON_POLICY_METRICS, on_share)):
            for name in status.keys() & set(names):
                status[name] = status[name] / share if share > 0 else 0.0
        if self.kl_stop.limit is not None:
            status |= self.kl_stop.metrics()
            for _ in range(self.kl_stop.left_out):  # the learning rate of a step is that of its place in the run
                self.actor_scheduler.step()
        return status
