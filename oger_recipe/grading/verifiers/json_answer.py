"""JSON verifier: a response has to be an object with given fields, types and values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from oger_recipe.base.errors import shown
from oger_recipe.grading.verdict import UnreadableAnswer, Verdict

TYPES: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "dict": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_OPENS = re.compile(r"\{\s*[\"}]")  # of an object; the braces of LaTeX are none
_MOST_UNREAD = 64  # of these, that begin no object: each may take long


def verify_json(response: str, answer: str) -> Verdict:
    """Grade the last JSON object after the last ``</think>``.

    answer: JSON ``{"fields": {name: type}, "values": {name: value}}`` with the types of TYPES; ``values`` is optional.
    The components format (an object was found), fields_ok, values_ok and correct are 0 or 1.
    Raises UnreadableAnswer for another answer.
    """
    fields, values = _read_answer(answer)
    found = _last_object(response.rpartition("</think>")[2])
    if found is None:
        return _verdict("no JSON object was found", None)
    wrong = [name for name, kind in fields.items() if name not in found or not TYPES[kind](found[name])]
    if wrong:
        return _verdict(f"missing or of another type: {', '.join(wrong)[:200]}", found, format_ok=True)
    unequal = [name for name, value in values.items() if name not in found or not _equal(found[name], value)]
    if unequal:
        return _verdict(f"another value: {', '.join(unequal)[:200]}", found, format_ok=True, fields_ok=True)
    return _verdict("right", found, format_ok=True, fields_ok=True, values_ok=True)


def _verdict(
    reason: str,
    found: dict[str, Any] | None,
    *,
    format_ok: bool = False,
    fields_ok: bool = False,
    values_ok: bool = False,
) -> Verdict:
    components = {
        "format": float(format_ok),
        "fields_ok": float(fields_ok),
        "values_ok": float(values_ok),
        "correct": float(values_ok),
    }
    extracted = None if found is None else json.dumps(found, sort_keys=True)
    return Verdict(float(values_ok), float(values_ok), reason, components, extracted)


def _read_answer(answer: str) -> tuple[dict[str, str], dict[str, Any]]:
    try:
        document = json.loads(answer)
        fields, values = document["fields"], document.get("values") or {}
        known = all(kind in TYPES for kind in fields.values()) and isinstance(values, dict)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise UnreadableAnswer(
            f"a JSON answer is {{'fields': {{name: type}}, 'values': {{...}}}}, not {shown(answer)}"
        ) from error
    if not known:
        raise UnreadableAnswer(f"JSON answer {shown(answer)}: types are {', '.join(TYPES)}; values is an object")
    return fields, values


def _equal(found: Any, value: Any) -> bool:
    """Compare JSON: true is not 1."""
    if isinstance(found, dict) and isinstance(value, dict):
        return found.keys() == value.keys() and all(_equal(found[name], value[name]) for name in value)
    if isinstance(found, list) and isinstance(value, list):
        return len(found) == len(value) and all(map(_equal, found, value))
    return bool(found == value) and isinstance(found, bool) == isinstance(value, bool)


def _last_object(text: str) -> dict[str, Any] | None:
    """Find a text's last outermost object."""
    # Values are read from the first brace on, each behind the one before it: the last of them is the outermost object.
    found, opening, unread = None, _OPENS.search(text), 0
    decoder = json.JSONDecoder()
    while opening and unread < _MOST_UNREAD:
        start = opening.start()
        try:
            found, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start, unread = start + 1, unread + 1
        opening = _OPENS.search(text, start)
    return found if isinstance(found, dict) else None
