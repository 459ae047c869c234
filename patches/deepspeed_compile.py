"""DeepSpeed is imported without torch's compiler.

Upstream: the modules deepspeed.compile.backend and deepspeed.compile.inductor, which deepspeed's engine imports.
Why: they import torch's compiler for DeepSpeed's own, which has to be asked for: most of a second of CPU in each
process that trains. Where torch has no compiler, DeepSpeed goes without; so it does here.
Checked: deepspeed 0.19.6. Needed for as long as the imports are not made where they are used.
"""

import importlib
import sys

HIDDEN = ("functorch.compile", "torch._inductor.lowering")  # what the two ask for


def apply() -> None:
    """Imports deepspeed as if the compiler were absent; whoever imports the compiler afterwards gets it."""
    if "deepspeed" in sys.modules:
        return
    hidden = [name for name in HIDDEN if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        importlib.import_module("deepspeed")
    finally:
        for name in hidden:
            del sys.modules[name]
