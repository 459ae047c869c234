"""Reward models whose answers are known: small Llamas with weights set by hand, so that a rule is what they compute.

Every byte of a text is one token, and the rules look for characters that the instructions of a judge hardly have.
Attention finds a character in any text of up to LONGEST tokens: its score is SURE above that of all others. The
folders load in transformers and in vLLM, in float32. The built-in task's judges and those of tests are of this kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from oger_recipe.lab.tiny_policy import build_tokenizer

LONGEST, WIDTH, SURE = 4096, 32, 40.0
# Coordinates of the hidden state: one that is the same everywhere, what the token is, and what attention has found.
SAME, MARK, OTHER, REPLY, FOUND, ALSO = range(6)
_LEVEL = 10.0  # of SAME: so large that the norm divides every state by about the same length
_UNIT = (WIDTH / (_LEVEL**2 + 1)) ** 0.5  # 1 becomes this in the norm
_SLOWEST = WIDTH // 2 - 1  # the dimension of a head that rotary embeddings turn least


@dataclass(frozen=True)
class Star:
    """A judge that writes one thing where the prompt has a mark, an asterisk, and another where it has none."""

    yes: str = "1"
    no: str = "0"
    marks: str = "*"

    def reply(self, prompt: str) -> str:
        return self.yes if self.marks in prompt else self.no


@dataclass(frozen=True)
class First:
    """A judge of pairs: B where the first of the prompt's ^ and ~ is ~, else A, so always A where it has neither."""

    yes: str = "B"
    no: str = "A"
    marks: ClassVar[str] = "^~"

    def reply(self, prompt: str) -> str:
        return self.yes if "~" in prompt and "^" not in prompt.partition("~")[0] else self.no


def value(text: str, marks: str = "^~") -> float:
    """Return what the head says of a text, within 0.02: 2 for the first of two marks, less 1 for the second."""
    return 2.0 * (marks[0] in text) - (marks[1] in text)


def save_judge(rule: Star | First, folder: Path) -> Path:
    """Save a judge that answers by the rule. What it is asked must not end in an answer: that ends the reply."""
    from transformers import LlamaForCausalLM

    tokenizer = _tokenizer(rule.yes, rule.no)
    yes, no = (tokenizer.convert_tokens_to_ids(each) for each in (rule.yes, rule.no))
    model = _llama(LlamaForCausalLM, tokenizer, rule.marks, replies=[yes, no])
    if isinstance(rule, Star):
        _find(model.model.layers[0], {MARK: 1.0}, FOUND)
    else:
        _find(model.model.layers[0], {MARK: 1.0}, ALSO)
        _find(model.model.layers[1], {OTHER: 1.0, ALSO: -1.0}, FOUND)  # a tilde with no hat before it
    write = model.lm_head.weight
    write[:, SAME] = -100 / _LEVEL
    write[yes, FOUND], write[yes, SAME] = 40.0, -20 / _LEVEL
    write[no, FOUND], write[no, SAME] = -40.0, 20 / _LEVEL
    write[tokenizer.eos_token_id, REPLY], write[tokenizer.eos_token_id, SAME] = 120.0, -60 / _LEVEL
    return _saved(model, tokenizer, folder)


def save_head(folder: Path, marks: str = "^~") -> Path:
    """Save a classifier with one label, whose logit is `value`."""
    from transformers import LlamaForSequenceClassification

    tokenizer = _tokenizer()
    model = _llama(LlamaForSequenceClassification, tokenizer, marks, num_labels=1)
    _find(model.model.layers[0], {MARK: 1.0}, FOUND)
    _find(model.model.layers[1], {OTHER: 1.0}, ALSO)
    model.score.weight[0, FOUND], model.score.weight[0, ALSO] = 2 / _UNIT, -1 / _UNIT
    return _saved(model, tokenizer, folder)


def good_until(steps: Sequence[str], mark: str = "~") -> list[float]:
    """Return what the PRM says of steps: 1 for each before the first that has the mark, 0 from that one on."""
    return [float(not any(mark in step for step in steps[: place + 1])) for place in range(len(steps))]


def save_prm(folder: Path, *, tag: str, head: bool = False, mark: str = "~", good: str = "+", bad: str = "-") -> Path:
    """Save a process reward model that says `good_until` at every token: it writes `good` or `bad`, or has a head
    whose labels are bad and good. Tag, good and bad are one token each."""
    from transformers import LlamaForCausalLM, LlamaForTokenClassification

    tokenizer = _tokenizer(tag, good, bad)
    model = _llama(LlamaForTokenClassification if head else LlamaForCausalLM, tokenizer, mark)
    _find(model.model.layers[0], {MARK: 1.0}, FOUND)
    if head:
        says = model.score.weight
        model.score.bias.zero_()
        rows = (0, 1)
    else:
        says = model.lm_head.weight
        rows = tuple(tokenizer.convert_tokens_to_ids(each) for each in (bad, good))
    for row, sign in zip(rows, (1, -1), strict=True):
        says[row, FOUND], says[row, SAME] = sign * 40.0, -sign * 20.0 / _LEVEL
    return _saved(model, tokenizer, folder)


def _find(layer: Any, what: dict[int, float], result: int) -> None:
    """Make a layer write into ``result`` the greatest weighted sum of any token so far, where that is 1."""
    attention = layer.self_attn
    attention.q_proj.weight[_SLOWEST, SAME] = 1 / (_LEVEL * _UNIT)
    for coordinate, weight in what.items():
        attention.k_proj.weight[_SLOWEST, coordinate] = weight * SURE * WIDTH**0.5 / _UNIT
        attention.v_proj.weight[0, coordinate] = weight / _UNIT
    attention.o_proj.weight[result, 0] = 1.0


def _tokenizer(*words: str) -> Any:
    tokenizer = build_tokenizer([], vocab_size=3 + 256 + 4)
    tokenizer.add_tokens([word for word in words if len(word) > 1])  # so that every reply is one token
    tokenizer.model_max_length = LONGEST
    return tokenizer


@torch.no_grad()
def _llama(kind: Any, tokenizer: Any, marks: str, replies: Any = (), **more: Any) -> Any:
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=LONGEST,
        rope_parameters={"rope_type": "default", "rope_theta": 1e9},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
        **more,
    )
    model = kind(config).requires_grad_(False)
    for name, weight in model.named_parameters():
        if "norm" not in name:
            weight.zero_()
    state = model.model.embed_tokens.weight
    state[:, SAME] = _LEVEL
    for character, coordinate in zip(marks, (MARK, OTHER), strict=False):
        state[tokenizer.convert_tokens_to_ids(character), coordinate] = 1.0
    state[list(replies), REPLY] = 1.0
    return model


def _saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
