"""OpenRLHF's extension of vLLM's worker. Lives in vLLM's own processes, which Ray does not start."""

import threading
from typing import Any

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from tqdm import tqdm

from oger_recipe.patches import apply_engine_patches

apply_engine_patches()
# tqdm's own lock is for several processes: its semaphore stays in shared memory when the engine is killed, as at the
# end of every run.
tqdm.set_lock(threading.RLock())


class OgerWorkerWrap(WorkerWrap):
    """Says what its engine is, beside what OpenRLHF asks of a worker."""

    def engine_facts(self) -> dict[str, Any]:
        """Say what vLLM chose for this machine, which settings and versions alone do not tell."""
        groups = [group for groups in self.model_runner.attn_groups for group in groups]
        return {
            "model_runner": "V2" if self.use_v2_model_runner else "V1",
            "attention_backends": sorted({group.backend.get_name() for group in groups}),
            "enforce_eager": self.model_config.enforce_eager,
            "cuda_graphs": self.vllm_config.compilation_config.cudagraph_mode.name,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
        }


class CpuWorkerWrap(OgerWorkerWrap):
    """Receives weights over gloo and loads them into the unpacked linear layers."""

    def update_weight(self, name, dtype, shape, empty_cache=False) -> None:
        assert dtype == self.model_config.dtype, f"mismatch dtype: src {dtype}, dst {self.model_config.dtype}"
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])
