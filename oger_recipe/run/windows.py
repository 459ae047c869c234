"""Whether what a policy may write fits into what the reward's models read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from oger_recipe.errors import RecipeError
from oger_recipe.rewards.keys import Keys
from oger_recipe.rewards.models.keys import CritiqueKeys, ModelKeys, PairwiseKeys, ProcessKeys, WriterKeys
from oger_recipe.rewards.models.plugin import Plugin
from oger_recipe.rewards.models.plugins_of import plugins_of
from oger_recipe.rewards.models.rubrics import Criterion, RubricKeys
from oger_recipe.rewards.models.scorer_keys import ImplicitKeys, StepJudgeKeys
from oger_recipe.rewards.models.server import window_at
from oger_recipe.rewards.models.step_text import StepWriter
from oger_recipe.rewards.models.tokens import load_tokenizer, tokens_of
from oger_recipe.rewards.models.window import window_of
from oger_recipe.tasks.judges import PRMS

_LETTERS = 4  # of a token, where the tokenizer is a server's


def window_problems(keys: Keys, longest: int, steps: int) -> Iterator[tuple[bool, str]]:
    """Yield for each model of a source that may get too long a text whether any text is, and a sentence.

    longest: tokens of prompt and response, data.max_len; steps: that a response may have at least, of reasoning.
    """
    if not isinstance(keys, ModelKeys):
        return
    plugins: list[Plugin | None] = [*plugins_of(keys)] or [None] * len(keys.models)
    for model, plugin in dict(zip(keys.models, plugins, strict=True)).items():
        if model.model in PRMS:  # still to be trained
            continue
        window, reply = window_at(model) if model.runs_on == "server" else window_of(model), _reply(keys, model)
        text = 2 * longest if isinstance(keys, PairwiseKeys) and keys.against == "teacher" else longest
        if window is None or text + reply <= window / 2:  # what is around a text is less than that
            continue
        try:
            own = _own_tokens(model, steps) if plugin is None else _own_tokens_of(plugin, keys, model)
        except RecipeError:  # said by the checks of plugins and tokenizers
            continue
        if text + own + reply > window:
            written = f", what it writes or needs {reply}" if reply else ""
            yield (
                own + reply >= window,
                f"{model.model} reads {window:,} tokens in all: prompt and response may have {text:,} (data.max_len), "
                f"its own text about {own:,}{written}. A longer one costs what on_overflow says "
                f"({keys.on_overflow}): raise max_model_len where the model allows it, or lower data.max_len",
            )


def _reply(keys: ModelKeys, model: ModelKeys) -> int:
    """Return the tokens that stand behind a text: a reply, a critique; vLLM says no log-probabilities without one."""
    if isinstance(keys, ImplicitKeys):
        return int(model.runs_on == "engine")
    if isinstance(keys, CritiqueKeys | StepJudgeKeys):
        return keys.max_new_tokens
    return model.max_new_tokens if isinstance(model, WriterKeys) else 0


def _own_tokens(keys: ModelKeys, steps: int) -> int:
    """Count the tokens that a PRM's format puts around the steps of a response."""
    if not isinstance(keys, ProcessKeys):
        return 0
    text = StepWriter(keys, load_tokenizer(keys)).write("x", ["x"] * steps)
    return len(getattr(text, "tokens", ()))


def _own_tokens_of(plugin: Plugin, keys: ModelKeys, model: ModelKeys) -> int:
    """Count the tokens that a plugin puts around a response."""
    is_pair = isinstance(keys, PairwiseKeys) or (isinstance(keys, CritiqueKeys) and not isinstance(model, WriterKeys))
    response: Any = ["x", "x"] if is_pair else ["x"] if isinstance(keys, StepJudgeKeys) else "x"
    if isinstance(keys, RubricKeys):
        response = {"response": "x", "criteria": [asdict(Criterion(None, "x"))]}
    try:
        (text,) = plugin.preprocess(["x"], [response])
    finally:
        plugin.close()
    if not isinstance(text, str):  # it cannot be called so
        return 0
    return len(text) // _LETTERS if model.chats else len(tokens_of(load_tokenizer(model), text))
