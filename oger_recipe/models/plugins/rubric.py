"""A judge that says of each criterion of a rubric whether it is met, for kind rubric: what is judged is a response
with criteria. The value is 1 for a criterion that is met, and 0 for one that is not."""

import re
from typing import Any

from oger_recipe.models.plugins._fence import asked, harmless
from oger_recipe.models.plugins._reply import after_thought

TASK = """You check an answer against criteria. For each of them: is what it says true of the answer?

{{material}}

The criteria:
{criteria}

Think about it first if you want. End with one line for each criterion: "Criterion 1: 1" if what it says is true of \
the answer, "Criterion 1: 0" if it is not."""

_VERDICT = r"\bcriterion[ \t]*(\d{1,3})[ \t*]*[:=][ \t*\[(]*([01])(?![ \t]*[\w/%:]|[.,]\d)"


def rm_preprocess(text_prompts: list[str], text_responses: list[dict[str, Any]], tgt_tokenizer: Any) -> list[str]:
    return [
        about_criteria(TASK, "{at}. {description}", prompt, each, tgt_tokenizer)
        for prompt, each in zip(text_prompts, text_responses, strict=True)
    ]


def rm_postprocess(results: list[str]) -> list[list[float | None]]:
    return [_verdicts(after_thought(result)) for result in results]


def about_criteria(task: str, line: str, prompt: str, rated: dict[str, Any], tokenizer: Any) -> str:
    """Put a question, its answer and a line for each criterion into a task."""
    texts = {"question": prompt, "answer": rated["response"]}
    lines = [line.format(at=at, **each) for at, each in enumerate(rated["criteria"], start=1)]
    criteria = harmless("\n".join(lines), texts, tokenizer).replace("{", "{{").replace("}", "}}")
    return asked(task.format(criteria=criteria), texts, tokenizer)


def _verdicts(reply: str) -> list[float | None]:
    """Return the last verdict on each criterion, numbered from 1; a digit alone is that on the only one."""
    if reply in ("0", "1"):
        return [float(reply)]
    said = {int(number): float(verdict) for number, verdict in re.findall(_VERDICT, reply, re.IGNORECASE)}
    return [said.get(number) for number in range(1, max(said, default=0) + 1)]
