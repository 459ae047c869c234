"""Supervised examples: the tokens of the teachers' store, with an end where the trajectory has one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from oger_recipe.base.files import read_jsonl
from oger_recipe.pipeline.policy.sft import TeacherDataset
from oger_recipe.run.sft import _write_examples
from oger_recipe.teachers.store import Teacher, write_teacher_store


@pytest.fixture
def examples(tmp_path: Path, parser: argparse.ArgumentParser, policy_folder: Path) -> tuple:
    """A prompt with a whole trajectory and one with a cut one, as the run writes and reads them; and the tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(policy_folder)
    whole = [*tokenizer("3*4=12")["input_ids"], tokenizer.eos_token_id]
    cut = tokenizer("3+4=")["input_ids"]
    teachers = {uid: [Teacher(uid, "", tokens, 1.0, 1.0)] for uid, tokens in (("whole", whole), ("cut", cut))}
    write_teacher_store(teachers, tmp_path / "teachers.arrow")
    rows = [{"prompt": f"make {uid}", "label": json.dumps({"uid": uid})} for uid in teachers]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = parser.parse_args(["--actor.model_name_or_path", str(policy_folder), "--data.apply_chat_template"])
    assert _write_examples(vars(settings), tmp_path, tmp_path / "supervised.jsonl") == 2
    dataset = TeacherDataset(
        list(read_jsonl(tmp_path / "supervised.jsonl")), tokenizer, 128, SimpleNamespace(), pretrain_mode=False
    )
    return dataset, tokenizer, {"whole": whole, "cut": cut}


def test_examples_are_the_prompt_as_sampled_and_the_tokens_of_the_store_cut_ones_without_an_end(examples) -> None:
    dataset, tokenizer, responses = examples
    found = {}
    for number in range(len(dataset)):
        tokens, attention, loss_mask = dataset[number]
        learnt = tokens[0, 1:][loss_mask[0, :-1].bool()].tolist()  # the mask speaks of the token that follows
        prompt = tokens[0].tolist()[: -len(learnt)]
        assert attention.tolist() == [[1] * tokens.shape[1]] and loss_mask[0, -1] == 0
        found[tokenizer.decode(prompt)] = learnt
    assert found == {
        tokenizer.apply_chat_template(
            [{"role": "user", "content": f"make {uid}"}], tokenize=False, add_generation_prompt=True
        ): tokens
        for uid, tokens in responses.items()
    }


def test_a_batch_is_padded_on_the_right(examples) -> None:
    dataset, tokenizer, _ = examples
    tokens, attention, loss_mask = dataset.collate_fn([dataset[0], dataset[1]])
    for row in range(2):
        length = dataset[row][0].shape[1]
        assert tokens[row].tolist() == dataset[row][0][0].tolist() + [tokenizer.pad_token_id] * (
            tokens.shape[1] - length
        )
        assert attention[row].sum() == length and loss_mask[row, length - 1 :].sum() == 0
