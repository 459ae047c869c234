"""OGER inside OpenRLHF: the only package that imports it, cut by the processes of a run.

Subclasses of OpenRLHF's trainer, experience maker, actors and rollout engine are put in place of its classes by
driver/install.py before its command line runs. Importing controller, policy or engine prepares the process that does:
patches come first, whichever module is asked for, and it answers with its stacks where the run stalls. Modules beside
these folders are what all of them share, and so are the functions here.
"""

import os
import signal
import sys
from multiprocessing import resource_tracker
from typing import Any

from oger_recipe.base import stacks
from oger_recipe.base.cpu import is_without_cuda

stacks.answer()
# Under SLURM a run blocks SIGTERM (scripts/slurm/ray_node.sh). multiprocessing would unblock it, here and in the
# engine that is started here.
if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    vars(resource_tracker)["_HAVE_SIGMASK"] = False


def give_way_to_engine() -> None:
    """Lower this process's priority, if it is an actor: the engine is the last to be ready, so it goes first.

    Only where all share the cores of one machine. It stays so: texts are embedded with what the engine leaves.
    """
    ray: Any = sys.modules.get("ray")
    in_actor = ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    if in_actor and is_without_cuda():
        os.nice(4)  # of the 15 at which Ray's workers run


def undecorated(actor_class: Any) -> type:
    """Return the plain class that ``@ray.remote`` wrapped.

    Ray refuses to subclass an actor class. A subclass of the plain class, defined in an importable module, is pickled
    by reference: the worker imports that module, so what the module does at import happens there first.
    """
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__
