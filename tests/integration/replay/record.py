"""``python tests/integration/replay/record.py [CASE ...]``: writes what the replay has to give from now on.

Run it after a change of behaviour that is meant, and commit what it writes together with that change. A change that
only moves code needs no new record. Nothing here can tell right from wrong: it writes down what the code does.
"""

import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from replay import CASES, HERE, replayed

_TEXTS = ("json", "machine")


def machine() -> dict[str, str]:
    """What decides the last bit of an exponential or a sum, besides the code."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "architecture": platform.machine(), "capability": capability}


def record(case: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = replayed(case, Path(folder)) | {"machine": machine()}
    path = HERE / "expected" / f"{case.replace(' ', '_')}.npz"
    np.savez_compressed(path, **found | {name: np.array(json.dumps(found[name])) for name in _TEXTS})
    print(f"{path}: {len(found)} arrays, {path.stat().st_size} bytes")


def expected(case: str) -> dict[str, Any]:
    """What `record` wrote: what `replayed` gave then, and the ``machine`` that it gave it on."""
    found = dict(np.load(HERE / "expected" / f"{case.replace(' ', '_')}.npz"))
    return found | {name: json.loads(str(found[name])) for name in _TEXTS}


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        record(name)
