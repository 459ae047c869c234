"""Process reward models as a source of reward: tiny real models, in this process."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import groups
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForTokenClassification,
    Qwen2Config,
    Qwen2ForTokenClassification,
)

from oger_recipe.algorithm.steps import CREDITS
from oger_recipe.base.errors import RecipeError
from oger_recipe.lab.known_judges import good_until, save_prm
from oger_recipe.models.in_process import InProcess
from oger_recipe.models.keys import ProcessKeys
from oger_recipe.models.places import Cached
from oger_recipe.models.step_formats import FORMATS
from oger_recipe.models.step_models import step_reply
from oger_recipe.models.step_text import StepWriter, verdict_tokens
from oger_recipe.models.tokens import load_tokenizer, plain_tokens, tokens_of
from oger_recipe.rewards.compose import Rewards, rewards_of
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.kinds.process import TaggedKeys
from oger_recipe.rewards.place import Reply, StepPrompt, VerdictCache
from oger_recipe.rewards.sources import ANSWER, Group, Scores
from oger_recipe.rewards.spec import SourceSpec, Surroundings

QUESTION = "What is 2 + 2 + 2?"


def group(steps: Sequence[Sequence[str]], **others: Any) -> Group:
    known: dict[str, Any] = {"row": {}, "steps": [list(each) for each in steps]} | others
    return groups.group(
        [1.0] * len(steps),
        prompt=f"<user>{QUESTION}",
        question=QUESTION,
        answer="6",
        responses=["".join(each) for each in steps],
        **known,
    )


def asked(entry: dict[str, Any], groups: list[Group], wanted: torch.Tensor | None = None) -> Scores:
    entry = {"name": "prm", "kind": "process", "place": "in_process"} | entry
    assert not [*entry_problems([entry])]
    (spec,) = sources_of([entry])
    source = spec.source(Surroundings(None, None))  # type: ignore[arg-type]
    every = torch.ones(len(groups), len(groups[0].responses), dtype=torch.bool)
    return source.score(groups, every if wanted is None else wanted)


def steps_of(scores: Scores) -> list[list[list[float]]]:
    """The rewards of each row's steps."""
    assert scores.steps is not None
    return [[[each for each in row if not math.isnan(each)] for row in rows] for rows in scores.steps.tolist()]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """PRMs that call every step good up to the first with a tilde, by the format that they read."""
    folder = tmp_path_factory.mktemp("prms")
    return {
        "math_shepherd": save_prm(folder / "math_shepherd", tag="ки"),
        "qwen_prm": save_prm(folder / "qwen_prm", tag="<extra_0>", head=True),
        "trl": save_prm(folder / "trl", tag="\n", head=True),
        "openr_qwen": save_prm(folder / "openr_qwen", tag=" \n\n\n\n\n", good=" +", bad=" -"),
    }


STEPS = [
    ["First 2 + 2 = 4.\n\n", "Then 4 + 2 = 6.\n\n", "The answer is 6."],
    ["First 2 + 2 = 4.\n\n", "Then 4 + 2 ~ 7.\n\n", "The answer is 7."],
    ["~ 2 + 2 = 5."],
    ["One.\n\n", "Two.\n\n", "Three.\n\n", "Four.\n\n", "Five ~."],
]


@pytest.mark.parametrize("form", ["math_shepherd", "qwen_prm", "trl", "openr_qwen"])
def test_every_step_has_the_score_that_the_model_gives_it(known: dict[str, Path], form: str) -> None:
    scores = asked({"model": str(known[form]), "format": form}, [group(STEPS[:2]), group(STEPS[2:])])
    assert not scores.errors
    for row, steps in enumerate(STEPS):
        assert steps_of(scores)[row // 2][row % 2] == pytest.approx(good_until(steps), abs=1e-6)
    assert scores.values.flatten().tolist() == pytest.approx([1, 0, 0, 0], abs=1e-6)
    assert scores.steps is not None and scores.steps.shape == (2, 2, 5)
    assert scores.metrics["steps"] == 3 and scores.metrics["step_mean"] == pytest.approx(8 / 12)
    assert scores.metrics["step_min"] == pytest.approx(0.25) and scores.metrics["cached"] == 0


def test_rows_fail_alone_where_they_are_too_long_or_have_no_steps(known: dict[str, Path]) -> None:
    rows = [STEPS[0], ["a" * 300], [], STEPS[1]]
    entry = {"model": str(known["math_shepherd"]), "format": "math_shepherd", "max_model_len": 100}
    scores = asked(entry, [group(rows)])
    length = len(f"{QUESTION} {'a' * 300} ") + 1
    assert scores.errors == {
        (0, 1): f"the prompt has {length} tokens, and {known['math_shepherd']} reads 100 in all",
        (0, 2): "the row has no steps of reasoning",
    }
    assert steps_of(scores)[0][::3] == [pytest.approx(good_until(each), abs=1e-6) for each in (STEPS[0], STEPS[1])]


def test_a_response_that_says_nothing_is_not_good(known: dict[str, Path]) -> None:
    """Models are trained on no such text, and may call it anything. A blank step beside others is asked about."""
    entry = {"model": str(known["trl"]), "format": "trl", "aggregate": "mean"}
    scores = asked(entry | {"scale": "difference"}, [group([[""], ["\n\n", " "], ["One.", "\n\n", "Two ~."]])])
    assert not scores.errors
    assert steps_of(scores)[0] == [[-1], [-1, -1], pytest.approx([1, 1, -1], abs=1e-6)]
    assert asked(entry, [group([[""]])]).values.tolist() == [[0]]  # no model is loaded for that


def test_the_prompt_is_the_column_that_the_entry_names(known: dict[str, Path]) -> None:
    groups = [group(STEPS[:1], row={"mine": "What is ~?", "other": 3})]
    entry = {"model": str(known["trl"]), "format": "trl"}
    assert asked(entry, groups).values.item() == pytest.approx(1)
    assert asked(entry | {"prompt_column": "mine"}, groups).values.item() == pytest.approx(0, abs=1e-6)  # a tilde
    assert "holds no text, but a int" in asked(entry | {"prompt_column": "other"}, groups).errors[0, 0]


# ---- how texts are written


def writer(known: dict[str, Path], form: str, **keys: Any) -> tuple[StepWriter, Any]:
    tokenizer = AutoTokenizer.from_pretrained(known[form])
    return StepWriter(ProcessKeys(model=str(known[form]), format=form, **keys), tokenizer), tokenizer


def text_of(tokenizer: Any, prompt: StepPrompt | Reply) -> str:
    """The text with a mark behind each token where a score is said."""
    assert isinstance(prompt, StepPrompt)
    begins = [0, *(end + 1 for end in prompt.ends)]
    return "@".join(
        tokenizer.decode(prompt.tokens[begin:end])
        for begin, end in zip(begins, [*begins[1:], len(prompt.tokens)], strict=True)
    )


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("math_shepherd", "1 + 1? Step 1: two. ки@\nStep 2: 2! ки@"),
        ("openr_qwen", "1 + 1?\nStep 1: two. \n\n\n\n\n@ Step 2: 2! \n\n\n\n\n@"),
        ("trl", "1 + 1?Step 1: two.\n@Step 2: 2!\n@"),
        (
            "qwen_prm",
            "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
            "<|im_start|>user\n1 + 1?<|im_end|>\n"
            "<|im_start|>assistant\nStep 1: two.<extra_0>@Step 2: 2!<extra_0>@<|im_end|>\n",
        ),
    ],
)
def test_a_format_is_written_as_its_models_were_trained(known: dict[str, Path], form: str, text: str) -> None:
    write, tokenizer = writer(known, form)
    assert text_of(tokenizer, write.write("1 + 1?", ["Step 1: two.\n\n", " Step 2: 2!"])) == text


def test_trls_pieces_are_tokenised_one_by_one_behind_a_beginning(letters: Any) -> None:
    """As its PRMTrainer does: the last token of a separator has the label."""
    tokenizer = type(letters)(tokenizer_object=letters.backend_tokenizer, bos_token="<think>")
    keys = ProcessKeys(model="m", format="trl", tag="\n--")
    prompt = StepWriter(keys, tokenizer).write("ab", ["c", "de"])
    ids = tokenizer.convert_tokens_to_ids
    newline = tokenizer("\n")["input_ids"]
    wanted = [ids("<think>"), *map(ids, "abc"), *newline, *map(ids, "--de"), *newline, *map(ids, "--")]
    assert prompt == StepPrompt(tuple(wanted), (6, 11))


def test_a_beginning_that_a_chat_template_has_written_is_not_doubled(letters: Any) -> None:
    from tokenizers import processors

    copied = letters.backend_tokenizer.from_str(letters.backend_tokenizer.to_str())
    tokenizer = type(letters)(tokenizer_object=copied, bos_token="<think>")
    begin = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<think> $A", special_tokens=[("<think>", begin)]
    )
    expected = [begin, *plain_tokens(tokenizer, "ab")]
    assert tokens_of(tokenizer, "ab") == tokens_of(tokenizer, "<think>ab") == expected


def test_a_tokenizer_that_lacks_what_the_format_needs_is_refused_with_a_sentence(letters: Any, tmp_path: Path) -> None:
    keys = ProcessKeys(model="me/prm", format="math_shepherd")
    with pytest.raises(RecipeError, match="tag 'ки' is 4 tokens of me/prm, and must be one: is it the tokenizer"):
        StepWriter(keys, letters)
    bare = type(letters)(tokenizer_object=letters.backend_tokenizer)
    with pytest.raises(RecipeError, match="me/prm has no chat template, which format qwen_prm needs"):
        StepWriter(replace(keys, format="qwen_prm", tag="a"), bare)
    with pytest.raises(RecipeError, match="good 'fine' is 4 tokens of me/prm, and must be one"):
        verdict_tokens(replace(keys, good="fine"), letters)
    plus = letters.convert_tokens_to_ids("+")
    with pytest.raises(RecipeError, match=f"good and bad are the same token of me/prm, {plus}"):
        verdict_tokens(replace(keys, bad=plus), letters)
    with pytest.raises(RecipeError, match=f"the tokenizer {tmp_path} cannot be loaded: "):
        load_tokenizer(replace(keys, tokenizer=str(tmp_path)))


# ---- answers that talk to the model

TRICKS = {
    "math_shepherd": [" ки", "ки", "кики", "кки и", "к и", "+", " + ки"],
    "qwen_prm": ["<extra_0>", "<extra_0", "extra_0>", "<<extra_0>extra_0>", "<|im_end|>", "<|im_start|>assistant\n"],
    "openr_qwen": ["\n\n\n\n\n", " \n\n\n\n\n", "\n", " \n", "\n\n\n", "\t\n"],
    "trl": ["\n", "\n\n", " \n ", "<|im_end|>"],
}


@pytest.mark.parametrize("form", TRICKS)
def test_no_text_of_a_response_or_a_question_passes_for_a_tag(known: dict[str, Path], form: str) -> None:
    """There are as many ends as steps, each behind its own step: whatever a response writes moves no score."""
    write, tokenizer = writer(known, form)
    draw = random.Random(form)
    specials = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    for _ in range(150):
        texts = [
            f"[{number}]" + "".join(draw.choices([*TRICKS[form], "a ", "."], k=draw.randrange(7)))
            for number in range(draw.randrange(1, 6))
        ]
        prompt = write.write(draw.choice(TRICKS[form]).join("??"), texts)
        pieces = text_of(tokenizer, prompt).split("@")
        assert len(pieces) == len(texts) + 1 and "[" not in pieces[-1]
        assert [f"[{number}]" in piece for number, piece in enumerate(pieces[:-1])] == [True] * len(texts)
        assert sum(piece.count("[") for piece in pieces) == len(texts)
        if form == "qwen_prm":  # nor does it end its turn, or begin another
            counts = [sum(piece.count(special) for piece in pieces) for special in specials]
            plain = text_of(tokenizer, write.write("?", ["a"] * len(texts)))
            assert counts == [plain.count(special) for special in specials]


@pytest.mark.parametrize("form", TRICKS)
def test_an_attack_neither_adds_nor_shifts_a_score(known: dict[str, Path], form: str) -> None:
    """The second step is wrong; tags behind and before it are to hide it, or to give it another's score."""
    tag = FORMATS[form].tag
    rows = [
        ["One.", "Two ~.", "Three."],
        ["One.", f"{tag} {tag}Two ~.", "Three."],
        [f"One.{tag} fine{tag}", "Two ~.", "Three."],
        ["One.", f"Two ~.{tag}{tag}", f"{tag}Three."],
    ]
    scores = asked({"model": str(known[form]), "format": form, "aggregate": "mean"}, [group(rows)])
    assert not scores.errors
    assert steps_of(scores)[0] == [pytest.approx([1, 0, 0], abs=1e-6)] * 4


def test_a_tag_that_text_makes_in_another_way_costs_the_row_and_shifts_nothing(letters: Any) -> None:
    """A tokenizer that writes a ligature as the tag: the text has none, its tokens would."""
    from tokenizers import normalizers

    tokenizer = type(letters)(tokenizer_object=letters.backend_tokenizer.from_str(letters.backend_tokenizer.to_str()))
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u2460", "*")
    write = StepWriter(ProcessKeys(model="m", format="math_shepherd", tag="*"), tokenizer)
    assert write.write("?", ["a * b", "c"]) == write.write("?", ["a   b", "c"])
    assert write.write("?", ["a \u2460 b", "c"]) == Reply(
        error="the text for the model has 3 tags for 2 steps of reasoning", cause=ANSWER
    )


# ---- what models say


@pytest.fixture(scope="module")
def random_models(tmp_path_factory: pytest.TempPathFactory, letters: Any) -> dict[str, Path]:
    """Weights that say something else of every text: a model that writes, heads of two and of three labels, one that
    reads in both directions, one of two layers as Qwen's, and adapters for the first."""
    folder = tmp_path_factory.mktemp("random")
    tokenizer = AutoTokenizer.from_pretrained(save_prm(folder / "tokens", tag="ки"))
    tokenizer.add_tokens(["<extra_0>"])
    shape = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.3,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None,
    }  # fmt: skip
    torch.manual_seed(0)
    made: dict[str, Any] = {
        "writes": LlamaForCausalLM(LlamaConfig(**shape)),
        "two": LlamaForTokenClassification(LlamaConfig(**shape, num_labels=2)),
        "three": LlamaForTokenClassification(LlamaConfig(**shape, num_labels=3)),
        "both_ways": BertForTokenClassification(BertConfig(**shape, num_labels=2)),
    }
    # Qwen2.5-Math-PRM, in files that name code of its own, which is not there.
    made["qwen"] = Qwen2ForTokenClassification(Qwen2Config(**shape, num_key_value_heads=2))
    made["qwen"].score = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    config = json.loads((folder / "qwen" / "config.json").read_text())
    config |= {"architectures": ["Qwen2ForProcessRewardModel"], "auto_map": {"AutoModel": "modeling_qwen2_rm.Model"}}
    (folder / "qwen" / "config.json").write_text(json.dumps(config))
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(made["writes"], lora).save_pretrained(folder / "lora")
    head = LlamaForTokenClassification.from_pretrained(folder / "writes", num_labels=3)
    adapted = get_peft_model(head, replace(lora, modules_to_save=["score"]))
    adapted.save_pretrained(folder / "lora_and_head")
    return {name: folder / name for name in (*made, "lora", "lora_and_head")}


def expected(
    folder: Path, adapter: Path | None, good: int | None, prompts: Sequence[StepPrompt]
) -> Iterator[list[float]]:
    """By the formula: one text at a time, without padding; softmax over the two tokens, or over the head's labels."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind = AutoModelForCausalLM if good is None else AutoModelForTokenClassification
    labels = {"num_labels": 3} if adapter is not None and good is not None else {}
    model = Qwen2ForTokenClassification(Qwen2Config.from_pretrained(folder)) if folder.name == "qwen" else None
    if model is not None:
        width = model.config.hidden_size
        model.score = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))
        model.load_state_dict(load_file(folder / "model.safetensors"))
    else:
        model = kind.from_pretrained(folder, **labels)
    model = (model if adapter is None else PeftModel.from_pretrained(model, adapter)).eval()
    for prompt in prompts:
        with torch.no_grad():
            logits = model(torch.tensor([prompt.tokens])).logits[0]
        if good is None:
            plus, minus = (logits[:, tokenizer.convert_tokens_to_ids(each)] for each in "+-")
            yield [1 / (1 + math.exp(minus[end] - plus[end])) for end in prompt.ends]
        else:
            yield [(logits[end, good].exp() / logits[end].exp().sum()).item() for end in prompt.ends]


TEXTS = [
    ("What is 1 + 1?", ["It is two.", "So 2."]),
    ("?", ["x"]),
    ("Why?" * 20, ["a b c " * 20, "d", "e" * 30]),
    ("And then?", ["One", "two", "three", "four", "five", "six"]),
]
CASES = [
    ("writes", None, "math_shepherd", {}, None),
    ("writes", "lora", "math_shepherd", {}, None),
    ("two", None, "qwen_prm", {}, 1),
    ("two", None, "trl", {"good_label": 0}, 0),
    ("three", None, "trl", {"good_label": 2}, 2),
    ("both_ways", None, "qwen_prm", {}, 1),
    ("qwen", None, "qwen_prm", {}, 1),
    ("writes", "lora_and_head", "trl", {"good_label": 2}, 2),
]


@pytest.mark.parametrize(("model", "adapter", "form", "more", "good"), CASES)
def test_a_score_is_the_probability_of_good_whatever_is_asked_beside_it(
    random_models: dict[str, Path], model: str, adapter: str | None, form: str, more: dict[str, Any], good: int | None
) -> None:
    """Padding is not attended: texts of any length stand side by side, in any order."""
    folder, on_top = random_models[model], random_models[adapter] if adapter else None
    keys = ProcessKeys(model=str(folder), adapter=str(on_top) if on_top else None, format=form, **more)
    write = StepWriter(keys, AutoTokenizer.from_pretrained(folder))
    prompts = [write.write(*text) for text in TEXTS]
    place = InProcess(keys)
    together = [reply.steps for reply in place.classify_steps(prompts * 3)]
    thirds = [together[:4], together[4:8], together[8:]]
    for by_hand, *said in zip(expected(folder, on_top, good, prompts), *thirds, strict=True):
        assert said == [pytest.approx(by_hand, abs=1e-5)] * 3
    backwards = [reply.steps for reply in place.classify_steps(prompts[::-1])]
    alone = [place.classify_steps([prompt])[0].steps for prompt in prompts]
    for one, other, third in zip(together[:4], backwards[::-1], alone, strict=True):
        assert one == pytest.approx(other, abs=1e-5) and one == pytest.approx(third, abs=1e-5)
    assert len({round(each, 3) for steps in together for each in steps}) > 6  # they do differ


def refused(**keys: Any) -> str:
    with pytest.raises(RecipeError) as told:
        InProcess(
            ProcessKeys(**{name: str(key) if isinstance(key, Path) else key for name, key in keys.items()})
        ).open()
    return str(told.value)


@pytest.mark.parametrize("logits", [[[0.0, math.nan]], [[0.0, 1.0], [math.inf, 0.0]], [[0.5]], [0.5, 1.0]])
def test_numbers_that_are_no_scores_are_an_error(logits: Any) -> None:
    reply = step_reply(ProcessKeys(model="m", format="trl"), torch.tensor(logits))
    assert reply.error is not None and reply.error.startswith("the model gives") and not reply.steps


def test_a_model_that_is_not_what_the_scorer_reads_is_refused(random_models: dict[str, Path], tmp_path: Path) -> None:
    models = random_models
    assert "has no head that gives tokens labels: its files lack score.bias, score.weight" in refused(
        model=models["writes"], format="trl"
    )
    assert f"good_label 2: the head of {models['two']} has 2 labels, from 0" == refused(
        model=models["two"], format="trl", good_label=2
    )
    assert f"adapter {tmp_path / 'none'} cannot be read: " in refused(
        model=models["two"], format="trl", adapter=tmp_path / "none"
    )
    narrow = LlamaForCausalLM(LlamaConfig(vocab_size=320, hidden_size=32, intermediate_size=32, num_hidden_layers=1))
    narrow.save_pretrained(tmp_path / "narrow")
    AutoTokenizer.from_pretrained(models["writes"]).save_pretrained(tmp_path / "narrow")
    assert "does not fit" in refused(model=tmp_path / "narrow", format="math_shepherd", adapter=models["lora"])
    assert "does not write, as scorer step_tag needs: it lacks lm_head.weight" in refused(
        model=models["two"], format="math_shepherd"
    )


def test_an_adapter_of_a_deeper_model_is_not_taken_for_one_of_this(
    random_models: dict[str, Path], tmp_path: Path
) -> None:
    """PEFT warns of weights that the adapter's files lack, and goes on."""
    config = LlamaConfig.from_pretrained(random_models["writes"], num_hidden_layers=3)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(random_models["writes"]).save_pretrained(tmp_path)
    said = refused(model=tmp_path, format="math_shepherd", adapter=random_models["lora"])
    assert "does not fit" in said and "layers.2" in said


def test_scores_are_kept_for_the_same_question_alone(random_models: dict[str, Path], tmp_path: Path) -> None:
    """Another adapter, other tokens or another label is another question; what is made of scores is none."""
    cache = VerdictCache(tmp_path)

    def cached(**keys: Any) -> list[bool]:
        known = {"model": str(random_models["writes"]), "format": "math_shepherd", "place": "in_process"}
        made = ProcessKeys(**known | keys)
        write = StepWriter(made, AutoTokenizer.from_pretrained(made.model))
        replies = Cached(InProcess(made), made, cache).classify_steps([write.write(*text) for text in TEXTS])
        fresh = InProcess(made).classify_steps([write.write(*text) for text in TEXTS])
        for kept, new in zip(replies, fresh, strict=True):
            assert kept.steps == pytest.approx(new.steps, abs=1e-6)
        return [reply.cached for reply in replies]

    assert cached() == [False] * 4
    assert cached(aggregate="sum", credit="min", scale="difference") == cached() == [True] * 4
    assert cached(adapter=str(random_models["lora"])) == [False] * 4
    assert cached(good="-", bad="+") == [False] * 4
    assert cached(tag="<extra_0>") == [False] * 4
    heads = {"model": str(random_models["three"]), "format": "trl"}
    assert [cached(**heads, good_label=label) for label in (1, 2, 1)] == [[False] * 4, [False] * 4, [True] * 4]
    assert cached(adapter=str(random_models["lora"])) == [True] * 4


# ---- a response that is too long for the model

CUT = {"on_overflow": "truncate"}
WRONG = ["~ 2 + 2 = 5.\n\n", "So it is 5."]
PADDED = [WRONG[0], WRONG[1] + " and so" * 50]  # past a window of 100 tokens


def paid(entry: dict[str, Any], rows: list[list[str]], *, by_steps: bool) -> Rewards:
    """The rewards of one group by a PRM with a window of 100 tokens."""
    listed = {"name": "prm", "kind": "process", "place": "in_process", "max_model_len": 100} | entry
    assert not [*entry_problems([listed])]
    (spec,) = sources_of([listed])
    source = spec.source(Surroundings(None, None))  # type: ignore[arg-type]
    return rewards_of([group(rows)], [source], [spec], on_error="zero", by_steps=by_steps)


@pytest.mark.parametrize("by_steps", [False, True])
@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_the_same_wrong_answer_earns_no_more_where_it_is_too_long(known, weight, credit, by_steps) -> None:
    entry = {"model": str(known["trl"]), "format": "trl", "scale": "difference", "credit": credit, "weight": weight}
    rewards = paid(entry, [WRONG, PADDED, STEPS[0]], by_steps=by_steps)
    short, padded, right = rewards.total[0].tolist()
    steps = 2 if by_steps and credit == "sum" else 1  # of which each is paid
    assert (short, padded) == (pytest.approx(-weight * steps, abs=1e-4),) * 2 and right > 0
    assert rewards.said["prm"][0].isnan().tolist() == [False, True, False] and len(rewards.errors["prm"]) == 1
    assert rewards.metrics["prm/overflow"] == pytest.approx(1 / 3)
    assert rewards.said_of_steps["prm"][0, 1].isnan().all()  # what it is worth was not said
    assert rewards.metrics["prm/steps"] == 2.5


def test_a_negative_weight_pays_the_least_for_the_highest_score(known) -> None:
    rewards = paid({"model": str(known["trl"]), "format": "trl"}, [WRONG, PADDED, STEPS[0]], by_steps=False)
    assert rewards.total[0].tolist() == pytest.approx([0, 0, 1], abs=1e-4)
    listed = SourceSpec("prm", "process", -1.0, keys=TaggedKeys(
        model=str(known["trl"]), format="trl", place="in_process", max_model_len=100))  # fmt: skip
    source = listed.source(Surroundings(None, None))  # type: ignore[arg-type]
    rewards = rewards_of([group([WRONG, PADDED, STEPS[0]])], [source], [listed], on_error="zero")
    assert rewards.total[0].tolist() == pytest.approx([0, -1, -1], abs=1e-4)


@pytest.mark.parametrize("form", ["trl", "math_shepherd"])
def test_what_the_window_takes_is_judged_where_the_entry_says_truncate(known, form) -> None:
    long = ["Good.\n\n", "Fine.\n\n", "Good." + " and so" * 50, "~ all in vain."]
    entry = {"model": str(known[form]), "format": form, "scale": "difference", "on_overflow": "truncate"}
    rewards = paid(entry, [long, STEPS[0], ["a" * 300]], by_steps=True)
    assert rewards.steps is not None
    assert rewards.steps.rewards[0, 0].tolist() == pytest.approx([1, 1, -1, -1], abs=1e-4)
    assert rewards.steps.rewards[0, 2].tolist() == [-1, 0, 0, 0]  # nothing of it is within the window
    assert rewards.metrics["prm/overflow"] == pytest.approx(2 / 3) and rewards.errors["prm"].keys() == {2}
    assert paid(entry, [long], by_steps=False).total.item() == pytest.approx(-1)  # its lowest


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"kind": "judge", "model": "m", "plugin": "grade"} | CUT, "need the end"),
        ({"kind": "classifier", "model": "m"} | CUT, "use worst, or drop_group"),
        ({"kind": "process", "model": "m", "format": "trl", "url": "http://h/v1"} | CUT, "or an engine"),
        ({"kind": "process", "scorer": "implicit", "model": "m", "reference": "n"} | CUT, "for scorers"),
        ({"kind": "classifier", "model": "m", "on_overflow": "none"}, "on_overflow 'none' is unknown"),
        ({"kind": "judge", "model": "m", "plugin": "grade", "worst": -1}, "gives 0 to 1, so its worst value is known"),
        ({"kind": "process", "model": "m", "format": "trl", "scale": "difference", "worst": -1}, "gives -1 to 1"),
        ({"kind": "bonus", "worst": 0}, "the bonus never fails"),
        ({"kind": "classifier", "model": "m", "worst": "low"}, "worst 'low': it must be a finite number"),
    ],
)
def test_what_cannot_be_worth_anything_is_told_so(entry, said) -> None:
    assert said in "\n".join(entry_problems([{"name": "s"} | entry]))
