"""Process reward models as a source of reward: tiny real models, in this process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from oger_recipe.rewards.compose import Surroundings, entry_problems, make_source, sources_of
from oger_recipe.rewards.sources import Group, Scores
from oger_recipe.rewards.verdict import Graded, Verdict
from oger_recipe.tasks.known_judges import good_until, save_prm

QUESTION = "What is 2 + 2 + 2?"


def group(steps: Sequence[Sequence[str]], **others: Any) -> Group:
    size = len(steps)
    known: dict[str, Any] = {"row": {}, "steps": [list(each) for each in steps]} | others
    return Group(
        uid="p",
        prompt=f"<user>{QUESTION}",
        question=QUESTION,
        task="math",
        answer="6",
        teachers=[],
        responses=["".join(each) for each in steps],
        graded=[Graded(Verdict(1.0, 1.0, ""))] * size,
        is_teacher=[False] * size,
        truncated=[False] * size,
        may_earn=[True] * size,
        similarity=[0.0] * size,
        entropy=[0.0] * size,
        **known,
    )


def asked(entry: dict[str, Any], groups: list[Group], wanted: torch.Tensor | None = None) -> Scores:
    entry = {"name": "prm", "kind": "process", "place": "process"} | entry
    assert not [*entry_problems([entry])]
    (spec,) = sources_of([entry])
    source = make_source(spec, Surroundings(None, None))  # type: ignore[arg-type]
    every = torch.ones(len(groups), len(groups[0].responses), dtype=torch.bool)
    return source.score(groups, every if wanted is None else wanted)


def steps_of(scores: Scores) -> list[list[list[float]]]:
    """The rewards of each row's steps."""
    assert scores.steps is not None
    return [[[each for each in row if not math.isnan(each)] for row in rows] for rows in scores.steps.tolist()]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """PRMs that call every step good up to the first with a tilde, by the format that they read."""
    folder = tmp_path_factory.mktemp("prms")
    return {
        "math_shepherd": save_prm(folder / "math_shepherd", tag="ки"),
        "qwen_prm": save_prm(folder / "qwen_prm", tag="<extra_0>", head=True),
        "trl": save_prm(folder / "trl", tag="\n", head=True),
        "openr_qwen": save_prm(folder / "openr_qwen", tag=" \n\n\n\n\n", good=" +", bad=" -"),
    }


STEPS = [
    ["First 2 + 2 = 4.\n\n", "Then 4 + 2 = 6.\n\n", "The answer is 6."],
    ["First 2 + 2 = 4.\n\n", "Then 4 + 2 ~ 7.\n\n", "The answer is 7."],
    ["~ 2 + 2 = 5."],
    ["One.\n\n", "Two.\n\n", "Three.\n\n", "Four.\n\n", "Five ~."],
]


@pytest.mark.parametrize("form", ["math_shepherd", "qwen_prm", "trl", "openr_qwen"])
def test_every_step_has_the_score_that_the_model_gives_it(known: dict[str, Path], form: str) -> None:
    scores = asked({"model": str(known[form]), "format": form}, [group(STEPS[:2]), group(STEPS[2:])])
    assert not scores.errors
    for row, steps in enumerate(STEPS):
        assert steps_of(scores)[row // 2][row % 2] == pytest.approx(good_until(steps), abs=1e-6)
    assert scores.values.flatten().tolist() == pytest.approx([1, 0, 0, 0], abs=1e-6)
    assert scores.steps is not None and scores.steps.shape == (2, 2, 5)
    assert scores.metrics["steps"] == 3 and scores.metrics["step_mean"] == pytest.approx(8 / 12)
    assert scores.metrics["step_min"] == pytest.approx(0.25) and scores.metrics["cached"] == 0
