"""What a verifier may return, and what becomes of it."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from oger_recipe.grading.verdict import Graded, NoVerdict, Verdict, as_verdict, verdict_columns

RETURNED: list[tuple[Any, tuple[float, float, str, dict[str, float], str | None]]] = [
    (True, (1.0, 1.0, "", {}, None)),
    (0, (0.0, 0.0, "", {}, None)),
    (0.1, (0.1, 0.0, "", {}, None)),
    (1.5, (1.5, 1.0, "", {}, None)),
    (-1, (-1.0, 0.0, "", {}, None)),
    (np.int64(1), (1.0, 1.0, "", {}, None)),
    (np.float32(0.5), (0.5, 0.0, "", {}, None)),
    (torch.tensor(0.25), (0.25, 0.0, "", {}, None)),
    (torch.tensor([1]), (1.0, 1.0, "", {}, None)),
    ({"reward": 0.1}, (0.1, 0.0, "", {}, None)),
    ({"reward": 0.1, "score": True}, (0.1, 1.0, "", {}, None)),
    ({"reward": 2, "score": 0, "reason": "so", "extracted": "x"}, (2.0, 0.0, "so", {}, "x")),
    ({"reward": 1, "score": None, "reason": None, "extracted": None, "components": None}, (1.0, 1.0, "", {}, None)),
    ({"score": 1.0, "acc": True, "pred": "7"}, (1.0, 1.0, "", {"acc": 1.0}, "7")),  # as verl's
    ({"score": -1.0, "acc": False, "pred": 7}, (-1.0, 0.0, "", {"acc": 0.0}, "7")),
    ({"reward": 1, "extracted": False}, (1.0, 1.0, "", {}, "False")),
    (
        {"reward": 1, "components": {"format": 1}, "length": torch.tensor(3), "feedback": "none"},
        (1.0, 1.0, "", {"length": 3.0, "format": 1.0}, None),
    ),
    ((0.5, {"format": 1, "note": "x"}), (0.5, 0.0, "", {"format": 1.0}, None)),
    ((0.5, {"score": 1, "pred": "7"}), (0.5, 1.0, "", {}, "7")),
    (Verdict(0.1, 0, "why", {"format": True}, "e"), (0.1, 0.0, "why", {"format": 1.0}, "e")),
    (Verdict(1.2, 1.0, "", {}), (1.2, 1.0, "", {}, None)),
]


@pytest.mark.parametrize(("returned", "expected"), RETURNED, ids=[str(number) for number in range(len(RETURNED))])
def test_what_verifiers_return_is_read_as_a_verdict(returned: Any, expected: tuple[Any, ...]) -> None:
    verdict = as_verdict(returned)
    assert verdict == Verdict(*expected)
    numbers = [verdict.reward, verdict.score, *verdict.components.values()]
    assert all(type(number) is float for number in numbers)


REFUSED: list[tuple[Any, list[str]]] = [
    (None, ["NoneType", "allowed are"]),
    ("1.0", ["str", "allowed are"]),
    ([1.0], ["list", "allowed are"]),
    ((1.0, "right"), ["tuple", "allowed are"]),
    (1j, ["complex", "allowed are"]),
    (np.array([1.0, 0.0]), ["ndarray", "allowed are"]),
    (torch.tensor([1.0, 0.0]), ["Tensor", "allowed are"]),
    (math.nan, ["reward is nan"]),
    (-math.inf, ["reward is -inf"]),
    (1e300, ["reward is 1e+300, which is outside of -1e12 to 1e12"]),
    (10**400, ["reward is too large"]),
    ({}, ['neither "reward" nor "score"']),
    ({"acc": 1.0}, ['neither "reward" nor "score"']),
    ({"reward": None}, ["reward", "NoneType"]),
    ({"reward": torch.tensor([1.0, 0.0])}, ["reward", "Tensor"]),
    ({"reward": 1, "score": 0.1}, ["score 0.1: a score is 0 or 1; put partial credit into reward"]),
    ({"reward": 1, "score": math.nan}, ["score is nan"]),
    ({"reward": 1, "score": "1"}, ["score", "str"]),
    ({"reward": 1, "length": math.inf}, ["component length is inf"]),
    ({"reward": 1, "components": {"format": math.nan}}, ["component format is nan"]),
    ({"reward": 1, "components": {"format": "good"}}, ["component format", "str"]),
    ({"reward": 1, "components": [1.0]}, ["components", "list"]),
    ({"reward": 1, "extracted": ["7"]}, ["extracted", "list"]),
    ({"reward": 1, "pred": b"7"}, ["extracted", "bytes"]),
    ((1.0, {"reward": 0.0}), ["two rewards"]),
    (("1", {}), ["reward", "str"]),
    (Verdict(0.5, 0.5, "", {}), ["score 0.5: a score is 0 or 1"]),
    (Verdict(1.0, 1.0, "", {"format": math.nan}), ["component format is nan"]),
]


@pytest.mark.parametrize(("returned", "words"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_is_no_verdict_is_refused_with_the_reason(returned: Any, words: list[str]) -> None:
    with pytest.raises(NoVerdict) as refused:
        as_verdict(returned)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize("returned", [{"reward": 1.0, "steps": [0.5, 1]}, Verdict(1.0, 1.0, "", steps=(0.5, 1.0))])
def test_rewards_of_steps_stay_in_their_order(returned: Any) -> None:
    verdict = as_verdict(returned)
    assert verdict.steps == (0.5, 1.0) and verdict.components == {}
    assert verdict_columns(Graded(verdict))["steps"] == [0.5, 1.0]
    assert "steps" not in verdict_columns(Graded(as_verdict(1.0)))


def test_a_number_of_steps_is_a_component_as_any_number() -> None:
    assert as_verdict({"reward": 1.0, "steps": 7}).components == {"steps": 7.0}


@pytest.mark.parametrize("steps", [np.array([0.5, 1]), torch.tensor([0.5, 1]), (each for each in (0.5, 1))])
def test_rewards_of_steps_may_be_an_array_or_come_one_by_one(steps: Any) -> None:
    assert as_verdict({"reward": 1.0, "steps": steps}).steps == (0.5, 1.0)
    assert as_verdict({"reward": 1.0, "steps": torch.tensor([0.5])}).steps == (0.5,)


@pytest.mark.parametrize("steps", [{0: 0.5, 1: 1.0}, {0.5, 1.0}])
def test_rewards_of_steps_without_an_order_are_refused(steps: Any) -> None:
    with pytest.raises(NoVerdict, match=f"steps is of type {type(steps).__name__}, not a list of numbers"):
        as_verdict({"reward": 1.0, "steps": steps})


def test_a_step_that_is_no_number_is_refused() -> None:
    with pytest.raises(NoVerdict, match="step 1 is nan"):
        as_verdict({"reward": 1.0, "steps": [0.0, math.nan]})


def test_a_right_response_may_have_a_solution_and_a_wrong_one_has_none() -> None:
    assert as_verdict({"reward": 1.0, "solution": "1+2"}).solution == "1+2"
    assert as_verdict(Verdict(1.0, 1.0, "", solution="1+2")).solution == "1+2"
    assert as_verdict({"reward": 1.0, "solution": 7}) == Verdict(1.0, 1.0, "", solution="7")
    assert as_verdict(Verdict(0.1, 0.0, "", solution="1+2")).solution is None
    with pytest.raises(NoVerdict, match="solution is of type list"):
        as_verdict({"reward": 1.0, "solution": ["1", "2"]})


def test_a_solution_is_a_column_of_records_where_there_is_one() -> None:
    assert verdict_columns(Graded(Verdict(1.0, 1.0, "", solution="1+2")))["solution"] == "1+2"
    assert "solution" not in verdict_columns(Graded(Verdict(1.0, 1.0, "")))


def test_what_an_earlier_version_wrote_has_no_solution() -> None:
    document = asdict(Graded(Verdict(1.0, 1.0, "", solution="1+2")))
    del document["verdict"]["solution"]
    assert Graded.from_json(document) == Graded(Verdict(1.0, 1.0, ""))


GRADED = [
    Graded(Verdict(0.5, 1.0, "why \ud800", {"format": 1.0}, "7", (0.25, 0.5), "1+2"), seconds=0.5),
    Graded.failed("too slow", timed_out=True, seconds=5.0),
    Graded.failed("no number", unreadable=True),
]


@pytest.mark.parametrize("graded", GRADED, ids=["right", "slow", "unreadable"])
def test_what_was_graded_travels_whole(graded: Graded) -> None:
    assert Graded.from_json(json.loads(json.dumps(asdict(graded)))) == graded
    assert pickle.loads(pickle.dumps(graded)) == graded


def test_what_failed_counts_as_wrong_and_says_why() -> None:
    failed = Graded.failed("too slow", timed_out=True)
    assert (failed.verdict.reward, failed.verdict.score, failed.error) == (0.0, 0.0, "too slow")
    columns = {"extracted": None, "reason": "not graded: too slow", "components": {}}
    assert verdict_columns(failed) == columns


@pytest.mark.parametrize(
    "document",
    [{}, [], {"verdict": {}}, {"verdict": [1]}, {"verdict": {"reward": 1}, "x": 2}, {"verdict": {"reward": math.nan}}],
)
def test_what_is_no_verdict_in_json_is_refused(document: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Graded.from_json(document)
