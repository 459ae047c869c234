"""Which rollouts of a group make room for teacher trajectories (OGER, arXiv 2604.18530)."""

import torch
from torch import Tensor

_WRONG_FIRST = "wrong_first_"
_PLAIN_MODES = (
    *(f"similarity_{reduce}_{direction}" for reduce in ("mean", "max", "min") for direction in ("des", "asc")),
    "random",
)
REPLACE_MODES = (*_PLAIN_MODES, *(_WRONG_FIRST + mode for mode in _PLAIN_MODES))


def select_replaced(
    similarity: Tensor,
    reward: Tensor,
    *,
    max_replace_num: int,
    mode: str = "similarity_mean_des",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Indices [k] (int64) of the rollouts of one group that teachers replace, first choice first.

    similarity and reward are [n]; k = min(max_replace_num, n). `similarity_*_des` takes the rollouts most similar to
    the teachers first, `_asc` the least similar; which reduction over teachers the name speaks of was applied when
    `similarity` was made. `random` draws without replacement from `generator`. `wrong_first_<mode>` exhausts the
    rollouts without a positive reward before it touches the others. Equal candidates keep their order.
    A nan similarity means that the prompt has no teachers: the result is empty.
    Raises ValueError for a mode outside REPLACE_MODES, a negative count or wrong shapes.
    """
    if mode not in REPLACE_MODES:
        raise ValueError(f"mode={mode!r} is unknown; valid values: {', '.join(REPLACE_MODES)}")
    if max_replace_num < 0:
        raise ValueError(f"max_replace_num must be 0 or more, not {max_replace_num}")
    if similarity.ndim != 1 or similarity.shape != reward.shape:
        shapes = f"{list(similarity.shape)} and {list(reward.shape)}"
        raise ValueError(f"similarity and reward must both be [n], not {shapes}")
    if similarity.isnan().any():
        return torch.empty(0, dtype=torch.long, device=similarity.device)
    order = _ranking(similarity, mode.removeprefix(_WRONG_FIRST), generator)
    if mode.startswith(_WRONG_FIRST):
        is_right = (reward[order] > 0).int()
        order = order[torch.argsort(is_right, stable=True)]
    return order[:max_replace_num]


def _ranking(similarity: Tensor, plain_mode: str, generator: torch.Generator | None) -> Tensor:
    if plain_mode == "random":
        device = generator.device if generator is not None else None
        return torch.randperm(len(similarity), generator=generator, device=device).to(similarity.device)
    return torch.argsort(similarity, descending=plain_mode.endswith("_des"), stable=True)
