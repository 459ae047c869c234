"""Weights that grade in the policy's place, beside a policy that DeepSpeed trains.

Real parts: OpenRLHF's policy actor and DeepSpeed, in processes of their own (grading_training.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from oger_recipe.cli.train_ppo_ray import build_parser, parse
from oger_recipe.lab import tiny_policy
from oger_recipe.pipeline.policy.trial import CUTS, SETTINGS

INITIAL = ["--oger.grader=initial"]
KINDS = {f"ZeRO {stage}": [f"--ds.zero_stage={stage}"] for stage in range(4)}
KINDS |= {f"adapters, ZeRO {stage}": [f"--ds.zero_stage={stage}", "--ds.lora.rank=4"] for stage in (2, 3)}
KINDS |= {"packed": ["--ds.packing_samples"], "all logits": ["--no-oger.chunked_token_stats"]}
KINDS |= {"at a temperature": ["--rollout.temperature=0.7"]}
RATE = 0.3
AVERAGE = ["--oger.grader=average", f"--oger.grade_average_rate={RATE}", "--train.batch_size=4"]  # two updates a step
AVERAGES = {
    f"average, ZeRO {stage}, {cut}": (stage, cut) for stage, cut in ((0, "static"), (2, "static"), (2, "dynamic"))
}


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.full)])
def trained(request, tmp_path_factory: pytest.TempPathFactory, run_ranks) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    tokenizer = tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4)
    torch.manual_seed(0)
    model = tiny_policy.build_model(tokenizer, hidden_size=32, num_layers=1).to(torch.bfloat16)
    model.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    parser = build_parser(cpu=True)
    cases = [
        {"name": kind, "settings": parse(parser, [*INITIAL, *flags], SETTINGS | CUTS["static"])}
        for kind, flags in KINDS.items()
    ]
    cases += [
        {"name": kind, "settings": parse(parser, [*AVERAGE, f"--ds.zero_stage={stage}"], SETTINGS | CUTS[cut])}
        for kind, (stage, cut) in AVERAGES.items()
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    run_ranks(Path(__file__).with_name("grading_training.py"), request.param, folder)
    return torch.load(folder / "results.pt")


def _equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_initial_policy_says_what_the_policy_said_before_its_first_step(trained, kind: str) -> None:
    policy, grader = trained[kind]["policy"], trained[kind]["grader"]
    assert all(_equal(each, policy[0]) for each in grader)
    assert (
        all(row.any() for row in policy[0]) and not _equal(policy[1], policy[0]) and not _equal(policy[2], policy[1])
    )


@pytest.mark.parametrize("kind", AVERAGES)
def test_the_average_takes_up_its_share_of_the_policy_after_each_update(trained, kind: str) -> None:
    """By hand, in float64; what grades is its bfloat16, of which the last bit may be another."""
    start, updates, graders = (trained[kind][name] for name in ("start", "updates", "graders"))
    assert len(updates) == 8 and _equal(graders[0], start)
    average = [each.double() for each in start]
    for number, weights in enumerate(updates, start=1):
        average = [(1 - RATE) * one + RATE * other.double() for one, other in zip(average, weights, strict=True)]
        if number in (4, 8):
            for found, expected in zip(graders[number // 4], average, strict=True):
                torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)
    assert not _equal(graders[1], updates[3]) and not _equal(graders[1], start)


@pytest.mark.parametrize("kind", AVERAGES)
def test_a_run_that_resumes_goes_on_with_the_average_of_its_checkpoint(trained, kind: str) -> None:
    graders, resumed = trained[kind]["graders"], trained[kind]["resumed"]
    assert _equal(resumed[0], graders[1]) and _equal(resumed[1], graders[2]) and not _equal(resumed[0], resumed[1])
