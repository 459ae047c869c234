"""Mathematics verifier: math-verify decides whether two answers are equal, rules decide where the answer has to be.

math-verify's own time limits are signals, which do not work in threads; they are off here. The grading pool kills
what takes too long. The rules are the reward versions 0 to 4 of LUFFY and OGER by name; in all of them math-verify
compares, where versions 0 to 2 used another grader.

math-verify misreads some ways to write a number: 1\\,000 as 0, 2 1/2 as 3/2, 1 2 as 3, 4.5e33 as 4.5 * 33 * e. Such
numbers are rewritten before it reads them. docs/verifiers.md says what counts as equal.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import combinations
from typing import Any

import sympy
from math_verify import parse, verify

from oger_recipe.base.errors import shown
from oger_recipe.grading.rules import EXTRACTIONS, MATH_EXTRACT, MATH_RULES, MathRule
from oger_recipe.grading.verdict import UnreadableAnswer, Verdict
from oger_recipe.grading.verifiers.boxed import last_answer_tag, last_boxed

for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)  # they warn of the time limits that are off


_NUMBER = re.compile(r"[+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3}(?!\d))?", re.ASCII)
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|]{1,40}\|>|</s>")
_SPACING = re.compile(r"\\(?:left|right|[!,;: ])|[\s$]")
_SPACES = r"(?:\\[!,;: ]|\\q?quad|[\s~])+"  # of any width, in LaTeX or plain
_GAP = re.compile(rf"(?<=\d){_SPACES}(?=\d)")
_TWO_NUMBERS = re.compile(rf"(?<![\w.^])\d+(?:\.\d*)?{_SPACES}\d")
_SMALL_SPACE = r"(?:\\[!,;: ]|[ ~\u00a0\u2009\u202f])"
_FRACTION = re.compile(r"\\([dtc]?frac|binom)\s*(\d)\s*(\d)")
_MIXED = re.compile(rf"(?<![\w.^/])(\d{{1,9}}){_SMALL_SPACE}+([1-9]\d{{0,8}})\s*/\s*([1-9]\d{{0,8}})(?![\d./])")
_STYLED = re.compile(r"\\(?:text|math)(?:bf|rm)?\{\s*([+-]?\d[\d.,]*)\s*\}")
_COMMA = r"(?:(?:\\!)?\{,\}(?:\\!)?|\\!,(?:\\!)?|,\\!)"
_THOUSANDS = re.compile(rf"(?<![\w.,^])\d{{1,3}}(?:(?:{_COMMA}|{_SMALL_SPACE})\d{{3}})+(?!\d)")
_MARKS = re.compile(r"(?<![\w)\]}*`])(\*\*|`)([^*`\n]{1,200})\1(?![\w(*`])|[“\"]([^“”\"\n]{1,200})[”\"]")
_NOT_DIGIT = re.compile(r"\D")
_E_NOTATION = re.compile(r"(?<![\w.\\^])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,3})(?!\w|\.\d)")
_EULER = re.compile(r"(?<=\d)e-(?=\d)")
_BARE_EXPONENT = re.compile(r"\^\s*([+-]\d+)")
_LONG_TAIL = re.compile(r"(\.\d{100})\d+")
_ABOUT = re.compile(r"^(?:\\approx|\\sim|[≈~=])\s*")
_SMALL = sympy.Rational(1, 1000)
_MOST_BITS = 10_000  # Python refuses to write numbers of more than 4300 digits
_SINGLE_SCRIPT = re.compile(r"([_^])\{(\w)\}")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}")


# Every worker begins with what parsers and SymPy cache from these. The texts differ, so that mathematics is needed to
# compare them.
_WARM_UP = [
    (f"so \\boxed{{{text}}}", answer)
    for text, answer in (
        (r"\frac{x}{2}+x", r"\frac{3x}{2}"),
        ("12+0", "12"),
        ("-0.50", r"-\frac{1}{2}"),
        (r"2\sqrt{3}+1", r"1+\sqrt{12}"),
        ("(1, 2+1)", "(1,3)"),
        (r"[0,1)\cup(2,\infty)", r"(2,\infty)\cup[0,1)"),
        (r"\{1,2,3\}", r"\{3,2,1\}"),
        ("x = 5+1", "6"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4+0\end{pmatrix}"),
        (r"\frac{\pi}{4}", r"0.25\pi"),
        (r"50\%", "0.5"),
        (r"60^\circ", "60+0"),
        (r"\text{east}", r"\text{(B)}"),
        ("3+4i", "4i+3"),
        (r"\sin(x)+\log_2 8", r"3+\sin x"),
        ("2^{10}", "1024+0"),
        ("1,000", "1000+0"),
    )
]


def warm_up() -> None:
    for response, answer in _WARM_UP:
        verify_math(response, answer)


def verify_math(
    response: str, answer: str, *, rule: str = "math_verify", extract: Sequence[str] = MATH_EXTRACT
) -> Verdict:
    """Grade a response by one of MATH_RULES.

    answer: LaTeX or plain text, with or without ``$`` and ``\\boxed``. extract: where to look for the response's
    answer, in this order; the first place that has one decides (rules that ask for a box look there alone).
    ``anywhere`` is math-verify's own search, which takes the last formula or number it finds. The components format
    (an answer was where the rule wants it) and correct are 0 or 1.
    Raises UnreadableAnswer for an empty answer, ValueError for an unknown rule or an unknown place.
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
    """An answer as normalised text and as what math-verify reads in it (nothing, for words): one or more readings."""

    text: str
    parsed: tuple[Any, ...]

    @property
    def number(self) -> sympy.Rational | None:
        """The exact value of a number, None for everything else and for numbers of more than 999 digits."""
        return _rational(self.parsed[0]) if self.parsed else None

    @property
    def canonical(self) -> str:
        """One text for numbers that are equal, whatever their form; else the normalised text."""
        return self.text if self.number is None else str(self.number)


def _rule(rule: str, extract: Sequence[str]) -> MathRule:
    if rule not in MATH_RULES:
        raise ValueError(f"rule={rule!r} is unknown; valid values: {', '.join(MATH_RULES)}")
    unknown = set(extract) - set(EXTRACTIONS)
    if unknown or not extract:
        raise ValueError(f"extract={tuple(extract)} must name some of {', '.join(EXTRACTIONS)}")
    return MATH_RULES[rule]


def _verdict(
    reason: str, rule: MathRule, *, format_ok: bool = True, correct: bool = False, extracted: str | None = None
) -> Verdict:
    reward = 1.0 if correct else rule.wrong if format_ok else rule.unformatted
    components = {"format": float(format_ok), "correct": float(correct)}
    return Verdict(reward, float(correct), reason, components, extracted)


@lru_cache(maxsize=4096)
def _reference(answer: str) -> _Expression:
    boxed = last_boxed(answer)
    expression = _boxed_expression(answer if boxed is None else boxed)
    if not expression.text:
        raise UnreadableAnswer(f"a math answer must not be empty: {shown(answer)}")
    return expression


def _candidate(text: str, places: tuple[str, ...]) -> _Expression | None:
    for place in places:
        found = _FINDERS[place](text)
        if found is not None:
            return found
    return None


def _anywhere(text: str) -> _Expression | None:
    parsed = _readings(_unmarked(text))
    return _expression(str(parsed[-1]), parsed) if parsed else None


def _unmarked(text: str) -> str:
    """Strip emphasis, code and quotes around words, formulas and numbers."""
    return _MARKS.sub(lambda match: match[2] or match[3], text)


def _last_number(text: str) -> _Expression | None:
    numbers = _NUMBER.findall(text)
    return _boxed_expression(numbers[-1].rstrip(".,").replace(",", "")) if numbers else None


def _boxed(text: str) -> _Expression | None:
    content = last_boxed(text)
    return _boxed_expression(content) if content else None


def _answer_tag(text: str) -> _Expression | None:
    content = last_answer_tag(text)
    inner = last_boxed(content) if content is not None else None
    content = content if inner is None else inner
    return _boxed_expression(content) if content else None


def _boxed_expression(content: str) -> _Expression:
    """Read reference and response as a box's content."""
    content = _ABOUT.sub("", _unmarked(content.strip()).strip("$").strip())
    # By default math-verify takes a number or a bracket out of a box that it cannot read: 2 out of E_3, 2, or [0,1]
    # out of [0,1] U [2,3]. The first match is the box as a whole, as an expression or as text.
    return _expression(_rewritten(content), _readings(f"\\boxed{{{content}}}", extraction_mode="first_match"))


def _readings(text: str, **options: Any) -> list[Any]:
    parsed = parse(_rewritten(text), parsing_timeout=None, **options)
    if parsed and _EULER.search(text):  # 2e-1 is 0.2, or twice Euler's number less one
        parsed += parse(_rewritten(_EULER.sub("e -", text)), parsing_timeout=None, **options)
    return parsed


def _expression(text: str, parsed: Sequence[Any]) -> _Expression:
    if _TWO_NUMBERS.search(text):  # math-verify adds up or multiplies numbers with a space between them
        return _Expression(_normalised(text), ())
    return _Expression(_normalised(text), tuple(_scientific(value) for value in parsed))


def _rewritten(text: str) -> str:
    """Rewrite numbers that math-verify misreads into forms that it reads, in LaTeX and plain text."""
    text = _STYLED.sub(r" \1", text.replace("\u2212", "-"))
    text = _FRACTION.sub(r"\\\1{\2}{\3}", text)
    text = _MIXED.sub(_improper, text)
    text = _THOUSANDS.sub(lambda match: _NOT_DIGIT.sub("", match[0]), text)
    text = _E_NOTATION.sub(r"\1*10^(\2)", text)
    text = _BARE_EXPONENT.sub(r"^(\1)", text)
    return _LONG_TAIL.sub(r"\1", text)  # Python refuses to read thousands of digits; math-verify compares six decimals


def _improper(mixed: re.Match[str]) -> str:
    whole, above, below = map(int, mixed.groups())
    return rf"\frac{{{whole * below + above}}}{{{below}}}" if above < below else mixed[0]


def _normalised(text: str) -> str:
    text = _TEXT.sub(r"\1", text)
    text = (
        text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("^\\circ", "").replace("^{\\circ}", "")
    )
    text = _SINGLE_SCRIPT.sub(r"\1\2", text)
    return " ".join(_SPACING.sub("", part) for part in _GAP.split(text)).rstrip(".")


def _scientific(value: Any) -> Any:
    """Make a number times powers of ten one exact number; math-verify makes a product with a rounded float."""
    if not isinstance(value, (sympy.Mul, sympy.Pow)):
        return value
    product = sympy.Integer(1)
    for factor in sympy.Mul.make_args(value):
        if isinstance(factor, sympy.Pow) and factor.base == 10 and factor.exp.is_Integer and abs(factor.exp) < 1000:
            factor = sympy.Integer(10) ** factor.exp
        number = _rational(factor)
        if number is None:
            return value
        product *= number
    return product


def _rational(number: Any) -> sympy.Rational | None:
    if isinstance(number, sympy.Float) and number.is_finite:
        text = str(number)
        number = sympy.Rational(text) if abs(Decimal(text).adjusted()) < 1000 else None
    small = isinstance(number, sympy.Rational) and number.p.bit_length() + number.q.bit_length() < _MOST_BITS
    return number if small else None


def _equal(reference: _Expression, candidate: _Expression) -> bool:
    if not verify(list(reference.parsed), list(candidate.parsed), timeout_seconds=None):
        return False
    if any(map(_contradicts, candidate.parsed)):
        return False
    expected, found = reference.number, candidate.number
    if expected is None or found is None:
        return True
    # math-verify rounds to six decimals, which makes 4.5e-8 equal to 9e-8 and to 0: small numbers need six digits.
    size = max(abs(expected), abs(found))
    return bool(size >= _SMALL or abs(expected - found) <= size / 10**6)


def _contradicts(value: Any) -> bool:
    """Say whether equations equate two different numbers, as 5 = 18 does. math-verify takes the last one."""
    groups: list[set[Any]] = []
    for equation in sympy.And.make_args(value) if isinstance(value, (sympy.Eq, sympy.And)) else ():
        if not isinstance(equation, sympy.Eq):
            return False
        linked = [group for group in groups if group & set(equation.args)]
        groups = [group for group in groups if group not in linked] + [set(equation.args).union(*linked)]
    numbers = ([side for side in group if side.is_comparable] for group in groups)
    return any(_differ(*pair) for each in numbers for pair in combinations(each, 2))


def _differ(one: Any, other: Any) -> bool:
    """Say whether numbers differ by one or more in the last decimal written of either."""
    written = [
        Decimal(str(float(each))).as_tuple().exponent for side in (one, other) for each in side.atoms(sympy.Float)
    ]
    rounding = max((10.0**exponent for exponent in written if isinstance(exponent, int)), default=0.0)
    return bool(abs((one - other).evalf()) > 0.99 * rounding + 1e-6 * max(abs(one.evalf()), abs(other.evalf())))


# A place without a finder is a KeyError at import.
_FINDERS = {
    place: {"boxed": _boxed, "answer_tag": _answer_tag, "last_number": _last_number, "anywhere": _anywhere}[place]
    for place in EXTRACTIONS
}
