"""OpenRLHF's extension of vLLM's worker, for the CPU. Lives in vLLM's own processes, which Ray does not start."""

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

from oger_recipe.patches import apply_engine_patches

apply_engine_patches()


class CpuWorkerWrap(WorkerWrap):
    """Receives weights over gloo and loads them into the unpacked linear layers."""

    def update_weight(self, name, dtype, shape, empty_cache=False) -> None:
        assert dtype == self.model_config.dtype, f"mismatch dtype: src {dtype}, dst {self.model_config.dtype}"
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])
