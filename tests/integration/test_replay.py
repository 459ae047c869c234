"""The same rollouts give the same rewards, bonuses, advantages and losses as before: see replay/replay.py.

To the last bit on the kind of machine that the record was made on (torch, architecture, vector instructions);
elsewhere to 1e-6 of an array's largest number, as sums and exponentials may differ in the last bit there.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from record import expected, machine
from replay import CASES, replayed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is replayed was recorded without CUDA")


@pytest.mark.parametrize("case", CASES)
def test_the_same_rollouts_give_the_same_rewards_advantages_and_losses(case: str, tmp_path: Path) -> None:
    wanted = expected(case)
    exact = wanted.pop("machine") == machine()
    found = _differences(replayed(case, tmp_path), wanted, exact, case)
    how = "to the last bit" if exact else "to 1e-6"
    assert not found, f"{len(found)} differences from the record, {how}:\n" + "\n".join(sorted(found)[:30])


def _differences(found: Any, wanted: Any, exact: bool, name: str) -> list[str]:
    """Where ``found`` lacks something or says something else; what it has besides does not matter. nan equals nan."""
    if isinstance(wanted, dict):
        missing = [f"{name}/{key} is missing" for key in wanted.keys() - found.keys()]
        shared = wanted.keys() & found.keys()
        return sum((_differences(found[key], wanted[key], exact, f"{name}/{key}") for key in shared), missing)
    if isinstance(wanted, list):
        if len(found) != len(wanted):
            return [f"{name}: {len(found)} of them, not {len(wanted)}"]
        pairs = enumerate(zip(found, wanted, strict=True))
        return sum((_differences(*pair, exact, f"{name}[{number}]") for number, pair in pairs), [])
    if isinstance(wanted, str | None):
        return [] if found == wanted else [f"{name}: {found!r}, not {wanted!r}"]
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape or (wanted.ndim and found.dtype != wanted.dtype):
        return [f"{name}: {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"]
    same = (found == wanted) | ((found != found) & (wanted != wanted))
    if not exact and wanted.dtype.kind == "f":
        same |= np.abs(found - wanted) <= 1e-6 * np.nanmax(np.abs(wanted), initial=0.0)
    at = np.flatnonzero(~same)
    first = f"the first at {at[0]}: {found.flat[at[0]]!r}, not {wanted.flat[at[0]]!r}" if len(at) else ""
    return [f"{name}: {len(at)} of {same.size} differ, {first}"] if len(at) else []
