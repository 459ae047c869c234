"""What commands print in a terminal: text that cannot command it, tables for its width, trends in one line."""

import math
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

_BLOCKS = "▁▂▃▄▅▆▇█"
_LETTERS = "_.-=+*#@"  # for a terminal that has no blocks
_JOINERS = "\u200c\u200d"  # of emoji and of several scripts
_PIPE_WIDTH = 10_000  # in a pipe every row stays one line


def terminal() -> Console:
    """Make the console for stdout; what its encoding lacks is replaced, and a pipe gets lines of any length."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, markup=False, emoji=False, highlight=False)


def is_narrow(console: Console, columns: int) -> bool:
    return console.is_terminal and shutil.get_terminal_size().columns < columns


def plain(text: object, style: str = "") -> Text:
    """Make text of anything that a model, a user or a file wrote: it is shown, and commands nothing.

    Control characters, among them escape sequences, changes of direction and halves of characters, appear as their
    codes; line ends and tabs stay.
    """
    return Text("".join(map(_shown, str(text))), style)


def _shown(letter: str) -> str:
    if letter in "\n\t" or letter in _JOINERS or unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return letter
    return letter.encode("unicode_escape", "surrogatepass").decode()


def figure(value: object) -> str:
    """Write a number with the digits that tell; a dash for none."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) >= 0.001 else f"{value:.1e}"


def verdict_text(row: Mapping[str, Any]) -> Text:
    """Say whether a row is right, and why not."""
    score, reason = row.get("score"), row.get("reason")
    if score is None or row.get("graded") is False:
        return plain("not graded", "bold yellow") + plain(f": {reason}" if reason else "")
    why = f": {reason}" if reason and reason != "right" else ""
    return plain("right" if score > 0 else "wrong", "bold green" if score > 0 else "bold red") + plain(why)


def sparkline(values: Sequence[float | None], width: int, *, blocks: bool = True) -> str:
    """Draw values as one line of blocks from the lowest to the highest, at most ``width`` long; gaps stay empty.

    Of more values than fit, neighbours are averaged.
    """
    shown = [_mean(values[begin:end]) for begin, end in _parts(len(values), width)]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    marks = _BLOCKS if blocks else _LETTERS
    middle = len(marks) // 2 - 1  # of values that are all the same

    def mark(value: float | None) -> str:
        if value is None:
            return " "
        return marks[round((value - low) / span * (len(marks) - 1)) if span else middle]

    return "".join(map(mark, shown))


def _parts(count: int, width: int) -> list[tuple[int, int]]:
    """Cut so many values into at most ``width`` parts of nearly one size, as (begin, end)."""
    parts = min(count, width)
    return [(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
