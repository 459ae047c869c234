"""What code of others gives for several rows or steps at once."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any


def is_list(values: Any) -> bool:
    """Say whether these are values in an order: a list, tuple, array, tensor, series or generator.

    Anything else goes over characters, keys or names of columns, or in an order of its own, and these would be taken
    for the values of rows.
    """
    if isinstance(values, str | bytes | bytearray | Mapping | Set) or getattr(values, "ndim", 1) == 0:
        return False
    return hasattr(values, "__iter__") and (not hasattr(values, "keys") or hasattr(values, "tolist"))
