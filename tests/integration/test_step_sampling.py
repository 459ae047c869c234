"""Responses that steps end, sampled at once and step by step: both ways give the same one.

The engine here draws tokens by a rule of its own, and vLLM's own code says where it stops. One test asks vLLM itself.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from oger_recipe.base.arithmetic import matmul_dtype
from oger_recipe.base.cutting import StepRule, StepSampling
from oger_recipe.evaluation.sampling import Model, Request, Response, Sampling
from oger_recipe.lab import tiny_policy
from oger_recipe.pipeline.engine.executor import OgerExecutor
from oger_recipe.pipeline.engine.rollout_engine import OgerRolloutActor
from oger_recipe.pipeline.sampler import Sampler
from oger_recipe.pipeline.step_sampling import SteppedResponse
from oger_recipe.rewards import reward_func

PROMPT = "Make 7."


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_policy.build_tokenizer(["So we try 3 + 4 = 7.\n\nThen 7 * 2\n\nStep 2: good\n\n\n"] * 9, 320)


class Engine:
    """Asks ``draw`` for every token: what it gives may depend on the tokens so far, on the seed and on the attempt, as
    it is asked again for a token that must not be drawn. Stops where vLLM stops."""

    def __init__(self, tokenizer: Any, draw: Callable[[list[int], int | None, int], int]) -> None:
        self.tokenizer, self.draw = tokenizer, draw
        self.requests: list[tuple[list[int], SamplingParams]] = []

    async def generate(self, tokens: list[int], params: SamplingParams, **_: Any) -> Any:
        return SimpleNamespace(outputs=[self.answer(tokens, params)])

    def answer(self, tokens: list[int], params: SamplingParams) -> Any:
        self.requests.append((tokens, params))
        request = SimpleNamespace(sampling_params=params, prompt_token_ids=tokens, request_id="r")
        detokenizer = IncrementalDetokenizer.from_new_request(self.tokenizer if params.detokenize else None, request)
        drawn: list[int] = []
        while True:
            drawn.append(self._drawn(tokens + drawn, params, len(drawn)))
            if drawn[-1] == self.tokenizer.eos_token_id:
                return self._output(drawn, "stop", None)
            if drawn[-1] in params.stop_token_ids:
                return self._output(drawn, "stop", drawn[-1])
            if (text := detokenizer.update(drawn[-1:], False)) is not None:
                return self._output(drawn, "stop", text)
            if len(drawn) == params.max_tokens:
                return self._output(drawn, "length", None)

    def _drawn(self, tokens: list[int], params: SamplingParams, length: int) -> int:
        never = {self.tokenizer.eos_token_id, *params.stop_token_ids} if length < params.min_tokens else set()
        attempts = (self.draw(tokens, params.seed, attempt) for attempt in range(1000))
        return next(token for token in attempts if token not in never)

    def _output(self, drawn: list[int], reason: str, stop: Any) -> Any:
        log_probs = [{token: SimpleNamespace(logprob=-token / 8)} for token in drawn]
        return SimpleNamespace(token_ids=drawn, finish_reason=reason, stop_reason=stop, logprobs=log_probs)


def _by_chance(likely: Sequence[int]) -> Callable[[list[int], int | None, int], int]:
    return lambda tokens, seed, attempt: random.Random(str((tokens, seed, attempt))).choice(likely)


def _script(prompt: Sequence[int], response: Sequence[int]) -> Callable[[list[int], int | None, int], int]:
    return lambda tokens, seed, attempt: response[len(tokens) - len(prompt)]


def _params(**given: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 40, "min_tokens": 1, "skip_special_tokens": False, "logprobs": 0} | given)


def _sampled(engine: Engine, params: SamplingParams, steps: StepSampling, before: Sequence[int] = ()) -> Any:
    response = SteppedResponse([5, 6, 7, *before], params, engine.tokenizer, steps, before)
    while response.finish_reason is None:
        response.take(engine.answer(*response.request()))
    assert [each[token].logprob for token, each in zip(response.tokens, response.log_probs, strict=True)] == [
        -token / 8 for token in response.tokens
    ]
    return response


def _encoded(text: str, tokenizer: Any) -> list[int]:
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


# ---- one response


def test_step_by_step_and_at_once_give_the_same_response(tokenizer):
    """Whatever the delimiters, caps, stops, least tokens and teacher's tokens before."""
    words = ["So", " we", "7", ".", "\n", "\n\n", "\n\n\n", "Step", " 2", ":", "日", "good", "</answer>"]
    likely = [token for word in words for token in _encoded(word, tokenizer)] + [tokenizer.eos_token_id]
    chance = random.Random(0)
    ends, requests = set(), 0
    for number in range(500):
        rule = StepRule(
            tuple(chance.sample(["\n\n", "\n", "7", "Step", ".\n", "日"], chance.randrange(3))),
            tuple(chance.sample(sorted({*likely}), chance.randrange(2))),
            chance.choice([None, 1, 2, 5]),
            chance.choice([None, 1, 2, 4]),
            chance.choice([None, "good", "so"]),
        )
        params = _params(
            stop=chance.sample(["we7", "\n\n\n", ".7", "</answer>"], chance.randrange(3)) or None,
            stop_token_ids=chance.sample([each for each in likely if each not in rule.delimiter_token_ids], 1),
            min_tokens=chance.choice([0, 1, 6]),
            max_tokens=chance.choice([6, 20, 60]),
        )
        before = [chance.choice(likely[:-1]) for _ in range(chance.choice([0, 0, 7]))]
        engine = Engine(tokenizer, _by_chance([*likely, number % 50 + 20]))
        whole = _sampled(engine, params, StepSampling(rule), before)
        assert len(engine.requests) <= 1
        stepped = _sampled(engine, params, StepSampling(rule, by_step=True), before)
        assert (stepped.tokens, stepped.finish_reason) == (whole.tokens, whole.finish_reason), (number, rule, params)
        ends.add((whole.finish_reason, len(whole.tokens) == params.max_tokens))
        requests += len(engine.requests)
    assert {("stop", False), ("length", True), ("length", False)} <= ends and requests > 1000


def test_each_step_is_a_request_that_goes_on_behind_the_steps_before(tokenizer):
    parts = ["So we\n\n", "try\n\n", "good 7"]
    response = [token for part in parts for token in _encoded(part, tokenizer)] + [tokenizer.eos_token_id]
    engine = Engine(tokenizer, _script([5, 6, 7], response))
    steps = StepSampling(StepRule(max_step_tokens=30, max_steps=10), by_step=True)
    sampled = _sampled(engine, _params(max_tokens=35), steps)
    assert (sampled.tokens, sampled.finish_reason) == (response, "stop")
    first, second = (len(_encoded(part, tokenizer)) for part in parts[:2])
    assert [asked for asked, _ in engine.requests] == [
        [5, 6, 7], [5, 6, 7, *response[:first]], [5, 6, 7, *response[: first + second]],
    ]  # fmt: skip
    assert [params.max_tokens for _, params in engine.requests] == [30, min(30, 35 - first), 35 - first - second]
    assert [params.min_tokens for _, params in engine.requests] == [1, 0, 0]
    assert all(params.stop == ["\n\n"] for _, params in engine.requests)


def test_a_step_that_reaches_its_cap_goes_on_as_the_next_one(tokenizer):
    response = [*_encoded("aaaaaaaa", tokenizer)]
    engine = Engine(tokenizer, _script([5, 6, 7], response))
    steps = StepSampling(StepRule((), max_step_tokens=3, max_steps=2), by_step=True)
    sampled = _sampled(engine, _params(), steps)
    assert (sampled.tokens, sampled.finish_reason, len(engine.requests)) == (response[:6], "length", 2)


def test_every_request_of_a_seeded_response_has_a_seed_of_its_own(tokenizer):
    likely = [*_encoded("ab\n", tokenizer)]
    steps = StepSampling(StepRule(("\n",), max_steps=5), by_step=True)

    def seeds(seed: int | None) -> list[int | None]:
        engine = Engine(tokenizer, _by_chance(likely))
        _sampled(engine, _params(seed=seed), steps)
        return [params.seed for _, params in engine.requests]

    assert seeds(3) == seeds(3) and len({*seeds(3), *seeds(4)}) == len(seeds(3)) + len(seeds(4)) >= 10
    assert {*seeds(None)} == {None}


def test_a_response_is_truncated_by_the_cap_of_steps_and_not_by_the_last_steps_text(tokenizer):
    def ended(text: str, rule: StepRule, **given: Any) -> tuple[str, str]:
        response = [*_encoded(text, tokenizer), tokenizer.eos_token_id]
        found = [
            _sampled(Engine(tokenizer, _script([5, 6, 7], response)), _params(**given), StepSampling(rule, by_step))
            for by_step in (False, True)
        ]
        assert found[0].tokens == found[1].tokens and found[0].finish_reason == found[1].finish_reason
        return tokenizer.decode(found[0].tokens), found[0].finish_reason

    end = tokenizer.eos_token
    rule = StepRule(("\n",), max_steps=2)
    assert ended("a\nb\nc\n", rule) == ("a\nb\n", "length")
    assert ended("a\nb", rule) == (f"a\nb{end}", "stop")
    assert ended("a\nb\n", rule) == ("a\nb\n", "length")  # nobody asked whether the policy would have ended here
    assert ended("a\nB is it\nc\n", StepRule(("\n",), max_steps=2, last_step_text="b is")) == ("a\nB is it\n", "stop")
    assert ended("a\nb\nc", rule, stop=["b\n"]) == ("a\nb\n", "stop")  # the policy's own end, with the last step's
    assert ended("aaaa\n", rule, max_tokens=3) == ("aaa", "length")


# ---- in the actor: graded, guided, evaluated


class Actor(OgerRolloutActor):
    """The actor around an engine that is not vLLM's."""

    def __init__(self, engine: Engine) -> None:
        self.executor, self._answering = OgerExecutor(str(reward_func.__file__)), engine

    async def generate(self, tokens: list[int], params: SamplingParams, **kwargs: Any) -> Any:
        return await self._answering.generate(tokens, params, **kwargs)


def _responses(engine: Engine, steps: StepSampling | None, answer: str = "7", **given: Any) -> list[dict[str, Any]]:
    actor = Actor(engine)
    label = json.dumps({"uid": "u", "answer": answer, "task": "gsm8k"})
    further = {"max_length": 100, "hf_tokenizer": engine.tokenizer} | given
    params = further.pop("params", _params())
    found: list[dict[str, Any]] = asyncio.run(actor.generate_responses(PROMPT, label, params, steps=steps, **further))
    return found


@pytest.mark.parametrize("by_step", [False, True])
def test_what_is_behind_the_end_is_neither_graded_nor_trained(tokenizer, by_step):
    prompt = _encoded(PROMPT, tokenizer)
    engine = Engine(tokenizer, _script(prompt, [*_encoded("It is 7\n\nor 8", tokenizer), tokenizer.eos_token_id]))
    steps = StepSampling(StepRule(max_steps=1), by_step)
    [cut], [whole] = _responses(engine, steps), _responses(engine, None)
    assert (cut["reward"], cut["truncated"]) == (1.0, True) and (whole["reward"], whole["truncated"]) == (0.0, False)
    sampled = _encoded("It is 7\n\n", tokenizer)
    assert cut["observation_tokens"] == prompt + sampled
    assert cut["action_ranges"] == [(len(prompt), len(prompt) + len(sampled))]
    assert cut["rollout_log_probs"] == [0.0] * len(prompt) + [-token / 8 for token in sampled]


@pytest.mark.parametrize("by_step", [False, True])
def test_a_teachers_tokens_are_steps_of_the_response_and_none_of_them_is_cut_off(tokenizer, by_step):
    prompt, given = _encoded(PROMPT, tokenizer), _encoded("First\n\nsecond", tokenizer)
    own = [*_encoded(" half\n\nthird\n\nfourth", tokenizer), tokenizer.eos_token_id]
    engine = Engine(tokenizer, _script(prompt, [*given, *own]))

    def text(max_steps: int) -> tuple[str, bool, float, int]:
        steps = StepSampling(StepRule(max_steps=max_steps), by_step)
        engine.requests.clear()
        [found] = _responses(engine, steps, prefixes=[given])
        response = found["observation_tokens"][len(prompt) :]
        assert len(found["rollout_log_probs"]) == len(found["observation_tokens"])
        assert found["extra_logs"]["off_policy_tokens"] == len(given)
        return tokenizer.decode(response), found["truncated"], found["reward"], len(engine.requests)

    assert text(2)[:2] == ("First\n\nsecond half\n\n", True)
    assert text(3)[:2] == ("First\n\nsecond half\n\nthird\n\n", True)
    assert text(9)[1] is False
    assert text(1) == ("First\n\nsecond", True, 0.0, 0)  # nothing is left to sample


def test_a_whole_teacher_is_not_cut_by_a_cap_that_is_for_the_policy(tokenizer):
    given = [*_encoded("First\n\nsecond\n\n7", tokenizer), tokenizer.eos_token_id]
    engine = Engine(tokenizer, _script([], []))
    [found] = _responses(engine, StepSampling(StepRule(max_steps=1), by_step=True), prefixes=[given])
    assert found["observation_tokens"][-len(given) :] == given and not found["truncated"] and not engine.requests


def test_responses_of_a_group_are_drawn_apart(tokenizer):
    """Seeds of samples and of their steps, whatever is asked beside them."""
    likely = [*_encoded("ab7\n", tokenizer)]
    steps = StepSampling(StepRule(("\n",), max_steps=4), by_step=True)

    def drawn(count: int) -> list[list[int]]:
        engine = Engine(tokenizer, _by_chance(likely))
        found = _responses(engine, steps, num_samples=count, params=_params(seed=5, temperature=1.0))
        return [each["observation_tokens"] for each in found]

    assert drawn(4) == drawn(4) and drawn(2) == drawn(4)[:2]
    assert len({tuple(each) for each in drawn(4)}) == 4


# ---- vLLM


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Sampler:
    """Random weights, as float32: greedy answers end by chance, by steps, and by their length."""
    if torch.cuda.is_available():
        pytest.skip("vLLM's build for CPUs")
    folder: Path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    model = tiny_policy.build_model(tokenizer, hidden_size=64, num_layers=2)
    for weight in model.parameters():
        noise = torch.randn(weight.shape)
        weight.data.copy_(1 + 0.2 * noise if weight.ndim == 1 else 0.25 * noise)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    made = Sampler(Model(str(folder)))
    made.context()
    made.load(128)
    return made


def test_vllm_gives_one_response_at_once_and_step_by_step(sampler, tokenizer):
    prompts = [_encoded(text, tokenizer) for text in ("So we", "Then 7 *", "try 3 + 4 = ", "7")]
    requests = [Request(prompt, 24, seed) for seed, prompt in enumerate(prompts)]
    delimiters = tuple(range(3, len(tokenizer), 7))

    def answers(by_step: bool, temperature: float, order: int = 1) -> list[Response]:
        rule = StepRule(("7", "."), delimiters, max_step_tokens=9, max_steps=4)
        sampling = Sampling(temperature=temperature, steps=StepSampling(rule, by_step))
        return sampler.generate(requests[::order], sampling, "mine")[::order]

    greedy = answers(by_step=False, temperature=0.0)
    assert answers(by_step=True, temperature=0.0) == greedy
    assert {each.truncated for each in greedy} == {True} and len({each.tokens for each in greedy}) > 1
    drawn = answers(by_step=True, temperature=1.0)
    assert answers(by_step=True, temperature=1.0, order=-1) == drawn != greedy


def test_a_sampler_multiplies_as_the_engine_of_a_run_does(sampler):
    """Else oger eval gives other answers than the run's own evaluation where hardware has no bfloat16: 6 of 1,536."""
    assert ("torch_cpu_products" in torch._C._dispatch_dump("aten::mm")) == (matmul_dtype() != torch.bfloat16)
