"""Checkpoints that are whole or do not count: how they lie on disk, which one is loaded, which ones may go.

A checkpoint of step N is ``_actor/global_stepN`` and ``_critic/global_stepN`` (DeepSpeed's), ``global_stepN_hf``,
``_sources/global_stepN`` (sources of reward that learn, each in a folder of its name), and ``global_stepN.json``, its
manifest, which is written first, so that everybody can see who writes the rest, and again as the last one, with the
size of every file. Hashes follow (`hashes`): until then, sizes are all that a resume can compare. The best one by an
evaluation lies in the same form in the folder ``best``, so that it never stands for the last one. What has no manifest
that can be read may be of others, and is never removed.
"""

import contextlib
import errno
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import atomic_write, remove_empty, to_json

BEST = "best"  # folder, and the beginning of OpenRLHF's names for the best checkpoints
_NAME = "global_step"
_ASIDE = "set-aside"
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)


@dataclass(frozen=True)
class Checkpoint:
    """``fault``: why no run can go on from it, None where one can. ``size`` in bytes, ``facts`` by its manifest."""

    step: int
    fault: str | None
    finished: bool = True  # its manifest has been written the second time
    foreign: bool = False  # files without a manifest that can be read
    unread: bool = False  # the disk does not give a file of it now: it may be whole
    size: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    hashes: dict[str, str] = field(default_factory=dict)  # of its files; none of an earlier version, or not yet


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
    steps = sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())
    return [_read(folder, step) for step in steps]


def _read(folder: Path, step: int) -> Checkpoint:
    try:
        return _looked_at(folder, step)
    except OSError as error:
        return Checkpoint(step, unread_fault(error), finished=False, foreign=True, unread=True)


def leads_nowhere(error: OSError | ValueError) -> bool:
    """Say whether a name leads to no file, or can be none; any other error says nothing of what is there."""
    return isinstance(error, ValueError) or error.errno in _NO_FILE


def unread_fault(error: OSError) -> str:
    """Say which file of a checkpoint cannot be read, and why."""
    return f"{error.filename} cannot be read now ({error.strerror})"


def _looked_at(folder: Path, step: int) -> Checkpoint:
    """Look at a checkpoint. Raises OSError where the disk does not give a file of it."""
    try:
        manifest = _read_manifest(folder, step)
    except ValueError as error:
        return Checkpoint(step, f"{_manifest(folder, step).name} is damaged: {error}", finished=False, foreign=True)
    if manifest is None and _has_files(folder, step):
        missing = f"there is no {_manifest(folder, step).name}, which a whole checkpoint has"
        return Checkpoint(step, missing, finished=False, foreign=True)
    if manifest is None or "facts" not in manifest:
        return Checkpoint(step, "it was not written completely", finished=False)
    files = manifest["files"]
    return Checkpoint(
        step,
        manifest.get("fault") or _fault(folder, files),
        size=sum(files.values()),
        facts=manifest["facts"],
        files=tuple(files),
        hashes=manifest.get("hashes", {}),
    )


def _fault(folder: Path, files: dict[str, int]) -> str | None:
    for name, size in files.items():
        try:
            found = (folder / name).stat().st_size
        except (OSError, ValueError) as error:
            if leads_nowhere(error):
                return f"{name} is missing"
            raise
        if found != size:
            return f"{name} has {found} of {size} bytes"
    if not any(name.startswith("_actor/") for name in files):
        return "it has the weights, but not the optimizer's state (ckpt.disable_ds)"
    return None


def newest_whole(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the newest whole checkpoint, or None."""
    return max((one for one in checkpoints if one.fault is None), key=lambda one: one.step, default=None)


def refuse_foreign(folder: Path, there: Iterable[Checkpoint]) -> None:
    """Raise RecipeError where a checkpoint has files, but no manifest that can be read."""
    for one in there:
        if one.foreign:
            manifest = _manifest(folder, one.step)
            damaged = f"{manifest.name} is damaged"
            but = one.fault if one.unread else damaged if manifest.exists() else f"no {manifest.name}"
            raise RecipeError(
                f"ckpt.path {folder} has files of step {one.step}, but {but}: OpenRLHF itself may have written them, "
                "or an earlier version that was killed, and this run would overwrite them; move them away, or choose "
                "another ckpt.path"
            )


def removable(checkpoints: Iterable[Checkpoint], newest: int, *, max_num: int, max_bytes: float) -> list[int]:
    """List the steps of checkpoints that may go once that of step ``newest`` is whole: the oldest, until limits hold.

    That one stays, and so does the newest whole one at whose step the policy solved something and had not collapsed
    (fact ``solved``): should the policy have been lost since, it is the last good one. Later steps, of an attempt that
    broke off, are not looked at.
    """
    staying = [one for one in checkpoints if one.finished and one.step <= newest]
    solved = [one.step for one in staying if one.facts.get("solved") and one.fault is None]
    kept, gone = {newest, *solved[-1:]}, []
    for one in list(staying):
        too_many = len(staying) > max_num or sum(each.size for each in staying) > max_bytes
        if too_many and one.step not in kept:
            gone.append(one.step)
            staying.remove(one)
    return gone


def remove(folder: Path, step: int) -> None:
    """Remove the files that a step's manifest names, or all of a broken-off write; without a manifest, empty folders;
    nothing where the manifest cannot be read.

    Changes the manifest first: what is left of a removal that breaks off is no checkpoint.
    """
    try:
        manifest = _read_manifest(folder, step)
    except (ValueError, OSError):
        return
    if manifest is not None:
        there = {str(path.relative_to(folder)): path for path in _files(folder, step)}
        files = [name for name in manifest.get("files", there) if _is_text(name)]
        _write_manifest(folder, step, {"files": files})
        for name in there.keys() & set(files):
            there[name].unlink()
    for part in _parts(folder, step):
        remove_empty(part)
    if manifest is not None:
        _manifest(folder, step).unlink()


def set_aside(folder: Path, step: int) -> None:
    """Rename what lies under the names of a step's checkpoint, so that the run can write its own there."""
    there = [path for path in (*_parts(folder, step), _manifest(folder, step)) if path.exists()]
    for number in itertools.count(1):
        targets = [path.with_name(f"{path.name}.{_ASIDE}-{number}") for path in there]
        if not any(target.exists() for target in targets):
            break
    for path, target in zip(there, targets, strict=True):
        path.rename(target)


def add(folder: Path, step: int, **facts: Any) -> None:
    """Add to a sealed checkpoint's manifest: ``hashes`` of its files, or the ``fault`` that they have shown."""
    manifest = _read_manifest(folder, step)
    if manifest is not None and "facts" in manifest:
        _write_manifest(folder, step, manifest | facts)


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
    """Return the manifest, None where there is none. Raises ValueError for a file that is none, OSError where the disk
    does not give it."""
    try:
        text = _manifest(folder, step).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if leads_nowhere(error):
            raise ValueError(error.strerror) from None
        error.filename = _manifest(folder, step).name  # which an error of reading lacks
        raise
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(manifest, dict) or type(manifest.get("step")) is not int or manifest["step"] != step:
        raise ValueError(f"it is not of step {step}")
    sealed = "facts" in manifest
    shapes = {
        "facts": lambda value: isinstance(value, dict),
        "files": lambda value: _is_map(value, _is_size) if sealed else isinstance(value, list),
        "hashes": lambda value: _is_map(value, _is_text),
        "fault": _is_text,
    }
    for key, fits in shapes.items():
        if (sealed and key == "files" or key in manifest) and not fits(manifest.get(key)):
            raise ValueError(f"{key} is not what a run writes there")
    return manifest


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()  # which JSON need not be


def _is_map(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(_is_text(name) and fits(each) for name, each in value.items())


def _write_manifest(folder: Path, step: int, content: dict[str, Any]) -> None:
    with atomic_write(_manifest(folder, step)) as partial:
        partial.write_text(to_json({"step": step} | content, indent=1))


def _parts(folder: Path, step: int) -> list[Path]:
    name = f"{_NAME}{step}"
    return [folder / "_actor" / name, folder / "_critic" / name, of_sources(folder, step), folder / f"{name}_hf"]


def _has_files(folder: Path, step: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(_files(folder, step))
    return True  # such as cannot be looked at now


def _files(folder: Path, step: int) -> list[Path]:
    parts = [part for part in _parts(folder, step) if not part.is_symlink()]
    return [path for part in parts for path in sorted(part.rglob("*")) if path.is_file()]
