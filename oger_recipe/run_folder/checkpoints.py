"""Checkpoints that are whole or do not count: how they lie on disk, which one is loaded, which ones may go.

A checkpoint of step N is ``_actor/global_stepN`` and ``_critic/global_stepN`` (DeepSpeed's), ``global_stepN_hf``,
``_sources/global_stepN`` (sources of reward that learn, each in a folder of its name), and ``global_stepN.json``, its
manifest, which is written first, so that everybody can see who writes the rest, and again as the last one, with the
size of every file. The best one by an evaluation lies in the same form in the folder ``best``, so that it never stands
for the last one. What has no manifest was written by others, and stays.
"""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import atomic_write, remove_empty, to_json

BEST = "best"  # folder, and the beginning of OpenRLHF's names for the best checkpoints
_NAME = "global_step"


@dataclass(frozen=True)
class Checkpoint:
    """``fault``: why no run can go on from it, None where one can. ``size`` in bytes, ``facts`` by its manifest."""

    step: int
    fault: str | None
    finished: bool = True  # its manifest has been written the second time
    foreign: bool = False  # files without any manifest
    size: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def begin(folder: Path, step: int) -> None:
    """Write the manifest of a checkpoint whose files are about to be written."""
    _write_manifest(folder, step, {})


def seal(folder: Path, step: int, **facts: Any) -> None:
    """Write the manifest of a checkpoint whose files are all there."""
    files = {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder, step)}
    _write_manifest(folder, step, {"facts": facts, "files": files})


def found(folder: Path) -> list[Checkpoint]:
    """List the checkpoints in the folder by step, whole or not."""
    names = [
        path.name
        for pattern in ("_actor/*", "_critic/*", "_sources/*", "*_hf", "*.json")
        for path in folder.glob(pattern)
    ]
    numbers = {name.removeprefix(_NAME).removesuffix("_hf").removesuffix(".json") for name in names
               if name.startswith(_NAME)}  # fmt: skip
    return [_read(folder, step) for step in sorted(int(number) for number in numbers if number.isdigit())]


def _read(folder: Path, step: int) -> Checkpoint:
    manifest = _read_manifest(folder, step)
    if manifest is None or not {"files", "facts"} <= manifest.keys():
        foreign = manifest is None and bool(_files(folder, step))
        return Checkpoint(step, "it was not written completely", finished=False, foreign=foreign)
    files = manifest["files"]
    return Checkpoint(step, _fault(folder, files), size=sum(files.values()), facts=manifest["facts"])


def _fault(folder: Path, files: dict[str, int]) -> str | None:
    for name, size in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} of {size} bytes"
    if not any(name.startswith("_actor/") for name in files):
        return "it has the weights, but not the optimizer's state (ckpt.disable_ds)"
    return None


def newest_whole(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the newest whole checkpoint, or None."""
    return max((one for one in checkpoints if one.fault is None), key=lambda one: one.step, default=None)


def refuse_foreign(folder: Path, there: Iterable[Checkpoint]) -> None:
    """Raise RecipeError where a checkpoint has files, but no manifest."""
    for one in there:
        if one.foreign:
            raise RecipeError(
                f"ckpt.path {folder} has files of step {one.step}, but no {_manifest(folder, one.step).name}: "
                "OpenRLHF "
                "itself may have written them, or an earlier version that was killed, and this run would overwrite "
                "them; move them away, or choose another ckpt.path"
            )


def removable(checkpoints: Iterable[Checkpoint], newest: int, *, max_num: int, max_bytes: float) -> list[int]:
    """List the steps of checkpoints that may go once that of step ``newest`` is whole: the oldest, until limits hold.

    That one stays, and so does the newest at whose step the policy solved something (fact ``solved``): should the
    policy have been lost since, it is the last good one. Later steps, of an attempt that broke off, are not looked at.
    """
    staying = [one for one in checkpoints if one.finished and one.step <= newest]
    solved = [one.step for one in staying if one.facts.get("solved")]
    kept, gone = {newest, *solved[-1:]}, []
    for one in list(staying):
        too_many = len(staying) > max_num or sum(each.size for each in staying) > max_bytes
        if too_many and one.step not in kept:
            gone.append(one.step)
            staying.remove(one)
    return gone


def remove(folder: Path, step: int) -> None:
    """Remove the files that a step's manifest names, or all of a broken-off write; without a manifest, empty folders.

    Changes the manifest first: what is left of a removal that breaks off is no checkpoint.
    """
    manifest = _read_manifest(folder, step)
    if manifest is not None:
        there = {str(path.relative_to(folder)): path for path in _files(folder, step)}
        files = manifest.get("files", there)
        _write_manifest(folder, step, {"files": list(files)})
        for name in there.keys() & set(files):
            there[name].unlink()
    for part in _parts(folder, step):
        remove_empty(part)
    if manifest is not None:
        _manifest(folder, step).unlink()


def point_at(folder: Path, step: int) -> None:
    """Name the step in DeepSpeed's files ``latest``, by which OpenRLHF loads."""
    for role in ("_actor", "_critic"):
        if (folder / role).is_dir():
            with atomic_write(folder / role / "latest") as partial:
                partial.write_text(f"{_NAME}{step}")


@contextlib.contextmanager
def place(settings: Any, tag: str) -> Iterator[str]:
    """Yield the name under which OpenRLHF saves ``tag``; meanwhile its settings (``ckpt``) have the folder for it.

    OpenRLHF would remove the oldest checkpoint before writing the new one: its limits are off (see `removable`).
    """
    kept = dict(vars(settings))
    if tag.startswith(BEST):
        settings.path = str(Path(settings.path) / BEST)
        begin(Path(settings.path), int(tag.rpartition(_NAME)[2]))
    settings.max_num, settings.max_mem = sys.maxsize, float("inf")
    try:
        yield tag.removeprefix(f"{BEST}_")
    finally:
        vars(settings).update(kept)


def of_sources(folder: Path, step: int) -> Path:
    """Return the folder of what the sources of reward have learnt."""
    return folder / "_sources" / f"{_NAME}{step}"


def _manifest(folder: Path, step: int) -> Path:
    return folder / f"{_NAME}{step}.json"


def _read_manifest(folder: Path, step: int) -> dict[str, Any] | None:
    try:
        manifest = json.loads(_manifest(folder, step).read_text())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("step") == step else None


def _write_manifest(folder: Path, step: int, content: dict[str, Any]) -> None:
    with atomic_write(_manifest(folder, step)) as partial:
        partial.write_text(to_json({"step": step} | content, indent=1))


def _parts(folder: Path, step: int) -> list[Path]:
    name = f"{_NAME}{step}"
    return [folder / "_actor" / name, folder / "_critic" / name, of_sources(folder, step), folder / f"{name}_hf"]


def _files(folder: Path, step: int) -> list[Path]:
    parts = [part for part in _parts(folder, step) if not part.is_symlink()]
    return [path for part in parts for path in sorted(part.rglob("*")) if path.is_file()]
