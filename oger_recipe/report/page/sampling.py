"""Chooses what a page shows of more than it can hold: evenly over steps and over kinds, so that rare ones stay."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oger_recipe.base.seeds import stable_seed

_FOLLOWED = 8  # a part of so much goes to prompts that are shown whenever they come


@dataclass(frozen=True)
class Candidate:
    """A group, or a problem: its size, which kinds of row are in it, and where it lies."""

    step: int
    uid: str
    size: int
    kinds: frozenset[str]
    place: Any


def choose(candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """Choose candidates of at most so many bytes; all where they fit. The choice depends on nothing else.

    An eighth goes to prompts that came most often, each with all its groups. Then kinds take turns: the one that has
    got the fewest bytes chooses next, one step after the other, until nothing fits; so a rare kind is shown whole
    before a frequent one takes the rest.
    """
    if sum(each.size for each in candidates) <= most:
        return list(candidates)
    taken = _followed(candidates, most // _FOLLOWED)
    left = most - sum(candidates[place].size for place in taken)
    queues = {kind: iter(queue) for kind, queue in sorted(_queues(candidates).items())}
    got: Counter[str] = Counter()
    while queues:
        kind = min(queues, key=lambda each: (got[each], each))
        place = next((each for each in queues[kind] if each not in taken and candidates[each].size <= left), None)
        if place is None:
            del queues[kind]
            continue
        taken.add(place)
        left -= candidates[place].size
        got[kind] += candidates[place].size
    return [each for place, each in enumerate(candidates) if place in taken]


def _followed(candidates: Sequence[Candidate], most: int) -> set[int]:
    """Choose all groups of the prompts that came in most steps, as far as they fit."""
    of_prompt: dict[str, list[int]] = defaultdict(list)
    for place, each in enumerate(candidates):
        of_prompt[each.uid].append(place)
    again = [uid for uid, places in of_prompt.items() if len(places) > 1]
    taken: set[int] = set()
    for uid in sorted(again, key=lambda uid: (-len(of_prompt[uid]), stable_seed(uid))):
        size = sum(candidates[place].size for place in of_prompt[uid])
        if size <= most:
            taken.update(of_prompt[uid])
            most -= size
    return taken


def _queues(candidates: Sequence[Candidate]) -> dict[str, list[int]]:
    """List by kind the places of the candidates with a row of it: one of each step, then a second of each ..."""
    by_kind: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place in sorted(range(len(candidates)), key=lambda place: _lot(candidates[place])):
        for kind in candidates[place].kinds:
            by_kind[kind][candidates[place].step].append(place)
    spread = {step: number for number, step in enumerate(spread_out({each.step for each in candidates}))}
    return {
        kind: [
            place
            for *_, place in sorted(
                (rank, spread[step], place) for step, places in steps.items() for rank, place in enumerate(places)
            )
        ]
        for kind, steps in by_kind.items()
    }


def _lot(candidate: Candidate) -> int:
    return stable_seed(candidate.step, candidate.uid)


def spread_out(steps: Iterable[int]) -> list[int]:
    """Order steps so that any beginning of the list is spread evenly: by their places' bits, read backwards."""
    known = sorted(steps)
    bits = max(len(known) - 1, 1).bit_length()
    return [known[place] for place in sorted(range(len(known)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))]
