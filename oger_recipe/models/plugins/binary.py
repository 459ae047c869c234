"""A judge that says 1 for a right answer and 0 for a wrong one."""

from typing import Any

from oger_recipe.models.plugins._fence import about_answers
from oger_recipe.models.plugins._reply import last_named

TASK = """You check answers. Is the answer to the question right?

{material}

Think about it first if you want. End with one line: "Verdict: 1" if the answer is right, "Verdict: 0" if it is not."""


def rm_preprocess(text_prompts: list[str], text_responses: list[str], tgt_tokenizer: Any) -> list[str]:
    return about_answers(TASK, text_prompts, text_responses, tgt_tokenizer)


def rm_postprocess(results: list[str]) -> list[float | None]:
    found = (last_named("verdict", "[01]", result) for result in results)
    return [None if verdict is None else float(verdict) for verdict in found]
