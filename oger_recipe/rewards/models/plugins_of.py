"""The plugins of an entry, each with the tokenizer of its model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from oger_recipe.rewards.models.keys import ClassifierKeys, CritiqueKeys, JudgeKeys, ModelKeys, WriterKeys
from oger_recipe.rewards.models.plugin import (
    BOTH,
    EXAMPLE,
    FIRST,
    OF_SEVERAL,
    READY_MADE,
    Example,
    Plugin,
    find_plugin,
)
from oger_recipe.rewards.models.rubrics import RubricKeys
from oger_recipe.rewards.models.scorer_keys import StepJudgeKeys


def of_judge(keys: JudgeKeys) -> Plugin:
    return _plugin(find_plugin(keys.plugin), keys, BOTH, example=keys.example)


def of_step_judge(keys: JudgeKeys) -> Plugin:
    return _plugin(find_plugin(keys.plugin), keys, BOTH, "steps", OF_SEVERAL)


def of_rubric_judge(keys: RubricKeys) -> Plugin:
    return _plugin(find_plugin(keys.plugin), keys, BOTH, "rubrics", None)


def of_critic(keys: WriterKeys) -> Plugin:
    return _plugin(READY_MADE / "_critique.py", keys, FIRST)


def of_head(keys: ClassifierKeys) -> Plugin:
    path = READY_MADE / "_conversation.py" if keys.plugin is None else find_plugin(keys.plugin)
    return _plugin(path, keys, FIRST)


def plugins_of(keys: ModelKeys) -> list[Plugin]:
    """Make those of an entry; nothing is started."""
    if isinstance(keys, CritiqueKeys):
        return [plugin for model in keys.models for plugin in plugins_of(model)]
    if isinstance(keys, StepJudgeKeys):
        return [of_step_judge(keys.judge)]
    if isinstance(keys, JudgeKeys):
        return [of_judge(keys)]
    if isinstance(keys, RubricKeys):
        return [of_rubric_judge(keys)]
    if isinstance(keys, WriterKeys):
        return [of_critic(keys)]
    return [of_head(keys)] if isinstance(keys, ClassifierKeys) else []


def _plugin(
    path: Path,
    keys: WriterKeys | ClassifierKeys,
    needed: Mapping[str, int],
    judges: str = "responses",
    example: Example | None = EXAMPLE,
) -> Plugin:
    """The example is for plugins that may not ask as the entry says: without a tokenizer, or in a chat template that
    the entry changes."""
    tokenizer, revision = (None, None) if keys.chats else keys.tokenizer_files
    chat = None if keys.chats else keys.of_chat_template
    return Plugin(
        path,
        tokenizer,
        revision,
        keys.plugin_limit_s,
        needed,
        memory_limit_mb=keys.plugin_memory_limit_mb,
        judges=judges,
        chat=chat,
        example=example if tokenizer is None or chat is not None else None,
    )
