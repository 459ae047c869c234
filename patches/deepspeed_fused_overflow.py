"""An update without ZeRO whose gradients are not finite is skipped in bfloat16 too, not only counted as skipped.

Upstream: deepspeed.runtime.fp16.fused_optimizer.FP16_Optimizer.step.
Why: it looks for such gradients and leaves only in float16; in bfloat16 it updates, and nan goes into every parameter,
while the engine counts a skipped step. It is the optimizer of ZeRO 0 with FusedAdam, so with CUDA.
Checked: deepspeed 0.19.6. Needed until it leaves in bfloat16, as unfused_optimizer.py does.
"""

import functools
from typing import Any

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "a4108507489cdb35e7f5aea3cb85c715ecd3e0bb3699cad0379354883be3652b"


@functools.cache
def apply() -> None:
    """Make the optimizer leave before it changes anything; DeepSpeed has summed gradients over ranks by then."""
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer

    upstream = FP16_Optimizer.step
    require_source(upstream, SOURCE_SHA256, package="deepspeed", checked="0.19.6", patch=__name__)

    def step(self: Any, closure: Any = None) -> Any:
        if not self.loss_scale_config.use_grad_scaling:
            gradients = [each for group in self.fp16_groups for each in group if each.grad is not None]
            self.overflow = self.overflow_checker.has_overflow(gradients)
            if self.overflow:  # the engine clears the gradients
                return self.overflow
        return upstream(self, closure)

    FP16_Optimizer.step = step
