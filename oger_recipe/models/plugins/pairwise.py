"""A judge that says which of two answers is better, for kind pairwise: what is judged is pairs of answers.

The value is 1 for the answer that is read first, 0 for the other one, and 0.5 for a tie.
"""

from typing import Any

from oger_recipe.models.plugins._fence import asked
from oger_recipe.models.plugins._reply import last_named

TASK = """You compare two answers to a question. Which one is better? Neither their order nor their length counts.

{material}

Think about it first if you want. End with one line: "Verdict: A" if answer-A is better, "Verdict: B" if answer-B is, \
"Verdict: tie" if they are equally good."""

VALUES = {"a": 1.0, "b": 0.0, "tie": 0.5}


def rm_preprocess(text_prompts: list[str], text_responses: list[list[str]], tgt_tokenizer: Any) -> list[str]:
    return [
        asked(TASK, {"question": prompt, "answer-A": first, "answer-B": second}, tgt_tokenizer)
        for prompt, (first, second) in zip(text_prompts, text_responses, strict=True)
    ]


def rm_postprocess(results: list[str]) -> list[float | None]:
    found = (last_named("verdict", "tie|[AB]", result) for result in results)
    return [None if verdict is None else VALUES[verdict.lower()] for verdict in found]
