"""The same rollouts give the same rewards, bonuses, advantages and losses as before: see replay/replay.py.

To the last bit where a probe of the operations proves that this machine makes the bits of the one that recorded;
elsewhere as `_is_close` says. Integers, texts and decisions are equal everywhere.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from metric_rows import without_row
from record import expected, probe
from replay import CASES, replayed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is replayed was recorded without CUDA")


@pytest.mark.parametrize("case", CASES)
def test_the_same_rollouts_give_the_same_rewards_advantages_and_losses(case: str, tmp_path: Path) -> None:
    wanted = expected(case)
    exact = wanted.pop("probe") == probe()
    found = _differences(replayed(case, tmp_path), wanted, exact, case)
    how = "to the last bit" if exact else "as far as another machine makes the same numbers"
    assert not found, f"{len(found)} differences from the record, {how}:\n" + "\n".join(sorted(found)[:30])
    assert not without_row(tmp_path / "run")


def test_a_correction_for_the_engine_weighs_gradients_and_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, inputs, flags = CASES["oger_cpu"]
    corrected = [f"--algo.advantage.is_correction_{each}" for each in ("level=token", "mode=clip")]
    bounds = ["--algo.advantage.is_correction_threshold", "0.99", "1.01"]
    monkeypatch.setitem(CASES, "corrected", (recipe, inputs, [*flags, *corrected, *bounds]))
    found, plain = replayed("corrected", tmp_path), expected("oger_cpu")
    for name in ("step_1/tokens", "step_1/advantages", "step_2/tokens", "step_2/advantages"):
        assert not _differences(found[name], plain[name], exact=False, name=name)
    names = [name for name in plain if name.endswith("gradient_of_log_probs")]
    before, after = (np.concatenate([each[name] for name in names]) for each in (plain, found))
    assert (after[before == 0] == 0).all()
    weights = after[before != 0] / before[before != 0]
    assert weights.min() == pytest.approx(0.99, rel=1e-4) and weights.max() == pytest.approx(1.01, rel=1e-4)
    assert not without_row(tmp_path / "run")


def test_another_machine_may_differ_by_rounding_alone() -> None:
    def differ(found: Any, wanted: Any) -> bool:
        assert _differences(found, wanted, exact=True, name="")
        return bool(_differences(found, wanted, exact=False, name=""))

    assert not differ([{"spread": 3.0073e-05}], [{"spread": 3.0072e-05}])  # of weights near 1
    assert not differ([{"mean": 6e-08}, {"mean": 0.5}], [{"mean": 0.0}, {"mean": 0.5}])
    assert differ([{"mean": 0.50006}], [{"mean": 0.5}]) and differ([{"mean": 1e-6}, {}], [{"mean": 0.0}, {}])
    assert differ([{"rows": 41}], [{"rows": 40}]) and differ([{"replaced": 5001.0}], [{"replaced": 5000.0}])
    assert differ([{}, {"teacher": 0.5}], [{"teacher": 0.5}, {"teacher": 0.5}]) and differ(["a"], ["b"])
    grads = np.array([1.0, -2e-3, 0.0], np.float32)
    assert not differ(grads + np.float32(5e-7), grads) and differ(grads + np.float32(4e-6), grads)


def _differences(found: Any, wanted: Any, exact: bool, name: str) -> list[str]:
    """Where ``found`` lacks something or says something else; what it has besides does not matter. nan equals nan."""
    if isinstance(wanted, dict):
        missing = [f"{name}/{key} is missing" for key in wanted.keys() - found.keys()]
        shared = wanted.keys() & found.keys()
        return sum((_differences(found[key], wanted[key], exact, f"{name}/{key}") for key in shared), missing)
    if isinstance(wanted, list):
        if len(found) != len(wanted):
            return [f"{name}: {len(found)} of them, not {len(wanted)}"]
        if wanted and all(isinstance(each, dict) for each in wanted):  # records: a name's values are one array
            return _differences(_columns(found, wanted), _columns(wanted, wanted), exact, name)
        if wanted and all(isinstance(each, float) for each in wanted):
            return _differences(np.asarray(found), np.asarray(wanted), exact, name)
        pairs = enumerate(zip(found, wanted, strict=True))
        return sum((_differences(*pair, exact, f"{name}[{number}]") for number, pair in pairs), [])
    if isinstance(wanted, str | None):
        return [] if found == wanted else [f"{name}: {found!r}, not {wanted!r}"]
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape or (wanted.ndim and found.dtype != wanted.dtype):
        return [f"{name}: {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"]
    same = (found == wanted) | ((found != found) & (wanted != wanted))
    if not exact and wanted.dtype.kind == "f":
        same |= _is_close(found, wanted)
    at = np.flatnonzero(~same)
    first = f"the first at {at[0]}: {found.flat[at[0]]!r}, not {wanted.flat[at[0]]!r}" if len(at) else ""
    return [f"{name}: {len(at)} of {same.size} differ, {first}"] if len(at) else []


def _columns(records: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """By name, the values of the records in whose place ``wanted`` has one."""
    columns: dict[str, list[Any]] = defaultdict(list)
    for record, has in zip(records, wanted, strict=True):
        for name in has:
            columns[name].append(record.get(name, "missing"))
    return columns


def _is_close(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """To 1e-4 of each number, as a spread near 0 multiplies the last bit of what it is made of, and to 1e-6 of the
    array's largest, as a difference of two numbers has their error. A count of up to 5,000 is equal or wrong."""
    largest = np.nanmax(np.abs(wanted), initial=0.0)
    return np.abs(found - wanted) <= 1e-4 * np.abs(wanted) + 1e-6 * largest + 1e-8
