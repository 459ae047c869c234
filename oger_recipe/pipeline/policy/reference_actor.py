"""OpenRLHF's reference and reward actors; their module is imported after the machine's patches."""

from openrlhf.trainer.ray import launcher

from oger_recipe.pipeline.ray_actor import undecorated


class OgerReferenceModelActor(undecorated(launcher.ReferenceModelActor)):  # type: ignore[misc]
    """Unchanged: exists so that the worker imports this module first."""


class OgerRewardModelActor(undecorated(launcher.RewardModelActor)):  # type: ignore[misc]
    """Unchanged: exists so that the worker imports this module first."""
