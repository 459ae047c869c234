"""What every member of the registries outside algorithm/ has to satisfy; a new member is tested by being in one.

Exact values of the members have tests of their own beside these; those of algorithm/ are in tests/unit/.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from oger_recipe.data.templates import TEMPLATES
from oger_recipe.embedding import LONG_TEXTS, PARTS
from oger_recipe.embedding.base import part_of
from oger_recipe.evaluation.benchmarks import BENCHMARKS
from oger_recipe.grading.rules import EXTRACTIONS, GSM8K_FORMATS, MATH_RULES, PLACES
from oger_recipe.grading.verifiers import VERIFIERS, Verdict, verify
from oger_recipe.grading.verifiers.gsm8k import verify_gsm8k
from oger_recipe.grading.verifiers.math_answer import verify_math
from oger_recipe.settings.grading import VerifierSettings
from oger_recipe.settings.oger import SETTINGS

HOSTILE = Path(__file__).parents[2] / "scripts" / "bench" / "hostile_answers.py"
# Reference answers: every verifier reads one of them, the others are of other tasks.
ANSWERS = [
    "27",
    "#### 27",
    "C",
    r"\frac{1}{2}",
    '{"numbers": [3, 5, 12], "target": 96}',
    '{"fields": {"a": "int"}}',
]
RESPONSES = [
    "",
    "no answer at all",
    "<think>so 27</think> The answer is 27.",
    r"it is \boxed{27} or \boxed{\frac{1}{2}}",
    "<answer>(3+5)*12</answer>",
    "(C)",
    '{"a": 1}',
    "\\boxed{" * 50 + "<answer>" * 50,
    "\x00\ud800 ½ ٢٧ 🙂",
]


def read_by(task: str) -> list[str]:
    """The ANSWERS that a verifier can read."""
    found = []
    for answer in ANSWERS:
        with contextlib.suppress(ValueError):
            verify(task, "", answer)
            found.append(answer)
    assert found, f"verifier {task!r} reads none of ANSWERS: add a reference answer for it in {__file__}"
    return found


@pytest.mark.parametrize("task", VERIFIERS)
def test_a_verifier_judges_any_text_in_the_same_form_or_refuses_the_answer(task: str) -> None:
    components, named = set(), set()
    for answer in read_by(task):
        for response in RESPONSES:
            verdict = verify(task, response, answer)
            assert isinstance(verdict, Verdict)
            named |= {verdict.solution is not None} if verdict.score else set()
            assert math.isfinite(verdict.reward) and verdict.score in (0.0, 1.0)
            assert isinstance(verdict.reason, str) and "\n" not in verdict.reason
            assert verdict.extracted is None or isinstance(verdict.extracted, str)
            assert all(math.isfinite(value) for value in verdict.components.values())
            components.add(tuple(sorted(verdict.components)))
            assert verify(task, response, answer) == verdict  # nothing is remembered
    assert len(components) <= 1, f"components depend on the response: {components}"
    assert VERIFIERS[task].names_solutions is None or named <= {VERIFIERS[task].names_solutions}


@pytest.mark.parametrize("task", VERIFIERS)
@pytest.mark.parametrize("place", PLACES)
def test_a_verifier_takes_the_options_that_a_prompts_place_gives_it(task: str, place: str) -> None:
    options = VERIFIERS[task].places.get(place, {})
    for answer in read_by(task):
        verify(task, r"\boxed{18} <answer>18</answer>", answer, **options)


@pytest.mark.parametrize("task", VERIFIERS)
def test_a_verifiers_options_are_settings_and_its_places_places(task: str) -> None:
    spec = VERIFIERS[task]
    assert set(spec.options.values()) <= {each.name for each in fields(VerifierSettings)}
    assert spec.places.keys() <= set(PLACES)
    assert spec.warm_up is None or not spec.bounded
    if spec.warm_up is not None:
        spec.warm_up()


@pytest.mark.parametrize("task", [task for task, spec in VERIFIERS.items() if spec.bounded])
def test_verifiers_that_run_without_a_worker_survive_any_text_quickly(task: str) -> None:
    repeated = [
        "{",
        "9",
        "<answer>",
        r"\boxed{",
        "answer is ",
        "option b\n\n",
        "option (A or ",
        '{"a":',
        "(",
        "\x00\ud800",
        "1.",
        "e9",
        "</think>",
        "#### ",
    ]
    hostile = runpy.run_path(str(HOSTILE))["HOSTILE"]
    answer = read_by(task)[0]
    for text in [text for _, text in hostile] + [part * 50_000 for part in repeated]:
        assert verify(task, text, answer).score == 0.0


@pytest.mark.parametrize("rule", MATH_RULES)
def test_a_math_rule_pays_right_answers_most_and_does_what_it_says(rule: str) -> None:
    boxed, bare = r"so </think> \boxed{18}", "so </think> it is 18"
    right, wrong, unformatted = (verify_math(text, "18", rule=rule) for text in (boxed, r"</think> \boxed{7}", ""))
    assert (right.reward, right.score) == (1.0, 1.0)
    assert (wrong.score, unformatted.score) == (0.0, 0.0)
    assert right.reward > wrong.reward >= unformatted.reward
    assert (wrong.reward, unformatted.reward) == (MATH_RULES[rule].wrong, MATH_RULES[rule].unformatted)
    assert (verify_math(bare, "18", rule=rule).score == 0) == MATH_RULES[rule].boxed_only
    assert (verify_math(r"\boxed{18}", "18", rule=rule).score == 0) == MATH_RULES[rule].needs_think


@pytest.mark.parametrize("place", EXTRACTIONS)
def test_a_place_finds_one_answer_and_nothing_in_nothing(place: str) -> None:
    everywhere = r"<answer>\boxed{18}</answer>"
    assert verify_math(everywhere, "18", extract=[place]).score == 1.0
    assert verify_math(everywhere, "7", extract=[place]).score == 0.0
    assert verify_math("", "18", extract=[place]).components["format"] == 0.0


@pytest.mark.parametrize("name", GSM8K_FORMATS)
def test_a_gsm8k_format_finds_one_answer_and_nothing_in_nothing(name: str) -> None:
    everywhere = r"<answer>\boxed{#### 18}</answer>"
    assert verify_gsm8k(everywhere, "18", answer_format=name).score == 1.0
    assert verify_gsm8k(everywhere, "7", answer_format=name).score == 0.0
    assert verify_gsm8k("", "18", answer_format=name).components["format"] == 0.0


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_says_where_it_asks_and_what_stops(name: str) -> None:
    template = TEMPLATES[name]
    assert template.place in {None, *PLACES} and template.thinks in (None, True, False)
    assert all(stop.strip() not in ("", "</think>", "<answer>") for stop in template.stop)
    if template.text is not None:
        assert template.text.count("{question}") == 1
        asks = {"boxed": "\\boxed{", "answer_tag": "<answer>"}
        assert template.place is None or asks[template.place] in template.text


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_of_the_text_and_a_text_without_thought_is_whole(part: str) -> None:
    text = "first 3 + 5 </think> so 8"
    assert part_of(text, part) in text
    assert part_of("so 8", part) == "so 8"
    assert len({part_of(text, name) for name in PARTS}) == len(PARTS)


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_way_to_cut_leaves_short_texts_whole_and_sends_no_long_piece(name: str) -> None:
    how = LONG_TEXTS[name]
    assert how.cut_from in ("left", "right", None)
    for text in ("", "a", "abcd"):
        assert how.pieces(text, 4) == [text]
    pieces = how.pieces("abcdefghij", 4)
    assert pieces and all(0 < len(piece) <= 4 and piece in "abcdefghij" for piece in pieces)
    assert ("".join(pieces) == "abcdefghij") == (how.cut_from is None)
    assert len({tuple(LONG_TEXTS[other].pieces("abcdefghij", 4)) for other in LONG_TEXTS}) == len(LONG_TEXTS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_names_its_dataset_and_refuses_records_that_are_not_its_own(name: str) -> None:
    benchmark = BENCHMARKS[name]
    assert benchmark.path.count("/") == 1 and benchmark.split
    assert "=" not in name and "," not in name and "/" not in name  # as eval.dataset separates them
    with pytest.raises((KeyError, ValueError)):
        benchmark.problem({"nothing": "known"})


def test_a_default_is_one_of_the_choices_and_the_flag_offers_all_of_them(parser: argparse.ArgumentParser) -> None:
    actions = {action.dest: action for action in parser._actions}
    for each in SETTINGS:
        if each.choices is None:
            continue
        defaults = each.default if each.many else [each.default]
        assert all(default is None or default in each.choices for default in defaults), each.flag
        for choice in each.choices:
            value = parser.parse_args([f"--{each.flag}", choice])
            assert vars(value)[actions[each.flag].dest] in (choice, (choice,))
