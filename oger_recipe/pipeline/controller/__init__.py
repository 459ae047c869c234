"""The process that decides: it asks for rollouts, makes experiences of them, and evaluates.

Whoever imports a module of this package gets its process prepared first.
"""

from oger_recipe.patches import apply_training_patches, apply_vllm_import_patches

apply_training_patches()
apply_vllm_import_patches()
