"""The keys that an entry of oger.reward.sources may have, by its kind: fields of a frozen dataclass each.

The checks of entries and the tables of docs/settings.md are made from these fields.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, field
from types import NoneType
from typing import Any, get_args, get_origin

from oger_recipe.base.ranges import FINITE, Range

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # YAML reads 1e-3 as a text


def key(
    default: Any = MISSING,
    help: str = "",
    *,
    range: Range = FINITE,
    choices: Collection[str] | None = None,
    column: str | None = None,
) -> Any:
    """Make the field of a key, which is required without a default. Every number has a range.

    column: the key names a column of the training data, and every row has to hold there a "text", a "rubric", or
    "anything" but null.
    """
    return field(default=default, metadata={"help": help, "range": range, "choices": choices, "column": column})


def read_number(value: Any) -> Any:
    """Make a number of a text such as 1e-3; leave everything else as it is."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def value_problem(name: str, value: Any, hint: Any, known: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a key's value, if anything; ``hint``, ``known``: its field's type, metadata."""
    types, value = get_args(hint) or (hint,), read_number(value)
    if value is None:
        return None if NoneType in types else f"{name} is missing: {known['help']}"
    if known["choices"] is not None:
        return None if isinstance(value, str) and value in known["choices"] else unknown(name, value, known["choices"])
    if any(get_origin(each) is Mapping for each in types):
        return None if _is_json(value) else f"{name} {value!r}: it must be a mapping of names to values of JSON"
    if bool in types:
        return None if isinstance(value, bool) else f"{name} {value!r}: it must be true or false"
    if str in types and isinstance(value, str) and value:
        return None
    or_text = "a text" if str in types else ""
    if or_text and int not in types:
        return f"{name} {value!r}: it must be {or_text}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value not in known["range"] or (float not in types and value != int(value)):
        whole = "" if float in types else "a whole number, "
        return f"{name} {value!r}: it must be {or_text and or_text + ' or '}{whole}{known['range'].text}"
    return None


def _is_json(value: Any) -> bool:
    """Say whether it maps texts to JSON values."""
    try:
        return isinstance(value, Mapping) and json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        return False


def unknown(what: str, name: Any, known: Collection[str]) -> str:
    """Say what is unknown, its nearest known name, and all known names."""
    hint = "".join(f"; did you mean {nearest!r}?" for nearest in difflib.get_close_matches(str(name), known, n=1))
    return f"{what} {name!r} is unknown{hint or ';'} known: {', '.join(known)}"
