"""An experience has more fields of tokens: steps of reasoning, weights, and teachers' own log-probabilities.

Upstream: openrlhf.trainer.ppo_utils.experience.Experience.
Why: it has a fixed set of fields, and what is no field does not survive batching, splitting and the replay buffer.
Checked: openrlhf 0.11.2. Needed until an experience may have fields of one's own. Also where CUDA is available.
"""

import functools
from dataclasses import dataclass

import torch

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "97bf8975b9f48f1383e0eddeab6927af520e7b570536584ca22ea0f7540c7537"


@functools.cache
def apply() -> None:
    """Add fields [B, A], each None where a run has no use for it. OpenRLHF pads them with 0.

    step_index (int): 1 for the tokens of a response's first step, 0 where there is no token. engine_weights: what the
    loss of a token is multiplied by (algorithm/engine_ratio.py), 1 for a teacher's. teacher_log_probs: a teacher's own
    log-probability of its token; nan for a rollout's, and where the data has none.
    """
    from openrlhf.trainer.ppo_utils.experience import Experience, tensor_field

    require_source(Experience, SOURCE_SHA256, package="openrlhf", checked="0.11.2", patch=__name__)

    @dataclass
    class WithFields(Experience):  # type: ignore[misc]
        step_index: torch.Tensor | None = tensor_field("step", default=None)
        engine_weights: torch.Tensor | None = tensor_field("step", default=None)
        teacher_log_probs: torch.Tensor | None = tensor_field("step", default=None)

    Experience.__init__ = WithFields.__init__
    Experience.__dataclass_fields__ = WithFields.__dataclass_fields__
