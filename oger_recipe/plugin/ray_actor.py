"""Access to the classes under OpenRLHF's ``@ray.remote`` decorators."""

from typing import Any


def undecorated(actor_class: Any) -> type:
    """The plain class that ``@ray.remote`` wrapped.

    Ray refuses to subclass an actor class. A subclass of the plain class, defined in an importable module, is pickled
    by reference: the worker imports that module, so what the module does at import happens there first.
    """
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__
