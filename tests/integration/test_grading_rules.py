"""What a prompt asks for, what ends a response and what is graded fit together, for every template and task."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.data.templates import TEMPLATES
from oger_recipe.evaluation.benchmarks import Problem
from oger_recipe.grading import verifiers
from oger_recipe.grading.rules import MATH_RULES, GradingRules, graded_text
from oger_recipe.grading.verifiers import VERIFIERS, verify
from oger_recipe.settings.grading import answer_places, grading_problems, grading_rules
from oger_recipe.settings.rollouts import RolloutSettings

# A right answer of each task, its reference, and the form in which it stands where a template does not say.
GOLD = {
    "math": (r"\frac{1}{2}", r"\frac{1}{2}", r"\boxed{%s}"),
    "gsm8k": ("70,000", "70000", "#### %s"),
    "countdown": ("(3+5)*12", '{"numbers": [3, 5, 12], "target": 96}', "<answer>%s</answer>"),
    "choice": ("C", "C", r"\boxed{%s}"),
    "json": ('{"a": 1}', '{"fields": {"a": "int"}}', "%s"),
}
FORMS = {"boxed": r"\boxed{%s}", "answer_tag": "<answer>%s</answer>"}
DOCUMENT = Path(__file__).parents[2] / "docs" / "verifiers.md"


@pytest.fixture(scope="module")
def settings(parser: argparse.ArgumentParser):
    return lambda *flags: vars(parser.parse_args(list(flags)))


def _response(template: str, task: str) -> str:
    """The gold answer in the form that the template asks for, after a thought with other numbers, up to a stop."""
    chosen = TEMPLATES[template]
    answer = (FORMS[chosen.place] if chosen.place else GOLD[task][2]) % GOLD[task][0]
    thought = "First 4, then 5 and (D)" + (" </think> " if chosen.thinks else ". ")
    stops = [stop for stop in chosen.stop if stop != "</answer>"]
    return thought + answer + (stops[-1] if stops else "")


def _score(settings: dict[str, Any], task: str, response: str) -> float:
    row = {"task": task, "prompt": "Q", "answer": GOLD[task][1]}
    name, text, answer, options = grading_rules(settings).answer(row, response)
    return verify(name, text, answer, **options).score


@pytest.mark.parametrize("task", GOLD)
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_gold_answer_in_the_templates_own_form_scores_one(settings, template: str, task: str) -> None:
    value = settings("--oger.prompt_template", template)
    assert list(answer_places(value)) == []
    assert _score(value, task, _response(template, task)) == 1.0


@pytest.mark.parametrize("rule", MATH_RULES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_rule_reads_what_the_template_asks_for_or_is_refused_with_it(settings, template: str, rule: str) -> None:
    value = settings("--oger.prompt_template", template, "--oger.math_rule", rule)
    response = _response(template, "math")
    if TEMPLATES[template].thinks is None:  # the model decides
        response = "so </think> " + response
    refused = list(answer_places(value))
    assert bool(refused) == (_score(value, "math", response) != 1.0)
    assert all(f"oger.math_rule {rule} " in sentence for sentence in refused)


def test_the_tasks_of_the_table_have_verifiers() -> None:
    assert GOLD.keys() <= VERIFIERS.keys()


def test_the_documents_table_is_what_happens(settings) -> None:
    lines = ["| template | asks for the answer in | stops at | " + " | ".join(GOLD) + " |"]
    lines.append("|---" * (3 + len(GOLD)) + "|")
    for name, template in TEMPLATES.items():
        value = settings("--oger.prompt_template", name)
        place = {"boxed": "`\\boxed{}`", "answer_tag": "`<answer>`", None: "it does not say"}[template.place]
        stops = " ".join(f"`{json.dumps(stop)[1:-1]}`" for stop in RolloutSettings.of(value).stop_texts).replace(
            "|", "\\|"
        )
        stops = stops or "the end of sequence"
        scores = [f"{_score(value, task, _response(name, task)):g}" for task in GOLD]
        lines.append("| " + " | ".join([f"`{name}`", place, stops, *scores]) + " |")
    assert "\n".join(lines) in DOCUMENT.read_text()


def test_the_thought_does_not_speak_for_the_tagged_answer(settings) -> None:
    response = "<think>so 4 and 5</think> <answer>4</answer>"
    for flags in (["--oger.prompt_template", "r1"], []):
        task, options = grading_rules(settings(*flags)).call({"task": "math", "prompt": "Q"})
        assert verify(task, response, "4", **options).score == 1.0
        assert verify(task, response, "5", **options).score == 0.0


def test_gsm8k_asked_in_boxes_is_read_in_boxes() -> None:
    """As `oger eval` and named benchmarks ask it, without a template."""
    problem = Problem("u", "How many?", "18", "gsm8k", "\n\nput it into a box")
    task, options = GradingRules().call(problem.row(None))
    assert verify(task, r"\boxed{18} dollars for 3 days.", "18", **options).score == 1.0
    assert verify(task, r"so 18, not \boxed{3}", "18", **options).score == 0.0
    assert verify(task, r"\boxed{70{,}000}", "70000", **options).score == 1.0
    assert verify(task, "The answer is 18.", "18", **options).score == 1.0  # without a box, the last number
    assert GradingRules().call(problem.row("none"))[1] == {}  # a template asks in its own way, or not at all
    assert GradingRules({"gsm8k": {"strict_oat": True}}).call(problem.row(None))[1] == {"strict_oat": True}


@pytest.mark.parametrize("text", [r"70{,}000", r"70\,000", "70,000", "70000", "70000.0"])
def test_thousands_of_gsm8k_in_latex(text: str) -> None:
    assert verify("gsm8k", f"so {text}", "70000").score == 1.0


@pytest.mark.parametrize(
    ("content", "score"),
    [("(3+5)*12", 1), (r"(3+5)\times 12", 1), (r"\left(3+5\right)\cdot12", 1), ("3+5*12", 0), (r"96\div1", 0)],
)
def test_countdown_in_a_box(content: str, score: float) -> None:
    reference = GOLD["countdown"][1]
    assert verify("countdown", rf"so \boxed{{{content}}}", reference, answer_in="boxed").score == score
    assert verify("countdown", f"<answer>{content}</answer>", reference, answer_in="boxed").reward == 0.0
    with pytest.raises(ValueError, match="answer_in='line' is unknown; valid values: answer_tag, boxed"):
        verify("countdown", content, reference, answer_in="line")


@pytest.mark.parametrize(
    ("text", "cut", "strip", "read"),
    [
        ("<answer>1+2</answer>\nUser:", ("\nUser:",), False, "<answer>1+2</answer>"),
        ("<answer>1+2</answer>\nUser:", (), False, "<answer>1+2</answer>\nUser:"),
        ("a</s>b\nUser: c", ("\nUser:", "</s>"), False, "a"),
        (" a \n", (), True, "a"),
        (" a \nUser:", ("\nUser:",), True, "a"),
        ("a", ("b",), False, "a"),
    ],
)
def test_a_response_ends_before_its_stop_text(text: str, cut: tuple[str, ...], strip: bool, read: str) -> None:
    assert graded_text(text, cut, strip) == read


def test_which_stop_texts_belong_to_a_response_is_a_choice(settings) -> None:
    assert grading_rules(settings("--oger.prompt_template", "r1")).cut == ()
    assert "\nUser:" in grading_rules(settings("--oger.prompt_template", "tinyzero")).cut
    flags = ["--oger.stop", "END", "</answer>", "--oger.stop_kept", "END"]
    assert grading_rules(settings(*flags)).cut == ("</answer>",)


def test_oats_evaluation_strips_responses_and_its_training_does_not(settings) -> None:
    value = settings("--oger.countdown_strict_oat")
    assert (grading_rules(value).strip, grading_rules(value, evaluation=True).strip) == (False, True)
    assert not grading_rules(settings(), evaluation=True).strip


def test_a_label_says_all_that_the_reward_function_needs(settings) -> None:
    value = settings("--oger.prompt_template", "tinyzero", "--oger.countdown_strict_oat")
    row = {"uid": "u", "answer": "a", "task": "countdown", "prompt": "p"}
    assert grading_rules(value, evaluation=True).label(row) == {
        "uid": "u", "answer": "a", "task": "countdown", "options": {"strict_oat": True},
        "cut": ["</s>", "<|im_end|>", "<|endoftext|>", "\nUser:"], "strip": True,
    }  # fmt: skip
    plain = grading_rules(settings()).label(row | {"task": "math"})
    assert plain == {"uid": "u", "answer": "a", "task": "math"}


def test_a_users_verifier_sees_of_prompt_and_row_what_its_signature_names(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own_context.py").write_text(
        "def plain(response, answer): return 1.0\n"
        "def asks(response, answer, *, prompt): return prompt\n"
        "def all_of_it(response, answer, **more): return more\n"
        "def configured(response, answer, *, row, level=0): return row, level\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = ("plain", "asks", "all_of_it", "configured")
    monkeypatch.setattr(verifiers, "_allowed", [f"own_context:{name}" for name in names])
    row = {"uid": "u", "prompt": "Q", "answer": "a", "task": "t", "teachers": [], "grade": 3, "tags": ["x"]}
    row["image"] = object()  # no JSON: stays behind

    def call(name: str, **options: Any) -> Any:
        task, given = GradingRules({"t": options}, {"t": f"own_context:{name}"}).call(row)
        return verify(task, "r", "a", **json.loads(json.dumps(given)))

    assert call("plain") == 1.0
    assert call("asks") == "Q"
    assert call("all_of_it") == {"prompt": "Q", "row": {"grade": 3, "tags": ["x"]}}
    assert call("configured", level=2) == ({"grade": 3, "tags": ["x"]}, 2)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--oger.stop", "</think>"], "oger.stop </think> ends a response before its answer"),
        (
            ["--oger.prompt_template", "r1", "--oger.math_extract", "boxed", "anywhere"],
            "oger.math_extract boxed anywhere does not look where oger.prompt_template r1 asks for the answer",
        ),
        (
            ["--oger.prompt_template", "qwen_math", "--oger.countdown_strict_oat"],
            "oger.countdown_strict_oat reads <answer>, and oger.prompt_template qwen_math asks for a box",
        ),
        (
            ["--oger.prompt_template", "qwen3", "--oger.gsm8k_answer_format", "hashes"],
            "oger.gsm8k_answer_format hashes looks behind ####, and oger.prompt_template qwen3 asks",
        ),
    ],
)
def test_what_cannot_find_the_answer_is_refused(settings, flags: list[str], sentence: str) -> None:
    assert [problem.startswith(sentence) for problem in answer_places(settings(*flags))] == [True]


def test_a_users_task_takes_settings_and_places_as_the_recipes_own_do(settings, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own_spec.py").write_text(
        "from oger_recipe.grading.verifiers import TaskSpec\n"
        "def verify(response, answer, *, form='bare', strict=False): return 1.0\n"
        "options = {'strict': 'gsm8k_strict_oat'}\n"
        "spec = TaskSpec(verify, options, places={'boxed': {'form': 'in a box'}})\n"
        "wrong = TaskSpec(verify, {'strict': 'strictness'})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    row, mine = {"task": "mine", "answer": "a"}, ["--oger.verifiers", "mine=own_spec:spec"]

    def options(*flags: str) -> dict[str, Any]:
        given = grading_rules(settings(*mine, *flags)).call(row)[1]
        return {name: value for name, value in given.items() if name not in ("prompt", "row")}

    assert options() == {}
    assert options("--oger.prompt_template", "qwen_math") == {"form": "in a box"}
    assert options("--oger.gsm8k_strict_oat") == {"strict": True}
    refused = list(grading_problems(settings("--oger.verifiers", "mine=own_spec:wrong")))
    assert refused == ["oger.verifiers: options of a TaskSpec that are not settings of grading: strictness"]
