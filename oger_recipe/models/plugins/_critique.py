"""The question to a critic, whose reply a head reads, for kind critique_classifier."""

from typing import Any

from oger_recipe.models.plugins._fence import about_answers

REQUEST = "What is good and what is bad about this answer? Name mistakes and where they are."


def rm_preprocess(text_prompts: list[str], text_responses: list[str], tgt_tokenizer: Any) -> list[str]:
    return about_answers(f"{{material}}\n\n{REQUEST}", text_prompts, text_responses, tgt_tokenizer)
