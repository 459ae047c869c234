"""Where a response marks its answer. Time linear in the text, whatever it holds."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def last_boxed(text: str) -> str | None:
    """Return what the last closed ``\\boxed{...}`` holds, else None."""
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    ends = _closing_braces(text, starts)
    complete = [start for start in starts if start in ends]
    return text[complete[-1] : ends[complete[-1]]].strip() if complete else None


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
    # Same matches as the regex <answer>(.*?)</answer>, which takes quadratic time on a long run of opening tags.
    for segment in reversed(text.split("</answer>")[:-1]):
        _, tag, content = segment.partition("<answer>")
        if tag:
            return content.strip()
    return None
