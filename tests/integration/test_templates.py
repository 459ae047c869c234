"""Named prompt templates: the exact strings that models know, prompts unharmed, thoughts opened once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oger_recipe.data.templates import TEMPLATES
from oger_recipe.data.train_files import Budget, PromptFormat, TeacherChoice, write_train_files
from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.rules import GradingRules
from oger_recipe.teachers.store import TeacherStore

HARD = "If {x} = \\frac{1}{2} and {question} is {0} %s, give {{y}}.\n"
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."


@pytest.mark.parametrize("name", sorted(set(TEMPLATES) - {"chat"}))
def test_a_prompt_of_any_characters_arrives_whole_and_once(name: str) -> None:
    text = TEMPLATES[name].apply(HARD)
    assert text.count(HARD) == 1
    assert text.replace(HARD, "Q") == TEMPLATES[name].apply("Q")


def test_the_chat_template_is_the_tokenizers() -> None:
    with pytest.raises(ValueError, match="apply_chat_template"):
        TEMPLATES["chat"].apply("Q")


def test_none_is_the_prompt_alone() -> None:
    assert TEMPLATES["none"].apply(HARD) == HARD


def test_chatml_turns_of_qwen() -> None:
    assert TEMPLATES["qwen_math"].apply("Q") == (
        f"<|im_start|>system\n{BOXED}<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    )
    user_turn = TEMPLATES["qwen3"].apply("Q").removeprefix("<|im_start|>user\n")
    assert user_turn.removesuffix("<|im_end|>\n<|im_start|>assistant\n") in (f"Q\n{BOXED}", f"{BOXED}\nQ")


def test_deepseeks_special_tokens_have_their_full_width_bars() -> None:
    text = TEMPLATES["r1_distill"].apply("Q")
    assert text.startswith("<\uff5cbegin\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>")
    assert text.endswith("<\uff5cAssistant\uff5c><think>\n")
    assert BOXED in text


@pytest.mark.parametrize("name", ["r1", "tinyzero"])
def test_conversations_for_base_models_open_the_thought_and_say_where_they_stop(name: str) -> None:
    text = TEMPLATES[name].apply("Q")
    assert "\nUser: Q" in text and "<answer>" in text and "</answer>" in text
    assert text.endswith({"r1": "\nAssistant: <think>", "tinyzero": "\n<think>"}[name])
    stops = {"r1": ("</answer>",), "tinyzero": ("</s>", "<|im_end|>", "<|endoftext|>", "\nUser:")}
    assert TEMPLATES[name].stop == stops[name]


@pytest.mark.parametrize(
    ("name", "teacher", "kept"),
    [
        ("r1_distill", "<think>\nSo </think> 4", "So </think> 4"),
        ("r1_distill", "<think>So </think> 4", "So </think> 4"),
        ("r1_distill", "So </think> 4", "So </think> 4"),
        ("r1", "<think>\nSo </think> 4", "\nSo </think> 4"),
        ("r1", "First <think>", "First <think>"),
        ("qwen3", "<think>\nSo </think> 4", "<think>\nSo </think> 4"),
        ("none", "<think>\nSo </think> 4", "<think>\nSo </think> 4"),
    ],
)
def test_a_teacher_does_not_open_the_thought_that_the_prompt_has_opened(
    tmp_path: Path, letters: Any, name: str, teacher: str, kept: str
) -> None:
    row = {"uid": "p", "prompt": "Think in <think> tags: 2+2?", "answer": "4", "task": "gsm8k"}
    row["teachers"] = [{"source": "r1", "text": teacher, "correct": None}]
    write_train_files(
        [row],
        tokenizer=letters,
        prompt_format=PromptFormat(False, None, TEMPLATES[name]),
        budget=Budget(2000, 100),
        prompts_path=tmp_path / "train.jsonl",
        teachers_path=tmp_path / "teachers.arrow",
        rules=GradingRules(),
        pool=GradingPool(GradingSettings()),
        choice=TeacherChoice(keep_wrong_teachers=True),
    )
    (found,) = TeacherStore(tmp_path / "teachers.arrow")["p"]
    assert found.text == kept
