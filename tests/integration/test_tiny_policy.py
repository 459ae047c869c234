"""The policy of the default job: a tokenizer that loses nothing and a small Qwen3 that any tool can load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from oger_recipe.lab import countdown, tiny_policy

TEXTS = [
    "Using the numbers [3, 5, 12], create an equation that equals 96.",
    "<think>need 96=8*12, need 8=3+5, found.</think>\n<answer>(3+5)*12</answer>",
    "é漢字🎉 naïve Ω \u200b\u00a0\ufeff zero width",
    "two  spaces\ttabs\r\nlines\n\n\n end ",
    "don 't clean , this . up !  'm 're n't",
    "12345678901234567890 007 3.14 -5 1e-6",
    "",
    " ",
    "<|im_end|><|endoftext|><|im_start|>",
    "".join(map(chr, range(32, 0x250))),
]


@pytest.fixture(scope="module")
def tokenizer(countdown_rows: list[dict[str, Any]]) -> Any:
    return tiny_policy.build_tokenizer(
        text for row in countdown_rows for text in [row["prompt"], *(teacher["text"] for teacher in row["teachers"])]
    )


@pytest.fixture(scope="module")
def warm_started(tmp_path_factory: pytest.TempPathFactory, countdown_rows: list[dict[str, Any]]) -> Path:
    """The folder that two supervised steps on four solutions each leave behind."""
    folder: Path = tmp_path_factory.mktemp("warm") / "policy"
    rows = [countdown_rows[0], countdown_rows[1], countdown_rows[2] | {"teachers": countdown_rows[2]["teachers"][:2]}]
    tiny_policy.warm_start(
        rows, folder, steps=2, batch_size=4, learning_rate=1e-3, hidden_size=32, num_layers=1, seed=0
    )
    return folder


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_encoding_and_decoding(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_tokenizer_without_training_loses_nothing_either(letters: Any, text: str) -> None:
    assert letters.decode(letters(text)["input_ids"]) == text


def test_the_tokenizer_read_back_from_its_folder_cuts_the_same(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": TEXTS[0]}]
    assert [read(text)["input_ids"] for text in TEXTS] == [tokenizer(text)["input_ids"] for text in TEXTS]
    assert (read.eos_token, read.pad_token, read.model_max_length) == ("<|im_end|>", "<|endoftext|>", 1024)
    assert read.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        f"<|im_start|>user\n{TEXTS[0]}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_auto_classes_cut_as_the_file_beside_the_model_says(warm_started: Path) -> None:
    """For some architectures transformers puts its own cuts in place of the saved ones."""
    read, saved = (
        AutoTokenizer.from_pretrained(warm_started),
        Tokenizer.from_file(str(warm_started / "tokenizer.json")),
    )
    for text in TEXTS:
        assert read(text)["input_ids"] == saved.encode(text).ids


def test_numbers_of_the_task_are_single_tokens() -> None:
    problems = countdown.generate_problems(200, difficulty=countdown.Difficulty(), seed=0, split="train")
    rows = countdown.build_rows(problems, seed=0)
    trained = tiny_policy.build_tokenizer(t["text"] for row in rows for t in row["teachers"])
    for number in range(1, 21):
        assert len(trained(f"{number}")["input_ids"]) == 1
    assert [trained.decode([token]) for token in trained("(3+12)*20")["input_ids"]] == [
        "(",
        "3",
        "+",
        "12",
        ")",
        "*",
        "20",
    ]


def test_tags_are_one_token_each_and_stay_when_special_tokens_are_skipped(tokenizer: Any) -> None:
    tokens = tokenizer(TEXTS[1] + "<|im_end|>")["input_ids"]
    assert tokenizer.decode(tokens, skip_special_tokens=True) == TEXTS[1]
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert tokens.count(tokenizer.convert_tokens_to_ids(tag)) == 1


def test_only_the_response_is_learnt(letters: Any) -> None:
    rows = [{"prompt": "Make 9.", "teachers": [{"text": "4+5"}, {"text": "<answer>9</answer>"}]}]
    first, second = tiny_policy._examples(letters, rows)
    chat = "<|im_start|>user\nMake 9.<|im_end|>\n<|im_start|>assistant\n"
    prompt = 19 + 7  # four tokens and letters of the template, seven letters of the prompt
    assert letters.decode(first["input_ids"]) == f"{chat}4+5<|im_end|>"
    assert first["labels"] == [-100] * prompt + letters("4+5<|im_end|>")["input_ids"]
    assert second["labels"] == [-100] * prompt + letters("<answer>9</answer><|im_end|>")["input_ids"]
    assert len(second["input_ids"]) == len(second["labels"]) == prompt + 4


def test_padding_is_neither_attended_nor_learnt() -> None:
    examples = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}]
    batch = tiny_policy._collator(0)(examples)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_the_warm_started_folder_is_a_model_with_tied_embeddings(warm_started: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(warm_started)
    config = model.config
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == ("qwen3", 32, 1)
    assert config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.dtype == torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(warm_started)
    assert config.vocab_size % 64 == 0 and 0 <= config.vocab_size - len(tokenizer) < 64
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    logits = model(**tokenizer(TEXTS[0], return_tensors="pt")).logits
    assert torch.isfinite(logits).all()


def test_the_folder_has_what_the_engine_reads(warm_started: Path) -> None:
    names = {path.name for path in warm_started.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)
    assert json.loads((warm_started / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


def test_the_supervised_steps_change_the_model(warm_started: Path, countdown_rows: list[dict[str, Any]]) -> None:
    from transformers import set_seed

    trained = AutoModelForCausalLM.from_pretrained(warm_started).float()
    set_seed(0)
    untrained = tiny_policy.build_model(AutoTokenizer.from_pretrained(warm_started), hidden_size=32, num_layers=1)
    moved = [
        (now - then).abs().max().item()
        for now, then in zip(trained.parameters(), untrained.parameters(), strict=True)
        if now.ndim == 2
    ]
    assert min(moved) > 1e-4, "every matrix learns"
    assert max(moved) < 0.1, "from the seeded start"
