"""What the trainers of policy and critic ask of DeepSpeed: when an update is due, and whether it took place."""

from typing import Any

from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer


def accumulate_until_last(engine: Any, buffer: NaiveReplayBuffer, micro_batch: int) -> None:
    """Tells DeepSpeed, before the forward pass, whether the dynamic batch ``micro_batch`` ends its optimizer step.

    OpenRLHF 0.11.2 configures DeepSpeed for one micro-batch a step there (``gradient_accumulation_steps`` 1) and calls
    ``step()`` after the last. Under ZeRO 1 and 2 DeepSpeed 0.19.6 then replaces its averaged gradients at every
    backward pass, so that the last micro-batch alone would be trained on.
    """
    engine.set_gradient_accumulation_boundary(bool(buffer.dynamic_optimizer_step[micro_batch]))


class UpdateHealth:
    """Counts the updates of a DeepSpeed engine from here on: it skips one without a word."""

    def __init__(self, strategy: Any, engine: Any) -> None:
        self._strategy, self._engine = strategy, engine
        self._updates, self._skipped = engine.global_steps, engine.skipped_steps

    def since(self) -> dict[str, float]:
        """``updates``, ``skipped_updates`` and ``nonfinite_parameters``, tensors on any rank with such a number."""
        local = [getattr(parameter, "ds_tensor", parameter) for parameter in self._engine.module.parameters()]
        broken = sum(~tensor.detach().isfinite().all() for tensor in local)  # on the device, which is asked once
        return {
            "updates": float(self._engine.global_steps - self._updates),
            "skipped_updates": float(self._engine.skipped_steps - self._skipped),
            "nonfinite_parameters": float(self._strategy.all_reduce(float(broken), op="max")),
        }
