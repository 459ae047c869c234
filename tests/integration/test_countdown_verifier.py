"""The Countdown verifier against verdicts worked out by hand, and against answers that try to cheat it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oger_recipe.grading.verifiers import VERIFIERS, Verdict, verify

ANSWER = '{"numbers":[3,5,12],"target":96}'

RIGHT = (1.0, 1.0, {"format": 1.0, "numbers_ok": 1.0, "correct": 1.0})
WRONG_VALUE = (0.1, 0.0, {"format": 1.0, "numbers_ok": 1.0, "correct": 0.0})
WRONG_NUMBERS = (0.1, 0.0, {"format": 1.0, "numbers_ok": 0.0, "correct": 0.0})
NO_ANSWER = (0.0, 0.0, {"format": 0.0, "numbers_ok": 0.0, "correct": 0.0})


def _judge(response: str, answer: str = ANSWER) -> tuple[float, float, dict[str, float]]:
    verdict = verify("countdown", response, answer)
    return verdict.reward, verdict.score, verdict.components


def _expression(text: str, answer: str = ANSWER) -> tuple[float, float, dict[str, float]]:
    return _judge(f"<think>so</think>\n<answer>{text}</answer>", answer)


@pytest.mark.parametrize("text", ["(3+5)*12", "12*(5+3)", " ( 3 + 5 ) *\t12 ", "((3+5))*(12)"])
def test_the_target_from_each_number_once_is_right(text: str) -> None:
    assert _expression(text) == RIGHT


@pytest.mark.parametrize("text", ["3+5*12", "3*5+12", "12-(5+3)", "12/(3-5)", "(3/5)*12"])
def test_another_value_from_the_right_numbers_earns_the_wrong_reward(text: str) -> None:
    assert _expression(text) == WRONG_VALUE


@pytest.mark.parametrize(
    "text",
    [
        "8*12",  # 3 and 5 missing
        "(3+5)*12+(3-3)",  # 3 three times
        "96",
        "35+61",
        "(5+3)*12*1",
        "3+512",
        "3*12+5*12",
    ],
)
def test_numbers_missing_repeated_or_invented_earn_the_wrong_reward(text: str) -> None:
    assert _expression(text) == WRONG_NUMBERS


def test_repeated_given_numbers_must_be_used_as_often_as_given() -> None:
    answer = '{"numbers":[4,4,2],"target":10}'
    assert _expression("4+4+2", answer) == RIGHT
    assert _expression("4*2+2", answer) == WRONG_NUMBERS
    assert _expression("4*4-2*3", answer) == WRONG_NUMBERS


def test_a_right_answer_has_the_class_of_its_solution_and_a_wrong_one_has_none() -> None:
    answer = '{"numbers":[4,4,1,2],"target":16}'
    solutions = {
        text: verify("countdown", f"<answer>{text}</answer>", answer).solution
        for text in ("4*4*(2-1)", "4*(2-1)*4", "(2-1)*4/1*4", "4*4*1/2", "4*2*(1+1)", "4*2/1+4+4", "4*(4/1)*2/2")
    }
    assert solutions["4*4*(2-1)"] == solutions["4*(2-1)*4"] == "4*4*(2-1)"
    assert [text for text, each in solutions.items() if each is not None] == ["4*4*(2-1)", "4*(2-1)*4"]
    twelve = '{"numbers":[4,8,1],"target":12}'
    assert verify("countdown", "<answer>4+8/1</answer>", twelve).solution == "4+8"
    boxed = verify("countdown", "\\boxed{1 \\times 8 + 4}", twelve, answer_in="boxed")
    assert boxed.solution == "4+8"
    assert verify("countdown", "4+8", twelve).solution is None


def test_what_only_oat_allows_has_a_class_too() -> None:
    answer = '{"numbers":[2,3,1],"target":9}'
    assert verify("countdown", "<answer>1 * 3**2</answer>", answer, strict_oat=True).solution == "(3 ** 2)"
    assert verify("countdown", "<answer>(2+1)*3</answer>", answer, strict_oat=True).solution == "3*(1+2)"
    assert verify("countdown", "<answer>2+1*3</answer>", answer, strict_oat=True).solution is None


def test_fractions_on_the_way_are_exact() -> None:
    assert _expression("8/(3-8/3)", '{"numbers":[8,3,8,3],"target":24}') == RIGHT
    # 49 * (1/49) is not 1 in floating point.
    assert _expression("49*(1/49)", '{"numbers":[49,1,49],"target":1}') == RIGHT
    # Off by 1/10^16, which floating point would round away.
    near = '{"numbers":[1,10000000000000000,1],"target":1}'
    assert _expression("1+1/10000000000000000", near) == WRONG_VALUE


def test_division_by_zero_is_wrong_and_not_an_error() -> None:
    assert _expression("12/(5-5)", '{"numbers":[5,5,12],"target":96}') == WRONG_VALUE


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "=96",
        "(3+5)*12=96",
        "(3+5)x12",
        "(3+5)*12.",
        "12*(3+5",
        "3 5 12",
        "(3+5)(12)",
        "3,5,12",
        "(3,5,12)",
        "()",
        "(3+5)*012",
        "(3+5)*１２",
        "(３+5)*12",
        "(3+5)×12",
        "(3+5)*1_2",
        "(3+5)*0xc",
        "(3+5)*12e0",
        "(3+5)*12j",
        "(3+5)*12#",
        "(3+5)*12 if 1 else 0",
        "(3+5)*12\x00",
        "3.5*12",
        "(3.0+5)*12",
        "3**5-12",
        "12**(5-3)",
        "12//(5-3)",
        "(5//3)*12",
        "-(3+5)*-12",
        "12*(5-(-3))",
        "12*(5--3)",
        "+3+5+12",
        "~3+5*12",
        "99**99**99",
        "__import__('os').getcwd()",
        "abs(3+5)*12",
        "x",
        "[3,5,12]",
        "lambda: 96",
        "3<5<12",
        "True*3*5*12",
        "<answer>(3+5)*12",
    ],
)
def test_anything_but_whole_numbers_and_the_four_operators_is_refused(text: str) -> None:
    assert _expression(text) == WRONG_NUMBERS


def test_a_decimal_does_not_pass_for_the_two_numbers_around_its_point() -> None:
    assert _expression("3.5*2", '{"numbers":[3,5,2],"target":7}') == WRONG_NUMBERS


def test_floor_division_does_not_pass_where_it_would_give_the_target() -> None:
    assert _expression("7//2", '{"numbers":[7,2],"target":3}') == WRONG_NUMBERS
    assert _expression("2**5", '{"numbers":[2,5],"target":32}') == WRONG_NUMBERS
    assert _expression("-2+5", '{"numbers":[2,5],"target":3}') == WRONG_NUMBERS


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "1" + ")" * 10_000,
        "(" * 99 + "1" + ")" * 99,
        "(" * 200,
        "-" * 199 + "1",
        "1+" * 99 + "1",
        "1" * 200,
        "9*" * 99 + "9",
        "1+" * 500_000 + "1",
        "<answer>" * 130_000,
        "</answer>" * 130_000,
        "<answer></answer>" * 60_000,
        "\n" * 1_000_000,
        "<|im_end|>\n" * 100_000,
        "<|" * 500_000,
        " " * 1_000_000,
        "\n<answer>" * 100_000,
    ],
    ids=lambda text: f"{text[:9]!r}x{len(text)}",
)
def test_deep_and_huge_texts_are_wrong_and_do_not_hang(text: str) -> None:
    assert _expression(text)[1] == 0.0
    assert _judge(text)[1] == 0.0


def test_expressions_up_to_two_hundred_characters_are_read() -> None:
    padding = " " * (200 - len("(3+5)*12"))
    assert _expression(f"(3+5){padding}*12") == RIGHT
    assert _expression(f"(3+5){padding} *12") == WRONG_NUMBERS


@pytest.mark.parametrize(
    "response",
    [
        "<answer>(3+5)*12</answer>",
        "first line\nso <answer>(3+5)*12</answer>",
        "<answer>3+5</answer> no, <answer>(3+5)*12</answer>",
        "<answer>(3+5)*12</answer>\n",
        "<answer>(3+5)*12</answer> \r\n\n \t",
        "<answer>(3+5)*12</answer><|im_end|>",
        "<answer>(3+5)*12</answer><|endoftext|>\n",
        "<answer>(3+5)*12</answer>\n<|im_end|>\n<|endoftext|>",
        "<answer>(3+5)*12</answer></s>",
        "<answer>(3+5)*12</answer> That is it.",
        "</answer> <answer>(3+5)*12</answer>",
        "<answer>(3+5)*12</answer> <answer>",
    ],
)
def test_the_last_answer_on_the_last_line_counts(response: str) -> None:
    assert _judge(response) == RIGHT


@pytest.mark.parametrize(
    "response",
    [
        "",
        "\n\n",
        "(3+5)*12",
        "<think>(3+5)*12=96</think>",
        "<answer>(3+5)*12</answer>\nthe end",
        "<answer>\n(3+5)*12\n</answer>",
        "<answer>(3+5)*12\n</answer>",
        "<answer>(3+5)*12",
        "(3+5)*12</answer>",
        "</answer>(3+5)*12<answer>",
        "<Answer>(3+5)*12</Answer>",
        "<|im_end|>",
    ],
)
def test_without_an_answer_on_the_last_line_there_is_no_reward(response: str) -> None:
    assert _judge(response) == NO_ANSWER


def test_a_right_answer_before_a_wrong_one_does_not_count() -> None:
    assert _judge("<answer>(3+5)*12</answer> or <answer>3+5+12</answer>") == WRONG_VALUE
    assert _judge("<answer>(3+5)*12</answer>\n<answer>3+5+12</answer>") == WRONG_VALUE


def test_the_reason_says_what_is_wrong() -> None:
    def reason(response: str) -> str:
        return verify("countdown", response, ANSWER).reason

    assert reason("none") == "no <answer>...</answer> on the last line"
    assert reason("<answer>8*12</answer>") == "uses the numbers [8, 12], not [3, 5, 12]"
    assert reason("<answer>3+5+12</answer>") == "equals 20, not 96"
    assert reason("<answer>12/(3-5)</answer>") == "equals -6, not 96"
    assert reason("<answer>3**5</answer>").startswith("the answer is not whole numbers")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "96",
        "null",
        "[3,5,12]",
        "{",
        '{"numbers":[3,5,12]}',
        '{"target":96}',
        '{"numbers":[],"target":96}',
        '{"numbers":"3 5 12","target":96}',
        '{"numbers":{"3":5},"target":96}',
        '{"numbers":7,"target":96}',
        '{"numbers":["3",5,12],"target":96}',
        '{"numbers":[3,5.0,12],"target":96}',
        '{"numbers":[3,5,true],"target":96}',
        '{"numbers":[3,5,12],"target":"96"}',
        '{"numbers":[3,5,12],"target":null}',
        None,
    ],
)
def test_a_malformed_reference_answer_is_a_defect_of_the_data(answer: str) -> None:
    with pytest.raises(ValueError, match="Countdown answer"):
        verify("countdown", "<answer>(3+5)*12</answer>", answer)


def test_an_unknown_task_names_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no verifier for task 'contdown'; known: .*countdown.*nearest: 'countdown'"):
        verify("contdown", "", ANSWER)


@pytest.mark.parametrize("module", ["oger_recipe.grading.verifiers.countdown", "oger_recipe.grading.verifiers"])
def test_either_module_can_be_imported_first(module: str) -> None:
    program = f"import sys; sys.path[:] = {sys.path!r}; import {module}"
    program += f"\nfrom oger_recipe.grading.verifiers import verify; verify('countdown', '', {ANSWER!r})"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_registered_verifier_returns_a_verdict() -> None:
    assert isinstance(VERIFIERS["countdown"].verify("", ANSWER), Verdict)
