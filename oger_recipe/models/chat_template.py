"""What an entry says of its judge's chat template, in the process of a plugin, which writes prompts by it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


class AskedOtherwise(Exception):
    """A plugin does not ask its judge as the entry says."""


class ChatTemplate:
    """In the place of a tokenizer's apply_chat_template: conversations begin with the system prompt, and the template
    gets the further arguments. is_used: it was called.

    Raises:
        AskedOtherwise: the template does not read an argument.
    """

    def __init__(self, tokenizer: Any, system_prompt: str | None, arguments: Mapping[str, Any]) -> None:
        self._write, self._system, self._arguments = tokenizer.apply_chat_template, system_prompt, arguments
        self.is_used = False
        for name in arguments:
            if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
                raise AskedOtherwise(
                    f"chat_template_kwargs: the chat template of {tokenizer.name_or_path} does not read {name}; leave "
                    "it out"
                )

    def __call__(self, conversation: Any, *args: Any, **kwargs: Any) -> Any:
        from jinja2 import TemplateError

        self.is_used = True
        try:
            return self._write(self._begun(conversation), *args, **{**kwargs, **self._arguments})
        except TemplateError as error:
            raise AskedOtherwise(f"system_prompt, chat_template_kwargs: the chat template says: {error}") from None

    def _begun(self, conversation: Sequence[Any]) -> Sequence[Any]:
        if self._system is None or not conversation:
            return conversation
        if not isinstance(conversation[0], Mapping):  # several conversations
            return [self._begun(each) for each in conversation]
        if any(message["role"] == "system" for message in conversation):
            raise AskedOtherwise(
                "system_prompt is set, and rm_preprocess writes a system message of its own: leave one of them out"
            )
        return [{"role": "system", "content": self._system}, *conversation]

    def require_use(self) -> None:
        """Raise AskedOtherwise where it was not called since the last time."""
        is_used, self.is_used = self.is_used, False
        if not is_used:
            raise AskedOtherwise(
                "rm_preprocess does not call tgt_tokenizer.apply_chat_template, so that system_prompt and "
                "chat_template_kwargs would have no effect: leave them out, or write the prompt by it"
            )


def needs_tokenizer(error: Exception) -> bool:
    """Tell whether an error came of using a tokenizer that is None."""
    name = error.name if isinstance(error, AttributeError) and error.obj is None else None
    of_tokenizers = name is not None and re.search("token|template|code|_ids?$", name) is not None
    return of_tokenizers or str(error) == "'NoneType' object is not callable"


NO_TOKENIZER = (
    "tgt_tokenizer is None where a server puts the chat template around the prompt (api chat): name the judge's "
    "tokenizer by the key tokenizer, or return the text alone"
)
