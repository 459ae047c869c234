"""What OpenRLHF's actors have in common: the classes under ``@ray.remote``, and their turn on a CPU."""

import functools
import os
import sys
from typing import Any

from oger_recipe.base.cpu import is_without_cuda


@functools.cache  # once in a process, whichever of the modules it imports
def give_way_to_engine() -> None:
    """Lower an actor's priority before its package imports: the engine is the last to be ready, so it goes first.

    Only where all share the cores of one machine. It stays so: texts are embedded with what the engine leaves.
    """
    ray: Any = sys.modules.get("ray")  # an actor's process has imported it; a supervised training needs none
    in_actor = ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    if in_actor and is_without_cuda():
        os.nice(4)  # of the 15 at which Ray's workers run


def undecorated(actor_class: Any) -> type:
    """Return the plain class that ``@ray.remote`` wrapped.

    Ray refuses to subclass an actor class. A subclass of the plain class, defined in an importable module, is pickled
    by reference: the worker imports that module, so what the module does at import happens there first.
    """
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__
