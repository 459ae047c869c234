"""Code that comes with a model: who brings any, and whether it may run. Importing this loads no model library.

A model's folder or repository can hold Python files and name them in its configuration (``auto_map``), or bring a
custom_generate/generate.py; transformers imports them when it is told to trust the model.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTING = "oger.trust_remote_code"
OF_ENCODER = "oger.embedding_trust_remote_code"
_VARIABLE = "OGER_TRUST_REMOTE_CODE"  # for the processes of a run
_FILES = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
_GENERATE = "custom_generate/generate.py"
_OURS = {"Qwen2ForProcessRewardModel"}  # PRMs whose own code models/step_models.py replaces
_MODELS = ("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path")


def allow(value: Mapping[str, Any]) -> None:
    """Hand what the settings of a run say to this process and to those that inherit its environment."""
    os.environ.update(environment(value))


def environment(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable for a run's processes. The encoder has its own switch, for what loads it: see `loading`."""
    return {_VARIABLE: "1" if value[SETTING] else "0"}


def may_run() -> bool:
    """Say whether this process may run code of models, or what it loads just now may."""
    return os.environ.get(_VARIABLE) == "1" or _allowed_here.get()


_allowed_here: ContextVar[bool] = ContextVar("models' code is allowed here", default=False)


@contextlib.contextmanager
def loading(*, allowed: bool) -> Iterator[None]:
    """Let a model that is loaded inside run code of its own, where ``allowed``; other threads may not."""
    token = _allowed_here.set(allowed)
    try:
        yield
    finally:
        _allowed_here.reset(token)


@dataclass(frozen=True)
class Named:
    """A model that ``key`` names in a recipe. is_ours: a class of the recipe's own loads it, whatever its files name;
    setting: what allows its code."""

    key: str
    model: str
    revision: str | None = None
    is_ours: bool = False
    setting: str = SETTING


def policy_models(value: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the models that OpenRLHF loads: policy, critic and reward model."""
    yield from (Named(key, model) for key in _MODELS for model in (value[key] or "").split(",") if model)


def untrusted(value: Mapping[str, Any], named: Iterable[Named], *, hub: bool) -> Iterator[str]:
    """Yield a sentence for every model that brings code without permission.

    Only folders are read, or with ``hub`` only models of the Hub, whose configurations are fetched.
    """
    for each in named:
        if not value[each.setting] and Path(each.model).is_dir() != hub:
            yield from refusals(each, hub=hub)


def refusals(named: Named, *, hub: bool = True) -> Iterator[str]:
    """Yield that sentence for one model, where it brings code."""
    model, revision = named.model, named.revision
    for name in (*_FILES, _GENERATE):
        try:
            path = Path(model) / name if Path(model).is_dir() else _fetched(model, name, revision) if hub else None
        except (OSError, ValueError):
            return  # out of reach, as who loads the model will say
        if path is None or not path.is_file():
            continue
        if name == _GENERATE:
            where, instead = name, "remove that file"
        elif brought := _texts(_auto_map(path, may_be_ours=named.is_ours and name == _FILES[0])):
            where = f"which its {name} names (auto_map: {', '.join(brought)})"
            instead = "remove auto_map from that file where transformers has the model itself"
        else:
            continue
        yield (
            f"{named.key}: {model} brings code of its own, {where}, and it is not run unasked: read it, then set "
            f"{named.setting}; or {instead}"
        )
        return


def _auto_map(path: Path, *, may_be_ours: bool) -> Any:
    """Read what the file says of code; None where it cannot be read: loading the model will say so."""
    try:
        said = json.loads(path.read_text())
        is_ours = may_be_ours and _OURS.issuperset(said.get("architectures") or [""])
        return None if is_ours else said.get("auto_map")
    except (OSError, ValueError, AttributeError):
        return None


def _texts(value: Any) -> list[str]:
    """Return the texts in a JSON value."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for each in inside for text in _texts(each)]


def _fetched(model: str, name: str, revision: str | None) -> Path | None:
    """Fetch a file of a model of the Hub; None where it has none. Raises OSError where there is no config.json, which
    is asked for first, or the Hub is out of reach."""
    from transformers.utils import cached_file

    optional = name != _FILES[0]
    found = cached_file(model, name, revision=revision, _raise_exceptions_for_missing_entries=not optional)
    return Path(found) if found else None
