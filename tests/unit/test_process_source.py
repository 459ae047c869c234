"""What a source of kind process makes of the scores of steps, and what its entry may say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from groups import group

from oger_recipe.models.asking import Judged
from oger_recipe.models.keys import ProcessKeys
from oger_recipe.rewards.compose import rewards_of
from oger_recipe.rewards.kinds.entries import entry_problems
from oger_recipe.rewards.kinds.process import ProcessSource
from oger_recipe.rewards.place import Reply
from oger_recipe.rewards.sources import ANSWER, Scores
from oger_recipe.rewards.spec import SourceSpec


class Scorer:
    """Says of steps what is written in them: "0.5" has the score 0.5; "dies" makes an error of its response."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []

    def ask(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[Judged]:
        self.asked += [(prompt, list(each)) for prompt, each in zip(prompts, steps, strict=True)]
        return [
            Judged(error="it died") if "dies" in each else Judged(reply=Reply(), steps=tuple(map(float, each)))
            for each in steps
        ]


def scored(rows: list[list[list[str]]], wanted: Any = None, scorer: Any = None, **keys: Any) -> Scores:
    source = ProcessSource(ProcessKeys(model="m", format="trl", **keys), scorer or Scorer())
    every = torch.ones(len(rows), len(rows[0]), dtype=torch.bool)
    groups = [group([1.0] * len(steps), steps=steps) for steps in rows]
    return source.score(groups, every if wanted is None else torch.tensor(wanted))


def numbers(tensor: torch.Tensor | None) -> Any:
    """With None for nan."""
    assert tensor is not None
    flat = [None if math.isnan(each) else round(each, 6) for each in tensor.flatten().tolist()]
    for size in reversed(tensor.shape[1:]):
        flat = [flat[start : start + size] for start in range(0, len(flat), size)]
    return flat


ROWS = [[["0.9", "0.2", "0.5"], ["0.8"]], [["0.6", "0.7"], ["0.1", "0.1", "1.0", "0.3"]]]


def test_a_steps_reward_is_its_score_and_stands_in_its_own_place() -> None:
    scores = scored(ROWS)
    assert numbers(scores.steps) == [
        [[0.9, 0.2, 0.5, None], [0.8, None, None, None]],
        [[0.6, 0.7, None, None], [0.1, 0.1, 1.0, 0.3]],
    ]
    assert numbers(scores.values) == [[0.2, 0.8], [0.6, 0.1]]
    assert not scores.errors


@pytest.mark.parametrize(
    ("how", "values"),
    [
        ("min", [[0.2, 0.8], [0.6, 0.1]]),
        ("product", [[0.09, 0.8], [0.42, 0.003]]),
        ("last", [[0.5, 0.8], [0.7, 0.3]]),
        ("mean", [[1.6 / 3, 0.8], [0.65, 0.375]]),
        ("sum", [[1.6, 0.8], [1.3, 1.5]]),
    ],
)
def test_a_rows_value_is_what_the_entry_makes_of_its_scores(how: str, values: list[list[float]]) -> None:
    scores = scored(ROWS, aggregate=how)
    assert scores.values.tolist() == [pytest.approx(row, abs=1e-6) for row in values]
    assert numbers(scores.steps)[0][0] == [0.9, 0.2, 0.5, None]  # whatever the row's value is made of


def test_a_difference_is_good_less_bad() -> None:
    scores = scored(ROWS, scale="difference")
    assert numbers(scores.steps)[0] == [[0.8, -0.6, 0.0, None], [0.6, None, None, None]]
    assert numbers(scores.values) == [[-0.6, 0.6], [0.2, -0.8]]
    assert numbers(scored(ROWS, scale="difference", aggregate="sum").values) == [[0.2, 0.6], [0.6, -1.0]]


def test_credit_min_pays_the_lowest_step_and_leaves_the_rows_value_alone() -> None:
    scores = scored([[["0.9", "0.2", "0.5"], ["0.8"]]], credit="min", temperature=0.5)
    parts = [math.exp(-each / 0.5) for each in (0.9, 0.2, 0.5)]
    by_hand = [each * part / sum(parts) for each, part in zip((0.9, 0.2, 0.5), parts, strict=True)]
    assert scores.steps is not None
    assert scores.steps[0, 0].tolist() == pytest.approx(by_hand)
    assert numbers(scores.steps)[0][1] == [0.8, None, None]
    assert numbers(scores.values) == [[0.2, 0.8]]
    cold = scored(ROWS, credit="min", scale="difference", temperature=0.001)
    assert numbers(cold.steps)[0] == [[0.0, -0.6, 0.0, None], [0.6, None, None, None]]


def test_rows_are_asked_about_once_together_and_only_where_their_gate_is_open() -> None:
    scorer = Scorer()
    scores = scored(ROWS, wanted=[[False, True], [True, False]], scorer=scorer)
    assert scorer.asked == [("?", ["0.8"]), ("?", ["0.6", "0.7"])]
    assert numbers(scores.steps) == [[[None, None], [0.8, None]], [[0.6, 0.7], [None, None]]]
    assert numbers(scores.values) == [[None, 0.8], [0.6, None]] and not scores.errors


def test_only_a_server_is_waited_for_beside_other_sources() -> None:
    served = ProcessKeys(model="m", format="trl", url="http://127.0.0.1:8000/v1")
    assert [ProcessSource(keys, Scorer()).overlaps for keys in (served, replace(served, url=None))] == [True, False]


class Miscounts(Scorer):
    """One score too few of responses with two steps, one too many of those with three."""

    def ask(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[Judged]:
        changed = {1: (0.5,), 2: (0.5,), 3: (0.5,) * 4}
        return [Judged(reply=Reply(), steps=changed[len(each)]) for each in steps]


def test_a_row_fails_alone_whose_scores_are_not_one_for_each_step() -> None:
    scores = scored([[["0", "0", "0"], ["0"]], [["0", "0"], []]], scorer=Miscounts())
    assert scores.errors == {
        (0, 0): "4 scores came for 3 steps of reasoning",
        (1, 0): "1 scores came for 2 steps of reasoning",
        (1, 1): "the row has no steps of reasoning",
    }
    # What stands beside an error is the worst that the source could have said.
    assert scores.causes == dict.fromkeys(scores.errors, ANSWER)
    assert numbers(scores.values) == [[0, 0.5], [0, None]]
    assert numbers(scores.steps) == [[[0, 0, 0], [0.5, None, None]], [[0, 0, None], [None, None, None]]]


def test_a_reply_that_failed_costs_its_own_row_and_has_its_reason() -> None:
    scores = scored([[["0.9"], ["dies"]], [["0.1", "0.2"], ["0.3"]]])
    assert scores.errors == {(0, 1): "it died"}
    assert numbers(scores.steps) == [[[0.9, None], [None, None]], [[0.1, 0.2], [0.3, None]]]
    assert scores.metrics["steps"] == pytest.approx(4 / 3)
    nothing = scored([[["dies"], ["dies", "dies"]]])
    assert nothing.steps is None and len(nothing.errors) == 2 and "step_mean" not in nothing.metrics


def test_groups_whose_steps_are_not_known_fail_and_the_run_says_what_that_costs() -> None:
    source = ProcessSource(ProcessKeys(model="m", format="trl"), Scorer())
    spec = SourceSpec("prm", "process", keys=source.keys)
    rewards = rewards_of([group([1.0, 0.0])], [source], [spec], on_error="drop_group")
    assert rewards.errors == {"prm": dict.fromkeys((0, 1), "the row's steps of reasoning are not known")}
    assert rewards.dropped.tolist() == [True]


def test_metrics_say_how_many_steps_there_are_and_where_the_lowest_is() -> None:
    metrics = scored([[["0.9", "0.2", "0.5"], ["0.8"], ["0.6", "0.7"], ["1", "1", "1", "0.25"]]]).metrics
    assert metrics["steps"] == 2.5
    assert metrics["step_mean"] == pytest.approx((1.6 + 0.8 + 1.3 + 3.25) / 10)
    assert metrics["step_min"] == pytest.approx((0.2 + 0.8 + 0.6 + 0.25) / 4)
    assert metrics["last_is_lowest"] == 0.5
    assert metrics["cached"] == 0


# ---- the entry

ENTRY = {"name": "prm", "kind": "process", "model": "me/prm", "format": "math_shepherd"}


def problems(**changed: Any) -> list[str]:
    entry = {name: value for name, value in (ENTRY | changed).items() if value is not None}
    return [each.removeprefix("oger.reward.sources, entry 1: ") for each in entry_problems([entry])]


@pytest.mark.parametrize(
    "right",
    [
        {"format": "qwen_prm", "tensor_parallel_size": 2},
        {"format": "trl", "tag": "<step>", "good_label": 2, "adapter": "me/lora"},
        {"good": 648, "bad": 387, "tag": 12902},
        {"good": "yes", "bad": "no", "scale": "difference", "credit": "min", "temperature": 0.2, "aggregate": "sum"},
        {"format": "qwen_prm", "scorer": "step_tag", "good": "+", "bad": "-"},
        {"format": "math_shepherd", "scorer": "token_head", "good_label": 0},
        {"url": "http://127.0.0.1:8000/v1", "tokenizer": "me/prm"},
    ],
)
def test_entries_that_are_right(right: dict[str, Any]) -> None:
    assert problems(**right) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": None}, "model is missing: folder, hub name, or name at the server"),
        ({"format": "shepherd"}, "format 'shepherd' is unknown; did you mean 'math_shepherd'?"),
        ({"format": None}, "format is missing: one of math_shepherd, openr_qwen, qwen_prm, trl"),
        ({"scorer": "tag"}, "scorer 'tag' is unknown; known: step_tag, token_head, "),
        ({"scorer": "token_head"}, "good_label is missing: scorer token_head needs it"),
        ({"format": "trl", "scorer": "step_tag"}, "good and bad are missing: scorer step_tag needs them"),
        ({"format": "trl", "good": "+"}, "good is for the other scorer, and this is a token_head"),
        ({"good_label": 1}, "good_label is for the other scorer, and this is a step_tag"),
        ({"good": "-"}, "good and bad are both '-'"),
        ({"good": True}, "good True: it must be a text or a whole number, 0 or more"),
        ({"good": -1}, "good -1: it must be a text or a whole number, 0 or more"),
        ({"tag": ""}, "tag '': it must be a text or a whole number, 0 or more"),
        ({"tag": " "}, "tag ' ' has only spaces, which every text has"),
        ({"format": "trl", "good_label": -1}, "good_label -1: it must be a whole number, 0 or more"),
        ({"scale": "logit"}, "scale 'logit' is unknown; known: probability, difference"),
        ({"credit": "max"}, "credit 'max' is unknown"),
        ({"temperature": 0.5}, "temperature is for credits min and min_ahead"),
        ({"credit": "min", "temperature": 0}, "temperature 0: it must be above 0"),
        ({"aggregate": "median"}, "known: min, product, last, mean, sum"),
        ({"aggregate": "product", "scale": "difference"}, "two bad steps would make a good row"),
        ({"head": "pooling"}, "head is for kinds with one number"),
        ({"url": "http://127.0.0.1:8000/v1", "api": "chat"}, "api is for judges"),
        ({"url": "http://127.0.0.1:8000/v1", "adapter": "me/lora"}, "the server decides the adapter"),
        ({"tensor_parallel_size": 2}, "a PRM of scorer step_tag has one GPU; leave it out"),
        ({"place": "server"}, "place server needs a url"),
        ({"plugin": "binary"}, "key 'plugin' is unknown"),
    ],
)
def test_an_entry_that_no_run_could_do_is_told_so(wrong: dict[str, Any], said: str) -> None:
    assert any(said in each for each in problems(**wrong)), problems(**wrong)
