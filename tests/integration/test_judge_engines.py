"""Reward models in engines of the run's own, and the encoder in a process of its own, in one Ray of three GPUs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from hang import HANG_S
from peft import LoraConfig, get_peft_model
from ray.util.placement_group import placement_group
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
)

from oger_recipe.base.cpu import CPU_ENVIRONMENT
from oger_recipe.base.errors import RecipeError
from oger_recipe.embedding.base import EmbeddingError, Encoder
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import TrajectoryEncoder
from oger_recipe.embedding.settings import PACKAGED_MODEL, EncoderSettings
from oger_recipe.embedding.similarity import EmbeddingSimilarity
from oger_recipe.models.in_process import InProcess
from oger_recipe.models.keys import ModelKeys, ProcessKeys, WriterKeys
from oger_recipe.models.likelihood import written
from oger_recipe.models.step_text import StepWriter
from oger_recipe.pipeline.driver.local_engines import local_engines
from oger_recipe.pipeline.driver.start_ray import cleared_up, run_environment, start_ray
from oger_recipe.pipeline.encoder.actor_encoder import ActorEncoder, encoders_on
from oger_recipe.pipeline.judges.engines import EnginePlace, RunEngines
from oger_recipe.pipeline.judges.judge_actor import Memory, _measured
from oger_recipe.rewards.place import Reply, Sampling, StepPrompt
from oger_recipe.rewards.sources import ANSWER, OVERFLOW

LONGEST = 96  # tokens; a letter is one
TOKENS = 12
PROMPTS = [f"{number}: is 2 + {number} = 4?" for number in range(24)]
BROKEN = "\ufffd"
WARM = Sampling(temperature=1.0, max_new_tokens=TOKENS, seed=7)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, letters: Any) -> dict[str, Path]:
    """Random weights, large enough that what they say depends on the prompt: one that writes, one with a head."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": len(letters), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256,
        "initializer_range": 0.3, "eos_token_id": letters.eos_token_id, "pad_token_id": letters.pad_token_id,
        "bos_token_id": None,
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("judges")
    kinds = {"judge": (LlamaForCausalLM, {}), "head": (LlamaForSequenceClassification, {"num_labels": 1})}
    for name, (kind, more) in kinds.items():
        kind(LlamaConfig(**shape, **more)).save_pretrained(folder / name)
        letters.save_pretrained(folder / name)
    return {name: folder / name for name in kinds}


@pytest.fixture(scope="module")
def prms(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """PRMs of random weights: one that writes, an adapter for it, and a head of three labels."""
    folder = tmp_path_factory.mktemp("prms")
    tokenizer = AutoTokenizer.from_pretrained(models["judge"])
    tokenizer.add_tokens(["ки"])
    writes = LlamaForCausalLM.from_pretrained(models["judge"])
    writes.resize_token_embeddings(len(tokenizer))
    labels = LlamaForTokenClassification(LlamaConfig(**writes.config.to_dict() | {"num_labels": 3}))
    torch.nn.init.normal_(labels.score.bias)
    for name, model in {"prm": writes, "labels": labels}.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(writes, lora).save_pretrained(folder / "lora")
    return {name: folder / name for name in ("prm", "labels", "lora")}


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment, cleared_up() as folder:
        for name, value in CPU_ENVIRONMENT.items():
            environment.setenv(name, value)
        start_ray(run_environment(True) | {"VLLM_LOGGING_LEVEL": "ERROR"}, True, 3, False, folder)
        try:
            yield
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def engines(ray_here: None) -> Iterator[RunEngines]:
    """Their GPU is the policy's, and they may keep all memory."""
    group = placement_group([{"GPU": 1, "CPU": 1}])
    engines = RunEngines(cpu=True, memory_gb=100, shared_gpus=lambda: group)
    yield engines
    engines.end()
    assert ray.util.placement_group_table(group)["state"] == "CREATED"  # it is not theirs to give back


def keys(model: Path, **more: Any) -> ModelKeys:
    return ModelKeys(model=str(model), max_model_len=LONGEST, **more)


def texts(judge: EnginePlace, prompts: list[str]) -> list[str]:
    replies = judge.generate(prompts, WARM)
    assert all(reply.error is None for reply in replies)
    return [reply.text for reply in replies]


@pytest.fixture()
def judge(engines: RunEngines, models: dict[str, Path]) -> Iterator[EnginePlace]:
    place = engines.place(keys(models["judge"], request_limit_s=20.0))
    place.open()
    yield place
    place.close()


@pytest.fixture()
def head(engines: RunEngines, models: dict[str, Path]) -> Iterator[EnginePlace]:
    place = engines.place(keys(models["head"]))
    place.open()
    yield place
    place.close()


def test_a_greedy_judge_writes_what_the_model_says_to_each_prompt_in_their_order(
    judge: EnginePlace, models: dict[str, Path]
) -> None:
    replies = judge.generate(PROMPTS, Sampling(max_new_tokens=TOKENS))
    tokenizer = AutoTokenizer.from_pretrained(models["judge"])
    model = LlamaForCausalLM.from_pretrained(models["judge"])
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        tokens = tokenizer(prompt, return_tensors="pt")["input_ids"]
        written = model.generate(tokens, max_new_tokens=TOKENS, do_sample=False)[0, tokens.shape[1] :]
        text = tokenizer.decode(written, skip_special_tokens=True)
        assert reply.text.rstrip(BROKEN) == text.rstrip(BROKEN)  # vLLM waits for a character's other bytes
        assert reply.cut == (tokenizer.eos_token_id not in written)
    assert len({reply.text for reply in replies}) > len(PROMPTS) / 2


def test_a_seeded_reply_is_the_same_in_whatever_batch(judge: EnginePlace) -> None:
    together = texts(judge, PROMPTS)
    assert len(set(together)) > len(PROMPTS) / 2
    assert texts(judge, PROMPTS[::-1]) == together[::-1]
    assert [texts(judge, [prompt]) for prompt in PROMPTS[:6]] == [[text] for text in together[:6]]
    other = judge.generate(PROMPTS, Sampling(temperature=1.0, max_new_tokens=TOKENS, seed=8))
    assert [reply.text for reply in other] != together


def test_a_prompt_that_is_too_long_costs_its_own_reply(judge: EnginePlace) -> None:
    fits, too_long = "a" * (LONGEST - 1), "a" * LONGEST
    first, long, last = judge.generate([PROMPTS[0], too_long, fits], WARM)
    assert long.error is not None and f"the prompt has {LONGEST} tokens" in long.error
    assert [first.text] == texts(judge, PROMPTS[:1]) and first.error is None
    assert last.error is None and last.cut  # one token is left


def test_an_engine_and_this_process_find_a_response_equally_likely(
    judge: EnginePlace, models: dict[str, Path], letters: Any
) -> None:
    steps = [["two, ", "three"], ["4\n", "5", "6" * 40], ["x"]]
    written_ones = [written(letters, prompt, each) for prompt, each in zip(PROMPTS, steps, strict=False)]
    prompts = [each for each in written_ones if isinstance(each, StepPrompt)]
    too_long = StepPrompt((1,) * (LONGEST + 1), (3, LONGEST))
    here = InProcess(WriterKeys(model=str(models["judge"]), place="in_process"))
    replies = judge.log_probs([*prompts, too_long])
    for prompt, reply, other in zip(prompts, replies, here.log_probs(prompts), strict=False):
        assert reply.error is None and len(reply.log_probs) == prompt.ends[-1] - prompt.ends[0]
        assert reply.log_probs == pytest.approx(other.log_probs, abs=1e-4)
        assert min(reply.log_probs) < -2  # they differ from token to token, or nothing is compared
    assert f"the prompt has {LONGEST + 1} tokens" in str(replies[3].error)


def test_a_kept_engine_stays_the_same_process_and_tells_how_far_it_is(
    judge: EnginePlace, engines: RunEngines, models: dict[str, Path]
) -> None:
    told, model = [], str(models["judge"])
    pid, before = judge._pid, texts(judge, PROMPTS)
    engines.told = lambda *facts: told.append(facts)
    judge.close()
    judge.open()
    assert texts(judge, PROMPTS) == before
    assert judge._pid == pid
    assert told[-1] == (model, len(PROMPTS), len(PROMPTS)) and (model, 0, 0) not in told
    judge.end()
    judge.open()
    assert told[-1] == (model, 0, 0)
    engines.told = None
    assert judge._pid != pid
    assert texts(judge, PROMPTS) == before  # a kept engine and a new one say the same


def test_an_engine_that_hangs_makes_errors_and_the_next_turn_starts_another(judge: EnginePlace) -> None:
    before, hung = texts(judge, PROMPTS[:3]), judge._pid
    os.kill(hung, signal.SIGSTOP)
    replies = judge.generate(PROMPTS[:3], WARM)
    assert [reply.error for reply in replies] == [replies[0].error] * 3
    assert "made no progress for 20 s (request_limit_s)" in str(replies[0].error)
    assert not Path(f"/proc/{hung}").exists()
    judge.close()
    judge.open()
    assert judge._pid != hung and texts(judge, PROMPTS[:3]) == before


def test_a_killed_engine_makes_errors_for_what_it_has_not_answered(judge: EnginePlace, engines: RunEngines) -> None:
    """It is killed at its first sign of life, when it can have refused prompts and written none."""
    engines.told = lambda *_: os.kill(judge._pid, signal.SIGKILL)
    refused, *others = judge.generate(["a" * LONGEST, *PROMPTS * 20], Sampling(max_new_tokens=80))
    engines.told = None
    assert f"{LONGEST} tokens" in str(refused.error)
    assert len(others) == 20 * len(PROMPTS) and all(f"(pid {judge._pid}) died" in str(each.error) for each in others)
    assert all("died" in str(reply.error) for reply in judge.generate(PROMPTS, WARM))  # its turn is not over


def test_a_head_gives_its_number_before_any_sigmoid(head: EnginePlace, models: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models["head"])
    model = LlamaForSequenceClassification.from_pretrained(models["head"])
    replies = head.classify([*PROMPTS, "a" * LONGEST, "a" * (LONGEST + 1)])
    *values, too_long = replies
    with torch.no_grad():
        expected = [
            model(**tokenizer(prompt, return_tensors="pt")).logits.item() for prompt in [*PROMPTS, "a" * LONGEST]
        ]
    assert [reply.value for reply in values] == pytest.approx(expected, rel=1e-4)
    assert max(map(abs, expected)) > 1  # no probabilities
    assert f"the prompt has {LONGEST + 1} tokens" in str(too_long.error) and too_long.cause == OVERFLOW


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        ([0.5], Reply(value=0.5)),
        ([[4.0], [0.5], [-2.5]], Reply(value=-2.5)),  # of every token
        ([0.5, 0.25], Reply(error="its head gives 2 numbers, and a reward model's gives one")),
        ([[1.0], [float("inf")]], Reply(error="its head gives inf", cause=ANSWER)),
    ],
)
def test_a_head_has_one_number_that_of_the_last_token(data: list[Any], reply: Reply) -> None:
    found = _measured(SimpleNamespace(outputs=SimpleNamespace(data=torch.tensor(data))))
    assert (found.error, found.error or found.value) == (reply.error, reply.error or reply.value)
    assert found.cause == reply.cause


STEPS = [
    ("What is 1 + 1?", ["It is two.", "So 2."]),
    ("?", ["x"]),
    ("a" * LONGEST, ["too long"]),
    ("And then?", ["One", "two", "three", "four", "five"]),
]


@pytest.mark.parametrize(
    ("model", "adapter", "form", "label"),
    [("prm", None, "math_shepherd", None), ("prm", "lora", "math_shepherd", None), ("labels", None, "trl", 2)],
)
def test_a_prm_says_in_an_engine_what_it_says_in_this_process(
    engines: RunEngines, prms: dict[str, Path], model: str, adapter: str | None, form: str, label: int | None
) -> None:
    """Also of what it has read before: an engine that keeps the beginnings of texts has no numbers for them."""
    prm = ProcessKeys(
        model=str(prms[model]), adapter=str(prms[adapter]) if adapter else None, format=form, good_label=label,
        max_model_len=LONGEST,
    )  # fmt: skip
    write = StepWriter(prm, AutoTokenizer.from_pretrained(prms[model]))
    prompts = [write.write(*each) for each in STEPS]
    here, place = InProcess(prm), engines.place(prm)
    place.open()
    replies = place.classify_steps(prompts)
    assert [reply.steps for reply in place.classify_steps(prompts[::-1])] == [
        pytest.approx(reply.steps, abs=1e-5) for reply in replies[::-1]
    ]
    place.close()
    for said, expected in zip(replies, here.classify_steps(prompts), strict=True):
        assert said.steps == pytest.approx(expected.steps, abs=1e-4)
        assert (said.error or "").removesuffix(" (max_model_len)") == (expected.error or "")
    assert [len(reply.steps) for reply in replies] == [2, 1, 0, 5]
    assert len({round(each, 2) for reply in replies for each in reply.steps}) > 4
    place.end()


def test_prms_that_read_otherwise_have_engines_of_their_own() -> None:
    engines = RunEngines(cpu=True)
    prm = ProcessKeys(model="me/prm", format="math_shepherd")
    place = engines.place(prm)
    assert engines.place(replace(prm, aggregate="sum", credit="min", scale="difference", cache=False)) is place
    for other in ({"adapter": "me/lora"}, {"good": "yes"}, {"bad": 7}, {"scorer": "token_head", "good_label": 1}):
        assert engines.place(replace(prm, **other)) is not place
    assert engines.place(ModelKeys(model="me/prm")) is not place


def test_an_engine_ends_after_its_turn_unless_it_may_keep_its_memory(head: EnginePlace, engines: RunEngines) -> None:
    engines._budget = 0.0
    pid = head._pid
    head.close()
    assert not Path(f"/proc/{pid}").exists()
    (reply,) = head.classify(["a"])
    assert reply.error is not None and "not open" in reply.error


def test_engines_keep_what_fits_into_the_budget_together(models: dict[str, Path]) -> None:
    engines = RunEngines(cpu=True, memory_gb=2)
    first, second = (engines.place(keys(models[name])) for name in ("judge", "head"))
    taken = Memory(2**30, free=0, there=2**40)
    assert engines.keeps(first, taken) and engines.keeps(second, taken)
    assert not engines.keeps(second, taken._replace(taken=2**30 + 1))
    assert engines.keeps(first, taken)  # it does not count twice
    engines.ended(first)
    assert engines.keeps(second, taken._replace(taken=2**31))


def test_without_a_budget_an_engine_stays_from_its_second_turn_on_where_a_quarter_of_the_memory_is_left() -> None:
    """With the largest of those that ended beside it."""
    engines, said = RunEngines(cpu=True), []
    engines.says = said.append
    small, large = (engines.place(ModelKeys(model=name)) for name in ("small", "large"))
    third = engines.place(ModelKeys(model="third"))
    turns = [
        # whose turn, GiB: it takes, are free of 16 | stays: the other may take 0 or, where it ended, what it took
        (small, 1, 15, False),  # its first turn
        (small, 1, 4, True),
        (large, 5, 15, False),
        (large, 5, 4, True),
        (small, 1, 3.9, False),
        (large, 5, 4.9, False),  # the small one would come back
        (third, 3, 15, False),
        (small, 1, 8.9, False),  # the large one would
        (small, 1, 9, True),
    ]
    for place, takes, free, stays in turns:
        assert engines.keeps(place, Memory(takes * 2**30, int(free * 2**30), 16 * 2**30)) == stays
        if not stays:
            engines.ended(place)
    (note,) = said
    assert note.startswith("engines of reward models stay loaded between their turns") and "4 GiB of 16 GiB" in note


def test_what_says_the_same_of_an_engine_has_the_same_one(models: dict[str, Path]) -> None:
    engines = RunEngines(cpu=True)
    place = engines.place(keys(models["judge"]))
    assert engines.place(keys(models["judge"], cache=False)) is place
    assert engines.place(keys(models["judge"], dtype="bfloat16")) is not place
    with pytest.raises(RecipeError, match="tensor_parallel_size is for machines with CUDA"):
        engines.place(keys(models["judge"], tensor_parallel_size=2))


def test_a_model_that_never_loads_is_the_recipes_mistake(ray_here: None, models: dict[str, Path]) -> None:
    engines = RunEngines(cpu=True)
    place = engines.place(ModelKeys(model=str(models["judge"]), max_model_len=10_000))
    with pytest.raises(RecipeError, match=r"judge: its engine does not start: .*max_model_len \(10000\)"):
        place.open()
    engines.end()


def test_a_command_whose_models_are_elsewhere_starts_no_ray() -> None:
    was_there = ray.is_initialized()
    with local_engines():
        assert ray.is_initialized() == was_there


# ---- the encoder


ENCODER = EncoderSettings(PACKAGED_MODEL, None, max_tokens=16, long_texts="tail", part="answer")
TEXTS = ["<think>first</think>the answer is 4", "so it is four " * 20, "no", "é漢", "the answer is 5"]


@pytest.fixture(scope="module")
def encoder(ray_here: None) -> Encoder:
    return encoders_on(0.5, None)(ENCODER, 2)


def test_an_encoder_elsewhere_gives_what_one_here_gives(encoder: Encoder, tmp_path: Path) -> None:
    here = TrajectoryEncoder(ENCODER, 2)
    assert torch.allclose(encoder.encode(TEXTS), here.encode(TEXTS), atol=1e-6)
    assert encoder.share_read(TEXTS) == here.share_read(TEXTS) < 1
    assert encoder.settings.fingerprint() == here.settings.fingerprint()  # one cache for both
    groups, references = [TEXTS[:2], TEXTS[2:4]], [["the answer is 4"], TEXTS[4:]]
    found = []
    for each in (encoder, here):
        measure = EmbeddingSimilarity(each, EmbeddingCache(each, tmp_path / type(each).__name__))
        for text in TEXTS[:3]:
            measure.prefetch(text)
        found.append(measure.of_groups(groups, references, "mean"))
    assert torch.allclose(*found, atol=1e-6) and found[0].isfinite().all()


def test_an_encoder_that_dies_is_an_error_of_embedding_and_starts_again(encoder: Encoder) -> None:
    assert isinstance(encoder, ActorEncoder)
    before = encoder.encode(TEXTS)
    pid = ray.get(encoder._actor.__ray_call__.remote(lambda actor: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EmbeddingError, match=r"5 of 5 texts could not be embedded .* the encoder's process died"):
        while True:  # until Ray has seen it
            encoder.encode(TEXTS)
    assert 0 < encoder.share_read(TEXTS) < 1  # while it starts again
    deadline, failed = time.monotonic() + HANG_S, {TEXTS[0]: ""}
    while failed:
        assert time.monotonic() < deadline, failed
        rows, failed = encoder.encode_each(TEXTS[:2])
    assert torch.allclose(rows, before[:2], atol=1e-6)


def test_a_run_says_what_is_wrong_with_its_encoder_and_without_a_gpu_has_it_here(ray_here: None) -> None:
    with pytest.raises(ValueError, match="no room for a text"):
        encoders_on(0.5, None)(replace(ENCODER, max_tokens=2), 2)
    assert isinstance(encoders_on(0.0, None)(ENCODER, 2), TrajectoryEncoder)
