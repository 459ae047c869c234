"""The rollout actor: vLLM's log-probabilities come back with every rollout, and the engine also runs on a CPU."""

import asyncio

import torch
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

from oger_recipe.plugin.ray_actor import undecorated
from oger_recipe.seeds import stable_seed


class OgerRolloutActor(undecorated(RolloutRayActor)):  # type: ignore[misc]
    """OpenRLHF's rollout actor with rollout log-probabilities always on: they show whether the weights arrive."""

    async def __init__(self, *args, **kwargs) -> None:
        if not torch.cuda.is_available():
            kwargs["worker_extension_cls"] = "oger_recipe.plugin.engine_worker.CpuWorkerWrap"
            # Seeded requests whose prompts are split over batches end the CPU engine: its generators cannot rewind.
            kwargs.update(enable_chunked_prefill=False, max_num_batched_tokens=max(kwargs["max_model_len"], 4096))
        # Of the distribution that was sampled from (temperature, top-p), as the policy computes its own.
        kwargs.update(logprobs_mode="processed_logprobs", max_logprobs=1, trust_remote_code=False)
        await super().__init__(*args, **kwargs)

    async def generate_responses(self, prompt, label, sampling_params, *args, num_samples=1, **kwargs):
        """``num_samples`` responses. A seed in ``sampling_params`` is the run's: each sample gets one of its own."""
        sampling_params.logprobs = 1
        if sampling_params.seed is None:
            return await super().generate_responses(
                prompt, label, sampling_params, *args, num_samples=num_samples, **kwargs
            )
        one_by_one = []
        for number in range(num_samples):
            params = sampling_params.clone()
            params.seed = stable_seed(sampling_params.seed, label, number)
            one_by_one.append(super().generate_responses(prompt, label, params, *args, num_samples=1, **kwargs))
        return [response for (response,) in await asyncio.gather(*one_by_one)]
