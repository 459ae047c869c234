"""How the processes of a run import what they need."""

import contextlib
import gc
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
