"""What the recipe asks vLLM for: stop rules, top-k, and a seed for every sample."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from oger_recipe.base.seeds import stable_seed
from oger_recipe.pipeline.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.pipeline.engine.rollout_engine import OgerRolloutActor


def _generator(args: Any, eval_dataloader: Any = None) -> OgerSamplesGenerator:
    return OgerSamplesGenerator(SimpleNamespace(args=args), None, eval_dataloader, None, [])


def test_stop_rules_and_top_k_reach_the_engine_in_training_and_evaluation(nested):
    stops = ("--oger.stop", '["</answer>", "\\nUser:"]', "--oger.stop_token_ids", "[5, 6]")
    generator = _generator(nested("--oger.top_k=40", *stops))
    for kwargs in ({"temperature": 1.2, "top_p": 0.9, "max_new_tokens": 64}, {"temperature": 0.0, "top_k": -1}):
        params = generator._sampling_params(kwargs)
        assert params.stop == ["</answer>", "\nUser:"] and params.stop_token_ids == [5, 6]
        assert params.temperature == kwargs["temperature"]
    assert generator._sampling_params({"top_p": 0.9}).top_k == 40
    assert generator._sampling_params({"top_k": 3}).top_k == 3  # the evaluation's own
    assert _generator(nested())._sampling_params({}).stop in (None, [])


def test_who_asked_hears_of_every_rollout_of_a_training_batch_and_of_no_evaluated_one(nested, monkeypatch):
    upstream, heard = OgerSamplesGenerator.__base__, []

    def one_batch(self, **kwargs):
        responses = [{"text": f"r{number}", "graded": g, "place": 0} for number, g in ((1, "right"), (2, "wrong"))]
        return [self._process_response_into_experience(each, **kwargs) for each in responses], None, 1, False

    monkeypatch.setattr(upstream, "generate_samples", one_batch)
    monkeypatch.setattr(upstream, "generate_eval_samples", lambda self, **kwargs: one_batch(self)[0][:0])
    monkeypatch.setattr(
        upstream,
        "_process_response_into_experience",
        lambda self, response, **_: SimpleNamespace(text=response["text"]),
    )
    generator = _generator(nested("--train.batch_size=2"), eval_dataloader=[])
    generator.arrived = heard.append
    generator.generate_eval_samples()
    assert heard == []
    assert generator.generate_samples()[0] == heard
    assert [(sample.text, sample.graded) for sample in heard] == [("r1", "right"), ("r2", "wrong")]
    generator.generate_eval_samples()
    assert len(heard) == 2


class Engine:
    """In place of vLLM's: ends every response at once, and notes with which parameters it was asked for."""

    def __init__(self, end: int) -> None:
        self.end, self.asked = end, []

    async def is_sleeping(self) -> bool:
        return False

    async def collective_rpc(self, *_: Any) -> None: ...

    async def generate(self, prompt: Any, params: SamplingParams, **_: Any) -> Any:
        self.asked.append(params)
        output = SimpleNamespace(token_ids=[self.end], logprobs=[{}], finish_reason="stop")
        yield SimpleNamespace(outputs=[output])


class RolloutActor(OgerRolloutActor):
    def __init__(self, **settings: Any) -> None:  # Ray awaits a constructor, Python does not
        asyncio.run(super().__init__(**settings))

    def _configure_vllm_env(self, *_: Any) -> None: ...  # it asks Ray for its address


@pytest.fixture
def ask(tmp_path, policy_folder, letters, monkeypatch):
    """The parameters that the engine is called with for one prompt."""
    engine = Engine(letters.eos_token_id)
    monkeypatch.setattr(vllm, "AsyncEngineArgs", lambda **_: None)
    monkeypatch.setattr(vllm, "AsyncLLMEngine", SimpleNamespace(from_engine_args=lambda _: engine))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # which the actor takes out of its environment
    (tmp_path / "graded.py").write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': 0.0}\n")
    settings = {"model": str(policy_folder), "max_model_len": 64, "num_gpus": 1}
    actor = RolloutActor(**settings, remote_rm_url=[str(tmp_path / "graded.py")])

    def responses(label: str, seed: int | None, num_samples: int = 3, stop: str | None = None) -> list[SamplingParams]:
        params = SamplingParams(temperature=0.7, seed=seed, stop=stop)
        document = json.dumps({"uid": label, "answer": "1", "task": "gsm8k"})
        engine.asked.clear()
        asked = {"max_length": 64, "hf_tokenizer": letters, "num_samples": num_samples}
        assert len(asyncio.run(actor.generate_responses("p", document, params, **asked))) == num_samples
        assert params.seed == seed  # shared by all prompts of the batch
        return list(engine.asked)

    return responses


def test_every_sample_of_a_seeded_request_has_a_seed_of_its_own_that_other_prompts_do_not_change(ask):
    first, again, other, reseeded = ask("a", 1), ask("a", 1), ask("b", 1), ask("a", 2)
    seeds = [[params.seed for params in group] for group in (first, again, other, reseeded)]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2], *seeds[3]}) == 9
    assert seeds[0] == [stable_seed(1, "a", number) for number in range(3)]  # as `oger eval` has them
    assert seeds[0][:2] == [params.seed for params in ask("a", 1, num_samples=2)]
    assert all(params.temperature == 0.7 and params.logprobs == 0 for params in first)


def test_without_a_seed_the_engine_draws_as_before(ask):
    assert [(params.seed, params.logprobs) for params in ask("a", None)] == [(None, 0)] * 3


def test_answers_come_once_at_their_end_and_as_text_only_where_a_stop_text_needs_it(ask):
    for given in (ask("a", None)[0], ask("a", 1)[0]):
        assert given.output_kind is RequestOutputKind.FINAL_ONLY and given.flat_logprobs and not given.detokenize
    assert all(given.detokenize and given.stop == ["</s>"] for given in ask("a", 1, stop="</s>"))


def test_seeds_are_stable_and_tell_their_parts_apart():
    # The first 8 bytes of sha256("1\x1fuid\x1f0"), 0x293bfc46b55c1330, halved.
    assert stable_seed(1, "uid", 0) == 0x293BFC46B55C1330 // 2
    assert stable_seed("a", "b") != stable_seed("ab", "") != stable_seed("", "ab")
    assert all(0 <= stable_seed(number) < 2**63 for number in range(1000))
