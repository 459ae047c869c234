"""Prompt and response as the chat template of a head writes them, for kinds classifier and critique_classifier."""

from typing import Any

from oger_recipe.models.plugins._critique import REQUEST
from oger_recipe.models.plugins._fence import harmless


def rm_preprocess(text_prompts: list[str], text_responses: list[Any], tgt_tokenizer: Any) -> list[str]:
    """Write chats; a response may be paired with a critique."""
    return [
        str(tgt_tokenizer.apply_chat_template(_messages(prompt, response, tgt_tokenizer), tokenize=False))
        for prompt, response in zip(text_prompts, text_responses, strict=True)
    ]


def _messages(prompt: str, response: Any, tokenizer: Any) -> list[dict[str, str]]:
    said, *critique = [response] if isinstance(response, str) else response
    texts = [prompt, said, *(text for each in critique for text in (REQUEST, each))]
    return [
        {"role": ("user", "assistant")[at % 2], "content": harmless(text, (), tokenizer)}
        for at, text in enumerate(texts)
    ]
