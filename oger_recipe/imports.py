"""How the processes of a run import what they need."""

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """For import statements of thousands of modules, a quarter faster so.

    What they make is kept for good, yet the collector walks all of it, again and again while it grows. Afterwards it
    leaves it alone.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.freeze()
            gc.enable()


def import_without(module: str, *absent: str) -> None:
    """Imports ``module`` as if the modules ``absent`` were not installed, those aside that are loaded already.

    Whoever imports them afterwards gets them.
    """
    hidden = [name for name in absent if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        importlib.import_module(module)
    finally:
        for name in hidden:
            del sys.modules[name]
