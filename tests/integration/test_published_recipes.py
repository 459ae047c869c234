"""Two recorded steps of twins of recipes without teachers: what their rows are trained with."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

import pytest
import torch
from replay import CASES, replayed

from oger_recipe.base.files import read_jsonl

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is replayed was recorded without CUDA")

Rows = list[dict[str, Any]]


def _over_mean(rows: Rows) -> list[float]:
    mean = fmean(row["reward"] for row in rows)
    return [(row["reward"] - mean) / mean for row in rows]


def _by_draws_of_four(rows: Rows) -> list[float]:
    draws = list(combinations(range(len(rows)), 4))
    earned = [max(rows[row]["score"] for row in draw) for draw in draws]
    mean, std = fmean(earned), pstdev(earned) or 1.0
    paid = [(each - mean) / std for each in earned]
    return [fmean(each for each, draw in zip(paid, draws, strict=True) if row in draw) for row in range(len(rows))]


def _charged_for_length(rows: Rows) -> list[float]:
    """The last 16 of 44 tokens cost up to 0.5."""
    rewards = [row["reward"] - 0.5 * min(max(row["response_length"] - 28, 0) / 16, 1) for row in rows]
    return [(reward - fmean(rewards)) / (stdev(rewards) + 1e-6) for reward in rewards]


# Of the recorded problems each has one class of solutions, but several answers that write it.
_BY_ANSWER = [
    {"name": "rule", "kind": "verifier"},
    {"name": "rare", "kind": "uniqueness", "weight": 0.25, "by": "answer"},
]
_RARE = [f"--oger.reward.sources={json.dumps(_BY_ANSWER)}", "--algo.kl.init_coef=0"]  # no reference was recorded


def _paid_for_being_rare(rows: Rows) -> list[float]:
    right = [row["extracted"] for row in rows if row["score"]]
    paid = [row["score"] and 0.25 * (1 - right.count(row["extracted"]) / len(right)) for row in rows]
    rewards = [row["reward"] + more for row, more in zip(rows, paid, strict=True)]
    return [reward - fmean(rewards) for reward in rewards]


@pytest.mark.parametrize(
    ("recipe", "formula", "more"),
    [
        ("maxrl_cpu", _over_mean, []),
        ("passk_cpu", _by_draws_of_four, []),
        ("dapo_cpu", _charged_for_length, []),
        ("uniqueness_cpu", _paid_for_being_rare, _RARE),
    ],
)
def test_two_steps_of_a_twin_train_on_the_papers_advantages(
    recipe: str,
    formula: Callable[[Rows], list[float]],
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = ["--oger.prompts_per_update=3", "--oger.total_training_steps=2", "--rollout.n_samples_per_prompt=8", *more]
    monkeypatch.setitem(CASES, recipe, (recipe, "group", sizes))
    replayed(recipe, tmp_path)
    shares, paid = [], set()
    for step in (1, 2):
        groups: dict[str, Rows] = {}
        for row in read_jsonl(tmp_path / "run" / "samples" / f"step_{step:05d}.jsonl"):
            groups.setdefault(row["uid"], []).append(row)
        assert len(groups) == 6
        for rows in groups.values():
            assert [row["advantage"] for row in rows] == pytest.approx(formula(rows), abs=2e-5)
            shares.append(fmean(row["score"] for row in rows))
            paid |= {row["sources"].get("rare", 0.0) for row in rows}
    # Of the recorded prompts some are solved by all rollouts and some by none: DAPO trains on none of these.
    assert ({0.0, 1.0} & {*shares} == set()) is (recipe == "dapo_cpu")
    assert (len(paid) > 2) is (recipe == "uniqueness_cpu")
