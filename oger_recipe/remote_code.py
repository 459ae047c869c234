"""Code that comes with a model: who brings any, and whether it may run. Importing this loads no model library.

A model's folder or repository can hold Python files and name them in its configuration (``auto_map``), or bring a
custom_generate/generate.py; transformers imports them when it is told to trust the model.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

SETTING = "oger.trust_remote_code"
_VARIABLE = "OGER_TRUST_REMOTE_CODE"  # for the processes of a run
_FILES = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
_GENERATE = "custom_generate/generate.py"
_KNOWN = {"Qwen2ForProcessRewardModel"}  # architectures with code of their own, of which none is run: it is here, too
_MODELS = ("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path")


def allow(value: Mapping[str, Any]) -> None:
    """Hands what the settings of a run say to this process and to those that inherit its environment."""
    os.environ.update(environment(value))


def environment(value: Mapping[str, Any]) -> dict[str, str]:
    """The encoder has a switch of its own; its code runs in the controller."""
    allowed = value[SETTING] or value["oger.embedding_trust_remote_code"]
    return {_VARIABLE: "1" if allowed else "0"}


def may_run() -> bool:
    """Tells whether this process may run code of models."""
    return os.environ.get(_VARIABLE) == "1"


Named = tuple[str, str, str | None]  # what names a model in a recipe, the model, its revision


def untrusted(value: Mapping[str, Any], others: Iterable[Named], *, hub: bool) -> Iterator[str]:
    """Returns a sentence for every model of the run, ``others`` too, that brings code without permission.

    Reads folders alone, or with ``hub`` models of the Hub alone, whose configurations it fetches.
    """
    if value[SETTING]:
        return
    named: list[Named] = [(key, model, None) for key in _MODELS for model in (value[key] or "").split(",")]
    for key, model, revision in [*named, *others]:
        if model and Path(model).is_dir() != hub:
            yield from refusals(model, key, revision, hub=hub)


def refusals(model: str, key: str, revision: str | None = None, *, hub: bool = True) -> Iterator[str]:
    """Does the same for one model, which ``key`` names; one sentence at most."""
    for name in (*_FILES, _GENERATE):
        try:
            path = Path(model) / name if Path(model).is_dir() else _fetched(model, name, revision) if hub else None
        except (OSError, ValueError):
            return  # out of reach, as who loads the model will say
        if path is None or not path.is_file():
            continue
        if name == _GENERATE:
            where, instead = name, "remove that file"
        elif brought := _texts(_auto_map(path)):
            where = f"which its {name} names (auto_map: {', '.join(brought)})"
            instead = "remove auto_map from that file where transformers has the model itself"
        else:
            continue
        yield (
            f"{key}: {model} brings code of its own, {where}, and it is not run unasked: read it, then set {SETTING}; "
            f"or {instead}"
        )
        return


def _auto_map(path: Path) -> Any:
    """Reads what the file says of code; nothing where it cannot be read: loading the model will say so."""
    try:
        said = json.loads(path.read_text())
        return None if _KNOWN.issuperset(said.get("architectures") or [""]) else said.get("auto_map")
    except (OSError, ValueError, AttributeError):
        return None


def _texts(value: Any) -> list[str]:
    """Yields the texts in a JSON value."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for each in inside for text in _texts(each)]


def _fetched(model: str, name: str, revision: str | None) -> Path | None:
    """Fetches a file of a model of the Hub; None where it has none. Raises OSError where it has no config.json, or is
    out of reach, which is found out once."""
    from transformers.utils import cached_file

    optional = name != _FILES[0]
    found = cached_file(model, name, revision=revision, _raise_exceptions_for_missing_entries=not optional)
    return Path(found) if found else None
