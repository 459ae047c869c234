"""A judge that grades an answer from 1 to 10 by all criteria of a rubric at once, for kind rubric with ask: together.

The value is 0 for a 1 and 1 for a 10: the judge weighs the criteria itself (implicit aggregation, arXiv 2507.17746).
"""

from typing import Any

from oger_recipe.models.plugins.grade import rm_postprocess as rm_postprocess
from oger_recipe.models.plugins.rubric import about_criteria

TASK = """You grade answers by criteria. How well does the answer to the question meet them? The greater the weight \
of a criterion, the more it counts; what a criterion with a weight below 0 says should not be true of the answer.

{{material}}

The criteria:
{criteria}

Think about it first if you want. End with one line: "Grade: " and a number from 1 (meets none) to 10 (meets all)."""


def rm_preprocess(text_prompts: list[str], text_responses: list[dict[str, Any]], tgt_tokenizer: Any) -> list[str]:
    return [
        about_criteria(TASK, "{at}. (weight {weight:g}) {description}", prompt, each, tgt_tokenizer)
        for prompt, each in zip(text_prompts, text_responses, strict=True)
    ]
