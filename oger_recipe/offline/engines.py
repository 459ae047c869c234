"""Engines of reward models in commands that train nothing."""

import contextlib
import os
from collections.abc import Callable, Iterable

from oger_recipe.models.keys import ModelKeys
from oger_recipe.rewards.place import Place, Told


def engines_of(
    models: Iterable[ModelKeys], memory_gb: float | None, told: Told
) -> contextlib.AbstractContextManager[Callable[[ModelKeys], Place]]:
    """Return a context with a function that starts a model's engine. If none runs in one, Ray and vLLM stay away."""
    if all(keys.runs_on != "engine" for keys in models):
        return contextlib.nullcontext(_none)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from oger_recipe.pipeline.driver.local_engines import local_engines

    return local_engines(memory_gb, told)


def _none(keys: ModelKeys) -> Place:
    raise AssertionError(f"{keys.model} was not among the models")
