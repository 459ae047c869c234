"""The verifiers of mathematics, GSM8K, multiple choice and JSON: what is right, what is not, and what never hurts."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oger_recipe.grading.verifiers import verify
from oger_recipe.grading.verifiers.boxed import answer_place, last_answer_tag

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
BENCH = Path(__file__).parents[2] / "scripts" / "bench"
EVELYN = r"\text{Evelyn}"


# ---- mathematics

EQUAL = [
    (r"\boxed{\frac12}", "0.5"),
    (r"\boxed{0.5}", r"\frac{1}{2}"),
    (r"so $x=3$, \boxed{x=3}", "3"),
    ("Therefore the answer is 27.", "27.0"),
    (r"\boxed{073}", "73"),
    (r"\boxed{73}", "073"),
    (r"\boxed{\text{Evelyn}}", EVELYN),
    (r"\boxed{Evelyn}", EVELYN),
    (r"\boxed{50\%}", "0.5"),
    (r"\boxed{1{,}000}", "1000"),
    (r"\boxed{(1,\,2)}", "(1, 2)"),
    (r"\boxed{2\sqrt{3}}", r"\sqrt{12}"),
    (r"\boxed{\{2, 1\}}", r"\{1,2\}"),
    (r"\boxed{\left( 3, \frac{\pi}{2} \right)}", r"(3,\dfrac{\pi}{2})"),
    (r"\boxed{90^\circ}", "90"),
    (r"first \boxed{1}, no: \boxed{2}", "2"),
    (r"\boxed{2} and then \boxed{unfinished", "2"),
    (r"\boxed{ 7 }", r"$\boxed{7}$"),
    (r"\boxed{\approx 5}", "5"),
    (r"\boxed{\frac 1 2}", "0.5"),
    (r"\boxed{\log_2 8}", r"\log_{2} 8"),
    (r"\boxed{E_{3}}", "E_3"),
    (r"\boxed{(2,3)\cup[0,1)}", r"[0,1)\cup(2,3)"),
    (r"\boxed{[0,1) ∪ (2,3)}", r"[0,1)\cup(2,3)"),
]
DIFFERENT = [
    (r"\boxed{\frac13}", "0.5"),
    (r"\boxed{[2,3]}", "(2,3)"),
    (r"\boxed{1} although 2", "2"),
    (r"\boxed{58} or 57", "57"),
    (r"\boxed{-3}", "3"),
    (r"\boxed{x+1}", "x-1"),
    ("I do not know.", "2"),
    ("", "2"),
    (r"\boxed{[0,1)\cup(2,3)}", r"[0,1)\cup(4,5)"),
    (r"\boxed{x \in [0,1] U [2,3]}", "x \\in [0,1] U [4,5]"),
    (r"\boxed{E_3}", "E_2"),
    (r"\boxed{E_3, 2}", "E_2, 2"),
    (r"\boxed{E_3 = 5}", "E_2 = 5"),
    (r"\boxed{E_3, 2}", "2"),
    (r"\boxed{n \ge 5 \land n \le 7}", r"n \ge 6 \land n \le 7"),
    (r"\boxed{x \equiv 5 \pmod 7}", r"x \equiv 5 \pmod 8"),
]

# An equation ends in its last number when all of its numbers are one, as far as they are written out.
EQUAL += [
    (rf"\boxed{{{equation}}}", "18")
    for equation in (
        "x = 18",
        r"2\cdot9=18",
        "x = 2 + 16 = 18",
        "f(3) = 18",
        "18.04 = 18.0",
        r"1800\% = 18",
        "9+9=6+12=18",
    )
]
EQUAL += [(r"\boxed{\frac{22}{7}=3.14}", "3.14"), ("The answer is $x = 18$.", "18"), (r"\boxed{\sqrt2=1.41}", "1.41")]
DIFFERENT += [
    (wrapped % equation, "18")
    for equation in ("98765 = 18", "98765 == 18", r"98765 \equiv 18", "x = 98765 = 18", "98765 = x = 18", "9+8=18",
                     "5*3=15*2=18", "17.9 = 18", r"\sqrt{325} = 18")
    for wrapped in (r"\boxed{%s}", "<answer>%s</answer>", "The answer is $%s$.")
]  # fmt: skip
# Marks and quotes are no part of an answer, and a sign is one however it is written.
EQUAL += [
    (wrapped % marked, "-18")
    for marked in (r"\mathbf{-18}", r"\text{-18}", "**-18**", "`-18`", "“-18”", '"-18"', "\u221218", "**\u221218**")
    for wrapped in (r"\boxed{%s}", "<answer>%s</answer>", "The answer is %s.")
]
EQUAL += [("2**3 + 4**2", "24")]
DIFFERENT += [("The answer is \u221218.", "18"), ("The answer is **\u221218**.", "18")]


@pytest.mark.parametrize(("response", "answer"), EQUAL)
def test_equal_answers_are_right_whatever_their_form(response: str, answer: str) -> None:
    for text in (response, response + "<|im_end|>", "think\n" + response + "\n\n"):
        verdict = verify("math", text, answer)
        assert (verdict.reward, verdict.score) == (1.0, 1.0), verdict
        assert verdict.components == {"format": 1.0, "correct": 1.0}


@pytest.mark.parametrize(("response", "answer"), DIFFERENT)
def test_other_answers_are_wrong(response: str, answer: str) -> None:
    assert verify("math", response, answer).score == 0.0


# Numbers of one value each, which are right for one another; different lists are not.
SAME_NUMBERS = [
    [
        "4.5e33",
        "4.5E33",
        "4.5e+33",
        r"4.5 \times 10^{33}",
        r"4.5\cdot 10^{33}",
        "4.5*10^33",
        "4.5 × 10^33",
        "45" + "0" * 32,
    ],
    ["4.5e32", r"4.5 \times 10^{32}"],
    ["4.5e-8", r"4.5 \times 10^{-8}", "4.5*10^-8", "0.000000045", r"4.5 \times 10^{-8} \text{ m}"],
    ["4.6e-8", r"4.6\cdot10^{-8}"],
    ["-3e8", r"-3.0 \times 10^8", "-300000000"],
    ["2 1/2", r"2\frac{1}{2}", r"2 \frac12", r"2\ 1/2", r"\frac52", "2.5"],
    ["-2 1/2", "-2.5"],
    ["21/2", "10.5", "10 1/2"],
    [r"1\,000", "1 000", r"1\ 000", "1~000", "1\u2009000", "1{,}000", r"1,\!000", "1,000", "1000"],
    ["70{,}000", r"70\,000", "70000"],
    [r"1\,234\,567.5", "1234567.5"],
    ["0"],
    ["1"],
    ["2"],
    ["3"],
    ["12"],
    ["21"],
]


@pytest.mark.parametrize("numbers", SAME_NUMBERS, ids=lambda numbers: numbers[0])
def test_a_number_is_its_value_however_it_is_written(numbers: list[str]) -> None:
    others = [other[0] for other in SAME_NUMBERS if other is not numbers]
    for number in numbers:
        for wrapped in (rf"\boxed{{{number}}}", f"The answer is ${number}$."):
            assert all(verify("math", wrapped, same).score == 1.0 for same in numbers), wrapped
            assert not any(verify("math", wrapped, other).score for other in others), wrapped
    assert len({verify("math", rf"\boxed{{{number}}}", "7").extracted for number in numbers}) == 1


def test_two_numbers_with_a_space_between_them_are_neither_one_number_nor_their_sum() -> None:
    for text in ("1 2", r"1\,2", r"1\quad 2", "1~2"):
        for number in ("12", "3", "2", "1"):
            assert verify("math", rf"\boxed{{{text}}}", number).score == 0.0
            assert verify("math", rf"\boxed{{{number}}}", text).score == 0.0
        assert verify("math", rf"\boxed{{{text}}}", "1 2").score == 1.0


def test_small_numbers_are_not_rounded_away() -> None:
    for number, other in (("0", "4.5e-8"), ("1.6021e-19", "1.6022e-19"), ("0.000001", "0.0000014")):
        assert verify("math", rf"\boxed{{{number}}}", other).score == 0.0
        assert verify("math", rf"\boxed{{{other}}}", number).score == 0.0
    assert verify("math", r"\boxed{0.000333333}", r"\frac{1}{3000}").score == 1.0


def test_an_e_before_a_minus_may_be_eulers_number_too() -> None:
    assert [verify("math", r"\boxed{2e-1}", answer).score for answer in ("-1+2e", "2e - 1", "0.2", "2e")] == [
        1,
        1,
        1,
        0,
    ]
    assert verify("math", r"\boxed{-1+2e}", "2e-1").score == 1.0


@pytest.mark.parametrize("digits", [4_300, 4_301, 9_000])
def test_thousands_of_digits_get_a_verdict_on_both_sides(digits: int) -> None:
    third, nines = "0." + "3" * digits, "9" * digits
    assert verify("math", rf"\boxed{{{third}}}", r"\frac13").score == 1.0
    assert verify("math", r"\boxed{\frac13}", third).score == 1.0
    assert verify("math", rf"\boxed{{0.34{'3' * digits}}}", r"\frac13").score == 0.0
    assert verify("math", rf"\boxed{{{nines}}}", nines).score == 1.0
    for other in (nines[:-1] + "8", "7", third):
        assert verify("math", rf"\boxed{{{nines}}}", other).score == 0.0
        assert verify("math", rf"\boxed{{{other}}}", nines).score == 0.0
    assert verify("math", f"so it is {third}", "7").score == 0.0
    power = r" \times ".join(["10^{999}"] * 9)
    assert verify("math", rf"\boxed{{{power}}}", "7").score == 0.0


THOUGHT, BOX, BARE = "I think.</think>", r"\boxed{5}", "The answer is 5."
RULES = {  # rule -> reward of: right in a box after the thought, right in a box, right without box, wrong, nothing
    "deepscaler": (1.0, 0.0, 0.0, 0.0, 0.0),
    "deepscaler_format": (1.0, -1.0, -1.0, -0.5, -1.0),
    "deepscaler_no_think": (1.0, 1.0, 0.0, 0.0, 0.0),
    "math_verify_think": (1.0, 0.0, 1.0, 0.0, 0.0),
    "math_verify": (1.0, 1.0, 1.0, 0.0, 0.0),
}


@pytest.mark.parametrize(("rule", "rewards"), RULES.items(), ids=RULES)
def test_the_rules_of_the_reward_versions(rule: str, rewards: tuple[float, ...]) -> None:
    responses = (THOUGHT + BOX, BOX, THOUGHT + BARE, THOUGHT + r"\boxed{6}", THOUGHT)
    verdicts = [verify("math", response, "5", rule=rule) for response in responses]
    assert tuple(verdict.reward for verdict in verdicts) == rewards
    assert all(verdict.score == (verdict.reward == 1.0) for verdict in verdicts)


def test_the_text_after_the_last_thought_is_graded() -> None:
    response = r"\boxed{4}</think>\boxed{6}</think>\boxed{5}"
    assert verify("math", response, "5", rule="math_verify_think").score == 1.0
    assert verify("math", r"\boxed{5}</think>none", "5", rule="math_verify_think").score == 0.0


def test_the_first_place_that_has_an_answer_decides() -> None:
    response = r"<answer>4</answer> \boxed{5}, as 6"
    for extract, answer in (("boxed", "5"), ("answer_tag", "4"), ("last_number", "6")):
        assert verify("math", response, answer, extract=[extract]).score == 1.0
    assert verify("math", response, "4", extract=["boxed", "answer_tag"]).score == 0.0
    assert verify("math", "so 6", "6", extract=["boxed", "last_number"]).score == 1.0
    assert verify("math", "1,234.", "1234", extract=["last_number"]).score == 1.0
    assert verify("math", "so 4.5e33.", r"4.5 \times 10^{33}", extract=["last_number"]).score == 1.0


def test_numbers_that_are_equal_vote_together_and_others_do_not() -> None:
    votes = [
        verify("math", rf"\boxed{{{text}}}", "3").extracted for text in (r"\frac12", "0.5", "1/2", r"\dfrac{1}{2}")
    ]
    assert set(votes) == {"1/2"}
    assert verify("math", r"\boxed{\text{ Evelyn }}", "3").extracted == "Evelyn"
    assert verify("math", "nothing", "3").extracted is None


@pytest.mark.parametrize(
    ("answer", "options"),
    [("", {}), ("$$", {}), ("3", {"rule": "x"}), ("3", {"extract": ["box"]}), ("3", {"extract": []})],
)
def test_a_defect_of_data_or_settings_is_raised(answer: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        verify("math", r"\boxed{3}", answer, **options)


# ---- GSM8K


@pytest.mark.parametrize(
    ("response", "answer", "by_value", "strict"),
    [
        ("He pays 3 + 15 = $18.", "18", 1.0, 1.0),
        ("A: 18", "She has 9*2=18.\n#### 18", 1.0, 1.0),
        ("It costs $18.00", "18", 1.0, 0.0),
        ("That is 1,234,567 dollars.", "1234567", 1.0, 1.0),
        ("1234", "#### 1,234", 1.0, 1.0),
        ("-5", "5", 0.0, 0.0),
        ("+5", "5", 1.0, 0.0),
        (".50", "0.5", 1.0, 0.0),
        ("18 of 20", "18", 0.0, 0.0),
        ("none", "18", 0.0, 0.0),
        ("1e3", "1000", 1.0, 0.0),
        ("99999999999999999999.1", "99999999999999999999.2", 0.0, 0.0),
    ],
)
def test_gsm8k_takes_the_last_number(response: str, answer: str, by_value: float, strict: float) -> None:
    assert verify("gsm8k", response, answer).score == by_value
    assert verify("gsm8k", response, answer, strict_oat=True).score == strict


SPACES = [r"\!", r"\,", r"\;", r"\ ", "\u00a0", "\u202f"]
THOUSANDS = [*SPACES, ",", "{,}", r"\!,", r",\!", r"{,}\!", r"\!{,}", r"\!,\!"]


@pytest.mark.parametrize("separator", THOUSANDS)
def test_thousands_are_one_number_with_any_separator(separator: str) -> None:
    for number in ("1,000", "70,250", "1,234,567"):
        text, plain = number.replace(",", separator), number.replace(",", "")
        for wrapped in (rf"\boxed{{{text}}}", f"so it is ${text}$.", f"The answer is {text}."):
            for task in ("gsm8k", "math"):
                assert verify(task, wrapped, plain).score == 1.0, (task, wrapped)
                assert verify(task, wrapped, plain[-3:]).score == 0.0, (task, wrapped)
    assert verify("gsm8k", "3" + separator + "18", "18").score == float(
        separator != ","
    )  # two digits are no thousands


@pytest.mark.parametrize("place", ["hashes", "boxed", "answer_tag"])
def test_a_gsm8k_place_that_names_another_number_too_has_no_answer(place: str) -> None:
    said = {"hashes": "so\n#### %s", "boxed": r"so \boxed{%s}", "answer_tag": "so <answer>%s</answer>"}[place]
    for text in ("18", "$18", "18.00", "x = 18", "2*9 = 18", r"2 \times 9 = 18 dollars", "16+2 = 9*2 = 18", "**18**"):
        assert verify("gsm8k", said % text, "18", answer_format=place).score == 1.0, text
    assert verify("gsm8k", said % "10/3 = 3.33", "3.33", answer_format=place).score == 1.0  # as far as it is written
    for text in ("5 = 18", "9+8=18", "98765 == 18", r"3 \times 5 = 18", "x = 5 = 18", "5 or 18", "5 and 18", "5, 18",
                 "5; 18", "not 18", r"\neq 18", "5 dollars or 18 dollars"):  # fmt: skip
        verdict = verify("gsm8k", said % text, "18", answer_format=place)
        assert (verdict.score, verdict.extracted) == (0.0, None), text
    prose = "5 or 6? It is 5 = 18"
    assert verify("gsm8k", prose, "18", answer_format=place).score == float(place != "hashes")  # nothing is marked
    assert verify("gsm8k", said % "5 = 18", "18", answer_format=place, strict_oat=True).score == 1.0  # as OAT


def test_gsm8k_reads_a_minus_however_it_is_written() -> None:
    for minus in ("-", "\u2212"):
        assert [verify("gsm8k", f"The answer is {minus}18", answer).score for answer in ("18", "-18")] == [0.0, 1.0]


def test_gsm8k_after_the_hashes() -> None:
    assert verify("gsm8k", "so\n#### 18\nor 19", "18", answer_format="hashes").score == 0.0
    assert verify("gsm8k", "19 no\n#### 18", "18", answer_format="hashes").score == 1.0
    nothing = verify("gsm8k", "18", "18", answer_format="hashes")
    assert nothing.score == 0.0 and nothing.components["format"] == 0.0


def test_gsm8k_answers_of_one_value_vote_together() -> None:
    assert {verify("gsm8k", text, "1").extracted for text in ("18", "18.0", "$18.00", "+18", "018")} == {"18"}
    assert verify("gsm8k", "100", "1").extracted == "100" and verify("gsm8k", "0.0", "1").extracted == "0"


@pytest.mark.parametrize("answer", ["", "eighteen", "#### "])
def test_a_gsm8k_answer_without_a_number_is_a_defect(answer: str) -> None:
    with pytest.raises(ValueError, match="must have a number"):
        verify("gsm8k", "18", answer)


# ---- multiple choice


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        (r"so \boxed{C}", "C"),
        (r"\boxed{\text{(C)}}", "C"),
        (r"\boxed{C. Paris}", "C"),
        ("<answer> (D) </answer>", "D"),
        ("The answer is (B).", "B"),
        ("the correct answer is **B**", "B"),
        ("Answer: B", "B"),
        ("The right choice is J, since it fits.", "J"),
        ("Answer: A. No: the answer is B.", "B"),
        ("first</think>The answer is C", "C"),
        ("C", "C"),
        (" (C) ", "C"),
        ("**C**<|im_end|>", "C"),
        ("C) Paris", "C"),
        ("C. Paris", "C"),
        ("A dog is an animal.", None),
        ("I would say that it depends.", None),
        ("The answer is Beijing.", None),
        ("The answer is K.", None),
        (r"\boxed{42}", None),
        ("", None),
        ("I choose option (B).", "B"),
        ("option (B)", "B"),
        ("Option B is correct", "B"),
        ("Option B is correct. Option A is wrong.", "B"),
        ("Option A is wrong. Option B is correct.", "B"),
        ("Option A is wrong, so option B", "B"),
        ("The answer is B. Option A is wrong.", "B"),
        ("Option A is a dog. Option B is a cat.", None),
        ("Option B is not correct", None),
        ("option a is good", None),
        ("The answer is b.", "B"),
        ("the answer is (b) because it fits", "B"),
        ("Answer: **c**", "C"),
        ("Answer: a\n\nIt fits.", "A"),
        ("The answer is a.", "A"),
        ("the answer is a prime number", None),
        ("the answer is a\nprime number", None),
        ("the answer is e.g. 5", None),
        ("The answer is b squared", None),
        (r"\boxed{b}", "B"),
        (r"\boxed{\text{(b)}}", "B"),
        ("<answer>b) Paris</answer>", "B"),
        ("<answer>a dog</answer>", None),
        ("(b)", "B"),
        ("a. First we see", None),
        (r"\(B\)", "B"),
        ("$B$", "B"),
        (r"\boxed{\(B\)}", "B"),
        (r"The answer is \(B\).", "B"),
        ("The answer is $B$.", "B"),
        (r"Answer: \textbf{(B)}", "B"),
        ("A or B", None),
        ("(A) or (B)", None),
        (r"\boxed{(A) or (B)}", None),
        (r"\boxed{A/B}", None),
        ("The answer is A or B.", None),
        ("The answer is (A) or (B).", None),
        ("The answer is A and B.", None),
        ("option A or option B", None),
        ("The answer is A or B. No: the answer is B.", "B"),
        ("The answer is B and C is wrong.", "B"),
        ("the answer is B, I think", "B"),
        (r"\boxed{\text{B. Paris}}", "B"),
        (r"\boxed{\textbf{(B)}\ 15}", "B"),
        ("**B.** Paris", "B"),
        ("<answer>The answer is B.</answer>", "B"),
        ("The answer is (B) E = mc^2", "B"),
        ("The answer is (C) I and II only.", "C"),
        ("The answer to the question is B.", "B"),
        ("Option A is a dog. Option B is a cat. So the answer is option B.", "B"),
        ("So (B) is correct.", "B"),
        ("I choose B because A is wrong.", "B"),
        ("The answer is B; D is too large.", "B"),
        ("The answer is B, C and D are wrong.", "B"),
        ("The answer is B, not C.", "B"),
        ("Answer: C\n\nA is wrong since it is small.", "C"),
        ("Answer: B\n\nB", "B"),
        ("I am not sure, but the answer is B.", "B"),
        ("I do not think that the answer is A. The answer is B.", "B"),
        ("I do not think that the answer is B.", None),
        ("It is not option B.", None),
        ("Option A or option B is correct.", None),
        ("Neither option A nor option B is correct.", None),
        ("If the answer is B, we fail.", None),
        ("The answer is B is wrong", None),
        ("Answer: A, B, C or D", None),
        ("The answer is (A) (B)", None),
        ("Answer: A\nB\nC", None),
        ("A. Paris\nB. Rome\nC. Berlin", None),
        ("<answer>A) 3 B) 4 C) 5</answer>", None),
        ("Answer: A dog", None),
        ("Answer: I think so", None),
        ("The answer is $|a|$", None),
    ],
)
def test_the_chosen_letter_is_found(response: str, letter: str | None) -> None:
    verdict = verify("choice", response, letter or "A")
    assert verdict.extracted == letter
    assert verdict.score == float(letter is not None) == verdict.components["format"]
    assert verify("choice", response, "E").score == 0.0


SAID = ["The answer is {}.", "Answer: {}", "I choose {}.", "{}", "<answer>{}</answer>", r"\boxed{{{}}}"]
MARKS = ["{}", "({})", "'{}'", '"{}"', "“{}”", "`{}`", "**{}**", "**({})**", "${}$", r"\({}\)", r"\text{{{}}}"]
SEVERAL = ["{} or {}", "{} and {}", "{}, {}", "{} {}", "{}/{}", "{}; {}", "{}, {}, {} or {}", "{} {} {}", "{}-{}",
           "either {} or {}", "neither {} nor {}", "{} and also {}", "{} (or {})", "{} or option {}"]  # fmt: skip


@pytest.mark.parametrize("said", SAID)
def test_one_letter_is_a_choice_in_any_marks_and_several_are_none_in_the_same(said: str) -> None:
    for marks in MARKS:
        first, second, third, fourth = (marks.format(letter) for letter in "BDAC")
        assert verify("choice", said.format(first), "B").score == 1.0, said.format(first)
        for several in SEVERAL:
            text = said.format(several.format(first, second, third, fourth))
            assert verify("choice", text, "B").extracted is None, text
        assert verify("choice", said.format(f"not {first}"), "B").extracted is None


@pytest.mark.parametrize("answer", ["", "K", "AB", "1"])
def test_a_choice_that_is_no_letter_is_a_defect(answer: str) -> None:
    with pytest.raises(ValueError, match="one letter"):
        verify("choice", "A", answer)


# ---- JSON

FIELDS = json.dumps({"fields": {"name": "str", "age": "int", "tags": "list"}, "values": {"age": 7}})


@pytest.mark.parametrize(
    ("response", "components"),
    [
        ('{"name": "a", "age": 7, "tags": []}', (1, 1, 1, 1)),
        ('Sure:\n```json\n{"name": "a", "age": 7, "tags": [1], "more": {"x": null}}\n```\nDone.', (1, 1, 1, 1)),
        ('{"name": 1}</think>{"name": "a", "age": 7, "tags": []}', (1, 1, 1, 1)),
        ('{"age": 1} and {"name": "a", "age": 7, "tags": []}', (1, 1, 1, 1)),
        ('{"name": "a", "age": 8, "tags": []}', (1, 1, 0, 0)),
        ('{"name": "a", "age": 7.0, "tags": []}', (1, 0, 0, 0)),
        ('{"name": "a", "age": true, "tags": []}', (1, 0, 0, 0)),
        ('{"name": "a", "tags": []}', (1, 0, 0, 0)),
        (r"So \frac{1}{2}." * 100 + '{"name": "a", "age": 7, "tags": []}', (1, 1, 1, 1)),
        ("[1, 2]", (0, 0, 0, 0)),
        ('{"name": "a"', (0, 0, 0, 0)),
        ("", (0, 0, 0, 0)),
    ],
)
def test_an_object_has_to_have_fields_types_and_values(response: str, components: tuple[int, ...]) -> None:
    verdict = verify("json", response, FIELDS)
    names = ("format", "fields_ok", "values_ok", "correct")
    assert verdict.components == dict(zip(names, map(float, components), strict=True))
    assert verdict.score == verdict.reward == components[-1]


def test_true_is_not_one_in_values_either() -> None:
    answer = json.dumps({"fields": {}, "values": {"a": 1}})
    assert [verify("json", text, answer).score for text in ('{"a": 1}', '{"a": true}')] == [1.0, 0.0]
    answer = json.dumps({"fields": {}, "values": {"a": [{"b": 1}]}})
    texts = ('{"a": [{"b": 1}]}', '{"a": [{"b": true}]}', '{"a": [{"b": 1}, 2]}', '{"a": [{"b": 1, "c": 2}]}')
    assert [verify("json", text, answer).score for text in texts] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"fields": {"a": "number"}}', '{"fields": {}, "values": 3}'])
def test_a_json_answer_that_says_nothing_is_a_defect(answer: str) -> None:
    with pytest.raises(ValueError):
        verify("json", "{}", answer)


# ---- all of them


def _bench(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", ["9**9**9", "2//1", "1.2", "(-1)**0.5", "9" * 1000, "1/0", "()", "1 2"])
def test_oats_countdown_scoring_has_its_loopholes_and_no_others(text: str) -> None:
    answer = json.dumps({"numbers": [1, 2], "target": 2 if "//" in text else 3})
    verdict = verify("countdown", f"<answer>{text}</answer>", answer, strict_oat=True)
    assert verdict.reward == (1.0 if "//" in text else 0.1)
    assert verify("countdown", f"<answer>{text}</answer>", answer).reward == 0.1


def test_oat_counts_the_halves_of_a_decimal_and_reads_the_last_line_to_the_letter() -> None:
    answer = json.dumps({"numbers": [3, 5, 1], "target": 4})
    assert verify("countdown", "<answer>3.5+1</answer>", answer, strict_oat=True).reward == 0.1  # 4.5
    half = json.dumps({"numbers": [2, 0, 2], "target": 4})
    assert verify("countdown", "<answer>2.0+2</answer>", half, strict_oat=True).reward == 1.0
    assert verify("countdown", "<answer>2.0+2</answer>", half).reward == 0.1
    right = "<answer>3+5+1</answer>"
    nine = json.dumps({"numbers": [3, 5, 1], "target": 9})
    assert verify("countdown", right + "\n", nine).reward == 1.0
    assert verify("countdown", right + "\n", nine, strict_oat=True).reward == 0.0


def test_the_verifiers_agree_with_data_whose_truth_is_known() -> None:
    """The first of each kind; scripts/bench/agreement.py takes all."""
    if not DATA.exists():
        pytest.skip("shared/data is not here")
    gsm8k = [json.loads(line) for line in (DATA / "gsm8k" / "test.jsonl").read_text().splitlines()[:300]]
    math = [json.loads(line) for line in (DATA / "bench" / "math500.jsonl").read_text().splitlines()[:100]]
    own = [verify("gsm8k", row["answer"], row["answer"]).score for row in gsm8k]
    own += [verify("math", row["solution"], row["answer"]).score for row in math]
    assert sum(own) >= 0.995 * len(own)
    path = DATA / "gsm8k" / "example_model_solutions.jsonl"
    models = itertools.islice(_bench("agreement").model_solutions(path), 1200)
    agree = [verify("gsm8k", s["solution"], s["answer"]).score == s["is_correct"] for s in models]
    assert len(agree) == 1200 and sum(agree) >= 0.99 * len(agree)


# ---- where a response gives its answer


@pytest.mark.parametrize(
    "text",
    [
        "so \\boxed{[12]}.",
        "\\boxed{1} or \\fbox { [\\frac{1}{2}] } and \\boxed{3",
        "first \\boxed{1}\n<answer> [2 + 3] </answer>\n",
        "<answer>1</answer> no: <answer>\\boxed{[2]}</answer>",
        "<answer>[1]</answer> and <answer>2",
        "a</answer><answer>[b<answer>c]</answer></answer>",
        "<answer>1</answer> #### [42]\n",
        "#### 1 #### [é 2]",
        "one\n [the last line] \n\n",
        "[one line]",
        "\\boxed{[]}",
        "[]",
    ],
)
def test_the_place_of_an_answer_is_what_is_marked_last_or_the_last_line(text: str) -> None:
    begin, end = text.index("["), text.index("]") - 1
    assert answer_place(text.replace("[", "").replace("]", "")) == (begin, end)


def test_answers_in_tags_are_those_of_the_regular_expression() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choices(["<answer>", "</answer>", "a", " "], k=rng.randint(0, 9)))
        found = re.findall(r"<answer>(.*?)</answer>", text)
        assert last_answer_tag(text) == (found[-1].strip() if found else None)
