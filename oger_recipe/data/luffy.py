"""Turns records of the files that LUFFY, OGER and other users of verl released into rows of the recipe.

``prompt`` chat messages, ``target`` [{role, content}] or null, ``target_lst`` list of texts, ``reward_model`` {style,
ground_truth; RLEP's also candidates, list of texts}, ``data_source`` str, ``ability`` str, ``extra_info`` {split,
index}, and
``target_ds_qwen_7b_probs``, the probabilities of the target's tokens and of its end of sequence.
"""

from __future__ import annotations

from typing import Any

from oger_recipe.base.errors import RecipeError, shown

PROBS = "target_ds_qwen_7b_probs"
_TEACHERS = ("target", "target_lst", PROBS)
_ABOUT = ("reward_model", "data_source", "ability", "extra_info")
_TASKS = {"openai/gsm8k": "gsm8k"}  # by data_source; else by ability
_ABILITIES = {"math": "math"}


def is_luffy(record: Any) -> bool:
    """Say whether a record keeps its answer where these files have it, and is no row of the recipe's own."""
    return isinstance(record, dict) and "teachers" not in record and "ground_truth" in _mapping(record, "reward_model")


def index_uid(record: dict[str, Any]) -> str | None:
    """Return ``data_source/split/index``, or None for a record without an index."""
    extra = _mapping(record, "extra_info")
    if extra.get("index") is None:
        return None
    parts = (record.get("data_source"), extra.get("split"), extra["index"])
    return "/".join(str(part) for part in parts if part not in ("", None))


def own_record(
    record: dict[str, Any], answer: str, task: str | None, flag: str, where: str, *, keep: bool = False
) -> dict[str, Any]:
    """Put the recipe's columns in place of LUFFY's; with ``keep`` those that hold no teachers stay beside them.

    A column ``answer`` of the record's own goes before the ground truth. ``task``, the user's by ``flag``, goes before
    the task of data_source and ability.

    Raises:
        RecipeError: no verifier is known for the record, or its targets are malformed.
    """
    source, ability = record.get("data_source"), record.get("ability")
    task = record.get("task") or task or _TASKS.get(str(source)) or _ABILITIES.get(str(ability))
    if task is None:
        raise RecipeError(
            f"{where}: no verifier is known for data_source {shown(source)} and ability {shown(ability)}: set {flag}"
        )
    own = {answer: record["reward_model"]["ground_truth"]}
    replaced = _TEACHERS if keep else (*_TEACHERS, *_ABOUT)
    own |= {key: value for key, value in record.items() if key not in replaced}
    return own | {"task": task, "datasource": source or None, "teachers": _teachers(record, where)}


def _teachers(record: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Collect the target, the list of targets and RLEP's candidates, each text once."""
    teachers: dict[str, dict[str, Any]] = {}
    target = _target(record.get("target"), where)
    if target:
        probs = record.get(PROBS)
        teachers[target] = {"source": "target", "text": target, "correct": None} | ({"probs": probs} if probs else {})
    for name, texts in (
        ("target_lst", record.get("target_lst") or []),
        ("candidates", _mapping(record, "reward_model").get("candidates") or []),
    ):
        if not isinstance(texts, list) or not all(isinstance(text, str | None) for text in texts):
            raise RecipeError(f"{where}: {name!r} must be a list of texts, found {shown(texts)}")
        for position, text in enumerate(texts):
            if text:
                teachers.setdefault(text, {"source": f"{name}_{position}", "text": text, "correct": None})
    return list(teachers.values())


def _target(target: Any, where: str) -> str | None:
    """Return the text of the first message, the only one that LUFFY trains on."""
    if not target:
        return None
    content = target[0].get("content") if isinstance(target, list) and isinstance(target[0], dict) else target
    if not isinstance(content, str | None):
        raise RecipeError(f"{where}: 'target' must be a list of {{role, content}} or null, found {shown(target)}")
    return content


def _mapping(record: dict[str, Any], key: str) -> dict[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}
