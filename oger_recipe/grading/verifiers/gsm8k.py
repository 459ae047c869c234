"""GSM8K verifier with the rules of OAT's oracle: the last number of the response against the reference."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from oger_recipe.base.errors import shown
from oger_recipe.grading.rules import GSM8K_FORMATS
from oger_recipe.grading.verdict import UnreadableAnswer, Verdict
from oger_recipe.grading.verifiers.boxed import last_answer_tag, last_boxed
from oger_recipe.grading.verifiers.countdown import MAX_CHARS, oat_value

_SPACE = r"(?:\\[!,;: ]|[\u00a0\u2009\u202f])"
# Thousands as LaTeX and books write them: 70{,}000, 70\!,000, 70\,000.
_GROUPED = re.compile(rf"(?<=\d){_SPACE}{{0,2}}(?:\{{,\}}|,)?{_SPACE}{{0,2}}(?=\d{{3}}(?!\d))")
_SEVERAL = re.compile(  # "5 or 18", "5, 18"; "not 18"
    r"\d[^\d]{0,20}(?:\b(?:or|and)\b|[,;])[^\d\w]{0,9}[\d.]|\b(?:not|neither)\b|\\n(?:eq?|ot)\b|≠|!="
)
_SIGNS = {"\\times": "*", "\\cdot": "*", "\\div": "/", "×": "*", "·": "*", "÷": "/", "\\$": "", "$": "", ",": ""}
_NUMBER = re.compile(r"[+-]?\d+\.\d*|[+-]?\.\d+|[+-]?\d+e[-+]?\d+|[+-]?\d+", re.ASCII)


def verify_gsm8k(
    response: str, answer: str, *, answer_format: str = "last_number", strict_oat: bool = False
) -> Verdict:
    """Grade the last number of the response; with ``hashes``, the last number after its last ``####``; with ``boxed``
    or ``answer_tag``, that of the last ``\\boxed{}`` or ``<answer>``, of the whole response where it has none.

    answer: a number, or a GSM8K solution that ends in ``#### <number>``. Numbers are compared by value, so that 18.0
    is 18; with ``strict_oat`` as texts, as OAT does. In a marked place "5 = 18", "5 or 18" and "not 18" are no answer.
    The components format and correct are 0 or 1.
    Raises UnreadableAnswer for an answer without a number, ValueError for an unknown format.
    """
    if answer_format not in GSM8K_FORMATS:
        raise ValueError(f"answer_format={answer_format!r} is unknown; valid values: {', '.join(GSM8K_FORMATS)}")
    reference = _last_number(answer.rpartition("####")[2])
    if reference is None:
        raise UnreadableAnswer(f"a GSM8K answer must have a number: {shown(answer)}")
    marked = _READERS[answer_format](response)
    text = response if marked is None else marked
    if not strict_oat:
        text = _GROUPED.sub("", text.replace("\u2212", "-"))
    found = _last_number(text)
    if found is None or (marked is not None and not strict_oat and _contradicts(text, found)):
        return Verdict(0.0, 0.0, "no number was found", {"format": 0.0, "correct": 0.0})
    right = found.lower() == reference.lower() if strict_oat else _value(found) == _value(reference)
    reason = "right" if right else f"{found[:100]}, not {reference}"
    extracted = found if strict_oat else _canonical(_value(found))
    return Verdict(float(right), float(right), reason, {"format": 1.0, "correct": float(right)}, extracted)


def _after_hashes(response: str) -> str:
    _, marker, answer = response.rpartition("####")
    return answer if marker else ""


# The marked place that is read, None for the whole response; a format without reader is a KeyError at import.
_READERS: dict[str, Callable[[str], str | None]] = {
    name: {
        "last_number": lambda _: None,
        "hashes": _after_hashes,
        "boxed": last_boxed,
        "answer_tag": last_answer_tag,
    }[name]
    for name in GSM8K_FORMATS
}


def _last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text.replace(",", ""))
    return numbers[-1].rstrip(".") if numbers else None


def _contradicts(content: str, found: str) -> bool:
    """Say whether a marked place names another number beside the one found there, or rules that one out."""
    if len(content) > MAX_CHARS:
        return False
    if _SEVERAL.search(content):
        return True
    for sign, plain in _SIGNS.items():
        content = content.replace(sign, plain)
    rounding = 10.0 ** -len(found.partition(".")[2]) if "." in found else 0.0
    sides = [value for side in content.split("=")[:-1] if (value := oat_value(side)) is not None]
    return any(abs(value - float(found)) > 0.99 * rounding + 1e-6 * abs(value) for value in sides)


def _value(number: str) -> Decimal | str:
    try:
        return Decimal(number)
    except InvalidOperation:  # an exponent beyond all bounds
        return number


def _canonical(value: Decimal | str) -> str:
    """Write each value one way. (Decimal.normalize would round to its context's digits.)"""
    if isinstance(value, str) or abs(value.adjusted()) > 100:
        return str(value)
    text = format(value, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text).removeprefix("+") or "0"
