"""How a response is cut into steps of reasoning: behind each delimiter, and at the caps of a step and a response."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class StepRule:
    """A step ends behind any of the texts or tokens that delimit steps, with its max_step_tokens-th token, and with
    the response. A response ends with its max_steps-th step, or with the first step that has last_step_text in it."""

    delimiters: tuple[str, ...] = ("\n\n",)
    delimiter_token_ids: tuple[int, ...] = ()
    max_step_tokens: int | None = None
    max_steps: int | None = None
    last_step_text: str | None = None


def cut_text(text: str, rule: StepRule) -> list[str]:
    """Cut a text behind its delimiters; the parts joined are the text, and none is blank: a blank one belongs to the
    step before it."""
    if not rule.delimiters:
        return [text] if text else []
    longest_first = sorted(rule.delimiters, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    steps: list[str] = []
    begin = 0
    for end in [*(found.end() for found in re.finditer(pattern, text)), len(text)]:
        part = text[begin:end]
        if steps and not part.strip():
            steps[-1] += part
        elif part:
            steps.append(part)
        begin = end
    return steps
