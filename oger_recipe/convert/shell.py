"""What a shell makes of a script's text: joined lines, variables, sums, words."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

ASSIGNMENT = re.compile(r"\s*(export\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"'[^']*'"  # nothing is a variable between single quotes
    r"|\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)"
    r"|\$\((?P<output>[^()]*)\)"
    r'|"\$\{(?P<array>[A-Za-z_]\w*)\[[@*]\]\}"'
    r"|\$(?P<plain>[A-Za-z_]\w*|\d)"
    r"|\$\{(?P<braced>[A-Za-z_]\w*|\d)(?:\[[@*]\])?(?::?-(?P<default>[^}]*))?\}"
)
_NAME = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\}?")
_SPACE = "\N{NO-BREAK SPACE}"  # stands for one that does not end a word
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod}


@dataclass(frozen=True)
class Line:
    """Lines joined by backslashes, or by a value's open quotation mark or parenthesis; the first and the last."""

    text: str
    first: int
    last: int


def joined(text: str) -> Iterator[Line]:
    """Join lines as a shell does: a comment ends its line, and with it the joining by backslashes."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate(text.splitlines(), start=1):
        first = first if parts else number
        body, is_cut = _without_comment(line)
        more = not is_cut and re.search(r"\\\s*$", body)  # text copied from a page often has spaces at its end
        parts.append(re.sub(r"\\\s*$", " ", body) if more else body)
        if not more and _is_open("".join(parts)):
            parts.append(" ")
        elif not more:
            yield Line("".join(parts), first, number)
            parts = []
    if parts:
        yield Line("".join(parts), first, first + len(parts) - 1)


def _is_open(text: str) -> bool:
    """Say whether a value in quotation marks, or an array, goes on in the next line."""
    match = ASSIGNMENT.fullmatch(text)
    value = match[4].strip() if match else ""
    return value[:1] == '"' and value.count('"') % 2 == 1 or value[:1] == "(" and not value.endswith(")")


def _without_comment(line: str) -> tuple[str, bool]:
    quote = ""
    for position, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and (position == 0 or line[position - 1].isspace()):
            return line[:position], True
    return line, False


def expand(text: str, known: Mapping[str, str], used: set[str]) -> str:
    """Put known variables and sums in place; leave unknown ones, and what commands print, as they are written."""

    def value(match: re.Match[str]) -> str:
        name = match["array"] or match["plain"] or match["braced"]
        if match["sum"] is not None:
            return _calculated(match["sum"], known, used)
        if match["output"] is not None:
            return _printed(expand(match["output"], known, used))
        if name is None:
            return match[0]
        used.add(name)
        if known.get(name) or (name in known and match["default"] is None):
            return known[name]
        return match[0] if match["default"] is None else match["default"]

    return _VARIABLE.sub(value, text)


def _printed(command: str) -> str:
    """Return what `basename PATH` prints; other commands as one word, for the user to replace."""
    parts = command.replace('"', "").split()
    if len(parts) == 2 and parts[0] == "basename":
        return PurePosixPath(parts[1]).name
    return f"$({_SPACE.join(parts)})"


def _calculated(text: str, known: Mapping[str, str], used: set[str]) -> str:
    """Return the value of $((text)), in which names need no $; as it is written where one is unknown."""
    used.update(_NAME.findall(text))
    filled = _NAME.sub(lambda match: known.get(match[1], match[0]), expand(text, known, used))
    try:
        return str(_number(ast.parse(filled.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return re.sub(r"\s", "", f"$(({filled}))")


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return int(_number(left) / _number(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return int(_OPERATORS[type(sign)](_number(left), _number(right)))
    raise ValueError("not a sum of whole numbers")


def words(text: str) -> list[str]:
    """Split an expanded text. Raise ValueError for a quotation mark that is not closed."""
    return [word.replace(_SPACE, " ") for word in shlex.split(text)]
