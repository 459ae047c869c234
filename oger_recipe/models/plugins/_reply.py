"""Reads verdicts in what a judge wrote."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from typing import Any


def after_thought(reply: str) -> str:
    """Return what follows the judge's thought."""
    return reply.rpartition("</think>")[2].strip()


def last_named(name: str, pattern: str, reply: str) -> str | None:
    """Return the match behind a reply's last ``name:``, or the reply if it matches; else None."""
    answer = after_thought(reply)
    found = re.findall(rf"\b{name}[*\s]*[:=][*\s\[(]*({pattern})(?!\w|\.\w)", answer, re.IGNORECASE)
    if found:
        return str(found[-1])
    return answer if re.fullmatch(pattern, answer, re.IGNORECASE) else None


def last_object(reply: str) -> dict[str, Any] | None:
    """Return the last JSON object of a reply, or None.

    Repaired are a missing end, and what Python reads: commas before an end, single quotes, True, False and None.
    """
    text = _last_braces(after_thought(reply))
    for read in (json.loads, _as_python):
        for candidate in (text, _completed(text)):
            with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                found = read(candidate)
                return found if isinstance(found, dict) else None
    return None


def _as_python(text: str) -> Any:
    return ast.literal_eval(re.sub(r"\b(true|false|null)\b", lambda found: _PYTHON[found[0]], text))


_PYTHON = {"true": "True", "false": "False", "null": "None"}


def _last_braces(text: str) -> str:
    """Return the last {...} that lies in no other one; where it has no end, all that follows its beginning."""
    last, start, depth, quoted = "", 0, 0, False
    for found in re.finditer(r'\\.|["{}]', text):
        mark = found[0]
        if mark == '"' and depth:
            quoted = not quoted
        elif mark == "{" and not quoted:
            start, depth = (found.start() if not depth else start), depth + 1
        elif mark == "}" and not quoted and depth:
            depth -= 1
            last = last if depth else text[start : found.end()]
    return text[start:] if depth else last


def _completed(text: str) -> str:
    """Close what is open at the end of a JSON text."""
    open_ones, quoted = [], False
    for found in re.finditer(r'\\.|["{}\[\]]', text):
        mark = found[0]
        if mark == '"':
            quoted = not quoted
        elif not quoted and mark in "{[":
            open_ones.append("}" if mark == "{" else "]")
        elif not quoted and open_ones:
            open_ones.pop()
    return text + '"' * quoted + "".join(reversed(open_ones))
