"""Mathematics verifier: math-verify decides whether two answers are equal, rules decide where the answer has to be.

math-verify's own time limits are signals, which do not work in threads; they are off here. The grading pool kills
what takes too long. The rules are the reward versions 0 to 4 of LUFFY and OGER by name; in all of them math-verify
compares, where versions 0 to 2 used another grader.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
from math_verify import parse, verify

from oger_recipe.rewards.boxed import last_answer_tag, last_boxed
from oger_recipe.rewards.verifiers import Verdict

for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)  # they warn of the time limits that are off


@dataclass(frozen=True)
class Rule:
    """Where the answer has to be, and what is earned without a right one.

    needs_think: after ``</think>``; boxed_only: inside ``\\boxed{}``; rewards of a wrong answer and of a response that
    breaks the rule.
    """

    needs_think: bool
    boxed_only: bool
    wrong: float = 0.0
    unformatted: float = 0.0


RULES = {
    "deepscaler": Rule(True, True),  # 0
    "deepscaler_format": Rule(True, True, wrong=-0.5, unformatted=-1.0),  # 1
    "deepscaler_no_think": Rule(False, True),  # 2
    "math_verify_think": Rule(True, False),  # 3
    "math_verify": Rule(False, False),  # 4
}
EXTRACTIONS = ("boxed", "answer_tag", "last_number", "anywhere")
_NUMBER = re.compile(r"[+-]?(?:\d[\d,]*\.?\d*|\.\d+)", re.ASCII)
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|]{1,40}\|>|</s>")
_SPACING = re.compile(r"\\(?:left|right|[!,;: ])|[\s$]")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}")


def verify_math(
    response: str, answer: str, *, rule: str = "math_verify", extract: Sequence[str] = ("boxed", "anywhere")
) -> Verdict:
    """Grade a response by one of RULES.

    answer: LaTeX or plain text, with or without ``$`` and ``\\boxed``. extract: where to look for the response's
    answer, in this order; the first place that has one decides (rules that ask for a box look there alone).
    ``anywhere`` is math-verify's own search, which takes the last formula or number it finds. The components format
    (an answer was where the rule wants it) and correct are 0 or 1.
    Raises ValueError for an empty answer, an unknown rule or an unknown place.
    """
    chosen = _rule(rule, extract)
    reference = _reference(answer)
    thought, marker, text = _SPECIAL_TOKEN.sub("", response).rpartition("</think>")
    if chosen.needs_think and not marker:
        return _verdict("no </think>", chosen, format_ok=False)
    if not chosen.needs_think:
        text = thought + marker + text
    candidate = _candidate(text, ("boxed",) if chosen.boxed_only else tuple(extract))
    if candidate is None:
        return _verdict("no answer was found", chosen, format_ok=False)
    right = candidate.text == reference.text or _equal(reference, candidate)
    reason = "right" if right else f"{candidate.text[:100]}, not {reference.text[:100]}"
    return _verdict(reason, chosen, correct=right, extracted=candidate.canonical)


@dataclass(frozen=True)
class _Expression:
    """An answer as normalised text and as what math-verify reads in it (nothing, for words)."""

    text: str
    parsed: tuple[Any, ...]

    @property
    def canonical(self) -> str:
        """One text for numbers that are equal, whatever their form; else the normalised text."""
        value = self.parsed[0] if self.parsed else None
        if isinstance(value, sympy.Float):
            return str(sympy.Rational(str(value)))
        return str(value) if isinstance(value, sympy.Rational) else self.text


def _rule(rule: str, extract: Sequence[str]) -> Rule:
    if rule not in RULES:
        raise ValueError(f"rule={rule!r} is unknown; valid values: {', '.join(RULES)}")
    unknown = set(extract) - set(EXTRACTIONS)
    if unknown or not extract:
        raise ValueError(f"extract={tuple(extract)} has to name some of {', '.join(EXTRACTIONS)}")
    return RULES[rule]


def _verdict(
    reason: str, rule: Rule, *, format_ok: bool = True, correct: bool = False, extracted: str | None = None
) -> Verdict:
    reward = 1.0 if correct else rule.wrong if format_ok else rule.unformatted
    components = {"format": float(format_ok), "correct": float(correct)}
    return Verdict(reward, float(correct), reason, components, extracted)


@lru_cache(maxsize=4096)
def _reference(answer: str) -> _Expression:
    boxed = last_boxed(answer)
    expression = _boxed_expression(answer if boxed is None else boxed)
    if not expression.text:
        raise ValueError(f"a math answer is not empty: {answer!r}")
    return expression


def _candidate(text: str, places: tuple[str, ...]) -> _Expression | None:
    for place in places:
        found = _find(text, place)
        if found is not None:
            return found
    return None


def _find(text: str, place: str) -> _Expression | None:
    if place == "anywhere":
        parsed = tuple(parse(text, parsing_timeout=None))
        return _Expression(_normalised(str(parsed[-1])), parsed) if parsed else None
    if place == "last_number":
        numbers = _NUMBER.findall(text)
        return _boxed_expression(numbers[-1].rstrip(".,").replace(",", "")) if numbers else None
    content = last_boxed(text) if place == "boxed" else last_answer_tag(text)
    if content is not None and place == "answer_tag":
        inner = last_boxed(content)
        content = content if inner is None else inner
    return _boxed_expression(content) if content else None


def _boxed_expression(content: str) -> _Expression:
    """Read as the content of a box, on both sides alike."""
    content = content.strip().strip("$").strip()
    return _Expression(_normalised(content), tuple(parse(f"\\boxed{{{content}}}", parsing_timeout=None)))


def _normalised(text: str) -> str:
    text = _TEXT.sub(r"\1", text)
    text = (
        text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("^\\circ", "").replace("^{\\circ}", "")
    )
    return _SPACING.sub("", text).rstrip(".")


def _equal(reference: _Expression, candidate: _Expression) -> bool:
    return bool(verify(list(reference.parsed), list(candidate.parsed), timeout_seconds=None))
