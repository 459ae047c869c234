"""Which rollouts of a group make room for teacher trajectories, and for which (OGER, arXiv 2604.18530)."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_WRONG_FIRST = "wrong_first_"
_PLAIN_MODES = (
    *(f"similarity_{reduce}_{direction}" for reduce in ("mean", "max", "min") for direction in ("des", "asc")),
    "random",
)
DRAWS = ("uniform", "source_weights", "shortest", "round_robin")
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


def own_or_all(own: Tensor) -> Tensor:
    """The rows [groups, n] (bool) by which a group is judged: the policy's own rollouts, all where it has none.

    own (bool [groups, n]) has the rows that no teacher began. Where teachers began all of them (prefix guidance of the
    whole group), what the policy made of these beginnings is all there is.
    """
    return own | ~own.any(dim=1, keepdim=True)


def solve_rates(scores: Tensor, own: Tensor) -> Tensor:
    """Share [groups] of right rows (score above 0) among those of own_or_all; scores and own are [groups, n]."""
    counted = own_or_all(own)
    return ((scores > 0) & counted).sum(dim=1) / counted.sum(dim=1)


def draw_teachers(
    sources: Sequence[str],
    lengths: Sequence[int],
    *,
    count: int,
    mode: str,
    generator: torch.Generator,
    weights: Mapping[str, float] | None = None,
    turn: int = 0,
) -> list[int]:
    """Indices of at most `count` distinct teachers of one prompt, in the order of the draw.

    `sources` names each teacher's source, `lengths` is in tokens. uniform: every teacher alike; source_weights: with
    probability proportional to the weight of its source (1 where `weights` has none; 0 excludes it); shortest: by
    length, equals in their order; round_robin: in the order of the sorted sources, from number `turn` on, cyclically.
    Raises ValueError for a mode outside DRAWS, a negative count, a weight that is negative or not finite, or unequal
    numbers of sources and lengths.
    """
    if mode not in DRAWS:
        raise ValueError(f"mode={mode!r} is unknown; valid values: {', '.join(DRAWS)}")
    if count < 0 or len(sources) != len(lengths):
        raise ValueError(f"count {count} of {len(sources)} sources and {len(lengths)} lengths")
    indices = range(len(sources))
    if mode == "shortest":
        return sorted(indices, key=lambda index: lengths[index])[:count]
    if mode == "round_robin":
        order = sorted(indices, key=lambda index: sources[index])
        return [order[(turn + number) % len(order)] for number in range(min(count, len(order)))]
    chances = [float((weights or {}).get(source, 1.0)) if mode == "source_weights" else 1.0 for source in sources]
    if not all(0 <= chance < math.inf for chance in chances):
        raise ValueError(f"weights must be finite and 0 or more, not {dict(weights or {})}")
    drawn = min(count, sum(chance > 0 for chance in chances))
    if not drawn:
        return []
    chosen: list[int] = torch.multinomial(
        torch.tensor(chances, dtype=torch.float64), drawn, generator=generator
    ).tolist()
    return chosen
