"""What a user might write in a module of his own: functions and classes that are sources of reward, and others."""

from __future__ import annotations

from typing import Any

import torch

from oger_recipe.rewards.sources import Group, Scores

number = 3


def score(group: Group) -> list[float]:
    return [0.0]


def pair(group: Group, other: Group) -> list[float]:
    return [0.0]


class Length:
    """Says `times` the length of each response; remembers how it was used."""

    def __init__(self, *, times: float, unit: str = "words") -> None:
        self.times, self.unit, self.used = times, unit, []

    def open(self) -> None:
        self.used.append("open")

    def close(self) -> None:
        self.used.append("close")

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        self.used.append("score")
        lengths = torch.tensor([[float(len(text)) for text in each.responses] for each in groups])
        return Scores(self.times * lengths, {"length": lengths}, metrics={"asked": float(wanted.sum())})


class Failing:
    overlaps = True

    def __init__(self, **anything: Any) -> None:
        self.values = anything.get("values", [])

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Any:
        return Scores(torch.tensor(self.values)) if self.values else [1.0]


class Broken(Length):
    def __init__(self, why: str = "no such folder") -> None:
        raise ValueError(why)


class Unsigned(dict[str, Any]):
    """Its signature tells nothing of its keywords."""

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        return Scores(torch.zeros(wanted.shape))


class Mute:
    pass
