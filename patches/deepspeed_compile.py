"""DeepSpeed is imported without torch's compiler.

Upstream: the modules deepspeed.compile.backend and deepspeed.compile.inductor, which deepspeed's engine imports.
Why: they import torch's compiler for DeepSpeed's own, which has to be asked for: most of a second of CPU in each
process that trains. Where torch has no compiler, DeepSpeed goes without; so it does here.
Checked: deepspeed 0.19.6. Needed for as long as the imports are not made where they are used.
"""

from oger_recipe.base.imports import import_without


def apply() -> None:
    """Import deepspeed as if what the two ask for were absent."""
    import_without("deepspeed", "functorch.compile", "torch._inductor.lowering")
