"""Gradients of the micro-batches of one optimizer step, where their number differs from step to step."""

from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer


def accumulate_until_last(engine, buffer: NaiveReplayBuffer, micro_batch: int) -> None:
    """Tells DeepSpeed, before the forward pass, whether the dynamic batch ``micro_batch`` ends its optimizer step.

    OpenRLHF 0.11.2 configures DeepSpeed for one micro-batch a step there (``gradient_accumulation_steps`` 1) and calls
    ``step()`` after the last. Under ZeRO 1 and 2 DeepSpeed 0.19.6 then replaces its averaged gradients at every
    backward pass, so that the last micro-batch alone would be trained on.
    """
    engine.set_gradient_accumulation_boundary(bool(buffer.dynamic_optimizer_step[micro_batch]))
