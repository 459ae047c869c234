"""torch.cuda's device calls, which OpenRLHF makes unconditionally, answer for the CPU.

Upstream: torch.cuda.current_device, set_device, synchronize, current_stream (builds of torch without CUDA).
Why: OpenRLHF calls them in every barrier, forward and weight sync; on a CPU build they raise AssertionError
("Torch not compiled with CUDA enabled") or AttributeError. ``Tensor.to(current_device())`` needs a device back.
Checked: torch 2.13.0+cpu. Needed for as long as these calls raise where there is no CUDA.
"""

import torch


def apply() -> None:
    """Make the four calls answer for the CPU in this process."""
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    for name in ("set_device", "synchronize", "current_stream"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
