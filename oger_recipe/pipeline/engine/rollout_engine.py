"""The rollout actor: vLLM's log-probabilities come back with every rollout, and the engine also runs on a CPU."""

import asyncio
import contextlib
import functools
import importlib.util
import json
import multiprocessing
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from vllm.sampling_params import RequestOutputKind

from oger_recipe.base.cpu import ROWS, engine_arguments, is_without_cuda
from oger_recipe.base.cutting import StepSampling
from oger_recipe.base.fork_request import PYTHON
from oger_recipe.base.remote_code import may_run
from oger_recipe.base.seeds import stable_seed
from oger_recipe.pipeline import undecorated
from oger_recipe.pipeline.engine.executor import OgerExecutor
from oger_recipe.pipeline.step_sampling import SteppedResponse

ENGINE_PROCESS = "oger_recipe.pipeline.engine.engine_process"
_LOOK_S = 1.0  # how often a waiting call looks whether the engine still lives


class OgerRolloutActor(undecorated(RolloutRayActor)):  # type: ignore[misc]
    """OpenRLHF's rollout actor with rollout log-probabilities always on: they show whether the weights arrive."""

    async def __init__(self, *args, **kwargs) -> None:  # type: ignore[misc]
        cpu = is_without_cuda()  # with tensor parallelism its GPUs are its workers', and Ray shows it none
        worker = "CpuWorkerWrap" if cpu else "OgerWorkerWrap"
        kwargs["worker_extension_cls"] = f"oger_recipe.pipeline.engine.engine_worker.{worker}"
        kwargs.update(engine_arguments(kwargs["model"], kwargs["max_model_len"]) if cpu else {"max_num_seqs": ROWS})
        # Of the distribution that was sampled from (temperature, top-p), as the policy computes its own.
        kwargs.update(logprobs_mode="processed_logprobs", max_logprobs=1, trust_remote_code=may_run())
        if python := os.environ.get(PYTHON):
            multiprocessing.set_executable(python)
        with _main_module(ENGINE_PROCESS) if cpu else contextlib.nullcontext():
            await super().__init__(*args, **kwargs)
        self.llm.collective_rpc = functools.partial(_while_it_lives, self.llm, self.llm.collective_rpc)
        self.executor = OgerExecutor(kwargs.get("remote_rm_url"))

    async def engine_facts(self) -> dict[str, Any]:
        """Return the facts of its first worker; all are alike."""
        facts: list[dict[str, Any]] = await self.llm.collective_rpc("engine_facts")
        return facts[0]

    async def generate_responses(
        self,
        prompt,
        label,
        sampling_params,
        *,
        num_samples=1,
        place=0,
        prefixes=None,
        steps: StepSampling | None = None,
        **kwargs,
    ):
        """Sample and grade ``num_samples`` responses.

        A seed in ``sampling_params`` is the prompt's: each response gets its own. ``place``: the prompt's among those
        of a batch; every response says it. ``prefixes``: tokens that each response begins with, one list a sample;
        they are a teacher's. ``steps``: how steps of reasoning enter the sampling, None where they do not.
        """
        sampling_params.logprobs = 0  # of the sampled token alone
        sampling_params.flat_logprobs = True  # without an object a token
        sampling_params.output_kind = RequestOutputKind.FINAL_ONLY  # nothing reads a response before its end
        sampling_params.detokenize = bool(sampling_params.stop)
        samples = []
        for number in range(num_samples):
            params = sampling_params.clone()
            if params.seed is not None:
                params.seed = stable_seed(params.seed, json.loads(label)["uid"], number)
            prefix = None if prefixes is None else prefixes[number]
            samples.append(self._sample(prompt, label, params, prefix, steps, **kwargs))
        return [response | {"place": place} for response in await asyncio.gather(*samples)]

    async def _sample(self, prompt, label, params, prefix, steps, **kwargs) -> dict[str, Any]:
        """Sample a response that begins with the prefix, and grade it whole; a whole trajectory is graded only."""
        engine: Any = self
        tokenizer = kwargs["hf_tokenizer"]
        if steps is not None:
            engine = _SteppedEngine(engine, tokenizer, steps, prefix or [])
        if prefix:
            engine = _PrefixedEngine(engine, prefix, tokenizer.eos_token_id)
        response = await self.executor.execute(
            prompt=prompt, label=label, sampling_params=params, llm_engine=engine, **kwargs
        )
        if prefix is not None:
            response["extra_logs"] = dict(response["extra_logs"]) | {"off_policy_tokens": float(len(prefix))}
        return response


async def _while_it_lives(llm: Any, ask: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    """Ask the engine's process. Once it has died, vLLM fails requests for tokens, and lets other answers be waited
    for without end: whoever sends weights would.

    Raises:
        EngineDeadError: it died before it answered.
    """
    answer = asyncio.ensure_future(ask(*args, **kwargs))
    while not (await asyncio.wait({answer}, timeout=_LOOK_S))[0]:
        if llm.errored:
            answer.cancel()
            raise llm.dead_error
    return answer.result()


@contextlib.contextmanager
def _main_module(name: str) -> Iterator[None]:
    """Make processes that are spawned meanwhile import the module ``name`` first, not the main module's file."""
    main = sys.modules["__main__"]
    main.__spec__, kept = importlib.util.find_spec(name), main.__spec__
    try:
        yield
    finally:
        main.__spec__ = kept


class _PrefixedEngine:
    """An engine as OpenRLHF's executor uses it, whose outputs begin with tokens that were given, not sampled."""

    def __init__(self, engine: OgerRolloutActor, prefix: list[int], eos: int) -> None:
        self._engine, self._prefix, self._eos = engine, prefix, eos

    async def generate(self, prompt_tokens: list[int], params, **kwargs) -> Any:
        prefix = list(self._prefix)
        if prefix[-1] == self._eos or len(prefix) >= params.max_tokens:  # a whole trajectory, maybe a cut one
            return _output(prefix, [{}] * len(prefix), "stop")
        params.max_tokens -= len(prefix)
        sampled = (await self._engine.generate(prompt_tokens + prefix, params, **kwargs)).outputs[0]
        log_probs = [{}] * len(prefix) + list(sampled.logprobs)
        return _output(prefix + list(sampled.token_ids), log_probs, sampled.finish_reason)


class _SteppedEngine:
    """An engine as OpenRLHF's executor uses it, whose outputs end where the rule of steps ends a response.

    ``before``: a teacher's tokens at the end of the prompts, which are the first ones of the response.
    """

    def __init__(self, engine: OgerRolloutActor, tokenizer: Any, steps: StepSampling, before: list[int]) -> None:
        self._engine, self._tokenizer, self._steps, self._before = engine, tokenizer, steps, before

    async def generate(self, prompt_tokens: list[int], params, **kwargs) -> Any:
        response = SteppedResponse(prompt_tokens, params, self._tokenizer, self._steps, self._before)
        while response.finish_reason is None:
            tokens, asked = response.request()
            response.take((await self._engine.generate(tokens, asked, **kwargs)).outputs[0])
        return _output(response.tokens, response.log_probs, response.finish_reason)


def _output(tokens: list[int], log_probs: list[dict], finish_reason: str) -> Any:
    return SimpleNamespace(
        outputs=[SimpleNamespace(token_ids=tokens, logprobs=log_probs, finish_reason=finish_reason)]
    )
