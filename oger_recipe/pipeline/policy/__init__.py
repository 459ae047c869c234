"""The processes that hold a model to train or to compare with: policy, critic, reference, reward model.

Whoever imports a module of this package gets its process prepared first.
"""

from oger_recipe.patches import apply_model_patches
from oger_recipe.pipeline import give_way_to_engine

give_way_to_engine()
apply_model_patches()
