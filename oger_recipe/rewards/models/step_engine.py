"""A process reward model for vLLM: what it has to be told, and an adapter merged into files of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from oger_recipe.remote_code import may_run
from oger_recipe.rewards.models.keys import ProcessKeys
from oger_recipe.rewards.models.step_models import load_step_model
from oger_recipe.rewards.models.step_text import verdict_tokens
from oger_recipe.rewards.models.tokens import load_tokenizer


def step_arguments(keys: ProcessKeys) -> dict[str, Any]:
    """Return vLLM's arguments with which the model gives numbers for every token: those of a head with labels, or the
    logits of the bad and the good token, whose rows of the output layer vLLM takes as a head.

    Raises RecipeError for tokens that the tokenizer has not.
    """
    of_tokens = {"runner": "pooling", "pooler_config": {"task": "token_classify", "tok_pooling_type": "ALL"}}
    if keys.written.scorer == "token_head":
        return of_tokens
    tokenizer = load_tokenizer(keys)
    tokens = tokenizer.convert_ids_to_tokens(list(verdict_tokens(keys, tokenizer)))
    overrides = {"classifier_from_token": tokens, "method": "no_post_processing"}
    return of_tokens | {"convert": "classify", "hf_overrides": overrides}


def without_adapter(keys: ProcessKeys, folder: Path) -> ProcessKeys:
    """Save the model with its adapter merged, and return keys that name it. Raises RecipeError as loading does."""
    model = load_step_model(keys, {"revision": keys.revision, "trust_remote_code": may_run(), "dtype": "auto"})
    model.save_pretrained(folder)
    load_tokenizer(keys).save_pretrained(folder)
    return replace(keys, model=str(folder), revision=None, tokenizer=None, adapter=None)
