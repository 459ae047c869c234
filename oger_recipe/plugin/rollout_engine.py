"""The rollout actor: vLLM's log-probabilities come back with every rollout, and the engine also runs on a CPU."""

import torch
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

from oger_recipe.plugin.ray_actor import undecorated


class OgerRolloutActor(undecorated(RolloutRayActor)):  # type: ignore[misc]
    """OpenRLHF's rollout actor with rollout log-probabilities always on: they show whether the weights arrive."""

    async def __init__(self, *args, **kwargs) -> None:
        if not torch.cuda.is_available():
            kwargs["worker_extension_cls"] = "oger_recipe.plugin.engine_worker.CpuWorkerWrap"
        # Of the distribution that was sampled from (temperature, top-p), as the policy computes its own.
        kwargs.update(logprobs_mode="processed_logprobs", max_logprobs=1, trust_remote_code=False)
        await super().__init__(*args, **kwargs)

    async def generate_responses(self, prompt, label, sampling_params, *args, **kwargs):
        sampling_params.logprobs = 1
        return await super().generate_responses(prompt, label, sampling_params, *args, **kwargs)
