"""A source of reward for Countdown's steps of reasoning that is never wrong: what a perfect PRM would say.

sources: [{name: prm, kind: "oger_recipe.lab.exact_steps:ExactSteps", credit: min}, ...]
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from oger_recipe.algorithm.steps import aggregate_steps
from oger_recipe.lab.countdown_steps import step_labels
from oger_recipe.rewards.kinds.process import credited, padded_scores, score_metrics
from oger_recipe.rewards.sources import Group, Scores


class ExactSteps:
    """scale, credit and temperature are those of kind process."""

    def __init__(self, scale: str = "probability", credit: str = "sum", temperature: float = 0.1) -> None:
        self._scale, self._credit, self._temperature = scale, credit, temperature

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        labels, mask = padded_scores([row for group in groups for row in _labels(group)])
        scores, rewards = credited(labels, mask, scale=self._scale, credit=self._credit, temperature=self._temperature)
        return Scores(
            aggregate_steps(scores, mask, "min").view(wanted.shape),
            metrics=score_metrics(scores, mask),
            steps=torch.where(mask, rewards, torch.nan).view(*wanted.shape, -1),
        )


def _labels(group: Group) -> list[list[int]]:
    problem = json.loads(group.answer)
    return [step_labels(steps, problem["numbers"], problem["target"]) for steps in group.steps]
