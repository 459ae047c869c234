"""What vLLM's engine process imports first, in place of the script of the Ray worker that starts it (CPU only)."""

import importlib

from oger_recipe.base.imports import without_garbage_collection
from oger_recipe.patches import vllm_lock

with without_garbage_collection():
    importlib.import_module("vllm.v1.engine.core")
    importlib.import_module("vllm.v1.worker.cpu_worker")
vllm_lock.apply()  # here, since the executor is made before its worker and the patches of that
