"""The process of an encoder that has a share of a GPU (oger.embedding_num_gpus), and what the controller keeps of it.

Whoever imports a module of this package gets its process prepared first.
"""

from oger_recipe.patches import apply_import_patches

apply_import_patches()
