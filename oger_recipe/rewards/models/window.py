"""How many tokens a model reads, as far as that can be told without loading it."""

from __future__ import annotations

from oger_recipe import hub
from oger_recipe.rewards.models.keys import ModelKeys

_NAMES = ("max_position_embeddings", "n_positions")  # in a model's config.json


def window_of(keys: ModelKeys) -> int | None:
    """Return the entry's max_model_len, or what the model's configuration says; None for a server's, and where nothing
    says it."""
    if keys.max_model_len is not None or keys.runs_on == "server":
        return keys.max_model_len
    if hub.out_of_reach(keys.model, keys.revision):
        return None
    from transformers import PretrainedConfig

    try:
        found, _ = PretrainedConfig.get_config_dict(keys.model, revision=keys.revision)
    except (OSError, ValueError):  # said by the checks of its files
        return None
    of_text = found.get("text_config") or {}
    said = [each[name] for each in (found, of_text) for name in _NAMES if isinstance(each.get(name), int)]
    return said[0] if said else None
