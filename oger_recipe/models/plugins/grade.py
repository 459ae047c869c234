"""A judge that grades an answer from 1 to 10; the value is 0 for a 1 and 1 for a 10."""

from typing import Any

from oger_recipe.models.plugins._fence import about_answers
from oger_recipe.models.plugins._reply import last_named

TASK = """You grade answers. How good is the answer to the question: right, complete and clear?

{material}

Think about it first if you want. End with one line: "Grade: " and a number from 1 (useless) to 10 (perfect)."""


def rm_preprocess(text_prompts: list[str], text_responses: list[str], tgt_tokenizer: Any) -> list[str]:
    return about_answers(TASK, text_prompts, text_responses, tgt_tokenizer)


def rm_postprocess(results: list[str]) -> list[float | None]:
    return [_value(last_named("grade", r"\d+(?:\.\d+)?(?=\s*/\s*10\b|(?!\s*/))", result)) for result in results]


def _value(grade: str | None) -> float | None:
    return (float(grade) - 1) / 9 if grade is not None and 1 <= float(grade) <= 10 else None
