"""What the trainers of policy and critic ask of DeepSpeed: when an update is due, and whether it took place.

And how they read metrics: on a GPU each number that is read waits until all that was started before it is done. What
a micro-batch still waits for: how many tokens are wanted of the policy, before it has work; OpenRLHF's number of
response tokens, and the critic's loss and values; DeepSpeed's norm of the gradients; all metrics together; and their
sum over ranks. A step with oger.kl_stop waits for the sum of its KL. tests/integration/test_waits.py counts them.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from oger_recipe.base.seeds import stable_seed


def accumulate_until_last(engine: Any, buffer: NaiveReplayBuffer, micro_batch: int) -> None:
    """Tell DeepSpeed, before the forward pass, whether the dynamic batch ``micro_batch`` ends its optimizer step.

    OpenRLHF 0.11.2 configures DeepSpeed for one micro-batch a step there (``gradient_accumulation_steps`` 1) and calls
    ``step()`` after the last. Under ZeRO 1 and 2 DeepSpeed 0.19.6 then replaces its averaged gradients at every
    backward pass, so that the last micro-batch alone would be trained on.
    """
    engine.set_gradient_accumulation_boundary(bool(buffer.dynamic_optimizer_step[micro_batch]))


def read_together(metrics: dict[str, Any]) -> dict[str, Any]:
    """Replace each tensor of the metrics by its mean, read in one go; all tensors lie on one device."""
    means = {name: value.float().mean() for name, value in metrics.items() if isinstance(value, torch.Tensor)}
    return metrics | dict(zip(means, torch.stack(list(means.values())).tolist(), strict=True))


def sum_together(strategy: Any) -> None:
    """Make the strategy sum the numbers of a dictionary over ranks in one go; OpenRLHF sums and reads each alone."""
    strategy.all_reduce = functools.partial(_all_reduce, strategy.all_reduce)


def _all_reduce(upstream: Callable[..., Any], data: Any, op: str = "mean") -> Any:
    if not isinstance(data, dict):
        return upstream(data, op)
    numbers = torch.tensor(list(data.values()), dtype=torch.float64)
    return dict(zip(data, upstream(numbers, op).tolist(), strict=True))


def seed_from_step(strategy: Any, engine: Any) -> None:
    """Seed what a training step draws (its micro-batches, dropout) from the updates so far, without skipped ones: a
    resumed run draws it too. All ranks draw alike, so that their micro-batches have like lengths."""
    torch.manual_seed(stable_seed(strategy.args.train.seed, engine.global_steps - engine.skipped_steps))


class UpdateHealth:
    """Makes no update with numbers that are not finite, and counts the updates of a DeepSpeed engine.

    A loss that is not finite gives gradients that are not, on its rank. DeepSpeed looks at the gradients of an update
    together with all ranks and skips it on all of them: weights, Adam's moments and the schedule of the learning rate
    stay. It says so nowhere, and its norm of gradients is then that of the update before.
    """

    def __init__(self, strategy: Any, engine: Any) -> None:
        self._strategy, self._engine = strategy, engine
        self._backward, self._step, self._norm = strategy.backward, strategy.optimizer_step, strategy.get_grad_norm
        strategy.backward, strategy.optimizer_step = self._backward_of_finite, self._counted_step
        strategy.get_grad_norm = self._norm_of_update
        self._seen = engine.global_steps, engine.skipped_steps
        # In no checkpoint: a skipped update changes nothing, and a resumed run that forgets a series below the limit
        # skips at most oger.max_skipped_updates more before it stops.
        self._in_a_row, self._is_skipped = 0, False
        self.begin()

    def begin(self) -> None:
        """Start to count for a training step."""
        self._updates, self._skipped = self._engine.global_steps, self._engine.skipped_steps
        self._longest = 0
        self._bad_losses = torch.zeros(())

    def _backward_of_finite(self, loss: torch.Tensor, *rest: Any, **settings: Any) -> None:
        is_finite = loss.detach().isfinite()
        self._bad_losses = self._bad_losses.to(loss.device) + ~is_finite  # read where the training step ends
        self._backward(loss * torch.where(is_finite, 1.0, torch.nan), *rest, **settings)

    def _counted_step(self, *args: Any, **settings: Any) -> None:
        self._step(*args, **settings)
        updates, skipped = self._seen
        self._seen = self._engine.global_steps, self._engine.skipped_steps
        if self._seen[0] == updates:  # not the last micro-batch
            return
        self._is_skipped = self._seen[1] > skipped
        # In float16 a skipped update is how DeepSpeed finds the scale of the loss, and it stops by itself.
        counts = self._is_skipped and self._strategy.args.ds.param_dtype != "fp16"
        self._in_a_row = self._in_a_row + 1 if counts else 0
        self._longest = max(self._longest, self._in_a_row)

    def _norm_of_update(self, *args: Any) -> float:
        return math.nan if self._is_skipped else float(self._norm(*args))

    @torch.no_grad()
    def since(self) -> dict[str, float]:
        """Count since ``begin``: ``updates``, ``skipped_updates``, the longest series of them (``skipped_in_a_row``,
        with those before it of earlier steps), and, on the rank with the most, micro-batches whose loss is not finite
        (``nonfinite_losses``) and such parameters (``nonfinite_parameters``, tensors)."""
        shares = (getattr(parameter, "ds_tensor", parameter) for parameter in self._engine.module.parameters())
        local = [tensor for tensor in shares if tensor.is_floating_point() and tensor.numel()]
        # The largest number of each, of which inf and nan stay.
        largest = torch.stack(torch._foreach_norm(local, ord=torch.inf)) if local else torch.zeros(0)
        broken = (~largest.isfinite()).sum()
        most = self._strategy.all_reduce(torch.stack([self._bad_losses.to(broken.device), broken]).float(), op="max")
        bad_losses, bad_parameters = most.tolist()
        return {
            "updates": float(self._engine.global_steps - self._updates),
            "skipped_updates": float(self._engine.skipped_steps - self._skipped),
            "skipped_in_a_row": float(self._longest),
            "nonfinite_losses": bad_losses,
            "nonfinite_parameters": bad_parameters,
        }
