"""What ZeRO 3 gathers is whole before anyone uses it.

Upstream: deepspeed.runtime.zero.partition_parameters.Init._allgather_params_coalesced.
Why: it starts one gather for each parameter and waits for the last alone. On a GPU they end in their order, gloo runs
them side by side: what was written to the first parameter could be overwritten by its own gather, and lost.
Checked: deepspeed 0.19.6. Needed until it waits for all of them.
"""

import functools
from typing import Any

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "2f1079d32369766878e9ae1cd62105a10b534c5bc0ec9924402dff274b8bcd96"


@functools.cache
def apply() -> None:
    """Make DeepSpeed gather one parameter after the other in this process."""
    from deepspeed.runtime.zero.partition_parameters import Init

    require_source(
        Init._allgather_params_coalesced, SOURCE_SHA256, package="deepspeed", checked="0.19.6", patch=__name__
    )

    # Its quantized gathers are for GPUs.
    def one_by_one(self: Any, param_list: list[Any], hierarchy: int = 0, quantize: bool = False) -> None:
        self._allgather_params_sequential(param_list, hierarchy)

    Init._allgather_params_coalesced = one_by_one
