"""Writes question and steps of reasoning for a process reward model, as tokens with the place of each step's score.

What a response says cannot pass for a tag: neither its text, which is broken up in it, nor its token, of which there
have to be as many as steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.models.keys import ProcessKeys
from oger_recipe.models.plugins._fence import harmless
from oger_recipe.models.step_formats import Format
from oger_recipe.models.tokens import plain_tokens, tokens_of
from oger_recipe.rewards.place import Reply, StepPrompt
from oger_recipe.rewards.sources import ANSWER


class StepWriter:
    """Writes for the model of an entry.

    Raises RecipeError where the tokenizer lacks what the format needs.
    """

    def __init__(self, keys: ProcessKeys, tokenizer: Any) -> None:
        self._format, self._tokenizer = keys.written, tokenizer
        tag = self._format.tag
        self._tag = tag if isinstance(tag, str) else str(tokenizer.decode([tag]))
        self._tag_ids = [tag] if isinstance(tag, int) else plain_tokens(tokenizer, tag)
        if self._format.whole and len(self._tag_ids) != 1:
            raise RecipeError(
                f"tag {tag!r} is {len(self._tag_ids)} tokens of {keys.tokenizer_files[0]}, and must be one: is it "
                "the tokenizer of this PRM, and the format the right one?"
            )
        if self._format.chat and not tokenizer.chat_template:
            raise RecipeError(f"{keys.tokenizer_files[0]} has no chat template, which format {keys.format} needs")

    def write(self, question: str, steps: Sequence[str]) -> StepPrompt | Reply:
        """Write a prompt whose ends are those of the steps, in order; spaces around a step do not count."""
        question = harmless(question, (), self._tokenizer)
        steps = [self._untagged(harmless(step.strip(), (), self._tokenizer)) for step in steps]
        if not self._format.whole:
            return self._piece_by_piece(question, steps)
        text = self._text(self._untagged(question), steps)
        tokens = tokens_of(self._tokenizer, text)
        ends = [place for place, token in enumerate(tokens) if [token] == self._tag_ids]
        if len(ends) != len(steps):
            why = f"the text for the model has {len(ends)} tags for {len(steps)} steps of reasoning"
            return Reply(error=why, cause=ANSWER)
        return StepPrompt(tuple(tokens), tuple(ends))

    def _piece_by_piece(self, question: str, steps: Sequence[str]) -> StepPrompt:
        begin = [] if self._tokenizer.bos_token_id is None else [self._tokenizer.bos_token_id]
        tokens, ends = begin + plain_tokens(self._tokenizer, question), []
        for step in steps:
            tokens += plain_tokens(self._tokenizer, step) + self._tag_ids
            ends.append(len(tokens) - 1)
        return StepPrompt(tuple(tokens), tuple(ends))

    def _text(self, question: str, steps: Sequence[str]) -> str:
        form = self._format
        solution = form.between_steps.join(f"{step}{form.before_tag}{self._tag}" for step in steps)
        if not form.chat:
            return f"{question}{form.before_steps}{solution}"
        return str(self._tokenizer.apply_chat_template([*_turns(form, question, solution)], tokenize=False))

    def _untagged(self, text: str) -> str:
        """Break up the tag by a space behind its first character, as often as it is there; a tag of white space alone
        may stay in a text that is tokenised on its own."""
        tag = self._tag.strip(" ")
        if not tag or not (self._format.whole or tag.strip()):
            return text
        if len(tag) == 1:
            return text.replace(tag, " ")
        while tag in text:
            text = text.replace(tag, f"{tag[0]} {tag[1:]}")
        return text


def _turns(form: Format, question: str, solution: str) -> Iterator[dict[str, str]]:
    if form.system is not None:
        yield {"role": "system", "content": form.system}
    yield {"role": "user", "content": question}
    yield {"role": "assistant", "content": solution}


def verdict_tokens(keys: ProcessKeys, tokenizer: Any) -> tuple[int, int]:
    """Return the tokens for a bad and a good step. Raises RecipeError for a text that is not one token."""
    found = []
    for name, token in (("bad", keys.written.bad), ("good", keys.written.good)):
        ids = [token] if isinstance(token, int) else plain_tokens(tokenizer, str(token))
        if len(ids) != 1:
            raise RecipeError(f"{name} {token!r} is {len(ids)} tokens of {keys.tokenizer_files[0]}, and must be one")
        found += ids
    bad, good = found
    if bad == good:
        raise RecipeError(f"good and bad are the same token of {keys.tokenizer_files[0]}, {good}")
    return bad, good
