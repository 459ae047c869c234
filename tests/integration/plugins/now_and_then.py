"""A source of reward that fails now and then, by what responses say."""

from __future__ import annotations

import torch

from oger_recipe.rewards.sources import OVERFLOW, Group, Scores


class NowAndThen:
    """Says how short a response is, and nothing of one whose number of characters can be divided by 4."""

    def score(self, groups: list[Group], wanted: torch.Tensor) -> Scores:
        lengths = torch.tensor([[len(text) for text in group.responses] for group in groups])
        places = [(group, row) for group, row in (wanted & (lengths % 4 == 0)).nonzero().tolist()]
        return Scores(
            -lengths.float() / 16, errors=dict.fromkeys(places, "no"), causes=dict.fromkeys(places, OVERFLOW)
        )
