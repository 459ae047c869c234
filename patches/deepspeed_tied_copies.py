"""A saved model has an output head that is tied to its embedding once, not twice.

Upstream: deepspeed.checkpoint.utils.clone_tensors_for_torch_save, by which OpenRLHF copies the weights that it saves.
Why: it copies a head and the embedding that it is tied to apart, so the saved model has both: SmolLM2-135M has 57 of
its 326 MB twice, and the hub counts 163 M parameters. Of one tensor, transformers writes one.
Checked: deepspeed 0.19.6. Needed until the copies of one tensor are one.
"""

import functools
from typing import Any

import torch

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "5632976bfc09f49dd4e2a721876163792f2c4642e0bb166323d69f673d841bdf"


@functools.cache
def apply() -> None:
    """Make DeepSpeed's copies of weights in this process keep tied tensors tied."""
    from deepspeed.checkpoint import utils

    upstream = utils.clone_tensors_for_torch_save
    require_source(upstream, SOURCE_SHA256, package="deepspeed", checked="0.19.6", patch=__name__)

    def clone(item: Any, device: Any = "cpu") -> Any:
        if not isinstance(item, dict):
            return upstream(item, device)
        copies: dict[Any, Any] = {}
        found = type(item)()
        for name, value in item.items():
            place = name
            if torch.is_tensor(value) and value.numel() > 0:
                place = (value.data_ptr(), value.dtype, value.shape, value.stride())
            if place not in copies:
                copies[place] = upstream(value, device)
            found[name] = copies[place]
        return found

    utils.clone_tensors_for_torch_save = clone
