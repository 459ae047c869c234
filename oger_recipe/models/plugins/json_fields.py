"""A judge that fills in a JSON object; the value is the mean of its fields that hold a number from 0 to 1."""

from typing import Any

from oger_recipe.models.plugins._fence import about_answers
from oger_recipe.models.plugins._reply import last_object

TASK = """You check answers, one point after the other.

{material}

Think about it first if you want. End with one JSON object, each field 1 for yes or 0 for no:
{{"right": 0 or 1, "complete": 0 or 1, "follows the instructions": 0 or 1, "clear": 0 or 1}}"""


def rm_preprocess(text_prompts: list[str], text_responses: list[str], tgt_tokenizer: Any) -> list[str]:
    return about_answers(TASK, text_prompts, text_responses, tgt_tokenizer)


def rm_postprocess(results: list[str]) -> list[float | None]:
    return [mean_of_fields(last_object(result)) for result in results]


def mean_of_fields(verdict: dict[str, Any] | None) -> float | None:
    """Return the mean of the fields with a number or a truth value; None without any, or with one outside 0 to 1."""
    numbers = [float(value) for value in (verdict or {}).values() if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers and all(0 <= number <= 1 for number in numbers) else None
