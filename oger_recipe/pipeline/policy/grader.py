"""Weights that grade in the policy's place (oger.grader), in the policy's own processes, beside it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from openrlhf.trainer.ray import ppo_actor
from torch import Tensor, nn

_FILE = "grader.pt"  # in the policy's folder of a checkpoint


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


class Average:
    """The exponential average a = (1 - rate) a + rate w of a policy's weights w, from what they are now.

    It is kept in float32, on every rank: 16 bits would round most of a small rate away. ``grader`` gets it.
    """

    def __init__(self, policy: Iterable[nn.Parameter], grader: Iterable[nn.Parameter], rate: float) -> None:
        self._policy, self._grader, self._rate = [*policy], [*grader], rate
        self._weights: list[Tensor] = [each.detach().float().clone() for each in self._policy]
        self._hand_over()

    @torch.no_grad()
    def _hand_over(self) -> None:
        for weights, grader in zip(self._weights, self._grader, strict=True):
            grader.copy_(weights)

    @torch.no_grad()
    def update(self) -> None:
        for weights, policy in zip(self._weights, self._policy, strict=True):
            weights.lerp_(policy.float(), self._rate)
        self._hand_over()

    def after_updates(self, engine: Any, step: Callable[..., None]) -> Callable[..., None]:
        """Return the strategy's ``optimizer_step`` with an update of the average after each one that took place."""

        def optimizer_step(*args: Any, **settings: Any) -> None:
            before = engine.global_steps - engine.skipped_steps
            step(*args, **settings)
            if engine.global_steps - engine.skipped_steps > before:
                self.update()

        return optimizer_step

    def save(self, checkpoint: Path) -> None:
        torch.save(self._weights, checkpoint / _FILE)

    def load(self, checkpoint: Path) -> None:
        """Take what a checkpoint has; one of a run without an average has none, which then begins with its policy."""
        if (checkpoint / _FILE).exists():
            saved = torch.load(checkpoint / _FILE, map_location=self._weights[0].device)
            self._weights = saved
            self._hand_over()
