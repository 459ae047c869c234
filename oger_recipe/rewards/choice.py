"""Multiple-choice verifier (ARC, GPQA, MMLU-Pro): which letter the response chose."""

from __future__ import annotations

import re

from oger_recipe.rewards.boxed import last_answer_tag, last_boxed
from oger_recipe.rewards.verifiers import Verdict

_LETTERS = "ABCDEFGHIJ"
# "answer is (C)", "Answer: **C**", "the correct option is C."
_PHRASE = re.compile(
    r"(?i:\b(?:answer|option|choice)\b[\s*_]{0,9}(?:is|:|=|would\ be)[\s:*_$]{0,9}"
    r"(?:\\boxed\{|\\text\{)?[(\[*_\s]{0,4})"
    rf"([{_LETTERS}])(?![A-Za-z0-9'])",
    re.ASCII,
)
_WRAPPED = re.compile(rf"\\(?:text|mathrm|textbf|mathbf)\{{\s*\(?([{_LETTERS}])\)?\s*\}}")
_ALONE = re.compile(rf"[\s*_$(\[]*([{_LETTERS}])(?:[\s*_$)\].:,]*$|[).:]\s)")
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|]{1,40}\|>|</s>")


def verify_choice(response: str, answer: str) -> Verdict:
    """Grade the chosen letter: of the last ``\\boxed{}`` or ``<answer>``, else of the last "answer is (C)", else the
    response itself when it is a letter.

    answer: one letter, A to J. The components format (a letter was found) and correct are 0 or 1.
    Raises ValueError for another answer.
    """
    reference = answer.strip().strip("()").upper()
    if len(reference) != 1 or reference not in _LETTERS:
        raise ValueError(f"a multiple-choice answer is one letter, A to J, not {answer!r}")
    letter = _chosen(_SPECIAL_TOKEN.sub("", response).rpartition("</think>")[2])
    if letter is None:
        return Verdict(0.0, 0.0, "no choice was found", {"format": 0.0, "correct": 0.0})
    right = letter == reference
    reason = "right" if right else f"{letter}, not {reference}"
    return Verdict(float(right), float(right), reason, {"format": 1.0, "correct": float(right)}, letter)


def _chosen(text: str) -> str | None:
    marked = last_boxed(text)
    if marked is None:
        marked = last_answer_tag(text)
    if marked is not None:
        return _letter_of(marked)
    phrases = _PHRASE.findall(text)
    return phrases[-1] if phrases else _letter_of(text.strip()[:200])


def _letter_of(text: str) -> str | None:
    """The letter that a short text is, with its brackets and what may follow it: "(C)", "C.", "**C**", "C) Paris"."""
    text = text.strip()
    match = _WRAPPED.match(text) or _ALONE.match(text)
    return match.group(1) if match else None
