"""The processes that hold a model to train or to compare with: policy, critic, reference, reward model.

Whoever imports a module of this package gets its process prepared first.
"""

from typing import Any

from oger_recipe.patches import apply_model_patches
from oger_recipe.pipeline import give_way_to_engine

apply_model_patches()


class HoldsPort:
    """An actor that gives way to the engine, and keeps the port of its process group from when it has chosen it.

    Upstream gives it back until the group's store listens there, seconds later, and meanwhile it may be another's.
    """

    _master_addr: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        give_way_to_engine()
        super().__init__(*args, **kwargs)

    def _get_free_port(self) -> int:
        from oger_recipe.patches import torch_store_address

        try:
            return torch_store_address.held_port(self._master_addr)
        except OSError:  # an address that no interface has, of a NAT, say: the store listens everywhere
            port: int = super()._get_free_port()  # type: ignore[misc]
            return port
