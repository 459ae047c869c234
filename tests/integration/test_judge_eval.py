"""`oger judge-eval` on judges whose verdicts are known, and the reading of labelled pairs and answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from smollm2 import smollm2

from oger_recipe.base import progress
from oger_recipe.base.files import write_jsonl
from oger_recipe.cli import judge_eval
from oger_recipe.evaluation.labelled import Pair, read_answers, read_pairs
from oger_recipe.lab.known_judges import First, Star, save_head, save_judge

LLMBAR = Path(__file__).parents[3] / "shared" / "data" / "llmbar" / "natural.json"
JUDGEBENCH = [
    {"pair_id": "clear", "question": "?", "response_A": "^ good", "response_B": "~ bad", "label": "A>B"},
    {"pair_id": "turned", "question": "?", "response_A": "~ poor", "response_B": "^ fine", "label": "B>A"},
    {"pair_id": "alike", "question": "?", "response_A": "plain", "response_B": "so plain", "label": "A>B"},
    {"pair_id": "misled", "question": "?", "response_A": "^ wrong", "response_B": "~ right", "label": "B>A"},
]


@pytest.fixture()
def evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """What the command's file says of a judge in this process, or of a model of other keys, and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def run(rule: Star | First | None, *flags: str, **keys: Any) -> tuple[dict[str, Any], str]:
        folder = tmp_path / "judge"
        if rule is not None and not folder.exists():
            save_judge(rule, folder)
        entry = ({} if rule is None else {"model": str(folder), "max_new_tokens": 8}) | {"place": "in_process"} | keys
        judge_eval.main(["--judge", yaml.safe_dump(entry), "--out", "out.json", "--oger.reward.cache=kept", *flags])
        return json.loads((tmp_path / "out.json").read_text()), "".join(capsys.readouterr())

    return run


def test_a_judge_of_pairs_gets_the_figures_that_its_rule_has_by_hand(evaluated: Any, tmp_path: Path) -> None:
    """It reads A first in "clear", "alike" and "misled", and B first in "turned"."""
    write_jsonl(JUDGEBENCH, tmp_path / "pairs.jsonl")
    found, said = evaluated(First(), "--pairs", "pairs.jsonl", "--price_per_million_tokens", "10,1000")
    assert {name: found[name] for name in ("pairs", "verdicts", "asked", "unparsed_replies")} == {
        "pairs": 4, "verdicts": 8, "asked": 8, "unparsed_replies": 0
    }  # fmt: skip
    # right: 2 of clear, 2 of turned, 1 of alike, 0 of misled; the order changes the verdict on alike
    assert (found["accuracy"], found["accuracy_of_pairs"], found["consistency"]) == (5 / 8, 2 / 4, 3 / 4)
    assert (found["prefers_first"], found["ties"], found["unread"]) == (5 / 8, 0, 0)
    assert found["tokens_written"] == 8 and found["verdicts_per_second"] > 0
    cost = 1000 / 8 * (10 * found["tokens_read"] + 1000 * 8) / 1e6
    assert found["cost_per_1000_verdicts"] == pytest.approx(cost)
    assert [case["pair"] for case in found["cases"]] == ["clear", "turned", "alike", "misled"]
    assert [(case["forth"]["reply"], case["back"]["reply"]) for case in found["cases"]] == [
        ("A", "B"), ("B", "A"), ("A", "A"), ("A", "B")
    ]  # fmt: skip
    assert "\naccuracy                  0.625\n" in said and f"1,000 verdicts   {cost:.4g}\n" in said
    # The same judge out of a recipe: its replies are there, so that it has no speed and no price.
    judge = {"name": "better", "kind": "pairwise"} | {key: found["judge"][key] for key in ("model", "place")}
    sources = [{"name": "rule", "kind": "verifier"}, judge | {"max_new_tokens": 8}]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"oger": {"reward": {"sources": sources, "cache": "kept"}}}))
    command = ["--recipe", "recipe.yaml", "--pairs", "pairs.jsonl", "--price_per_hour", "1", "--out", "again.json"]
    judge_eval.main([*command, "--source", "better"])
    again = json.loads((tmp_path / "again.json").read_text())
    assert (again["asked"], again["verdicts_per_second"], again["cost_per_1000_verdicts"]) == (0, None, None)
    assert again["cases"] == found["cases"] and again["accuracy"] == 5 / 8
    for name, message in (("best", "has no source 'best'; it has rule, better"), ("rule", "rule is of kind verifier")):
        with pytest.raises(SystemExit, match=message):
            judge_eval.main([*command, "--source", name])
    with pytest.raises(SystemExit, match="give --recipe and --source together"):
        judge_eval.main(command)


def test_replies_without_a_verdict_are_not_right(evaluated: Any, tmp_path: Path) -> None:
    write_jsonl(JUDGEBENCH, tmp_path / "pairs.jsonl")
    found, printed = evaluated(First(no="I like both"), "--pairs", "pairs.jsonl")
    # B where ~ is read first: the second order of clear and misled, the first one of turned
    assert (found["unparsed_replies"], found["unread"], found["accuracy"]) == (5, 5 / 8, 2 / 8)
    assert found["consistency"] is None and "no verdict" in found["cases"][0]["forth"]["error"]
    assert "the first unread: no verdict in the judge's reply, which ends 'I like both'" in printed


def test_a_judge_without_a_single_verdict_is_the_commands_failure(evaluated: Any, tmp_path: Path) -> None:
    write_jsonl(JUDGEBENCH, tmp_path / "pairs.jsonl")
    said = "^oger judge-eval: the judge gave none of 8 verdicts; the first error: no verdict in the judge's reply"
    with pytest.raises(SystemExit, match=said):
        evaluated(First("I", "like both"), "--pairs", "pairs.jsonl")
    assert json.loads((tmp_path / "out.json").read_text())["unread"] == 1


def test_a_judge_of_single_answers_on_labels_and_on_pairs(evaluated: Any, tmp_path: Path) -> None:
    answers = [("a *", 1), ("b", 0), ("c *", 0), ("d", 1), ("e *", 1)]
    write_jsonl(({"prompt": "?", "response": text, "label": label} for text, label in answers), tmp_path / "one.jsonl")
    found, _ = evaluated(Star(), "--labels", "one.jsonl", plugin="binary")
    assert (found["answers"], found["accuracy"], found["auc"]) == (5, 3 / 5, (2 * 1.5 + 0.5 * 1) / 6)
    assert [case["value"] for case in found["cases"]] == [1, 0, 1, 0, 1]
    pairs = [("*", "x", 1), ("x", "*", 1), ("x", "y", 2)]
    document = [{"input": "?", "output_1": one, "output_2": two, "label": label} for one, two, label in pairs]
    (tmp_path / "pairs.json").write_text(json.dumps(document))
    found, _ = evaluated(Star(), "--pairs", "pairs.json", kind="judge", plugin="binary")
    assert (found["accuracy"], found["ties"]) == (1 / 3, 1 / 3) and "consistency" not in found


@pytest.fixture()
def head(tmp_path: Path) -> Path:
    """A head that says 0.4 for a hat, less 0.2 for a tilde."""
    from transformers import AutoModelForSequenceClassification

    folder = save_head(tmp_path / "head")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.score.weight.data *= 0.2
    model.save_pretrained(folder)
    return folder


def test_a_head_on_pairs_prefers_its_greater_number(evaluated: Any, head: Path, tmp_path: Path) -> None:
    same = JUDGEBENCH[2] | {"response_B": JUDGEBENCH[2]["response_A"]}
    write_jsonl([*JUDGEBENCH[:2], same, JUDGEBENCH[3]], tmp_path / "pairs.jsonl")
    found, _ = evaluated(None, "--pairs", "pairs.jsonl", kind="classifier", model=str(head))
    # right on clear and turned, a tie on two equal answers, wrong on misled; an equal question is asked once
    assert (found["accuracy"], found["accuracy_of_read"], found["ties"]) == (2 / 4, 2 / 3, 1 / 4)
    assert (found["asked"], found["unread"], "consistency" in found) == (7, 0, False)
    values = [(case["forth"]["value"], case["back"]["value"]) for case in found["cases"]]
    wanted = [(0.4, -0.2), (-0.2, 0.4), (0, 0), (0.4, -0.2)]
    assert values == [pytest.approx(pair, abs=0.01) for pair in wanted]
    assert "reply" not in found["cases"][0]["forth"]


def test_a_head_on_labels_says_1_from_0_on(
    evaluated: Any, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    answers = [("^ a", 1), ("~ b", 0), ("^~ c", 0), ("~ b", 1), ("^ d", 1)]  # 0.4, -0.2, 0.2, -0.2, 0.4
    write_jsonl(({"question": "?", "text": text, "label": label} for text, label in answers), tmp_path / "one.jsonl")
    entry = {"kind": "classifier", "model": str(head)}
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    found, said = evaluated(None, "--labels", "one.jsonl", "--price_per_million_tokens", "10,1000", **entry)
    assert [case["value"] for case in found["cases"]] == pytest.approx([0.4, -0.2, 0.2, -0.2, 0.4], abs=0.01)
    # auc: of six pairs four are in order and one is equal. Deviations of labels and of values, in fifths of 0.2:
    # 2 -3 -3 2 2 and 7 -8 2 -8 7, so r = (14 + 24 - 6 - 16 + 14) / (30 * 230)^0.5
    assert (found["accuracy"], found["auc"]) == (3 / 5, 4.5 / 6)
    assert found["correlation"] == pytest.approx(30 / (30 * 230) ** 0.5, abs=0.01)
    tokenizer, asked = AutoTokenizer.from_pretrained(head), dict.fromkeys(text for text, _ in answers)
    chats = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": text}] for text in asked]
    texts = tokenizer.apply_chat_template(chats, tokenize=False)
    read = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    assert (found["asked"], found["tokens_read"], found["tokens_written"]) == (4, read, 0)
    assert found["cost_per_1000_verdicts"] == pytest.approx(1000 / 4 * 10 * read / 1e6)
    assert "head: 4 of 4 replies\n" in said
    found, said = evaluated(None, "--labels", "one.jsonl", "--threshold", "0.3", **entry)
    assert (found["accuracy"], found["asked"]) == (4 / 5, 0) and "replies\n" not in said


def test_a_head_that_reads_critiques_is_held_against_labels(evaluated: Any, head: Path, tmp_path: Path) -> None:
    """The critic writes a hat about answers with an asterisk, about others a tilde, which the head reads."""
    critic = save_judge(Star(yes="^", no="~"), tmp_path / "critic")
    answers = [("a *", 1), ("b", 0), ("c *", 0), ("d", 1), ("e *", 1)]
    write_jsonl(({"question": "?", "text": text, "label": label} for text, label in answers), tmp_path / "one.jsonl")
    entry = {"kind": "critique_classifier", "model": str(head), "critic": str(critic), "max_new_tokens": 8}
    found, _ = evaluated(None, "--labels", "one.jsonl", "--price_per_million_tokens", "0,1000", **entry)
    assert [case["reply"] for case in found["cases"]] == ["^", "~", "^", "~", "^"]
    assert [case["value"] for case in found["cases"]] == pytest.approx([0.4, -0.2, 0.4, -0.2, 0.4], abs=0.01)
    assert (found["accuracy"], found["asked"], found["tokens_written"]) == (3 / 5, 5, 5)
    assert found["tokens_read"] > 2 * sum(len(text) for text, _ in answers)
    assert found["cost_per_1000_verdicts"] == pytest.approx(1000 / 5 * 1000 * 5 / 1e6)


def test_a_judge_of_pairs_has_no_values_of_single_answers(evaluated: Any, tmp_path: Path) -> None:
    write_jsonl([{"question": "?", "text": "a", "label": 1}], tmp_path / "one.jsonl")
    with pytest.raises(
        SystemExit, match="judge compares pairs: --labels needs one of the kinds judge, classifier, cri"
    ):
        evaluated(None, "--labels", "one.jsonl", kind="pairwise", model="org/judge")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"question": "?", "response_A": "a", "response_B": "b", "label": "A"},
            "'label' must be 'A>B' or 'B>A', found 'A'",
        ),
        ({"input": "?", "output_1": "a", "output_2": "b", "label": 0}, "'label' must be 1 or 2, found 0"),
        ({"input": "?", "output_1": "a", "output_2": None, "label": 1}, "'output_2' must be a string, found None"),
        ({"chosen": "a", "rejected": "b"}, r"a pair needs the columns \(LLMBar: input, .*the columns are chosen"),
        (7, "a JSON object is needed, found int"),
    ],
)
def test_a_pair_that_cannot_be_read_is_named(record: Any, message: str, tmp_path: Path) -> None:
    write_jsonl([JUDGEBENCH[0], record], tmp_path / "pairs.jsonl")
    with pytest.raises(Exception, match=rf"pairs\.jsonl:2: {message}"):
        read_pairs(str(tmp_path / "pairs.jsonl"), "test")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "?", "text": "a", "label": "good"}, "'label' must be a number, found 'good'"),
        ({"question": "?", "label": 1}, "no column text or response; the columns are question, label"),
        ({"question": "?", "text": "a", "verdict": 1}, "no column label; the columns are question, text, verdict"),
        ({"question": 1, "text": "a", "label": 1}, "'question' must be a string, found 1"),
    ],
)
def test_an_answer_that_cannot_be_read_is_named(record: Any, message: str, tmp_path: Path) -> None:
    write_jsonl([record], tmp_path / "answers.jsonl")
    with pytest.raises(Exception, match=rf"answers\.jsonl:1: {message}"):
        read_answers(str(tmp_path / "answers.jsonl"), "test")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--judge", "{model: m, plugin: pairwise, temprature: 1}"], "asked:\n  - key 'temprature' is unknown"),
        (["--judge", "org/judge"], "an entry such as"),
        (["--judge", "{model: [}"], "--judge is not YAML"),
        (["--judge", "{model: m}", "--price_per_million_tokens", "1"], "give two numbers"),
        (["--judge", "{model: m}", "--limit", "0"], "--limit is 0"),
        (["--judge", "{model: m}", "--pries", "1"], "unknown flag '--pries'"),
        (["--judge", "{model: m}", "--pairs", "nowhere.json"], "nowhere.json: no such dataset file"),
        ([], "one of the arguments --judge --recipe is required"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(flags: list[str], message: str, tmp_path: Path) -> None:
    write_jsonl(JUDGEBENCH, tmp_path / "pairs.jsonl")
    with pytest.raises(SystemExit, match=f"^oger judge-eval: (.|\n)*{message}"):
        judge_eval.main(["--pairs", str(tmp_path / "pairs.jsonl"), *flags])


@pytest.mark.skipif(not LLMBAR.exists(), reason="shared/data is not here")
def test_llmbar_is_read_as_it_is() -> None:
    pairs = read_pairs(str(LLMBAR), "test")
    assert len(pairs) == 100 and pairs[0].first.startswith("My girlfriend's visa") and pairs[0].first_is_better
    assert read_pairs(str(LLMBAR), "test", 3) == pairs[:3] and isinstance(pairs[0], Pair)


def test_the_tests_language_model_writes_and_ends() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    written = model.generate(tokens, max_new_tokens=40, do_sample=False)[0, tokens.shape[1] :]
    assert "Paris" in tokenizer.decode(written) and len(written) < 40
    assert written[-1].item() == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
