"""Asks the Hugging Face hub for names, once and quickly; its libraries ask again and again."""

import os
from pathlib import Path

_LIMIT_S = 5.0  # for the hub's answer
_CACHE = {"model": "models", "dataset": "datasets"}


class Unreachable(Exception):
    """The hub does not answer; the message says why."""


def is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def refusal(kind: str, name: str, revision: str | None = None) -> str | None:
    """Say why the hub does not hand out this repository (kind: model, dataset), and what to do; None where it does.

    Raises Unreachable.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
    try:
        ask(name, revision=revision, timeout=_LIMIT_S)
    except GatedRepoError:
        return f"the {kind} {name} is gated: ask for access on its page, and log in by `hf auth login`"
    except RepositoryNotFoundError:
        return f"the hub has no {kind} {name}, or it is private and you are not logged in (`hf auth login`)"
    except RevisionNotFoundError:
        return f"the {kind} {name} has no revision {revision}"
    except HFValidationError:
        return f"{name} is not a file or folder here, and not a name on the hub"
    except (httpx.HTTPError, HfHubHTTPError, OSError) as error:
        raise Unreachable(" ".join(str(error).split())[:200] or type(error).__name__) from None
    return None


def is_cached(kind: str, name: str) -> bool:
    """Say whether the hub's cache, or that of `datasets`, has something of this repository."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"{_CACHE[kind]}--{name.replace('/', '--')}" / "snapshots"
    if folder.is_dir() and any(folder.iterdir()):
        return True
    prepared = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets"))
    return kind == "dataset" and (prepared / name.replace("/", "___")).is_dir()


def cached_folder(name: str, revision: str | None = None) -> Path | None:
    """Return where the hub's cache has a model's files, None where it has no config.json of it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision) if is_name(name) else None
    return Path(found).parent if isinstance(found, str) else None


def out_of_reach(name: str, revision: str | None = None) -> str | None:
    """Say why a model that is not here cannot be had, else None: a library would ask the hub for minutes."""
    if Path(name).exists() or is_cached("model", name):
        return None
    try:
        reason = "HF_HUB_OFFLINE is set" if is_offline() else refusal("model", name, revision)
    except Unreachable as error:
        reason = f"the hub cannot be reached ({error})"
    return reason and f"{name} is neither here nor in the hub's cache, and {reason}"


def is_name(name: str) -> bool:
    """Say whether this could be a repository's name on the hub, rather than a path."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def licence(kind: str, name: str) -> str | None:
    """Return the licence on the card of a model or dataset, in its folder or on the hub; None where none is known."""
    from huggingface_hub import HfApi, RepoCard

    ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
    try:
        if (card := Path(name) / "README.md").is_file():
            data = RepoCard.load(card).data
        elif Path(name).exists() or not is_name(name) or is_offline():
            return None
        else:
            data = ask(name, timeout=_LIMIT_S).card_data
    except Exception:  # a card without this line is better than none
        return None
    stated = data and data.get("license")
    return ", ".join(map(str, stated)) if isinstance(stated, list) else stated
