"""The reward models of the tests say what their rules say, of texts of any length and any form of prompt."""

import random
from pathlib import Path
from typing import Any

import pytest
from known_judges import LONGEST, First, Star, save_head, save_judge, value


def _texts(count: int) -> list[str]:
    """Of any characters, some with the marked ones; none ends in a reply of a judge."""
    draw, texts = random.Random(0), []
    plain = [chr(code) for code in range(32, 127) if chr(code) not in "*^~"] + ["\n", "é", "“"]
    for _ in range(count):
        text = draw.choices(plain, k=round((LONGEST / 4) ** draw.random()))
        for mark in "*^~":
            for _ in range(draw.choice((0, 0, 1, 3))):
                text.insert(draw.randrange(len(text) + 1), mark)
        texts.append("".join(text) + "\n")
    return texts


def _reply(tokenizer: Any, model: Any, prompt: str) -> str:
    tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    written = model.generate(tokens, max_new_tokens=4, do_sample=False)[0, tokens.shape[1] :]
    return tokenizer.decode(written, skip_special_tokens=True)


@pytest.mark.parametrize("rule", [Star(), Star("Rating: [[9]]", "no idea"), First(), First("[[B]]", "[[A]]")])
def test_a_judge_answers_by_its_rule(rule: Star | First, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = save_judge(rule, tmp_path / "judge")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    texts = _texts(40)
    chats = [[{"role": "user", "content": text}] for text in texts]
    texts += tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    wanted = [rule.reply(text) for text in texts]
    assert {rule.yes, rule.no} == set(wanted)
    assert [_reply(tokenizer, model, text) for text in texts] == wanted


def test_the_rules_by_hand() -> None:
    assert [Star().reply(text) for text in ("3*4", "3x4", "")] == ["1", "0", "0"]
    assert [First().reply(text) for text in ("^ then ~", "~ then ^", "only ^", "only ~", "")] == [
        "A",
        "B",
        "A",
        "B",
        "A",
    ]
    assert [value(text) for text in ("^", "^~", "", "~")] == [2, 1, 0, -1]


def test_the_head_orders_texts_by_its_rule(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = save_head(tmp_path / "head")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    texts = _texts(40)
    said = [model(tokenizer(text, return_tensors="pt")["input_ids"]).logits.item() for text in texts]
    assert {value(text) for text in texts} == {-1, 0, 1, 2}
    assert said == pytest.approx([value(text) for text in texts], abs=0.02)
