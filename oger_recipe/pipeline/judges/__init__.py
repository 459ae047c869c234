"""The processes of reward models, a vLLM engine in each, and what the controller keeps of them.

Whoever imports a module of this package gets its process prepared first.
"""

from oger_recipe.patches import apply_vllm_import_patches

apply_vllm_import_patches()
