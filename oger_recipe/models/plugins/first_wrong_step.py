"""A judge that names the first wrong step of a response, for scorer judge of kind process: what is judged is lists of
steps.

The value is the step's number, from 0, or -1 where all are right: as ProcessBench (arXiv 2412.06559) has it.
"""

from typing import Any

from oger_recipe.models.plugins._fence import asked
from oger_recipe.models.plugins._reply import last_named

TASK = """You check a solution, one step after the other. Its steps are numbered from 0: the first is step-0. Which \
is the first step with a mistake in it, or with a conclusion that does not follow?

{material}

Go through the steps in their order if you want. End with one line: "First wrong step: " and its number, or \
"First wrong step: -1" if no step is wrong."""


def rm_preprocess(text_prompts: list[str], text_responses: list[list[str]], tgt_tokenizer: Any) -> list[str]:
    return [
        asked(TASK, {"question": prompt} | {f"step-{at}": step for at, step in enumerate(steps)}, tgt_tokenizer)
        for prompt, steps in zip(text_prompts, text_responses, strict=True)
    ]


def rm_postprocess(results: list[str]) -> list[int | None]:
    found = (last_named("first wrong step", r"-1|\d+", result) for result in results)
    return [None if number is None else int(number) for number in found]
