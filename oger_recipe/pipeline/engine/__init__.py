"""The process that samples and grades rollouts, and vLLM's own processes that it starts.

Whoever imports a module of this package gets its process prepared first.
"""

from oger_recipe.patches import apply_vllm_import_patches

apply_vllm_import_patches()
