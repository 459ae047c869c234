"""How a response is cut into steps of reasoning: behind each delimiter, and at the caps of a step and a response.

The last functions look whether the responses of a model can be cut, before anything of it is loaded.

A step ends with the token that completes a delimiter; what else that token holds belongs to the step as well. A blank
step is none: it belongs to the step before it, and to the first one where there is none before.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, AnyStr
from weakref import WeakKeyDictionary

from oger_recipe.base.errors import RecipeError


@dataclass(frozen=True)
class StepRule:
    """A step ends behind any of the texts or tokens that delimit steps, with its max_step_tokens-th token, and with
    the response. A response ends with its max_steps-th step, or with the first step that has last_step_text in it."""

    delimiters: tuple[str, ...] = ("\n\n",)
    delimiter_token_ids: tuple[int, ...] = ()
    max_step_tokens: int | None = None
    max_steps: int | None = None
    last_step_text: str | None = None

    def __post_init__(self) -> None:
        if "" in (*self.delimiters, self.last_step_text):
            raise ValueError("delimiters and last_step_text must not be empty: an empty text is found everywhere")

    @property
    def ends_responses(self) -> bool:
        """Whether a response may end before the policy ends it."""
        return self.max_steps is not None or self.last_step_text is not None


@dataclass(frozen=True)
class StepSampling:
    """How responses are sampled: up to where the rule ends them, and in one request or, by_step, in one for each
    step."""

    rule: StepRule
    by_step: bool = False


@dataclass(frozen=True)
class End:
    """Where a response ends: behind this many tokens; truncated: by the cap of steps, not by the last step's text."""

    tokens: int
    truncated: bool


def cut_text(text: str, rule: StepRule) -> list[str]:
    """Cut a text behind its delimiters, which is all of a rule that a text shows. The steps joined are the text."""
    begins, some = [0], False
    for begin, end in pairwise([0, *_delimiter_ends(text, rule.delimiters), len(text)]):
        is_blank = not text[begin:end].strip()
        begins += [begin] if some and not is_blank else []
        some |= not is_blank
    return [text[begin:end] for begin, end in pairwise([*begins, len(text)])]


def cut_tokens(tokens: Sequence[int], tokenizer: Any, rule: StepRule) -> list[int]:
    """Return the step of each token of a response, from 0. No cap or text ends the response here: see `end_of`.

    Text delimiters are looked for in the text without special tokens.
    """
    steps: list[int] = []
    complete = 0
    for part in _parts(tokens, tokenizer, rule):
        steps += [max(complete - part.is_blank, 0)] * len(part.tokens)
        complete += not part.is_blank
    return steps


def end_of(tokens: Sequence[int], tokenizer: Any, rule: StepRule) -> End | None:
    """Return where the rule ends a response; None: nowhere in these tokens."""
    if not rule.ends_responses:
        return None
    length = complete = 0
    for part in _parts(tokens, tokenizer, rule):
        length += len(part.tokens)
        if not part.is_complete or part.is_blank:
            continue
        complete += 1
        if rule.last_step_text is not None and rule.last_step_text.lower() in part.text.lower():
            return End(length, truncated=False)
        if complete == rule.max_steps:
            return End(length, truncated=True)
    return None


def open_tokens(tokens: Sequence[int], tokenizer: Any, rule: StepRule) -> int:
    """Count the tokens since the last delimiter or cap."""
    part = None
    for part in _parts(tokens, tokenizer, rule):  # noqa: B007
        pass
    return 0 if part is None or part.is_complete else len(part.tokens)


def step_texts(tokens: Sequence[int], steps: Sequence[int], tokenizer: Any) -> list[str]:
    """Return the texts of steps; ``steps`` has the number of each token's step. Joined they are the response without
    special tokens; a character whose tokens lie in two steps is in the second one."""
    pieces = zip(steps, token_bytes(tokenizer, tokens), strict=True)
    decoder = _decoder()
    texts = [decoder.decode(b"".join(piece for _, piece in each)) for _, each in groupby(pieces, itemgetter(0))]
    texts = texts or [""]
    return [*texts[:-1], texts[-1] + decoder.decode(b"", final=True)]


@dataclass(frozen=True)
class StepCutter:
    """Cuts responses of one tokenizer's tokens by one rule."""

    tokenizer: Any
    rule: StepRule

    def numbers(self, tokens: Sequence[int]) -> list[int]:
        """Return the step of each token, from 0."""
        return cut_tokens(tokens, self.tokenizer, self.rule)

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """Return the texts of the steps, which joined are the response without special tokens."""
        return step_texts(tokens, self.numbers(tokens), self.tokenizer)


@dataclass(frozen=True)
class _Part:
    """Tokens up to one that completes a delimiter or a cap, or that the response ends with."""

    tokens: Sequence[bytes]
    is_complete: bool

    @property
    def text(self) -> str:
        """The text without an incomplete last character: that belongs to the next part."""
        return _decoder().decode(b"".join(self.tokens))

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


def _parts(tokens: Sequence[int], tokenizer: Any, rule: StepRule) -> Iterator[_Part]:
    """Yield the parts in turn. What a part is does not depend on the tokens behind it."""
    pieces = token_bytes(tokenizer, tokens)
    ends = _delimiter_ends(b"".join(pieces), [each.encode() for each in rule.delimiters])
    end, begin, read = next(ends, None), 0, 0
    for place, (token, piece) in enumerate(zip(tokens, pieces, strict=True), start=1):
        read += len(piece)
        completes = token in rule.delimiter_token_ids or place - begin == rule.max_step_tokens
        while end is not None and end <= read:
            completes, end = True, next(ends, None)
        if completes:
            yield _Part(pieces[begin:place], is_complete=True)
            begin = place
    if begin < len(tokens):
        yield _Part(pieces[begin:], is_complete=False)


def _delimiter_ends(text: AnyStr, delimiters: Sequence[AnyStr]) -> Iterator[int]:
    """Yield where delimiters end: always the one that ends first, and behind it none that begins in it."""
    starts = dict.fromkeys(delimiters, -1)  # of the next one of each; -2: there is none
    begin = 0
    while True:
        for each, start in starts.items():
            if -2 < start < begin:
                found = text.find(each, begin)
                starts[each] = found if found >= 0 else -2
        ends = [start + len(each) for each, start in starts.items() if start >= 0]
        if not ends:
            return
        begin = min(ends)
        yield begin


# ---- the bytes that each token adds to a text: a character may come in several tokens

_NO_CHARACTER = "\ufffd"  # what a text has in place of bytes that make no character
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how tokenizers with byte fallback write one
# Byte-level tokenizers write a byte as the character of its number where that is visible, the others from 256 on.
_SEEN = (*range(33, 127), *range(161, 173), *range(174, 256))
_HIDDEN = (byte for byte in range(256) if byte not in _SEEN)
_BYTES = {chr(byte): byte for byte in _SEEN} | {chr(256 + number): byte for number, byte in enumerate(_HIDDEN)}

# (token, whether it is a text's first, whether special tokens are left out) -> its bytes
_KNOWN: WeakKeyDictionary[Any, dict[tuple[int, bool, bool], bytes]] = WeakKeyDictionary()


def token_bytes(tokenizer: Any, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> list[bytes]:
    """Return the bytes of each token of a response: joined and decoded, with replacements, they are its text."""
    known = _KNOWN.setdefault(tokenizer, {})
    found = []
    for place, token in enumerate(tokens):
        key = (token, place == 0, skip_special_tokens)
        if key not in known:
            known[key] = _bytes_of(tokenizer, *key)
        found.append(known[key])
    return found


def _bytes_of(tokenizer: Any, token: int, is_first: bool, skip_special_tokens: bool) -> bytes:
    """Return a token's bytes, decoded behind a letter unless first: some tokenizers drop a text's first space."""
    before = [] if is_first else tokenizer.encode("a", add_special_tokens=False)
    letter, both = (
        str(tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)) for tokens in (before, [*before, token])
    )
    text = both.removeprefix(letter)
    if _NO_CHARACTER not in text:
        return text.encode()
    written = str(tokenizer.convert_ids_to_tokens(token))
    if byte := _BYTE.fullmatch(written):
        return bytes([int(byte[1], 16)])
    if all(character in _BYTES for character in written):
        return bytes(_BYTES[character] for character in written)
    return text.encode()


_PROBE = "So 3 + 4 = 7.\n\nThen, \u00e9\u65e5\U0001f600 \\frac{1}{2}\n"


def require_steps(tokenizer: Any, rule: StepRule) -> None:
    """Raise RecipeError for a rule that cannot cut what this tokenizer writes."""
    for token in rule.delimiter_token_ids:
        if token >= len(tokenizer):
            raise RecipeError(
                f"oger.steps.delimiter_token_ids: {token} is not a token of actor.model_name_or_path, whose "
                f"tokens are 0 to {len(tokenizer) - 1}"
            )
    for text, token in tokenizer.get_added_vocab().items():
        holders = [each for each in rule.delimiters if text in each]
        if holders and not tokenizer.decode([token], skip_special_tokens=True):
            raise RecipeError(
                f"oger.steps.delimiters: {holders[0]!r} contains the special token {text}, and texts of "
                f"responses have no special tokens: set oger.steps.delimiter_token_ids [{token}] instead"
            )
    tokens = tokenizer.encode(_PROBE, add_special_tokens=False)
    if "".join(StepCutter(tokenizer, rule).texts(tokens)) != tokenizer.decode(tokens, skip_special_tokens=True):
        raise RecipeError(
            "oger.steps: responses cannot be cut into steps between two tokens: the tokenizer of "
            "actor.model_name_or_path changes the text there"
        )
