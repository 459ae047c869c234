"""What the trainers of policy and critic ask of DeepSpeed: when an update is due, and whether it took place.

And how they read metrics: on a GPU each number that is read waits until all that was started before it is done. What
a micro-batch still waits for: how many tokens are wanted of the policy, before it has work; OpenRLHF's number of
response tokens, and the critic's loss and values; DeepSpeed's norm of the gradients; all metrics together; and their
sum over ranks. A step with oger.kl_stop waits for the sum of its KL. tests/integration/test_waits.py counts them.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer


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


class UpdateHealth:
    """Counts the updates of a DeepSpeed engine from here on: it skips one without a word."""

    def __init__(self, strategy: Any, engine: Any) -> None:
        self._strategy, self._engine = strategy, engine
        self._updates, self._skipped = engine.global_steps, engine.skipped_steps

    @torch.no_grad()
    def since(self) -> dict[str, float]:
        """Count ``updates``, ``skipped_updates`` and ``nonfinite_parameters`` (tensors, on the rank with the most)."""
        shares = (getattr(parameter, "ds_tensor", parameter) for parameter in self._engine.module.parameters())
        local = [tensor for tensor in shares if tensor.is_floating_point() and tensor.numel()]
        # The largest number of each, of which inf and nan stay.
        largest = torch.stack(torch._foreach_norm(local, ord=torch.inf)) if local else torch.zeros(0)
        broken = (~largest.isfinite()).sum()
        return {
            "updates": float(self._engine.global_steps - self._updates),
            "skipped_updates": float(self._engine.skipped_steps - self._skipped),
            "nonfinite_parameters": float(self._strategy.all_reduce(float(broken), op="max")),
        }
