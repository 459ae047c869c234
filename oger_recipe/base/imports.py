"""How the processes of a run import what they need, and what is said where it is not installed."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from oger_recipe.base.secrets import said_by

TRAINING = ("openrlhf", "ray", "vllm", "deepspeed")
# Modules of packages that the metadata does not name, or names otherwise.
_ALSO_OURS = {*TRAINING, "yaml"}
_HOW = (
    "on CPUs `pip install 'oger-recipe[cpu]'`, then `pip install --no-deps openrlhf==0.11.2`, on GPUs, after "
    "torch, `pip install --no-build-isolation 'oger-recipe[gpu]'`; a checkout has scripts/setup.sh for both; then "
    "ask `oger doctor`"
)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pause the collector for imports of thousands of modules, a quarter faster so.

    What they make is kept for good, yet the collector walks all of it, again and again while it grows. Afterwards it
    leaves that alone.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.freeze()
            gc.enable()


@contextlib.contextmanager
def in_place_of(**modules: ModuleType | None) -> Iterator[None]:
    """Give stand-ins to whoever imports modules of these names in the block; for None the module is not there.

    Modules that are already loaded stay. After the block, imports get the real ones.
    """
    modules = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(modules)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def import_without(module: str, *absent: str) -> None:
    """Import ``module`` as if the modules ``absent`` were not installed, except those that are already loaded."""
    with in_place_of(**dict.fromkeys(absent)):
        importlib.import_module(module)


def at_path(path: str) -> Any:
    """Import what ``module:name`` names. Raises ValueError where there is nothing."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module does when it is imported
        raise ValueError(f"cannot be imported: {said_by(error)}") from error


@functools.cache
def installed() -> tuple[tuple[str, str], ...]:
    """Return name and version of every installed package; reading their metadata takes most of a second."""
    return tuple((each.name, each.version) for each in metadata.distributions())


def is_installed(module: str) -> bool:
    """Say whether a module is there; a mere folder of its name, as a run's wandb/, is no package."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def not_installed(*modules: str) -> str | None:
    """Say which modules are not installed, with the commands; None where all are."""
    missing = [name for name in modules if not is_installed(name)]
    return _sentence(missing) if missing else None


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Say so of a package of ours that an import lacks; None for other packages, and where a user's file imports."""
    module = (error.name or "").partition(".")[0]
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    places = sysconfig.get_paths()
    machinery = ("<frozen", f"{places['stdlib']}/importlib")
    importing = next((file for file in reversed(files) if not file.startswith(machinery)), "")
    here = Path(__file__).parents[1]
    homes = (here, here.parent / "patches", *(places[name] for name in ("stdlib", "purelib", "platlib")))
    return _sentence([module]) if module in _ours() and importing.startswith(tuple(map(str, homes))) else None


def _ours() -> set[str]:
    """Return the modules of all packages that we require, as far as they have the packages' names."""
    try:
        requirements = metadata.requires("oger-recipe") or []
    except metadata.PackageNotFoundError:
        requirements = []
    names = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
    return {name[0].replace("-", "_").lower() for name in names if name} | _ALSO_OURS


def _sentence(names: list[str]) -> str:
    return f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} not installed, which this needs: {_HOW}"
