"""The replay buffer's device is the CPU.

Upstream: openrlhf.trainer.ppo_utils.replay_buffer.NaiveReplayBuffer.__init__.
Why: it builds ``torch.device(f"cuda:{current_device()}")``, a name that no CPU device can have.
Checked: openrlhf 0.11.2. Needed for as long as the string "cuda:" is in the constructor.
"""

import functools
from typing import Any

import torch

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "4b675d5bdab2b09fab4c31a7bf3779e7de318a1c3b538eacd1b6279e0fe44972"


@functools.cache
def apply() -> None:
    """Wrap the constructor so that ``target_device`` is the CPU in this process."""
    from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

    original = NaiveReplayBuffer.__init__
    require_source(original, SOURCE_SHA256, package="openrlhf", checked="0.11.2", patch=__name__)

    def init_on_cpu(self: NaiveReplayBuffer, *args: Any, **kwargs: Any) -> None:
        current_device = torch.cuda.current_device
        torch.cuda.current_device = lambda: 0  # only for the name "cuda:0", which parses on any build
        try:
            original(self, *args, **kwargs)
        finally:
            torch.cuda.current_device = current_device
        self.target_device = torch.device("cpu")

    NaiveReplayBuffer.__init__ = init_on_cpu
