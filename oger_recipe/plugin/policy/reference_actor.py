"""OpenRLHF's reference and reward actors; their module is imported after the machine's patches."""

from oger_recipe.imports import without_garbage_collection
from oger_recipe.plugin.ray_actor import give_way_to_engine, undecorated

give_way_to_engine()

with without_garbage_collection():
    from oger_recipe.patches import apply_training_patches

    apply_training_patches()

    from openrlhf.trainer.ray import launcher


class OgerReferenceModelActor(undecorated(launcher.ReferenceModelActor)):  # type: ignore[misc]
    """Unchanged: exists so that the worker imports this module first."""


class OgerRewardModelActor(undecorated(launcher.RewardModelActor)):  # type: ignore[misc]
    """Unchanged: exists so that the worker imports this module first."""
