"""Where a response marks its answer. Time linear in the text, whatever it holds."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def last_boxed(text: str) -> str | None:
    """Return what the last closed ``\\boxed{...}`` holds, else None."""
    place = _last_box(text)
    return None if place is None else text[slice(*place)].strip()


def _last_box(text: str) -> tuple[int, int] | None:
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    ends = _closing_braces(text, starts)
    complete = [start for start in starts if start in ends]
    return (complete[-1], ends[complete[-1]]) if complete else None


def _closing_braces(text: str, starts: list[int]) -> dict[int, int]:
    """Map positions just after opening braces to those of their closing braces, in one pass; omit open ones."""
    wanted, open_at, ends = set(starts), [], {}
    for position in range(starts[0] - 1, len(text)):
        character = text[position]
        if character in "{}" and (position == 0 or text[position - 1] != "\\"):  # \{ and \} are sets, not groups
            if character == "{":
                open_at.append(position + 1)
            elif open_at:
                start = open_at.pop()
                if start in wanted:
                    ends[start] = position
    return ends


def last_answer_tag(text: str) -> str | None:
    """Read the last ``<answer>...</answer>``, or return None."""
    place = _last_tag(text)
    return None if place is None else text[slice(*place)].strip()


def _last_tag(text: str) -> tuple[int, int] | None:
    # Same matches as the regex <answer>(.*?)</answer>, which takes quadratic time on a long run of opening tags.
    *closed, rest = text.split("</answer>")
    end = len(text) - len(rest)
    for segment in reversed(closed):
        end -= len("</answer>")
        _, tag, content = segment.partition("<answer>")
        if tag:
            return end - len(content), end
        end -= len(segment)
    return None


def answer_place(text: str) -> tuple[int, int]:
    """Return where a text gives its answer, from its first character to behind its last: the last closed box or
    answer tag, or what is behind the last ``####``, whichever is last; without any of them its last line. Blanks at
    either end are left out."""
    hashes = text.rfind("####")
    marked = [_last_box(text), _last_tag(text), (hashes + 4, len(text)) if hashes >= 0 else None]
    begin, end = max((place for place in marked if place), default=(text.rstrip().rfind("\n") + 1, len(text)))
    inside = text[begin:end]
    return begin + len(inside) - len(inside.lstrip()), begin + len(inside.rstrip())
