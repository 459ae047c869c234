"""A patch is applied only to the very source it was written for."""

import hashlib
import importlib.metadata
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any


class PatchMismatch(RuntimeError):
    """The installed source is not the one that a patch was written for."""


def source_sha256(symbol: Callable[..., Any] | type) -> str:
    """Return the SHA-256 of the symbol's source text, hexadecimal."""
    return hashlib.sha256(inspect.getsource(symbol).encode()).hexdigest()


def require_source(
    symbol: Callable[..., Any] | type, expected: str, *, package: str, checked: str, patch: str
) -> None:
    """Raise PatchMismatch unless the installed source of ``symbol`` has the SHA-256 ``expected``.

    ``checked`` is the version of ``package`` on which the patch ``patch`` (a module name) was written and tried.
    """
    name = f"{symbol.__module__}.{symbol.__qualname__}"
    _require(name, source_sha256(symbol), expected, package, checked, patch)


def require_module(name: str, path: Path, expected: str, *, package: str, checked: str, patch: str) -> None:
    """Require the same of the module ``name``, which is not imported: ``path`` is its file."""
    _require(name, hashlib.sha256(path.read_bytes()).hexdigest(), expected, package, checked, patch)


def _require(name: str, found: str, expected: str, package: str, checked: str, patch: str) -> None:
    if found == expected:
        return
    installed = importlib.metadata.version(package)
    raise PatchMismatch(
        f"{patch} was written for {name} of {package} {checked}, but the installed {package} {installed} has another "
        f"source. Install {package}=={checked} (bash scripts/setup.sh does), or read the new source, adapt {patch} "
        f"and set its SOURCE_SHA256 to {found}."
    )
