"""An update with a number that is not finite is skipped by all ranks, and leaves nothing behind.

Real parts: OpenRLHF's policy and critic actors and DeepSpeed, in processes of their own (skipped_training.py).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from oger_recipe.cli.train_ppo_ray import build_parser, parse
from oger_recipe.lab import tiny_policy
from oger_recipe.pipeline.policy.trial import CUTS, SETTINGS

_HUBER = ["--oger.critic.huber_delta=0.5"]  # a return of inf gives a loss of inf, and gradients that are finite
# A case of each stage and sort of number: role, what is not finite, flags.
KINDS: dict[str, tuple[str, str, list[str]]] = {
    f"{role}, {spoilt}, ZeRO {stage}{' with offload' * offload}, {cut}": (
        role,
        spoilt,
        [f"--ds.zero_stage={stage}", *["--ds.adam_offload"] * offload, *_HUBER * (role == "critic"), f"cut={cut}"],
    )
    for role, spoilt, stage, offload, cut in (
        ("actor", "advantage", 0, False, "static"), ("actor", "gradient", 1, False, "dynamic"),
        ("actor", "advantage", 2, False, "static"), ("actor", "log-probability", 2, True, "dynamic"),
        ("actor", "gradient", 3, False, "static"), ("actor", "advantage", 3, True, "dynamic"),
        ("critic", "return", 2, False, "static"),
    )
}  # fmt: skip
TWO_UPDATES = ["--train.batch_size=4", "--ds.zero_stage=2", "--actor.lr_scheduler=linear"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def _settings(flags: list[str]) -> dict[str, Any]:
    cut = next((flag.removeprefix("cut=") for flag in flags if flag.startswith("cut=")), "static")
    own = [flag for flag in flags if not flag.startswith("cut=")]
    return parse(build_parser(cpu=True), own, SETTINGS | CUTS[cut])


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.full), 2])
def trained(request, tmp_path_factory: pytest.TempPathFactory, run_ranks) -> dict[str, dict[str, Any]]:
    """Results of skipped_training.py; with two ranks one of them has the number."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    tokenizer = tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4)
    torch.manual_seed(0)
    model = tiny_policy.build_model(tokenizer, hidden_size=32, num_layers=1).to(torch.bfloat16)
    model.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    cases = [
        {"name": f"{kind}, {name}", "role": role, "settings": _settings(flags), "steps": steps}
        for kind, (role, spoilt, flags) in KINDS.items()
        for name, steps in (("spoilt", [(0, spoilt), (1, "")]), ("whole", [(1, "")]))
    ]
    steps = [(0, "advantage"), (0, "advantage"), (1, "")]
    cases.append({"name": "two updates", "role": "actor", "settings": _settings(TWO_UPDATES), "steps": steps})
    (folder / "cases.json").write_text(json.dumps(cases))
    run_ranks(Path(__file__).with_name("skipped_training.py"), request.param, folder)
    return torch.load(folder / "results.pt")


def _same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(found[name], expected[name]) for name in expected)


@each_kind
def test_a_skipped_update_is_as_if_its_step_had_not_been(trained, kind: str) -> None:
    """Weights, Adam's moments and the schedule: the next step trains, to the bit, what it trains as the first."""
    spoilt, whole = trained[f"{kind}, spoilt"], trained[f"{kind}, whole"]
    assert _same(spoilt["weights"][1], spoilt["weights"][0])
    assert not _same(whole["weights"][1], whole["weights"][0])
    assert _same(spoilt["weights"][2], whole["weights"][1])
    assert spoilt["ranks_agree"]


@each_kind
def test_it_is_counted_with_what_was_not_finite(trained, kind: str) -> None:
    role, spoilt, _ = KINDS[kind]
    prefix = "critic_" * (role == "critic")
    first, second = trained[f"{kind}, spoilt"]["reports"]
    counts = [(each[f"{prefix}updates"], each[f"{prefix}skipped_updates"], each[f"{prefix}skipped_in_a_row"])
              for each in (first, second)]  # fmt: skip
    assert counts == [(1, 1, 1), (1, 0, 0)]
    assert first[f"{prefix}nonfinite_losses"] == (spoilt != "gradient")
    assert second[f"{prefix}nonfinite_losses"] == first[f"{prefix}nonfinite_parameters"] == 0
    assert math.isnan(first[f"{role}_grad_norm"]) and second[f"{role}_grad_norm"] > 0


def test_the_other_update_of_a_step_is_made_and_the_schedule_counts_those_that_were(trained) -> None:
    """Of two updates a step the one with the row is skipped: 2 of 4, and 2 more; 0.2 * (1 - 4/10) is the rate then."""
    found = trained["two updates"]
    assert [each["skipped_updates"] for each in found["reports"]] == [1, 1, 0]
    assert not _same(found["weights"][1], found["weights"][0])
    assert found["reports"][-1]["actor_lr"] == pytest.approx(0.2 * 0.6)
    assert all(weights.isfinite().all() for weights in found["weights"][-1].values())
    assert found["ranks_agree"]
