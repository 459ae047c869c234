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


def _slopes(found: dict[str, Any], step: int) -> np.ndarray:
    """The loss's slope at every token that step's one update trains, in no order; it has four micro-batches."""
    names = [f"policy/{number:02}/gradient_of_log_probs" for number in range(4 * step - 4, 4 * step)]
    return np.sort(np.concatenate([found[name] for name in names]))


def _said(rows: Rows) -> list[dict[str, Any]]:
    """The rows, with what the policy says of their tokens before and after the update."""
    recorded, tokenizer = Recorded(HERE / "inputs" / "group.npz"), AutoTokenizer.from_pretrained(HERE / "policy")
    found = []
    for row in rows:
        tokens = tokenizer.encode(row["text"]) + ([] if row["truncated"] else [tokenizer.eos_token_id])
        whole = [*tokenizer.encode(row["prompt"]), *tokens]
        names = ("log_probs", "updated_log_probs", "entropy", "updated_entropy")
        of_row = {name: recorded.said(name, whole).double().numpy()[-len(tokens) :] for name in names}
        found.append(row | of_row | {"ratio": np.exp(of_row["updated_log_probs"] - of_row["log_probs"])})
    return found


ONE_UPDATE = ["--train.batch_size=48", "--rollout.n_samples_per_prompt=8", "--oger.total_training_steps=2"]
ONE_UPDATE += ["--rollout.temperature=0.6"]
OF_ROWS = 48 * 44  # all rows of the step times the longest response


@pytest.mark.parametrize("method", ["hpt", "chord", "srft"])
def test_two_steps_of_a_twin_go_down_the_slopes_of_the_papers_loss(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HPT's, CHORD's and SRFT's teachers are whole rows, and one update makes a step; CHORD's mu is 0.25, then 0.5."""
    sizes = [*ONE_UPDATE, "--oger.sft_loss_warmup_steps=2" if method == "chord" else "--oger.prompts_per_update=6"]
    monkeypatch.setitem(CASES, method, (f"{method}_cpu", "group", sizes))
    found = replayed(method, tmp_path)
    taught = 0
    for step in (1, 2):
        groups = [_said([row for row in rows if not row.get("replaced")]) for rows in _groups(tmp_path, step).values()]
        assert [len(rows) for rows in groups] == [8] * 6
        metrics = found["json"]["metrics"][step - 1]
        if method == "hpt":
            expected = _of_hpt(groups)
        elif method == "chord":
            assert metrics["sft_loss_coef"] == 0.25 * step
            expected = _of_chord(groups, mu=0.25 * step)
        else:
            expected = _of_srft(groups)
        assert _slopes(found, step) == pytest.approx(np.sort(np.concatenate(expected)), rel=1e-4, abs=1e-8)
        taught += sum(row["off_policy"] for rows in groups for row in rows)
    assert taught == 2 if method == "hpt" else taught >= 8


def _of_hpt(groups: list[list[dict[str, Any]]]) -> list[np.ndarray]:
    """An unsolved prompt with a teacher: -log p of it; else -(R - mean R) r of rollouts; over one number for all."""
    slopes = []
    for rows in groups:
        teachers = [row for row in rows if row["off_policy"]]
        own = [row for row in rows if not row["off_policy"]]
        assert bool(teachers) <= (sum(row["score"] for row in own) == 0)
        if teachers:
            slopes += [np.full(len(row["ratio"]), -1 / OF_ROWS) for row in teachers]
            continue
        mean = fmean(row["reward"] for row in rows)
        slopes += [-(row["reward"] - mean) * row["ratio"] / OF_ROWS for row in rows]
    return slopes


def _of_chord(groups: list[list[dict[str, Any]]], mu: float) -> list[np.ndarray]:
    """(1 - mu) of GRPO's clipped loss, whose mean and std are of rollouts alone, and mu of -p (1 - p) log p."""
    rows = [row for group in groups for row in group]
    counts = {off: sum(len(row["ratio"]) for row in rows if row["off_policy"] == off) for off in (True, False)}
    slopes = []
    for group in groups:
        own = [row["reward"] for row in group if not row["off_policy"]]
        for row in group:
            p = np.exp(row["updated_log_probs"])
            if row["off_policy"]:
                slopes.append(-mu * p * (1 - p) / counts[True])
                continue
            advantage, ratio = (row["reward"] - fmean(own)) / (stdev(own) + 1e-6), row["ratio"]
            clipped = ratio > 1.2 if advantage > 0 else ratio < 0.8
            slopes.append(np.where(clipped, 0.0, -(1 - mu) * advantage * ratio / counts[False]))
    return slopes


def _of_srft(groups: list[list[dict[str, Any]]]) -> list[np.ndarray]:
    """A teacher: 0.5 / 16 of the mean of -exp(-H) log p, beside -(R - mean R) p / (p + 0.1); a rollout: -A' log p."""
    count = sum(len(row["ratio"]) for rows in groups for row in rows if row["off_policy"])
    slopes = []
    for rows in groups:
        mean = fmean(row["reward"] for row in rows)
        for row in rows:
            if row["off_policy"]:
                p, surprise = np.exp(row["updated_log_probs"]), row["updated_entropy"].mean()
                shaped = -(row["reward"] - mean) * 0.1 * p / (p + 0.1) ** 2 / OF_ROWS
                slopes.append(shaped - 0.03125 * np.exp(-surprise) / count)
            else:
                worth = 0.1 * np.exp(row["entropy"].mean()) if row["score"] else -1.0
                slopes.append(np.full(len(row["ratio"]), -worth / OF_ROWS))
    return slopes
