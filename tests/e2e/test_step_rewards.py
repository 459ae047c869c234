"""The twins of recipes with rewards for steps of reasoning, each with a PRM that is known and with more around it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import ROOT, SMALL, lines, samples, train

from oger_recipe.lab.known_judges import good_until, save_prm

RULE = {"name": "rule", "kind": "verifier"}
TEACHERS = ["--oger.max_replace_num", "1", "--oger.replace_mode", "random", "--rollout.n_samples_per_prompt", "4"]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def prm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It likes steps up to the first minus."""
    return save_prm(tmp_path_factory.mktemp("prm"), tag="\n", head=True, mark="-")


def _run(name: str, prm: Path, cache: Path, folder: Path, *flags: str, more: tuple[dict, ...] = ()) -> Path:
    """Runs the twin with this PRM and with more sources."""
    shipped = ROOT / "configs" / f"{name}.yaml"
    first, *others = yaml.safe_load(shipped.read_text())["oger"]["reward"]["sources"]
    sources = [first | {"model": str(prm)}, *others, *more]
    recipe = folder / f"{name}.yaml"
    recipe.write_text(yaml.safe_dump({"extends": str(shipped), "oger": {"reward": {"sources": sources}}}))
    small = [*SMALL, "--oger.task.warm_start_steps", "250", "--rollout.micro_batch_size", "16"]  # a tenth are right
    done = train(folder / "run", cache, *small, *flags, recipe=recipe)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "run"


def _rows(
    run_dir: Path, gives: Callable[[list[float]], list[float]], of_response: Callable[[Row], float]
) -> list[Row]:
    """The rows that were trained: each of their steps is paid what the PRM `gives`, and the last one also what is for
    the response."""
    rows = [row for step in (1, 2) for row in samples(run_dir, step) if "steps_of_reasoning" in row]
    for row in rows:
        steps = row["steps_of_reasoning"]
        assert "".join(step["text"] for step in steps) == row["text"]
        assert all(step["text"].endswith(", ") for step in steps[:-1])
        expected = gives(good_until([step["text"] for step in steps], "-"))
        assert [step["sources"]["prm"] for step in steps] == pytest.approx(expected, abs=1e-5)
        expected[-1] += of_response(row)
        assert [step["reward"] for step in steps] == pytest.approx(expected, abs=1e-4)
    assert {len(row["steps_of_reasoning"]) for row in rows} > {3}
    return rows


def _metrics(run_dir: Path) -> list[dict[str, float]]:
    metrics = lines(run_dir / "metrics.jsonl")
    for step in metrics:
        own = [row for row in samples(run_dir, int(step["step"])) if not row["off_policy"]]
        counts = torch.tensor([float(row["text"].count(", ") + 1) for row in own])
        assert step["rollout/steps"] == pytest.approx(counts.mean().item(), abs=0.1)
        assert step["reward/prm/failed"] == 0
    return metrics


def _learns_from_teachers(rows: list[Row], metrics: list[dict[str, float]]) -> None:
    assert len(rows) == 2 * 16 * 4 and sum(row["off_policy"] for row in rows) == 2 * 16
    for step in metrics:
        assert step["oger/replaced"] == 16 and step["off_policy_loss"] != 0


@pytest.mark.full
def test_appo_samples_step_by_step_up_to_the_caps_and_trains_a_critic_of_steps(cache, tmp_path, prm):
    caps = ["--oger.steps.max_steps", "4", "--oger.steps.max_step_tokens", "12", "--rollout.n_samples_per_prompt", "2"]
    run_dir = _run("openr_math_appo_cpu", prm, cache, tmp_path, *caps)
    rows = [row for step in (1, 2) for row in samples(run_dir, step)]
    assert len(rows) == 2 * 16 * 2
    for row in rows:
        steps = row["steps_of_reasoning"]
        good = good_until([step["text"] for step in steps], "-")
        assert [step["reward"] for step in steps] == pytest.approx(good, abs=1e-5)
        assert len({round(step["advantage"], 4) for step in steps}) > 1 or len(steps) == 1
    assert max(len(row["steps_of_reasoning"]) for row in rows) == 4
    for step in lines(run_dir / "metrics.jsonl"):
        assert step["critic_loss"] > 0 and step["critic_grad_norm"] > 0
        assert step["rollout/steps_max"] == 4 and 0 < step["rollout/ended_by_max_steps"] <= step["rollout/truncated"]


@pytest.mark.full
def test_tppo_with_teachers_and_a_rule_cuts_by_tokens_and_passes_twice(cache, tmp_path, prm):
    more = ["--train.max_epochs", "2", "--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", "800"]
    more += ["--ds.packing_samples", "--oger.kl_stop", "5", "--train.batch_size", "64"]
    run_dir = _run("openr_math_tppo_cpu", prm, cache, tmp_path, *TEACHERS, *more, more=(RULE,))
    metrics = _metrics(run_dir)
    _learns_from_teachers(_rows(run_dir, list, lambda row: row["reward"]), metrics)
    for step in metrics:
        assert step["critic_loss"] > 0 and step["critic_grad_norm"] > 0


@pytest.mark.full
def test_openrs_grpo_compares_all_steps_of_a_batch(cache, tmp_path, prm):
    run_dir = _run("openr_math_grpo_cpu", prm, cache, tmp_path)
    _metrics(run_dir)
    for step in (1, 2):
        steps = [each for row in samples(run_dir, step) for each in row["steps_of_reasoning"]]
        rewards, advantages = (torch.tensor([each[name] for each in steps]) for name in ("reward", "advantage"))
        expected = (rewards - rewards.mean()) / rewards.std(correction=0)
        assert advantages.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def _min_form(good: list[float]) -> list[float]:
    """PURE's, of scores 2p - 1 at a temperature of 0.1."""
    scores = [2 * each - 1 for each in good]
    weights = [math.exp(-each / 0.1) for each in scores]
    return [each * weight / sum(weights) for each, weight in zip(scores, weights, strict=True)]


@pytest.mark.full
def test_pures_recipe_with_teachers_and_the_bonus(cache, tmp_path, prm):
    """All three at once: process rewards in min-form, hybrid groups, and the bonus for right answers that differ."""
    bonus = ["--oger.bonus_weight", "0.5", "--train.batch_size", "64"]
    explore = {"name": "explore", "kind": "bonus"}
    run_dir = _run("process_rloo_cpu", prm, cache, tmp_path, *TEACHERS, *bonus, more=(explore,))
    rows = _rows(run_dir, _min_form, lambda row: row["reward"] + row.get("bonus", 0.0))
    _learns_from_teachers(rows, _metrics(run_dir))
    assert any(row.get("bonus", 0.0) > 0 for row in rows)
