"""Responses in a file, to be scored: JSON lines of ``uid`` and ``text``, and what a text does not tell."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError, shown
from oger_recipe.data.sources import made_of_records


@dataclass(frozen=True)
class Response:
    """entropy: the policy's at oger.entropy_position (nats; nan: not known); log_prob: of the whole response by the
    policy that sampled it (nan: not known); truncated: it ended at its longest; response_length: its tokens (None: not
    known).

    Samples of a run also say off_policy: it is, or begins as, a teacher's, whose source is named; replaced: a teacher
    took its place, and it was not trained.
    """

    where: str  # file and line
    uid: str
    text: str
    entropy: float = math.nan
    truncated: bool = False
    response_length: int | None = None
    off_policy: bool = False
    source: str | None = None
    replaced: bool = False
    log_prob: float = math.nan


def read_responses(path: Path, uids: Collection[str], rows: str) -> list[Response]:
    """Read the responses to rows of these uids; ``rows`` names their file. Other columns are not read.

    Raises RecipeError with all lines that are wrong.
    """

    def response(record: Any, where: str) -> Response:
        made = _response(record, where)
        if made.uid not in uids:
            raise RecipeError(
                f"{where}: no row of {rows} has the uid {shown(made.uid)} (give rows a uid: without one it is made "
                "from prompt and answer)"
            )
        return made

    return made_of_records(str(path), "train", response, "no responses in this file")


def _response(record: Any, where: str) -> Response:
    if not isinstance(record, dict):
        raise RecipeError(f"{where}: a response is a JSON object, found {type(record).__name__}")
    uid, text = record.get("uid"), record.get("text")
    if not isinstance(uid, str) or not uid:
        raise RecipeError(f"{where}: 'uid' must be a non-empty string, found {shown(uid)}")
    if not isinstance(text, str):
        raise RecipeError(f"{where}: 'text' must be a string, found {shown(text)}")
    numbers: dict[str, Any] = {name: _number(record.get(name), name, where) for name in ("entropy", "log_prob")}
    tokens = record.get("response_length")
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0):
        raise RecipeError(f"{where}: 'response_length' must be a whole number of tokens, found {shown(tokens)}")
    flags = {name: record.get(name, False) for name in ("truncated", "off_policy", "replaced")}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise RecipeError(f"{where}: '{name}' must be true or false, found {shown(value)}")
    return Response(where, uid, text, source=record.get("source"), response_length=tokens, **numbers, **flags)


def _number(value: Any, name: str, where: str) -> float:
    """Read a number that may be missing, then nan."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RecipeError(f"{where}: '{name}' must be a number, found {shown(value)}")
    return float(value)
