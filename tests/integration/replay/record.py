"""``python tests/integration/replay/record.py [CASE ...]``: writes what the replay has to give from now on.

Run it after a change of behaviour that is meant, and commit what it writes together with that change. A change that
only moves code needs no new record. Nothing here can tell right from wrong: it writes down what the code does.
"""

import hashlib
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from replay import CASES, HERE, replayed

_TEXTS = ("json", "probe")


def probe() -> str:
    """A digest of the operations of a replay whose last bit is the machine's own: exponentials, sums, gradients.

    Vector instructions, the maker of the processor and a library's choice of code decide that bit. Where two machines
    have this digest in common, they make the same numbers. The lengths are those of a replay's tensors.
    """
    digest = hashlib.sha256()
    drawn = np.random.default_rng(0).random(15_360)  # whole numbers times a power of 2: the same everywhere
    for dtype, length in ((dtype, length) for dtype in ("f4", "f8") for length in (48, 828, 1_723, 3_072, 15_360)):
        values = torch.from_numpy(drawn[:length].astype(dtype) + 0.5).requires_grad_()
        rows = values[: length // 8 * 8].reshape(-1, 8)
        made = [
            values.exp(), values.log(), values.sigmoid(), values.pow(1.5), values.sqrt(), values.sum(), values.mean(),
            values.std(), values.nansum(), values.norm(), values[:48].dot(values[-48:]),
            torch.lerp(values, values[0], 0.1),
            *(of for dim in (0, 1) for of in (rows.sum(dim), rows.mean(dim), rows.std(dim), rows.norm(dim=dim))),
            rows.log_softmax(-1), rows.softmax(-1), rows.logsumexp(-1),
        ]  # fmt: skip
        (made[2] * made[0] + made[1] * made[3] + made[-3].sum()).mean().backward()
        assert values.grad is not None
        for array in (*(each.detach().numpy() for each in (*made, values.grad)), np.exp(drawn[:length].astype(dtype))):
            digest.update(array.tobytes())
    digest.update(np.array([of(number) for number in drawn[:999] for of in (math.exp, math.log, math.tanh)]).tobytes())
    return digest.hexdigest()


def record(case: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = replayed(case, Path(folder)) | {"probe": probe()}
    path = HERE / "expected" / f"{case.replace(' ', '_')}.npz"
    np.savez_compressed(path, **found | {name: np.array(json.dumps(found[name])) for name in _TEXTS})
    print(f"{path}: {len(found)} arrays, {path.stat().st_size} bytes")


def expected(case: str) -> dict[str, Any]:
    """What `record` wrote: what `replayed` gave then, and the ``probe`` of the machine that it gave it on."""
    found = dict(np.load(HERE / "expected" / f"{case.replace(' ', '_')}.npz"))
    return found | {name: json.loads(str(found[name])) for name in _TEXTS}


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        record(name)
