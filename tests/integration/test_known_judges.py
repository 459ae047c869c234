"""The reward models of the tests say what their rules say, of texts of any length and any form of prompt."""

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from oger_recipe.lab.built_in_models import with_folders
from oger_recipe.lab.known_judges import LONGEST, First, Star, save_head, save_judge, value


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


def test_names_of_the_built_in_judges_become_folders_that_say_what_they_should(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    cache = str(tmp_path)
    entry = {"name": "j", "kind": "judge", "model": "countdown-judge", "weight": 0.5}
    folder = with_folders(entry, cache)["model"]
    assert with_folders(entry, cache) == entry | {"model": folder} and Path(folder).parent == tmp_path
    other = {"kind": "critique_classifier", "critic": "countdown-grader", "model": "countdown-head"}
    grader, head = (with_folders(other, cache)[key] for key in ("critic", "model"))
    product, total, both = "<answer>(3-5)*12</answer>", "<answer>3+5</answer>", "<answer>(3+5)*12</answer>"
    for model, said in ((folder, ["1", "0", "1"]), (grader, ["4", "10", "10"])):
        tokenizer, judge = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
        assert [_reply(tokenizer, judge, text) for text in (product, total, both)] == said
    tokenizer, model = AutoTokenizer.from_pretrained(head), AutoModelForSequenceClassification.from_pretrained(head)
    values = [
        model(tokenizer(text, return_tensors="pt")["input_ids"]).logits.item() for text in (product, total, both)
    ]
    assert values == pytest.approx([2, -1, 1], abs=0.02)


def test_what_a_server_calls_its_model_and_other_models_stay(tmp_path: Path) -> None:
    at_server = {"kind": "judge", "model": "countdown-judge", "url": "http://127.0.0.1:8000/v1"}
    others = {
        "kind": "critique_classifier",
        "critic": "countdown-judge",
        "critic_url": "http://h/v1",
        "model": "org/m",
    }
    for entry in (at_server, others, {"name": "rule", "kind": "verifier"}):
        assert with_folders(entry, str(tmp_path)) == entry
    assert not list(tmp_path.iterdir())
    named = at_server | {"tokenizer": "countdown-judge"}
    assert Path(with_folders(named, str(tmp_path))["tokenizer"]).is_dir()


def test_a_recipe_that_names_a_built_in_judge_has_its_folder_in_every_command(tmp_path: Path, parser) -> None:
    from oger_recipe.cli.train_ppo_ray import settings_of

    recipe = tmp_path / "recipe.yaml"
    sources = [{"name": "rule", "kind": "verifier"}, {"name": "j", "kind": "judge", "model": "countdown-judge"}]
    recipe.write_text(yaml.safe_dump({"oger": {"reward": {"sources": sources}}}))
    rule, judge = settings_of(parser, [f"--oger.task.cache={tmp_path}"], recipe)["oger.reward.sources"]
    assert rule == sources[0] and judge == sources[1] | {"model": judge["model"]}
    assert Path(judge["model"]).parent == tmp_path and (Path(judge["model"]) / "config.json").exists()
