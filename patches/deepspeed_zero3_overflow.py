"""ZeRO 3 skips an update whose gradients are not finite, in bfloat16 too.

Upstream: deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3._overflow_check_and_loss_scale_update.
Why: it looks for such gradients in float16 alone, where ZeRO 0 to 2 look in bfloat16 as well: nan goes into Adam's
moments and into every parameter.
Checked: deepspeed 0.19.6. Needed until it heeds bf16's check_grad_overflow. Also where CUDA is available.
"""

import functools
from typing import Any

import torch

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "6ea4d4ee5f796d6d38b067ba27c5a9efd169ee104619c585c7e573702ac12efb"


@functools.cache
def apply() -> None:
    """Make ZeRO 3 look at the gradients of every update in this process; all ranks decide together."""
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    require_source(DeepSpeedZeroOptimizer_Stage3, SOURCE_SHA256, package="deepspeed", checked="0.19.6", patch=__name__)
    upstream = DeepSpeedZeroOptimizer_Stage3._overflow_check_and_loss_scale_update

    def checked(self: Any) -> bool:
        if self.dtype != torch.float16:
            self.check_overflow()
        return bool(upstream(self))  # skips where `overflow` is set

    DeepSpeedZeroOptimizer_Stage3._overflow_check_and_loss_scale_update = checked
