"""The tokenizer of a model, the tokens of a text as the model reads it, and how many tokens it can read."""

from __future__ import annotations

from typing import Any

from oger_recipe.base import hub
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.remote_code import may_run
from oger_recipe.models.keys import ModelKeys


def load_tokenizer(keys: ModelKeys) -> Any:
    """Load the tokenizer of an entry's model. Raises RecipeError for one that cannot be loaded."""
    from transformers import AutoTokenizer

    name, revision = keys.tokenizer_files
    if reason := hub.out_of_reach(name, revision):
        raise RecipeError(f"the tokenizer {name} cannot be loaded: {reason}")
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=may_run())
    except Exception as error:  # whatever can be wrong with its files
        raise RecipeError(f"the tokenizer {name} cannot be loaded: {type(error).__name__}: {error}") from error


def tokens_of(tokenizer: Any, text: str) -> list[int]:
    """Return a text's tokens; do not double a BOS token that a chat template has written."""
    is_begun = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    return list(tokenizer(text, add_special_tokens=not is_begun, verbose=False)["input_ids"])


def plain_tokens(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text that is a part of another."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


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
