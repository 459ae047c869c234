"""Multiple-choice verifier (ARC, GPQA, MMLU-Pro): which letter the response chose."""

from __future__ import annotations

import re

from oger_recipe.base.errors import shown
from oger_recipe.grading.verdict import UnreadableAnswer, Verdict
from oger_recipe.grading.verifiers.boxed import last_answer_tag, last_boxed

_LETTERS = "ABCDEFGHIJ"
_SMALL = _LETTERS.lower()

# Emphasis, formulas, quotes and LaTeX's commands around a letter are all read as one mark (_plain).
_MARKS = re.compile(
    r"\\(?:text|math)[a-z]{0,6}\s?\{|\\(?:boxed|fbox)\s?\{|\\[()\[\]]|[*_$`\"“”«»{}]|(?<!\w)['‘’]|['‘’](?!\w)"
)
_SPACES = re.compile(r"\\[ ,;:!]|\\q?quad\b|~")
_SAME = str.maketrans("[]：", "():")
_OPEN, _CLOSE = r"[\s¦(]", r"[\s¦)]"

# "A dog" and "I think" begin with a word, "A because" with a letter.
_GOES_ON = "and|as|at|because|but|by|due|for|from|given|if|in|is|nor|or|rather|since|so|to|was|which|with"
_CAPITAL = rf"(?:[B-HJ]|[AI](?!\s(?!(?:{_GOES_ON})\b)[a-z]))(?![A-Za-z0-9'’])"
_MARKED = rf"(?:(?<=[(¦])[{_SMALL}](?=[)¦]))"
# A small letter is a choice in marks or as the last word: "the answer is a prime" names none.
_LETTER = rf"({_CAPITAL}|{_MARKED}|[{_SMALL}](?=[ \t¦]{{0,9}}(?:[.,;:!)](?!\w)|\n\s*(?![a-z\s])|\Z)))"
_RULED_OUT = rf"{_CLOSE}{{0,9}}(?i:(?:is|are|was|were|does|do|can)(?:n['’]t|not|\s(?:not|wrong|incorrect|false))\b)"
_NOUN = r"(?:(?i:option|choice|answer|letter)\s{1,3})?"

# "answer is (C)", "Answer: **C**", "the answer to the question must be C"; "I choose C"
_ANSWER_IS = (
    r"(?i:\b(?:answer|option|choice)\b(?:\s(?:to|for)(?:\s\w{1,20}){1,4})?[\s¦]{0,9}"
    r"(?:is|:|=|(?:would|must|should)\ be))"
)
_I_CHOOSE = r"\bI(?:['’](?:d|ll)|\swould|\swill|\stherefore|\sthus)?\s(?:choose|chose|pick|select|go\swith)\b"
_PHRASE = re.compile(
    rf"(?:{_ANSWER_IS}|{_I_CHOOSE})(?:{_OPEN}|:){{0,9}}(?:(?i:therefore|thus|clearly|most|likely|probably)\s){{0,2}}"
    rf"{_NOUN}{_OPEN}{{0,4}}{_LETTER}(?!{_RULED_OUT})",
    re.ASCII,
)
# "option (B) is correct", "So B is the answer"
_NAMED = rf"(?i:\b(?:option|choice))\s{{0,3}}{_OPEN}{{0,4}}{_LETTER}"
_CONFIRMED = re.compile(
    rf"(?:{_NAMED}|(?:\A|[.:;!?\n]|\b(?i:so|thus|therefore|hence),?){_OPEN}{{0,9}}({_CAPITAL})){_CLOSE}{{0,9}}"
    r"(?i:(?:is|must\ be|would\ be)\s(?:the\s)?(?:only\s)?(?:correct|right|best|answer)\b)",
    re.ASCII,
)
_MENTIONED = re.compile(rf"{_NAMED}(?!{_RULED_OUT})", re.ASCII)
_ALONE = re.compile(
    rf"{_OPEN}*([{_LETTERS}{_SMALL}])(?:[\s¦).:,]*\Z|(?:[).:¦]*[).:][).:¦]*|¦*\s[-–—])\s|¦+(?P<marked>\s))"
)

# Before a letter that is not chosen: "I do not think that the", "if the"; "A or".
_DENIED = re.compile(
    r"(?:\b(?i:not|never|cannot|doubt|deny|if|whether|unless|suppose|assume|eliminate|exclude|reject|neither|nor)"
    r"|n['’]t)(?:\s(?!(?i:but|so|thus|hence|then|and|therefore)\b)\w{1,20}){0,4}[\s¦(]{1,4}\Z"
    rf"|(?<![A-Za-z0-9])[{_LETTERS}{_SMALL}]{_CLOSE}{{0,9}}(?:,|/|&|\b(?:or|nor|and)\b){_OPEN}{{1,9}}\Z",
    re.ASCII,
)
# Behind a letter that is one of several: "or C", "/C"; ", C and D", but for ", C is wrong"; "C D", "(C) (D)"; "\nC".
_OR = r"[\s¦()]{0,9}(?:,?\s?\bor\b|[/|])"
_AND = r"[\s¦()]{0,9}(?:[,;&+?]|\b(?:and|or|nor|to|through)\b)"
_THEN = rf"(?:[\s¦(,&/]|\b(?:and|or|also|even|maybe|perhaps|possibly|alternatively)\b){{0,9}}{_NOUN}{_OPEN}{{0,4}}"
_FURTHER = rf"({_CAPITAL}|{_MARKED})"
_VERB = (
    r"\s(?:is|are|was|were|has|have|does|do|would|contradicts?|fails?)\b"
    r"(?!\s(?:\w{1,20}\s){0,2}(?:also|both|correct|right|true|possible|plausible|valid)\b)"
)
_UNDECIDED = re.compile(
    rf"{_OR}{_THEN}{_FURTHER}"
    rf"|(?:{_AND}{_THEN}{_FURTHER}){{1,9}}+(?!{_RULED_OUT}|{_CLOSE}{{0,9}}{_VERB})"
    rf"|(?:(?:[ \t]{{1,4}}|[ \t]?[-–—][ \t]?)({_CAPITAL})){{1,9}}+[ \t]*(?:[.,;!?()¦\n]|\Z)"
    rf"|[¦)]{{1,9}}[ \t]{{0,4}}[-–—]?[ \t]{{0,4}}[¦(]{{1,9}}{_FURTHER}(?=[)¦])"
    rf"|[)¦. \t]{{0,9}}\n[\s(¦]{{0,9}}(?P<below>{_CAPITAL}|{_MARKED})[)¦. \t]{{0,9}}(?:\n|\Z)",
    re.ASCII,
)
# The options themselves, one after another: "A) 3 B) 4".
_LISTING = re.compile(
    r"A¦?([).:])¦?[ \t](?!(?:because|since|as|and|is|while|but|not)\b)(?:[^\n.]|\.\d){1,80}?[\s(¦]{1,4}B¦?\1¦?\s"
)
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|]{1,40}\|>|</s>")


def verify_choice(response: str, answer: str) -> Verdict:
    """Grade the chosen letter: in the last ``\\boxed{}`` or ``<answer>``, or in the response where it has none, that
    of the last "answer is (C)", "I choose C" or "option C is correct", else the only option that is named ("option
    (C)"), else the text itself when it is a letter.

    "A or B" and "not B" are no choice. answer: one letter, A to J. The components format (a letter was found) and
    correct are 0 or 1.
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
    text = _plain(text if marked is None else marked)
    phrases = [match for find in (_PHRASE, _CONFIRMED) for match in find.finditer(text) if not _is_denied(match, text)]
    if phrases:
        return _decided(max(phrases, key=re.Match.start), text)
    named = {_decided(match, text) for match in _MENTIONED.finditer(text) if not _is_denied(match, text)}
    if named:
        return named.pop() if len(named) == 1 else None
    return _letter_of(text if marked is not None else text.strip()[:200], is_marked=marked is not None)


def _plain(text: str) -> str:
    return _SPACES.sub(" ", _MARKS.sub("¦", text)).translate(_SAME)


def _is_denied(match: re.Match[str], text: str) -> bool:
    start = match.start()
    return _DENIED.search(text[max(start - 100, 0) : start]) is not None


def _letter_of(text: str, *, is_marked: bool) -> str | None:
    """Read the letter of a short text, with what may follow it: "(C)", "C.", "C) Paris".

    is_marked: in a box or tag words may follow a small letter, too ("c) Paris"), or one in marks alone.
    """
    text = text.strip()
    match = _ALONE.match(text)
    if match is None or (not is_marked and match.end() < len(text) and (match[1].islower() or match["marked"])):
        return None
    return _decided(match, text)


def _decided(match: re.Match[str], text: str) -> str | None:
    """Read the letter of a match; None if the text goes on with another."""
    group = next(number for number in range(1, (match.lastindex or 1) + 1) if match[number])
    letter = match[group].upper()
    further = _UNDECIDED.match(text, match.end(group))
    again = further is not None and (further["below"] or "").upper() == letter
    return None if (further and not again) or _LISTING.match(text, match.start(group)) else letter
