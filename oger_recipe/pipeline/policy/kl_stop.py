"""When a batch of rollouts has been trained on enough: the policy is too far from the one that sampled them."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch


class KlStop:
    """Leaves out the rest of a batch of rollouts, later epochs too, once its KL is above ``limit`` (None: never).

    The KL is k3 of the policy that sampled to the one that is trained, the mean over the rollout tokens (or steps, see
    oger.ratio_level) that an optimizer step trains on all ranks, by its forward passes: before its own update. That
    update is made, as its gradients lie in DeepSpeed's accumulators by then; none after it is, so that a batch always
    trains once. OpenR leaves out the update alone whose mini-batch is above the limit, and tries the next one, whose
    policy is the same: there a batch is given up mini-batch by mini-batch, by its luck in the draw.
    """

    def __init__(self, limit: float | None, strategy: Any) -> None:
        self.limit, self._strategy = limit, strategy
        self.begin(0)

    def begin(self, planned: int) -> None:
        """Start a batch of rollouts with ``planned`` optimizer steps."""
        self.planned, self.done, self.kl = planned, 0, 0.0
        self._sums = torch.zeros(2, dtype=torch.float64)  # of the optimizer step: k3 and what it is of

    @property
    def is_reached(self) -> bool:
        return self.limit is not None and self.kl > self.limit

    @property
    def left_out(self) -> int:
        """Optimizer steps that the batch was not trained on."""
        return self.planned - self.done

    def trained(self, kl: torch.Tensor, count: torch.Tensor, *, ends_step: bool) -> None:
        """Take in the mean of a micro-batch, over ``count``. Every rank calls this for each of its micro-batches."""
        self._sums = self._sums.to(kl.device) + torch.stack([kl * count, count])  # read once, where a step ends
        if ends_step:
            total, counted = self._strategy.all_reduce(self._sums, op="sum").tolist()
            self.kl, self.done = total / max(counted, 1.0), self.done + 1
            self._sums = torch.zeros_like(self._sums)

    def metrics(self) -> dict[str, float]:
        return {"approx_kl_last": self.kl, "kl_stopped_updates": float(self.left_out)}


class UntilReached:
    """The micro-batches of a loader, as long as the KL allows them."""

    def __init__(self, loader: Any, stop: KlStop) -> None:
        self._loader, self._stop = loader, stop

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        micro_batches: Iterable[Any] = () if self._stop.is_reached else self._loader
        return itertools.takewhile(lambda _: not self._stop.is_reached, micro_batches)
