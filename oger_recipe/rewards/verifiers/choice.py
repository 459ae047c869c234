"""Multiple-choice verifier (ARC, GPQA, MMLU-Pro): which letter the response chose."""

from __future__ import annotations

import re

from oger_recipe.errors import shown
from oger_recipe.rewards.verdict import UnreadableAnswer, Verdict
from oger_recipe.rewards.verifiers.boxed import last_answer_tag, last_boxed

_LETTERS = "ABCDEFGHIJ"
_SMALL = _LETTERS.lower()
_OPEN, _CLOSE = r"(?:[\s*_$(\[]|\\[(\[])", r"(?:[\s*_$)\]}]|\\[)\]])"  # of brackets, formulas and emphasis
# A small letter is a choice in brackets or as the last word: "the answer is a prime" names none.
_LETTER = (
    rf"(?:([{_LETTERS}])(?![A-Za-z0-9'])|(?<=[(\[*$])([{_SMALL}])(?=\\?[)\]*$])"
    rf"|([{_SMALL}])(?=[ \t*_]{{0,9}}(?:[.,;:!)}}](?!\w)|\n\s*(?![a-z\s])|\Z)))"
)
# "answer is (C)", "Answer: **C**", "the correct option is C."
_COMMAND = r"(?:\\?(?:boxed|text|textbf|mathrm|mathbf)\{)?"
_PHRASE = re.compile(
    rf"(?i:\b(?:answer|option|choice)\b[\s*_]{{0,9}}(?:is|:|=|would\ be))(?:{_OPEN}|:){{0,9}}{_COMMAND}{_COMMAND}"
    rf"{_OPEN}{{0,4}}{_LETTER}",
    re.ASCII,
)
_NAMED = rf"(?i:\b(?:option|choice))\s{{0,3}}{_OPEN}{{0,4}}{_LETTER}"
# "option (B) is correct"
_CONFIRMED = re.compile(
    rf"{_NAMED}{_CLOSE}{{0,9}}(?i:(?:is|must\ be|would\ be)\s(?:the\s)?(?:only\s)?(?:correct|right|best|answer)\b)",
    re.ASCII,
)
_MENTIONED = re.compile(rf"{_NAMED}(?!{_CLOSE}{{0,9}}(?i:is\s(?:not|wrong|incorrect|false)\b))", re.ASCII)
_WRAPPED = re.compile(rf"\\(?:text|mathrm|textbf|mathbf)\{{\s*\(?([{_LETTERS}{_SMALL}])\)?\s*\}}")
_ALONE = re.compile(rf"{_OPEN}*([{_LETTERS}{_SMALL}])(?:(?:[\s*_$)\].:,]|\\[)\]])*$|[).:]\s)")
# What follows a letter that was not decided on: "or (C)", "/C", "and C."
_SECOND = rf"{_OPEN}{{0,4}}(?i:option\s)?\(?(?:[{_LETTERS}](?![A-Za-z0-9'])|[{_SMALL}](?=\)))"
_UNDECIDED = re.compile(
    rf"{_CLOSE}{{0,9}}(?:,?\s?\bor\s{_SECOND}|/{_SECOND}|(?:,?\s?\band\s|[&,]){_SECOND}{_CLOSE}{{0,9}}(?:[.;]|\Z))"
)
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|]{1,40}\|>|</s>")


def verify_choice(response: str, answer: str) -> Verdict:
    """Grades the chosen letter: of the last ``\\boxed{}`` or ``<answer>``, else of the last "answer is (C)" or "option
    C is correct", else the only option that is named ("option (C)"), else the response itself when it is a letter.

    "A or B" is no choice. answer: one letter, A to J. The components format (a letter was found) and correct are 0
    or 1.
    Raises UnreadableAnswer for another answer.
    """
    reference = answer.strip().strip("()").upper()
    if len(reference) != 1 or reference not in _LETTERS:
        raise UnreadableAnswer(f"a multiple-choice answer is one letter, A to J, not {shown(answer)}")
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
    phrases = [*_PHRASE.finditer(text), *_CONFIRMED.finditer(text)]
    if phrases:
        return _decided(max(phrases, key=re.Match.start), text)
    named = {_decided(match, text) for match in _MENTIONED.finditer(text)}
    if named:
        return named.pop() if len(named) == 1 else None
    return _letter_of(text.strip()[:200], small_before_text=False)


def _letter_of(text: str, small_before_text: bool = True) -> str | None:
    """The letter that a short text is, with its brackets and what may follow it: "(C)", "C.", "**C**", "C) Paris".

    small_before_text: whether the letter may be a small one where words follow, as in "c) Paris".
    """
    text = text.strip()
    match = _WRAPPED.match(text) or _ALONE.match(text)
    if match is None or (match[1].islower() and not small_before_text and match.end() < len(text)):
        return None
    return _decided(match, text)


def _decided(match: re.Match[str], text: str) -> str | None:
    """The letter of a match, None when the text goes on with another one."""
    group = match.lastindex or 1
    return None if _UNDECIDED.match(text, match.end(group)) else match[group].upper()
