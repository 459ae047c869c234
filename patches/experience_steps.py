"""An experience has a field more: the step of reasoning that each of its response tokens belongs to.

Upstream: openrlhf.trainer.ppo_utils.experience.Experience.
Why: it has a fixed set of fields, and what is no field does not survive batching, splitting and the replay buffer.
Checked: openrlhf 0.11.2. Needed until it carries rewards or boundaries of steps itself. Also where CUDA is available.
"""

import functools
from dataclasses import dataclass

import torch

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "97bf8975b9f48f1383e0eddeab6927af520e7b570536584ca22ea0f7540c7537"


@functools.cache
def apply() -> None:
    """Add ``step_index`` (int [B, A], or None): 1 for the tokens of a response's first step, 0 where there is none.

    From 1, because OpenRLHF pads with 0.
    """
    from openrlhf.trainer.ppo_utils.experience import Experience, tensor_field

    require_source(Experience, SOURCE_SHA256, package="openrlhf", checked="0.11.2", patch=__name__)

    @dataclass
    class WithSteps(Experience):  # type: ignore[misc]
        step_index: torch.Tensor | None = tensor_field("step", default=None)

    Experience.__init__ = WithSteps.__init__
    Experience.__dataclass_fields__ = WithSteps.__dataclass_fields__
