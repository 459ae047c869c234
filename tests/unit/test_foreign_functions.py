"""Reward functions that were written for TRL or verl: what they are handed, what is read, and which are refused."""

from __future__ import annotations

from typing import Any

import functions_of_trainers as theirs
import pytest
import torch
from groups import group

from oger_recipe.grading.verdict import as_verdict
from oger_recipe.grading.verifiers import allow, resolve, verify
from oger_recipe.rewards.compose import rewards_of
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.kinds.verifier import Verifier
from oger_recipe.rewards.sources import Group, Scores

RULE = {"name": "rule", "kind": "verifier"}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


def entry(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": "mine", "kind": f"functions_of_trainers:{name}", **keys}


def scored(name: str, *groups: Group, wanted: list[list[bool]] | None = None) -> Scores:
    (spec,) = sources_of([entry(name)])
    rows = torch.tensor(wanted) if wanted else torch.ones(len(groups), len(groups[0].responses), dtype=torch.bool)
    return spec.source(None).score(groups, rows)  # type: ignore[arg-type]


def test_a_function_of_trls_gets_texts_or_messages_as_the_data_has_them() -> None:
    responses = ["<answer>2</answer>", "2"]
    assert scored("in_form", group([1, 0], responses=responses, messages=CHAT)).values.tolist() == [[1.0, 0.0]]
    two = [group([1, 0], responses=["2", "3"], row={"ground_truth": answer}) for answer in "23"]
    assert scored("right", *two).values.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    found = scored("in_form", group([1, 0], responses=responses))
    assert found.errors[0, 1].startswith(
        "TypeError: string indices must be integers"
    )  # texts, where it takes messages


def test_it_gets_every_column_as_a_list_and_only_the_rows_whose_gate_is_open() -> None:
    theirs.seen.clear()
    rows = group([1, 0, 1], responses=["a", "bb", "ccc"], row={"level": 3, "tags": ["x"]}, messages=CHAT, uid="u7")
    found = scored("told", rows, group([0, 0, 0]), wanted=[[True, False, True], [False] * 3])
    ((completions, columns),) = theirs.seen
    assert completions == [[{"role": "assistant", "content": text}] for text in ("a", "ccc")]
    assert columns == {
        "prompts": [CHAT, CHAT], "level": [3, 3], "tags": [["x"], ["x"]], "uid": ["u7", "u7"], "answer": ["42", "42"],
        "task": ["gsm8k", "gsm8k"],
    }  # fmt: skip
    assert columns["prompts"][0] is not columns["prompts"][1]  # one call's list is its own to change
    assert not found.errors and found.values.isnan().tolist() == [[False, True, False], [True] * 3]


@pytest.mark.parametrize(
    ("keys", "totals"),
    [
        ({"weight": 0.1}, [[1.5, 0.0, 0.6], [1.0, 0.0, 0.0]]),
        ({"weight": 2.0, "combine": "mul"}, [[10.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),  # no factor where it says nothing
        ({"normalize": "group"}, [[1 - 0.5**0.5, 0.0, 0.5**0.5], [1.0, 0.0, 0.0]]),  # (5 - 5.5) / std, among two rows
    ],
)
def test_none_says_that_a_row_does_not_concern_it_and_is_no_failure(
    keys: dict[str, Any], totals: list[list[float]]
) -> None:
    texts = ["a", "", "bb"]
    groups = [group([1, 0, 0], task=task, question="1+1?", responses=texts) for task in ("sums", "facts")]
    found = scored("of_sums", *groups)
    assert found.silent is not None and found.silent.tolist() == [[False, True, False], [True] * 3]
    assert not found.errors
    specs = sources_of([RULE, entry("of_sums", **keys)])
    sources = [Verifier(0.0, None), specs[1].source(None)]  # type: ignore[arg-type]
    rewards = rewards_of(groups, sources, specs, on_error="drop_group")
    assert rewards.total.tolist() == [pytest.approx(each, abs=1e-5) for each in totals]
    assert not rewards.dropped.any() and rewards.terms["mine"].isfinite().all()
    assert rewards.said["mine"].isnan().tolist() == found.silent.tolist()


def test_async_functions_are_awaited_together_and_what_one_call_raises_is_its_own_rows_error() -> None:
    theirs.heard.clear()
    groups = [group([1, 0], question=question, responses=[text] * 2) for question, text in (("a", "raise"), ("b", ""))]
    found = scored("asked", *groups)
    assert theirs.heard == ["begins a", "begins b", "ends a", "ends b"] and found.values[1].tolist() == [0.5, 0.5]
    assert found.errors.keys() == {(0, 0), (0, 1)} and "RuntimeError: no server" in found.errors[0, 0]
    (spec,) = sources_of([entry("asked")])
    assert spec.source(None).overlaps is True  # type: ignore[arg-type, attr-defined]
    assert scored("awaited", group([1, 0], responses=["42", "41"])).values.tolist() == [[1.0, 0.0]]


def test_a_function_of_verls_is_asked_row_by_row_and_its_dict_has_the_score_and_components() -> None:
    rows = group([1, 0, 0], responses=["42", "41", "4"], row={"data_source": "sums", "extra_info": {"more": 0.5}})
    found = scored("compute_score", rows, wanted=[[True, True, False]])
    assert found.values[0, :2].tolist() == [1.5, 0.5] and found.values[0, 2].isnan() and not found.errors
    assert found.components.keys() == {"acc"} and found.components["acc"][0, :2].tolist() == [1.0, 0.0]
    found = scored("compute_score", group([1], row={"datasource": "facts"}))
    assert "NotImplementedError: no score for facts" in found.errors[0, 0]
    found = scored("compute_score", group([1], responses=["42"], row={"datasource": "sums", "extra_info": None}))
    assert found.values.tolist() == [[1.0]] and not found.errors
    assert scored("number", group([1, 0], responses=["42", "41"])).values.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("answer", [{0: 1.0, 1: 0.5}, {1.0, 0.5}, "10", None, [], [1.0], [1.0, "much"]])
def test_what_is_no_list_of_numbers_is_the_error_of_its_rows(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(theirs, "broken", lambda completions: answer, raising=False)
    found = scored("broken", group([0, 0]))
    assert found.errors.keys() == {(0, 0), (0, 1)} == found.causes.keys() and found.values.isnan().all()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"acc": 1.0}, 'ValueError: it returned a dict without "score"'),
        ("1", "TypeError: it returned str, neither a number nor a dict"),
        ({"score": float("nan")}, "ValueError: it has the value nan, which is not finite"),
        ({"score": 1, "words": float("inf")}, "ValueError: its component 'words' has the value inf"),
        (None, "TypeError: it returned NoneType, neither"),
    ],
)
def test_what_is_no_score_is_its_rows_error(monkeypatch: pytest.MonkeyPatch, answer: Any, said: str) -> None:
    def broken(solution_str: str, ground_truth: str) -> Any:
        return 0.25 if solution_str == "r" else answer

    monkeypatch.setattr(theirs, "broken", broken, raising=False)
    found = scored("broken", group([0, 0], responses=["r", "bad"]))
    assert found.values[0, 0] == 0.25 and found.errors.keys() == {(0, 1)} and found.errors[0, 1].startswith(said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "of_tokens",
            "is a function for TRL: it needs 'completion_ids', which TRL passes and this recipe does not",
        ),
        (
            "by_progress",
            "is a function for TRL: it needs 'trainer_state', which TRL passes and this recipe does not",
        ),
        (
            "to_a_router",
            "is a function for verl: it needs 'reward_router_address', which verl does not pass (data_source",
        ),
        (
            "batched",
            "cannot be called with one group: missing a required argument: 'solution_strs' (a function of TRL",
        ),
        ("of_a_group", "is async: let it run its own event loop"),
    ],
)
def test_a_function_that_could_not_be_called_is_refused_by_its_signature(name: str, said: str) -> None:
    (problem,) = entry_problems([RULE, entry(name)])
    assert said in problem


@pytest.mark.parametrize(
    "name", ["in_form", "right", "of_sums", "told", "asked", "compute_score", "number", "awaited"]
)
def test_one_that_can_be_called_is_not(name: str) -> None:
    assert not [*entry_problems([RULE, entry(name)])]


# As verifiers


def test_a_function_of_verls_is_a_verifier_as_it_is() -> None:
    task = "functions_of_trainers:compute_score"
    allow([task])
    row = {"data_source": "sums", "extra_info": {"more": 0.5}}
    verdict = as_verdict(verify(task, "42", "42", prompt="?", row=row))
    assert (verdict.reward, verdict.score, verdict.extracted) == (1.5, 1.0, "42") and verdict.components["acc"] == 1.0
    assert as_verdict(verify(task, "41", "42", prompt="?", row=row)).reward == 0.5
    allow([task := "functions_of_trainers:number"])
    assert [as_verdict(verify(task, text, "42")).score for text in ("42", "41")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("in_form", "it is a function for TRL and takes several completions at once; list it in oger.reward.sources"),
        ("of_sums", "list it in oger.reward.sources: {name: mine, kind: 'functions_of_trainers:of_sums'}"),
        ("awaited", "it is async"),
        ("to_a_router", "it is a function for verl, and it needs 'reward_router_address'"),
        ("batched", "cannot be called with (response, answer)"),
    ],
)
def test_what_can_be_no_verifier_is_refused(name: str, said: str) -> None:
    task = f"functions_of_trainers:{name}"
    allow([task])
    with pytest.raises(ValueError, match="is not a verifier") as raised:
        resolve(task)
    assert said in str(raised.value)
