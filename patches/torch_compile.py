"""torch.compile hands back what it is given.

Upstream: torch.compile, with which OpenRLHF (compute_entropy), DeepSpeed (Muon) and vLLM (deep_gemm) decorate.
Why: decorating imports the whole of torch's compiler, a second of CPU in every process. Nothing is compiled here:
that needs a C++ compiler; TORCH_COMPILE_DISABLE=1 switches the compiler off, but only when it has been loaded.
Checked: torch 2.13.0. Needed for as long as the compiler is imported where it is switched off.
"""

import torch


def apply() -> None:
    """Replace torch.compile in this process."""
    torch.compile = _as_it_is


def _as_it_is(model=None, **_settings):
    return _as_it_is if model is None else model
