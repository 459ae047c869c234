"""Countdown verifier with the scoring of OAT's oracle: 0 without an answer, 0.1 for a wrong one, 1 for a right one.

Unlike that oracle it never evaluates text: the answer is read as a syntax tree, so that ``**`` and ``//`` are no way
round the four operators, the halves of a decimal do not pass for two given numbers, and no expression takes long.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from oger_recipe.base.errors import shown
from oger_recipe.grading.verdict import UnreadableAnswer, Verdict
from oger_recipe.grading.verifiers.arithmetic import solution_class
from oger_recipe.grading.verifiers.boxed import last_answer_tag, last_boxed

WRONG_REWARD = 0.1
MAX_CHARS = 200

_LATEX_SIGNS = {"\\times": "*", "\\cdot": "*", "\\div": "/", "\\left": "", "\\right": "", "$": ""}
_ALLOWED_CHARS = frozenset("0123456789+-*/() \t")
_OAT_CHARS = re.compile(r"^[\d+\-*/().\s]+$")
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|]{1,40}\|>|</s>")
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


_PYTHON_OPERATIONS: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def verify_countdown(
    response: str, answer: str, *, strict_oat: bool = False, answer_in: str = "answer_tag"
) -> Verdict:
    """Grade the last <answer>...</answer> on the response's last line; with answer_in ``boxed``, the last
    ``\\boxed{}`` there, in which LaTeX's signs of operations count as well.

    answer: JSON ``{"numbers": [ints], "target": int}``; anything else raises UnreadableAnswer.
    strict_oat: OAT's scoring to the letter: a line break after the answer makes it none, ``**``, ``//`` and decimals
    (which count as two numbers) are allowed, and a value within 1e-5 of the target is right.
    The components format, numbers_ok and correct are 0 or 1. The solution of a right answer is its normal form
    (arithmetic.py), equal for one solution written differently.
    """
    numbers, target = _read_answer(answer)
    if answer_in not in _IN:
        raise ValueError(f"answer_in={answer_in!r} is unknown; valid values: {', '.join(_IN)}")
    find, form = _IN[answer_in]
    text = find(response.rpartition("\n")[2]) if strict_oat else find(_last_line(response))
    if text is None:
        return _verdict(f"no {form} on the last line", format_ok=False)
    verdict = (_grade_as_oat if strict_oat else _grade)(text, numbers, target)
    return replace(verdict, extracted="".join(text.split())[:MAX_CHARS])


def _grade(text: str, numbers: list[int], target: int) -> Verdict:
    tree = _parse(text)
    used = None if tree is None else _numbers_in(tree)
    if tree is None or used is None:
        return _verdict("the answer is not whole numbers joined by + - * / and brackets")
    if sorted(used) != sorted(numbers):
        return _verdict(f"uses the numbers {sorted(used)}, not {sorted(numbers)}")
    verdict = _grade_value(tree, target)
    return replace(verdict, solution=solution_class(tree)) if verdict.score else verdict


def _grade_as_oat(text: str, numbers: list[int], target: int) -> Verdict:
    used = sorted(int(digits) for digits in re.findall(r"\d+", text[: MAX_CHARS + 1]))
    if len(text) > MAX_CHARS or used != sorted(numbers):
        return _verdict("does not use each number once")
    value = oat_value(text) if _OAT_CHARS.match(text) else None
    if value is None:
        return _verdict("is not an expression with a value", numbers_ok=True)
    if abs(value - target) >= 1e-5:
        return _verdict(f"equals {value:g}, not {target}", numbers_ok=True)
    verdict = _verdict("right", numbers_ok=True, correct=True)
    return replace(verdict, solution=solution_class(ast.parse(text.strip(), mode="eval").body))


def _grade_value(tree: ast.expr, target: int) -> Verdict:
    try:
        value = _evaluate(tree)
    except ZeroDivisionError:
        return _verdict("divides by zero", numbers_ok=True)
    if value != target:
        return _verdict(f"equals {value}, not {target}", numbers_ok=True)
    return _verdict("right", numbers_ok=True, correct=True)


def _verdict(reason: str, *, format_ok: bool = True, numbers_ok: bool = False, correct: bool = False) -> Verdict:
    reward = 1.0 if correct else WRONG_REWARD if format_ok else 0.0
    components = {"format": float(format_ok), "numbers_ok": float(numbers_ok), "correct": float(correct)}
    return Verdict(reward=reward, score=float(correct), reason=reason, components=components)


def _read_answer(answer: str) -> tuple[list[int], int]:
    try:
        document = json.loads(answer)
        numbers, target = document["numbers"], document["target"]
        valid = bool(numbers) and isinstance(numbers, list) and all(type(value) is int for value in [*numbers, target])
    except (TypeError, ValueError, KeyError) as error:
        raise UnreadableAnswer(
            f"Countdown answer is not {{'numbers': [...], 'target': ...}}: {shown(answer)}"
        ) from error
    if not valid:
        raise UnreadableAnswer(f"Countdown answer needs a list of integers and an integer target: {shown(answer)}")
    return numbers, target


def _last_line(response: str) -> str:
    """Find the last line with more than special tokens."""
    lines = reversed(response.split("\n"))
    return next((line for line in lines if _SPECIAL_TOKEN.sub("", line).strip()), "")


def _last_box(text: str) -> str | None:
    content = last_boxed(text)
    for latex, sign in _LATEX_SIGNS.items():
        content = content and content.replace(latex, sign)
    return content


_IN = {"answer_tag": (last_answer_tag, "<answer>...</answer>"), "boxed": (_last_box, "\\boxed{...}")}


def _parse(text: str) -> ast.expr | None:
    if len(text) > MAX_CHARS or not _ALLOWED_CHARS.issuperset(text):
        return None
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _numbers_in(tree: ast.expr) -> list[int] | None:
    """List a tree's integers; None unless all else is binary + - * /."""
    numbers: list[int] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            pending += [node.left, node.right]
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            numbers.append(node.value)
        else:
            return None
    return numbers


def _evaluate(tree: ast.expr) -> Fraction:
    """Compute exactly a tree that `_numbers_in` accepted; the count of given numbers bounds its depth."""
    if isinstance(tree, ast.BinOp):
        return _OPERATIONS[type(tree.op)](_evaluate(tree.left), _evaluate(tree.right))
    assert isinstance(tree, ast.Constant) and isinstance(tree.value, int)
    return Fraction(tree.value)


def oat_value(text: str) -> float | None:
    """Evaluate an expression of numbers as Python itself would; None where that would fail or explode."""
    try:
        return float(_python_value(ast.parse(text.strip(), mode="eval").body))
    except (ArithmeticError, SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
        return None


def _python_value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _python_value(node.operand)
        return value if isinstance(node.op, ast.UAdd) else -value
    if not isinstance(node, ast.BinOp) or type(node.op) not in _PYTHON_OPERATIONS:
        raise ValueError("not an arithmetic expression")
    left, right = _python_value(node.left), _python_value(node.right)
    if isinstance(node.op, ast.Pow) and abs(right) > 64:
        raise OverflowError("a power larger than any target")
    value = _PYTHON_OPERATIONS[type(node.op)](left, right)
    if isinstance(value, complex) or abs(value) > 1e300:
        raise OverflowError("a value larger than any target")
    return value
