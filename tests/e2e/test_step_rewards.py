"""Rewards for steps of reasoning through the whole pipeline: who pays them, who is paid, and what learns from them."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from runs import ROOT, SMALL, lines, samples, train

from oger_recipe.tasks.known_judges import good_until, save_prm


def test_tppo_trains_a_critic_on_a_prm_and_the_rule_with_a_teacher_in_every_group(cache: Path, tmp_path: Path):
    """The PRM likes steps up to the first minus. Steps of rollouts and teachers alike are paid 0.5 x what it says, and
    the last one what the rule gives as well."""
    prm = save_prm(tmp_path / "prm", tag="\n", head=True, mark="-")
    sources = [
        {"name": "rule", "kind": "verifier"},
        {"name": "prm", "kind": "process", "model": str(prm), "place": "process", "format": "trl", "weight": 0.5},
    ]
    recipe = tmp_path / "tppo.yaml"
    oger = {
        "steps": {"delimiters": [", "]},
        "reward": {"sources": sources},
        "critic": {"hidden_sizes": [32], "huber_delta": 10.0},
        "embedding_model": None,
        "replace_mode": "random",
        "loss_remove_clip": False,
        "kl_stop": 5.0,
    }
    estimator = {"estimator": "tppo", "gamma": 0.9, "lambd": 0.95}
    shipped = str(ROOT / "configs" / "countdown_cpu_smoke.yaml")
    recipe.write_text(yaml.safe_dump({"extends": shipped, "oger": oger, "algo": {"advantage": estimator}}))
    run_dir = tmp_path / "run"
    done = train(
        run_dir, cache, *SMALL, "--rollout.n_samples_per_prompt", "4", "--train.batch_size", "64", recipe=recipe
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    rows = [row for step in (1, 2) for row in samples(run_dir, step) if "steps_of_reasoning" in row]
    assert len(rows) == 2 * 16 * 4 and sum(row["off_policy"] for row in rows) == 2 * 16
    for row in rows:
        steps = row["steps_of_reasoning"]
        assert "".join(step["text"] for step in steps) == row["text"]
        assert all(step["text"].endswith(", ") for step in steps[:-1])
        good = good_until([step["text"] for step in steps], "-")
        assert [step["sources"]["prm"] for step in steps] == pytest.approx(good, abs=1e-5)
        paid = [0.5 * each for each in good]
        paid[-1] += row["reward"]
        assert [step["reward"] for step in steps] == pytest.approx(paid, abs=1e-5)
    assert {len(row["steps_of_reasoning"]) for row in rows} > {3}
    for step in lines(run_dir / "metrics.jsonl"):
        own = [row for row in samples(run_dir, step["step"]) if not row["off_policy"]]
        counts = torch.tensor([float(row["text"].count(", ") + 1) for row in own])
        assert step["critic_loss"] > 0 and step["critic_grad_norm"] > 0 and step["oger/replaced"] == 16
        assert step["off_policy_loss"] != 0 and step["reward/prm/failed"] == 0
        assert step["rollout/steps"] == pytest.approx(counts.mean().item(), abs=0.1)
    assert "rollout/steps" in json.dumps(lines(run_dir / "metrics.jsonl")[0])
