"""What the recipe asks vLLM for: stop rules, top-k, and a seed for every sample."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from oger_recipe.plugin.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.plugin.engine.rollout_engine import OgerRolloutActor
from oger_recipe.plugin.ray_actor import undecorated
from oger_recipe.seeds import stable_seed


def _generator(**oger) -> OgerSamplesGenerator:
    generator = object.__new__(OgerSamplesGenerator)
    settings = {"top_k": -1, "stop": (), "stop_token_ids": ()} | oger
    generator.args = SimpleNamespace(oger=SimpleNamespace(**settings))
    return generator


def test_stop_rules_and_top_k_reach_the_engine_in_training_and_evaluation():
    generator = _generator(top_k=40, stop=("</answer>", "\nUser:"), stop_token_ids=(5, 6))
    for kwargs in ({"temperature": 1.2, "top_p": 0.9, "max_new_tokens": 64}, {"temperature": 0.0, "top_k": -1}):
        params = generator._sampling_params(kwargs)
        assert params.stop == ["</answer>", "\nUser:"] and params.stop_token_ids == [5, 6]
        assert params.temperature == kwargs["temperature"]
    assert generator._sampling_params({"top_p": 0.9}).top_k == 40
    assert generator._sampling_params({"top_k": 3}).top_k == 3  # the evaluation's own
    assert _generator()._sampling_params({}).stop in (None, [])


def test_who_asked_hears_of_every_rollout_of_a_training_batch_and_of_no_evaluated_one(monkeypatch):
    upstream, heard = OgerSamplesGenerator.__base__, []

    def one_batch(self, **kwargs):
        responses = ({"text": "r1", "graded": "right"}, {"text": "r2", "graded": "wrong"})
        return [self._process_response_into_experience(each, **kwargs) for each in responses], None, 1, False

    monkeypatch.setattr(upstream, "generate_samples", one_batch)
    monkeypatch.setattr(upstream, "generate_eval_samples", lambda self, **kwargs: one_batch(self)[0][:0])
    monkeypatch.setattr(
        upstream,
        "_process_response_into_experience",
        lambda self, response, **_: SimpleNamespace(text=response["text"]),
    )
    generator = _generator(n_prefix=0, max_replace_num=0, replace_after_rm=True)
    generator.args.train = SimpleNamespace(batch_size=2)
    generator.eval_dataloader, generator.arrived = [], heard.append
    generator.generate_eval_samples()
    assert heard == []
    assert generator.generate_samples()[0] == heard
    assert [(sample.text, sample.graded) for sample in heard] == [("r1", "right"), ("r2", "wrong")]
    generator.generate_eval_samples()
    assert len(heard) == 2


@pytest.fixture
def ask(monkeypatch):
    """The parameters that the engine is called with for one prompt."""

    async def generate_responses(self, prompt, label, sampling_params, *args, num_samples=1, **kwargs):
        await asyncio.sleep(0)
        return [(prompt, sampling_params)] * num_samples

    monkeypatch.setattr(undecorated(RolloutRayActor), "generate_responses", generate_responses)
    actor = object.__new__(OgerRolloutActor)

    def responses(label: str, seed: int | None, num_samples: int = 3, stop: str | None = None) -> list[SamplingParams]:
        params = SamplingParams(temperature=0.7, seed=seed, stop=stop)
        document = json.dumps({"uid": label, "answer": "1", "task": "gsm8k"})
        answer = asyncio.run(actor.generate_responses("p", document, params, 64, None, num_samples=num_samples))
        assert params.seed == seed  # shared by all prompts of the batch
        return [given for _, given in answer]

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
