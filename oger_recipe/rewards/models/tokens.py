"""The tokenizer of a model, and the tokens of a text as the model reads it."""

from __future__ import annotations

from typing import Any

from oger_recipe import hub
from oger_recipe.errors import RecipeError
from oger_recipe.remote_code import may_run
from oger_recipe.rewards.models.keys import ModelKeys


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
