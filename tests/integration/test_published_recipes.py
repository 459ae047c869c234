"""Recorded steps of twins: what their rows are trained with."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

import numpy as np
import pytest
import torch
from doubles import Recorded
from replay import CASES, HERE, replayed
from transformers import AutoTokenizer

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


def _groups(folder: Path, step: int) -> dict[str, Rows]:
    groups: dict[str, Rows] = {}
    for row in read_jsonl(folder / "run" / "samples" / f"step_{step:05d}.jsonl"):
        groups.setdefault(row["uid"], []).append(row)
    return groups


def test_from_the_second_episode_on_exgrpos_twin_trains_on_the_policys_own_successes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prompt comes twice: of those that a quarter to three quarters solve, one row becomes the success of the
    lowest mean entropy of the first time, with the policy's probabilities of then."""
    sizes = ["--oger.prompts_per_update=3", "--oger.total_training_steps=4", "--rollout.temperature=0.6"]
    monkeypatch.setitem(CASES, "exgrpo_cpu", ("exgrpo_cpu", "group", sizes))
    replayed("exgrpo_cpu", tmp_path)
    first = {uid: rows for step in (1, 2) for uid, rows in _groups(tmp_path, step).items()}
    assert not any("source" in row for rows in first.values() for row in rows)
    entropies: dict[str, dict[str, float]] = {}
    for record in read_jsonl(tmp_path / "run" / "history.jsonl"):
        if record["step"] <= 2:
            entropies.setdefault(record["uid"], {})[record["text"]] = record["entropy"]
            probs = np.frombuffer(base64.b64decode(record["probs"]), "<f4")
            (row,) = {row["log_prob"] for row in first[record["uid"]] if row["text"] == record["text"]}
            assert np.log(probs).sum() == pytest.approx(row, abs=1e-3)
    entered = 0
    for step in (3, 4):
        for uid, rows in _groups(tmp_path, step).items():
            trained = [row for row in rows if not row.get("replaced")]
            (own,) = [row for row in trained if "source" in row] or [None]
            kept = entropies.get(uid, {})
            assert {*kept} == {row["text"] for row in first[uid] if row["score"] and not row["truncated"]}
            solved = fmean(row["score"] for row in rows if "source" not in row)
            assert (own is not None) == (bool(kept) and 0.25 <= solved <= 0.75)
            if own is not None:
                entered += 1
                assert (own["source"], own["text"]) == ("history", min(kept, key=lambda text: kept[text]))
            assert len(trained) == 8 and len(rows) == 8 + (own is not None)
            mean = fmean(row["reward"] for row in trained)
            assert [row["advantage"] for row in trained] == pytest.approx(
                [row["reward"] - mean for row in trained], abs=1e-6
            )
    assert entered >= 3


def test_ampos_twin_lets_teachers_in_where_nobody_is_right_whose_answers_are_likeliest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ["--oger.prompts_per_update=3", "--oger.total_training_steps=2", "--rollout.temperature=0.6"]
    monkeypatch.setitem(CASES, "ampo_cpu", ("ampo_cpu", "group", sizes))
    replayed("ampo_cpu", tmp_path)
    recorded, tokenizer = Recorded(HERE / "inputs" / "group.npz"), AutoTokenizer.from_pretrained(HERE / "policy")
    known = {row["prompt"]: [each["text"] for each in row["teachers"]] for row in recorded.rows}

    def likelihood(prompt: str, text: str) -> float:
        """The mean of p over the tokens between the tags, each of which is a token as well."""
        before, behind = tokenizer.encode(prompt), [*tokenizer.encode(text), tokenizer.eos_token_id]
        log_probs = recorded.said("log_probs", [*before, *behind]).tolist()
        opens, closes = (behind.index(*tokenizer.encode(tag)) for tag in ("<answer>", "</answer>"))
        return fmean(np.exp(log_probs[opens + 1 : closes]))

    chosen = 0
    for step in (1, 2):
        for rows in _groups(tmp_path, step).values():
            prompt = rows[0]["prompt"]
            (teachers,) = [texts for asked, texts in known.items() if asked in prompt]
            entered = [row["text"] for row in rows if "source" in row]
            trained = [row for row in rows if not row.get("replaced")]
            if any(row["score"] for row in rows if "source" not in row) or not teachers:
                assert not entered
                continue
            likeliest = sorted(teachers, key=lambda text: likelihood(prompt, text), reverse=True)
            assert sorted(entered) == sorted(likeliest[:2]) and len(trained) == 8
            chosen += len(teachers) > 2
            mean = fmean(row["reward"] for row in trained)
            assert [row["advantage"] for row in trained] == pytest.approx(
                [row["reward"] - mean for row in trained], abs=1e-6
            )
    assert chosen >= 2


def test_rleps_twin_adds_successes_to_the_rollouts_its_own_where_the_data_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight rows, of which up to two are never sampled; the prompts of the last two steps come for the second time."""
    sizes = ["--train.batch_size=24", "--rollout.n_samples_per_prompt=8", "--oger.total_training_steps=4"]
    own = ["--oger.use_history_samples", "--oger.history_enters", "--rollout.temperature=0.6"]
    monkeypatch.setitem(CASES, "rlep_cpu", ("rlep_cpu", "group", [*sizes, *own]))
    replayed("rlep_cpu", tmp_path)
    data = {row["uid"]: [each["text"] for each in row["teachers"]] for row in read_jsonl(tmp_path / "rows.jsonl")}
    solved: dict[str, set[str]] = {}
    of_history = 0
    for step in (1, 2, 3, 4):
        for uid, rows in _groups(tmp_path, step).items():
            assert len(rows) == 8 and not any(row.get("replaced") for row in rows)
            added = [row["text"] for row in rows if row["off_policy"]]
            known = {*data[uid], *solved.get(uid, ())}
            assert len(added) == min(2, len(known)) and {*added} <= known
            of_history += len({*added} - {*data[uid]})
            assert [row["advantage"] for row in rows] == pytest.approx(_charged_for_length(rows), abs=2e-5)
            own_rows = [row for row in rows if row["score"] and not row["off_policy"] and not row["truncated"]]
            solved.setdefault(uid, set()).update(row["text"] for row in own_rows)
    assert of_history >= 3
