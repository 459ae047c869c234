"""Problems to the text and tokens that the model is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.evaluation.benchmarks import Problem


@dataclass(frozen=True)
class Prompting:
    """template: a name in TEMPLATES, which then decides alone what is sent, as ``oger.prompt_template`` does in
    training (``none``: the bare question; ``chat``: the bare question in the chat template). None: the question with
    its benchmark's instruction, in the tokenizer's chat template where it has one and ``chat_template`` is not off.
    """

    template: str | None = None
    chat_template: bool = True
    system_prompt: str | None = None
    input_template: str | None = None  # OpenRLHF's data.input_template, where no chat template is used


def prompt_texts(problems: Sequence[Problem], tokenizer: Any, prompting: Prompting) -> list[str]:
    """Write the prompts as they are sent. Raises RecipeError for problems and settings that do not go together."""
    chat = _uses_chat_template(tokenizer, prompting)
    if prompting.system_prompt is not None and not chat:
        raise RecipeError("--system_prompt needs a chat template, and none is used")
    return [_text(problem, tokenizer, prompting, chat) for problem in problems]


def prompt_tokens(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Tokenize as OpenRLHF does in training: no special tokens but those in the text."""
    tokens: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return tokens


def _uses_chat_template(tokenizer: Any, prompting: Prompting) -> bool:
    if prompting.template == "chat" and not tokenizer.chat_template:
        raise RecipeError("--prompt_template chat: the model's tokenizer has no chat template")
    if prompting.template is not None:
        return prompting.template == "chat"
    return prompting.chat_template and bool(tokenizer.chat_template)


def _text(problem: Problem, tokenizer: Any, prompting: Prompting, chat: bool) -> str:
    question = problem.question
    if isinstance(question, list) and [turn["role"] for turn in question] == ["user"]:
        question = str(question[0]["content"])
    if not chat and not isinstance(question, str):
        raise RecipeError(
            f"problem {problem.uid!r} is a chat of several turns: it needs a chat template, and none is used"
        )
    if isinstance(question, str) and prompting.template is None:
        question += problem.instruction
    if not chat:
        assert isinstance(question, str)
        if prompting.template is None:
            return prompting.input_template.format(question) if prompting.input_template else question
        return TEMPLATES[prompting.template].apply(question)
    turns = [{"role": "user", "content": question}] if isinstance(question, str) else question
    if prompting.system_prompt is not None:
        turns = [{"role": "system", "content": prompting.system_prompt}, *turns]
    text: str = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return text
