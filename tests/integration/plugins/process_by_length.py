"""Rewards for steps of reasoning by how long they are: short ones are good."""

import math

import torch

from oger_recipe.rewards.sources import Group, Scores


class ByLength:
    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        rows = [[[1 / len(step) for step in steps] for steps in group.steps] for group in groups]
        longest = max(len(row) for group in rows for row in group)
        steps = [[row + [math.nan] * (longest - len(row)) for row in group] for group in rows]
        return Scores(torch.tensor([[min(row) for row in group] for group in rows]), steps=torch.tensor(steps))
