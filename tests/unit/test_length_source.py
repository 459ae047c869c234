"""Kind ``length``: tokens beyond a budget, values by hand."""

from __future__ import annotations

import pytest
import torch
from groups import group

from oger_recipe.rewards.compose import rewards_of
from oger_recipe.rewards.kinds.entries import sources_of
from oger_recipe.rewards.kinds.verifier import Verifier


def said(tokens: list[int], *, budget: int, limit: int, truncated: list[bool] | None = None) -> list[float]:
    (spec,) = sources_of([{"name": "short", "kind": "length", "budget": budget, "limit": limit}])
    row = group([1.0] * len(tokens), tokens=tokens, truncated=truncated or [False] * len(tokens))
    scores = spec.source(None).score([row], torch.ones(1, len(tokens), dtype=torch.bool))  # type: ignore[arg-type]
    assert not scores.errors
    return [round(value, 6) for value in scores.values[0].tolist()]


def test_tokens_beyond_the_budget_cost_on_a_line_up_to_the_limit() -> None:
    assert said([0, 10, 11, 25, 29, 30, 31, 900], budget=10, limit=30) == [0, 0, -0.05, -0.75, -0.95, -1, -1, -1]
    assert said([0, 1, 4, 5], budget=0, limit=4) == [0, -0.25, -1, -1]


@pytest.mark.parametrize("tokens", [0, 12, 16384, 16385, 18432, 20479, 20480, 20481])
def test_daposs_soft_overlong_punishment_is_a_budget_of_what_its_cache_leaves(tokens: int) -> None:
    """Its three cases as arXiv 2503.14476 writes them, with its numbers: L_max 20480, L_cache 4096."""
    most, cache = 20480, 4096
    expected = 0.0 if tokens <= most - cache else -1.0 if tokens > most else ((most - cache) - tokens) / cache
    assert said([tokens], budget=most - cache, limit=most) == [pytest.approx(expected, abs=1e-6)]


def test_a_truncated_response_pays_all_wherever_it_was_cut() -> None:
    assert said([5, 5, 20], budget=10, limit=30, truncated=[True, False, False]) == [-1, 0, -0.5]


def test_the_total_is_the_rules_reward_less_the_weighted_tokens_and_a_gate_leaves_them_out() -> None:
    entries = [
        {"name": "rule", "kind": "verifier"},
        {"name": "short", "kind": "length", "budget": 10, "limit": 30, "weight": 0.5, "gate": "rule_nonzero"},
    ]
    specs = sources_of(entries)
    sources = [Verifier(0.0, None), specs[1].source(None)]  # type: ignore[arg-type]
    row = group([1.0, 1.0, 0.0, 0.5], tokens=[10, 20, 30, 300])
    assert rewards_of([row], sources, specs, on_error="stop").total.tolist() == [[1.0, 0.75, 0.0, 0.0]]
