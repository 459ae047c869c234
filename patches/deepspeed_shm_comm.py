"""DeepSpeed's ranks on one machine reduce over gloo alone, without its own shared-memory extension.

Upstream: deepspeed.comm.torch.build_shm_op.
Why: on the CPU accelerator it compiles a C++ extension at start (ninja and a compiler are needed),
which only speeds up what gloo does as well.
Checked: deepspeed 0.19.6. Needed for as long as starting the communication compiles something on a CPU.
"""

import functools
import importlib
from typing import Any

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "2bf3cff9e3d1f05863cf534d298028210a541824eb8b9832ca37877183d60395"


def _no_shm_op() -> None:
    return None


@functools.cache
def apply() -> None:
    """Make DeepSpeed start its communication without the extension in this process."""
    backend: Any = importlib.import_module("deepspeed.comm.torch")  # as an attribute, that name is torch itself
    require_source(backend.build_shm_op, SOURCE_SHA256, package="deepspeed", checked="0.19.6", patch=__name__)
    backend.build_shm_op = _no_shm_op
