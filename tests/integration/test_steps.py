"""Responses in steps of reasoning: where tokens are cut, by tokenizers of several kinds, and where a response ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from oger_recipe.base.cutting import End, StepRule, cut_text, cut_tokens, end_of, step_texts, token_bytes
from oger_recipe.lab import tiny_policy

WORDS = ["a", "B 1", " ", "\n", "\n\n", "\n\n\n", "日本", "é", "ки", "😀", ". ", "</answer>", "<|im_end|>", "Step 2:"]


def _byte_level(words: list[str]) -> Any:
    """GPT-2's kind, with these words as tokens of their own, blanks and ends of lines within them and all."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|im_end|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([word for word in words for _ in range(9)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")


def _byte_fallback() -> Any:
    """Llama 2's and Mistral's kind: a mark for each blank, bytes for what has no token, no blank before the text."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    known = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abBcdnostuwp.:12", "\n", "▁Step"]
    merges = [("▁", "S"), ("t", "e"), ("te", "p"), ("▁S", "tep"), ("▁", "a"), ("\n", "\n")]
    known += [left + right for left, right in merges] + ["S", "e"]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(known))}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="<unk>")


def _smollm2() -> Any:
    from smollm2 import smollm2
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2())


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "letters": lambda: tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4),
    "tiny policy": lambda: tiny_policy.build_tokenizer(["a\n\nB 1. \n\n\nStep 2: ки日本"] * 9, vocab_size=400),
    "byte level": lambda: _byte_level(["a\n\nB", ".\n\n", "\n\nStep", " ки", "ки\n", "日本\n\n日", "<answer>"]),
    "byte fallback": _byte_fallback,
    "SmolLM2": _smollm2,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


def _texts(count: int) -> list[str]:
    chance = random.Random(0)
    return ["".join(chance.choices(WORDS, k=chance.randrange(1, 16))) for _ in range(count)]


def _encoded(text: str, tokenizer: Any) -> list[int]:
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def test_the_bytes_of_tokens_are_the_text_of_the_response(tokenizer):
    for text in _texts(300):
        tokens = _encoded(text, tokenizer)
        for skip in (True, False):
            pieces = token_bytes(tokenizer, tokens, skip_special_tokens=skip)
            assert b"".join(pieces).decode(errors="replace") == tokenizer.decode(tokens, skip_special_tokens=skip)


def test_bytes_that_make_no_character_are_those_that_the_tokenizer_drew():
    """A policy at a high temperature writes any tokens, in any order."""
    tokenizer, chance = TOKENIZERS["byte level"](), random.Random(1)
    for _ in range(300):
        tokens = [chance.randrange(len(tokenizer)) for _ in range(12)]
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        assert b"".join(token_bytes(tokenizer, tokens)).decode(errors="replace") == text
        steps = cut_tokens(tokens, tokenizer, StepRule(max_step_tokens=2))
        assert "".join(step_texts(tokens, steps, tokenizer)) == text


RULES = [StepRule(), StepRule(("ки", "\n")), StepRule((". ", "\n\n", "Step 2:", "本")), StepRule(())]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "|".join(map(repr, rule.delimiters)))
def test_tokens_are_cut_where_the_text_is_at_the_end_of_the_token_that_completes_a_delimiter(tokenizer, rule):
    differ = 0
    for text in _texts(300):
        tokens = _encoded(text, tokenizer)
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        steps = cut_tokens(tokens, tokenizer, rule)
        found = step_texts(tokens, steps, tokenizer)
        assert "".join(found) == text and len(steps) == len(tokens)
        assert steps[0] == 0 and all(after - before in (0, 1) for before, after in pairwise(steps))
        assert found == _moved(text, tokens, tokenizer, rule)
        assert all(each.strip() for each in found) or len(found) == 1
        differ += found != cut_text(text, rule)
    if len(tokenizer) == 263:  # letters: every token is a byte, and all agrees to the character
        assert differ == 0


def _joined(text: str, ends: list[int]) -> list[str]:
    steps, begin = [""], 0
    for end in [*ends, len(text)]:
        part, begin = text[begin:end], max(begin, end)
        if part.strip() and steps[-1].strip():
            steps.append(part)
        else:
            steps[-1] += part
    return steps


def _ends(text: str, rule: StepRule) -> list[int]:
    """Read a text letter by letter, and begin anew behind each delimiter."""
    ends, read = [], ""
    for place, letter in enumerate(text, start=1):
        read += letter
        if read.endswith(rule.delimiters):
            ends.append(place)
            read = ""
    return ends


def _moved(text: str, tokens: list[int], tokenizer: Any, rule: StepRule) -> list[str]:
    """The steps of the text, each up to the end of the token that holds its delimiter's last character."""
    decoded = [tokenizer.decode(tokens[:place], skip_special_tokens=True) for place in range(1, len(tokens) + 1)]
    of_tokens = [len(each.rstrip("\ufffd")) for each in decoded]  # the characters that are complete
    return _joined(text, [min(place for place in of_tokens if place >= end) for end in _ends(text, rule)])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "|".join(map(repr, rule.delimiters)))
def test_texts_are_cut_behind_their_delimiters(rule):
    assert all(cut_text(text, rule) == _joined(text, _ends(text, rule)) for text in _texts(500))


# ---- by hand: one token for each letter


@pytest.fixture(scope="module")
def letters() -> Any:
    return TOKENIZERS["letters"]()


def _steps(text: str, tokenizer: Any, rule: StepRule) -> list[str]:
    tokens = _encoded(text, tokenizer)
    return step_texts(tokens, cut_tokens(tokens, tokenizer, rule), tokenizer)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("ab\n\ncd\n\ne", ["ab\n\n", "cd\n\n", "e"]),
        ("ab\n\n", ["ab\n\n"]),
        ("ab\n\n\n\n\ncd", ["ab\n\n\n\n", "\ncd"]),  # an empty step belongs to the one before
        ("\n\n \n\nab\n\ncd", ["\n\n \n\nab\n\n", "cd"]),  # or to the first one
        ("ab", ["ab"]),
        (" \n\n ", [" \n\n "]),
        ("", [""]),
    ],
)
def test_a_step_ends_behind_its_delimiter_and_a_blank_one_is_none(letters, text, steps):
    assert cut_text(text, StepRule()) == steps
    assert _steps(text, letters, StepRule()) == steps


@pytest.mark.parametrize(
    ("delimiters", "steps"),
    [
        (("\n", "\nB"), ["a\n", "Bc"]),  # the one that ends first, as a sampler that stops there sees it
        (("\nB", "\n"), ["a\n", "Bc"]),
        (("a\nB", "\n"), ["a\n", "Bc"]),
        (("aa",), ["a\nBc"]),
    ],
)
def test_of_delimiters_that_overlap_the_one_counts_that_ends_first(letters, delimiters, steps):
    rule = StepRule(delimiters)
    assert cut_text("a\nBc", rule) == steps == _steps("a\nBc", letters, rule)
    assert _steps("aaaab", letters, StepRule(("aa",))) == ["aa", "aa", "b"]
    assert _steps("aaab", letters, StepRule(("aa",))) == ["aa", "ab"]  # none begins within another


def test_the_token_that_completes_a_delimiter_belongs_to_the_step_that_it_ends():
    tokenizer = _byte_level(["x\n", "\nyz", "\n\nStep"])
    pieces = ["x\n", "\nyz", "a", "\n\nStep", "\n\n", "b"]
    tokens = [token for piece in pieces for token in _encoded(piece, tokenizer)]
    assert [tokenizer.decode([token]) for token in tokens if token in tokens[:2]][:2] == ["x\n", "\nyz"]
    steps = cut_tokens(tokens, tokenizer, StepRule())
    assert step_texts(tokens, steps, tokenizer) == ["x\n\nyz", "a\n\nStep\n\n", "b"]


def test_tokens_delimit_by_their_number_also_those_that_texts_do_not_have(letters):
    end = letters.eos_token_id  # special: it has no text
    tokens = [*_encoded("ab", letters), end, *_encoded("cd", letters), end, end]
    rule = StepRule((), delimiter_token_ids=(end,))
    assert cut_tokens(tokens, letters, rule) == [0, 0, 0, 1, 1, 1, 1]
    assert step_texts(tokens, cut_tokens(tokens, letters, rule), letters) == ["ab", "cd"]
    comma = _encoded(",", letters)[0]
    assert _steps("ab,cd\n\ne", letters, StepRule(delimiter_token_ids=(comma,))) == ["ab,", "cd\n\n", "e"]


def test_a_step_has_at_most_its_number_of_tokens_and_blank_ones_behind_it(letters):
    rule = StepRule(max_step_tokens=3)
    assert _steps("abcdefgh", letters, rule) == ["abc", "def", "gh"]
    assert _steps("ab\n\ncdefg", letters, rule) == ["ab\n\n", "cde", "fg"]  # a delimiter through the cap
    assert _steps("abc\n\ncd", letters, rule) == ["abc\n\n", "cd"]
    assert _steps("abc\n\n\n\n\n\ncd", letters, rule) == ["abc\n\n\n\n\n\n", "cd"]
    # A character of several tokens belongs to the step that completes it: the cap is behind its first byte.
    assert _steps("ab日c", letters, rule) == ["ab", "日c"]


def _end(text: str, tokenizer: Any, rule: StepRule) -> tuple[str, bool] | None:
    tokens = _encoded(text, tokenizer)
    end = end_of(tokens, tokenizer, rule)
    return end and (tokenizer.decode(tokens[: end.tokens]), end.truncated)


def test_a_response_ends_with_its_last_step_and_one_that_the_cap_ends_is_truncated(letters):
    assert _end("ab\n\ncd\n\ne", letters, StepRule(max_steps=2)) == ("ab\n\ncd\n\n", True)
    assert _end("ab\n\n\n\ncd\n\ne", letters, StepRule(max_steps=1)) == ("ab\n\n", True)  # what is blank comes later
    assert _end("\n\nab\n\n\n\ncd\n\ne", letters, StepRule(max_steps=2)) == ("\n\nab\n\n\n\ncd\n\n", True)
    assert _end("ab\n\ncd", letters, StepRule(max_steps=2)) is None  # the second step may go on
    assert _end("abcdef", letters, StepRule(max_step_tokens=2, max_steps=2)) == ("abcd", True)
    assert _end("ab\n\ncd", letters, StepRule()) is None


def test_a_response_ends_with_the_step_that_has_the_last_steps_text(letters):
    rule = StepRule(last_step_text="the answer", max_steps=2)
    assert _end("a\n\nThe Answer is\n\nb", letters, rule) == ("a\n\nThe Answer is\n\n", False)
    assert _end("a\n\nb\n\nthe answer\n\n", letters, rule) == ("a\n\nb\n\n", True)
    assert _end("the\n\nanswer", letters, rule) is None
    assert _end("the answer", letters, rule) is None  # its step has not ended


def test_what_a_response_is_up_to_its_end_does_not_depend_on_what_comes_behind(tokenizer):
    """Sampled step by step nobody knows what would have come."""
    rule = StepRule(("\n\n", "\n", "ки", "\nB"), max_step_tokens=4, max_steps=3, last_step_text="Step")
    ended = 0
    for text in _texts(200):
        tokens = _encoded(text, tokenizer)
        end = end_of(tokens, tokenizer, rule)
        shorter = [end_of(tokens[:length], tokenizer, rule) for length in range(len(tokens))]
        assert [each for each in shorter if each] == [end] * (len(tokens) - end.tokens if end else 0)
        steps = cut_tokens(tokens, tokenizer, rule)
        for length in range(1, len(tokens)):  # blank so far, the last tokens belong to the step before
            known = cut_tokens(tokens[:length], tokenizer, rule)
            later = [place for place in range(length) if known[place] != steps[place]]
            assert later == [*range(length - len(later), length)]
            assert all(steps[place] == known[place] + 1 for place in later)
        ended += end is not None
    assert ended > 50


def test_cutting_takes_time_in_proportion_to_the_tokens(letters):
    """Not its square: 200,000 tokens without any end, and with one at every second."""
    for text in ("a" * 200_000, "a\n" * 100_000, "\n" * 200_000):
        tokens = [_encoded(each, letters)[0] for each in "a\n"]
        tokens = [tokens["a\n".index(each)] for each in text]
        steps = cut_tokens(tokens, letters, StepRule(("\n", "zz", "\n\n\n\n")))
        assert len(steps) == 200_000 and max(steps) in (0, 99_999)
        assert len(cut_text(text, StepRule(("\n", "zz")))) == max(steps) + 1


def test_an_empty_text_neither_delimits_nor_ends():
    for given in ({"delimiters": ("",)}, {"last_step_text": ""}):
        with pytest.raises(ValueError, match="empty"):
            StepRule(**given)


def test_ends_say_how(letters):
    assert end_of(_encoded("a\n\nb", letters), letters, StepRule(max_steps=1)) == End(3, truncated=True)
