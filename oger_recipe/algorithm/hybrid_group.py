"""Which rollouts of a group make room for teacher trajectories, and for which (OGER, arXiv 2604.18530)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Ranking = Callable[[Tensor, Tensor, torch.Generator | None], Tensor]


@dataclass(frozen=True)
class ReplaceMode:
    """The order in which the rollouts of a group make room for teachers.

    rank: (similarity [n], reward [n], generator) to a permutation of 0..n-1 (int64), the first to go first;
    similarity: its reduction over the teachers (a name in exploration.REDUCTIONS) before it is ranked and before the
    bonus takes it; None: the mode does not look at it, and it need not be computed for the mode's sake.
    """

    rank: Ranking
    similarity: str | None


def _most_similar(similarity: Tensor, reward: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.argsort(similarity, descending=True, stable=True)


def _least_similar(similarity: Tensor, reward: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.argsort(similarity, stable=True)


def _any(similarity: Tensor, reward: Tensor, generator: torch.Generator | None) -> Tensor:
    device = similarity.device if generator is None else generator.device
    return torch.randperm(len(similarity), generator=generator, device=device).to(similarity.device)


def _wrong_first(rank: Ranking) -> Ranking:
    """Return a ranking by `rank` of the rollouts without a positive reward, and then of the others."""

    def wrong_first(similarity: Tensor, reward: Tensor, generator: torch.Generator | None) -> Tensor:
        order = rank(similarity, reward, generator)
        return order[torch.argsort((reward[order] > 0).int(), stable=True)]

    return wrong_first


_PLAIN_MODES = {
    "similarity_mean_des": ReplaceMode(_most_similar, "mean"),
    "similarity_mean_asc": ReplaceMode(_least_similar, "mean"),
    "similarity_max_des": ReplaceMode(_most_similar, "max"),
    "similarity_max_asc": ReplaceMode(_least_similar, "max"),
    "similarity_min_des": ReplaceMode(_most_similar, "min"),
    "similarity_min_asc": ReplaceMode(_least_similar, "min"),
    "random": ReplaceMode(_any, None),
}
REPLACE_MODES: dict[str, ReplaceMode] = _PLAIN_MODES | {
    f"wrong_first_{name}": ReplaceMode(_wrong_first(mode.rank), mode.similarity) for name, mode in _PLAIN_MODES.items()
}


def select_replaced(
    similarity: Tensor,
    reward: Tensor,
    *,
    max_replace_num: int,
    mode: str = "similarity_mean_des",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Choose the rollouts of one group that teachers replace: indices [k] (int64), first choice first.

    similarity and reward are [n]; k = min(max_replace_num, n). `similarity_*_des` takes the rollouts most similar to
    the teachers first, `_asc` the least similar; the reduction over teachers that the name has was applied when
    `similarity` was made. `random` draws without replacement from `generator`. `wrong_first_<mode>` exhausts the
    rollouts without a positive reward before it touches the others. Equal candidates keep their order. A nan
    similarity means that the prompt has no teachers: the result is empty.
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
    return REPLACE_MODES[mode].rank(similarity, reward, generator)[:max_replace_num]


@dataclass(frozen=True)
class AllCorrect:
    """The treatment of a group whose rollouts are all right.

    teachers_enter: it gets its teachers; bonus: its rollouts earn the bonus; spares_teachers: a teacher's negative
    advantage is 0 there.
    """

    teachers_enter: bool = True
    bonus: bool = True
    spares_teachers: bool = False


ALL_CORRECT_GROUPS: dict[str, AllCorrect] = {
    "keep": AllCorrect(),  # as the paper has it
    "clip": AllCorrect(spares_teachers=True),
    "online": AllCorrect(teachers_enter=False),
    "skip": AllCorrect(teachers_enter=False, bonus=False),
}


# is_teacher (bool [groups, n]) to the rows (bool [groups, n]) that stay out of the loss.
TAUGHT_GROUPS: dict[str, Callable[[Tensor], Tensor]] = {
    "hybrid": torch.zeros_like,
    "teachers": lambda is_teacher: ~is_teacher & is_teacher.any(dim=1, keepdim=True),
}


def own_or_all(own: Tensor) -> Tensor:
    """Mark the rows [groups, n] (bool) by which a group is judged: the policy's own, all where it has none.

    own (bool [groups, n]) marks the rows that no teacher began. Where teachers began all of them (prefix guidance of
    the whole group), the policy's continuations are all there is.
    """
    return own | ~own.any(dim=1, keepdim=True)


def solve_rates(scores: Tensor, own: Tensor) -> Tensor:
    """Return the share [groups] of right rows (score above 0) among own_or_all.

    scores and own (bool) are [groups, n].
    """
    counted = own_or_all(own)
    return ((scores > 0) & counted).sum(dim=1) / counted.sum(dim=1)


@dataclass(frozen=True)
class Teachers:
    """The teachers of one prompt, by their index: sources, lengths in tokens, entropies in nats, how likely the policy
    finds their answers (None: not known); weights of sources; turn: the step."""

    sources: Sequence[str]
    lengths: Sequence[int]
    entropies: Sequence[float | None]
    likelihoods: Sequence[float | None]
    weights: Mapping[str, float] = field(default_factory=dict)
    turn: int = 0


Draw = Callable[[Teachers, int, torch.Generator], list[int]]


def _uniform(teachers: Teachers, count: int, generator: torch.Generator) -> list[int]:
    return _drawn([1.0] * len(teachers.sources), count, generator)


def _by_source_weights(teachers: Teachers, count: int, generator: torch.Generator) -> list[int]:
    return _drawn([float(teachers.weights.get(source, 1.0)) for source in teachers.sources], count, generator)


def _shortest(teachers: Teachers, count: int, generator: torch.Generator) -> list[int]:
    return sorted(range(len(teachers.lengths)), key=lambda index: teachers.lengths[index])[:count]


def _lowest_entropy(teachers: Teachers, count: int, generator: torch.Generator) -> list[int]:
    entropies = [math.inf if entropy is None else entropy for entropy in teachers.entropies]
    return sorted(range(len(entropies)), key=lambda index: entropies[index])[:count]


def _likeliest_answer(teachers: Teachers, count: int, generator: torch.Generator) -> list[int]:
    likelihoods = [-1.0 if likelihood is None else likelihood for likelihood in teachers.likelihoods]
    return sorted(range(len(likelihoods)), key=lambda index: -likelihoods[index])[:count]


def _round_robin(teachers: Teachers, count: int, generator: torch.Generator) -> list[int]:
    order = sorted(range(len(teachers.sources)), key=lambda index: teachers.sources[index])
    return [order[(teachers.turn + number) % len(order)] for number in range(min(count, len(order)))]


def _drawn(chances: list[float], count: int, generator: torch.Generator) -> list[int]:
    """Draw at most `count` indices with these chances, without replacement."""
    if not all(0 <= chance < math.inf for chance in chances):
        raise ValueError(f"weights must be finite and 0 or more, not {chances}")
    possible = min(count, sum(chance > 0 for chance in chances))
    if not possible:
        return []
    weights = torch.tensor(chances, dtype=torch.float64)
    chosen: list[int] = torch.multinomial(weights, possible, generator=generator).tolist()
    return chosen


# Each gives at most `count` distinct indices, in the order of the draw.
DRAWS: dict[str, Draw] = {
    "uniform": _uniform,
    "source_weights": _by_source_weights,
    "shortest": _shortest,
    "round_robin": _round_robin,
    "lowest_entropy": _lowest_entropy,
    "likeliest_answer": _likeliest_answer,
}


def draw_teachers(
    sources: Sequence[str],
    lengths: Sequence[int],
    *,
    count: int,
    mode: str,
    generator: torch.Generator,
    entropies: Sequence[float | None] | None = None,
    likelihoods: Sequence[float | None] | None = None,
    weights: Mapping[str, float] | None = None,
    turn: int = 0,
) -> list[int]:
    """Draw at most `count` distinct teachers of one prompt: their indices, in the order of the draw.

    `sources` names each teacher's source, `lengths` is in tokens. uniform: every teacher alike; source_weights: with
    probability proportional to the weight of its source (1 where `weights` has none; 0 excludes it); shortest: by
    length, equals in their order; round_robin: in the order of the sorted sources, from number `turn` on, cyclically;
    lowest_entropy: by `entropies`, those without one last, equals in their order; likeliest_answer: by `likelihoods`,
    the largest first, those without one last, equals in their order (AMPO, arXiv 2510.02227).
    Raises ValueError for a mode outside DRAWS, a negative count, a weight that is negative or not finite, or unequal
    numbers of sources, lengths, entropies and likelihoods.
    """
    if mode not in DRAWS:
        raise ValueError(f"mode={mode!r} is unknown; valid values: {', '.join(DRAWS)}")
    entropies = [None] * len(sources) if entropies is None else entropies
    likelihoods = [None] * len(sources) if likelihoods is None else likelihoods
    if count < 0 or not len(sources) == len(lengths) == len(entropies) == len(likelihoods):
        numbers = f"{len(sources)} sources, {len(lengths)} lengths, {len(entropies)} entropies"
        raise ValueError(f"count {count} of {numbers} and {len(likelihoods)} likelihoods")
    teachers = Teachers(sources, lengths, entropies, likelihoods, weights or {}, turn)
    return DRAWS[mode](teachers, count, generator)
