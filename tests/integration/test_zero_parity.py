"""What is trained does not depend on DeepSpeed's sharding, on the cut into micro-batches, or on the number of ranks.

Real parts: OpenRLHF's policy and critic actors and DeepSpeed, in processes of their own (zero_training.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from oger_recipe.cli.train_ppo_ray import build_parser, parse
from oger_recipe.lab import tiny_policy
from oger_recipe.pipeline.policy.trial import CUTS, SETTINGS, apart

# What has to be the same for both cuts: DeepSpeed's part first, then the recipe's losses.
KINDS: dict[str, dict[str, Any]] = {
    f"{role}, ZeRO {stage}{' with offload' * offload}": {
        "role": role,
        "flags": [f"--ds.zero_stage={stage}", *["--ds.adam_offload"] * offload],
    }
    for role in ("actor", "critic")
    for stage in range(4)
    for offload in ((False, True) if stage else (False,))
}
KINDS |= {
    f"float32 accumulation, ZeRO {stage}": {"flags": ["--ds.grad_accum_dtype=fp32", f"--ds.zero_stage={stage}"]}
    for stage in (1, 2, 3)
}
KINDS |= {"packed, ZeRO 2": {"flags": ["--ds.packing_samples", "--ds.zero_stage=2"]}}
KINDS |= {
    f"{loss}, {aggregation}": {"flags": [f"--oger.off_policy_loss={loss}", f"--oger.loss_aggregation={aggregation}"]}
    for loss, aggregation in (
        ("reshape", "token_mean"), ("reshape", "sequence_mean"), ("ppo", "constant"),
        ("sft", "constant"), ("sft", "token_mean"), ("sft", "sequence_mean"),
    )
}  # fmt: skip
BY_STEPS = ["--oger.ratio_level=step"]
KINDS |= {
    f"by steps, {loss}, {aggregation}": {
        "flags": [*BY_STEPS, f"--oger.off_policy_loss={loss}", f"--oger.loss_aggregation={aggregation}"]
    }
    for loss, aggregation in (("reshape", "token_mean"), ("sft", "sequence_mean"), ("ppo", "constant"))
}
KINDS |= {"by steps, packed, ZeRO 3": {"flags": [*BY_STEPS, "--ds.packing_samples", "--ds.zero_stage=3"]}}
KINDS |= {f"adapters, ZeRO {stage}": {"flags": ["--ds.lora.rank=4", f"--ds.zero_stage={stage}"]} for stage in range(4)}
_HEAD = ["--oger.critic.hidden_sizes", "24", "12", "--oger.critic.huber_delta=0.5", "--critic.value_clip=10"]
KINDS |= {
    f"critic of steps with a head, {name}": {
        "role": "critic", "flags": [*_HEAD, "--algo.advantage.estimator=appo", *flags]
    }
    for name, flags in (
        ("ZeRO 2", ["--ds.zero_stage=2"]), ("ZeRO 3", ["--ds.zero_stage=3"]),
        ("packed", ["--ds.zero_stage=2", "--ds.packing_samples"]),
    )
}  # fmt: skip
# One of each sort; the others, which differ from these by DeepSpeed's own paths, are for all tests.
EACH = (
    *(f"actor, ZeRO {stage}" for stage in range(4)), *(f"critic, ZeRO {stage}" for stage in range(4)),
    "actor, ZeRO 3 with offload", "float32 accumulation, ZeRO 2", "packed, ZeRO 2", "reshape, token_mean",
    "sft, sequence_mean", "by steps, reshape, token_mean", "by steps, packed, ZeRO 3",
    "critic of steps with a head, packed", "adapters, ZeRO 2", "adapters, ZeRO 3",
)  # fmt: skip
each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in EACH else pytest.mark.full) for kind in KINDS]
)
# A batch of six optimizer steps of which the first ends it, and a learning rate that says the place in the run.
STOPPED = [
    "--oger.kl_stop=1e-6", "--train.batch_size=4", "--train.max_epochs=3", "--actor.lr_scheduler=linear",
    "--oger.loss_aggregation=token_mean",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory: pytest.TempPathFactory, run_ranks) -> dict[int, dict[str, dict[str, Any]]]:
    """Results of zero_training.py by the number of ranks, for the kinds that are chosen to be tested."""
    results = {}
    chosen = [item.callspec.params for item in request.session.items if item.path == request.path]
    kinds = {*EACH, *(params["kind"] for params in chosen if "kind" in params)}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        tokenizer = tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4)
        torch.manual_seed(0)
        model = tiny_policy.build_model(tokenizer, hidden_size=32, num_layers=1).to(torch.bfloat16)
        model.save_pretrained(folder / "policy")
        tokenizer.save_pretrained(folder / "policy")
        cases = [
            {"name": f"{kind}, {cut}", "role": what.get("role", "actor"), "settings": _settings(cut, what["flags"])}
            for kind, what in KINDS.items()
            if kind in kinds
            for cut in CUTS
        ]
        cases += [
            {
                "name": f"stopped by {level}, {cut}",
                "settings": _settings(cut, [*STOPPED, f"--oger.ratio_level={level}"]),
            }
            for level in ("token", "step")
            for cut in CUTS
        ]
        cases += [
            {
                "name": f"sent from ZeRO {stage}",
                "sends": True,
                "settings": _settings("static", ["--ds.lora.rank=4", f"--ds.zero_stage={stage}"]),
            }
            for stage in (2, 3)
        ]
        (folder / "cases.json").write_text(json.dumps(cases))
        run_ranks(Path(__file__).with_name("zero_training.py"), ranks, folder)
        results[ranks] = torch.load(folder / "results.pt") | {"policy": folder / "policy"}
    return results


def _settings(cut: str, flags: list[str]) -> dict[str, Any]:
    return parse(build_parser(cpu=True), flags, SETTINGS | CUTS[cut])


def _assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    turned, longer = apart(found, expected)
    assert turned < 0.001
    assert longer < 0.02


@pytest.mark.parametrize("ranks", [1, 2])
@each_kind
def test_dynamic_batches_train_what_static_ones_train_and_report_the_same(trained, kind: str, ranks: int) -> None:
    dynamic, static = (trained[ranks][f"{kind}, {cut}"] for cut in ("dynamic", "static"))
    _assert_same(dynamic, static)
    assert dynamic["status"].keys() == static["status"].keys()
    for name in static["status"].keys() - {"actor_grad_norm", "critic_grad_norm"}:
        # Of 77 values, one that lies on the limit of the clip is on either side of it by its last bit.
        least = 1.01 / 77 if name == "value_clip_share" else 1e-3
        assert dynamic["status"][name] == pytest.approx(static["status"][name], rel=0.02, abs=least), name


@each_kind
def test_two_ranks_train_what_one_trains(trained, kind: str) -> None:
    _assert_same(trained[2][f"{kind}, static"], trained[1][f"{kind}, static"])


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_every_zero_stage_has_one_gradient_and_sharded_ones_one_update(trained, role: str) -> None:
    whole = trained[1][f"{role}, ZeRO 1, static"]
    for stage in (2, 3):
        _assert_same(trained[1][f"{role}, ZeRO {stage}, static"], whole)
    # ZeRO 0's Adam has counted a step before the first (docs/known_faults.md): its updates are smaller.
    unsharded = trained[1][f"{role}, ZeRO 0, static"]
    assert unsharded["norms"][0] == pytest.approx(whole["norms"][0], rel=0.01)


@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_alone_are_trained_and_come_into_the_plain_weights_of_every_rank(trained, ranks: int) -> None:
    whole, sharded = (trained[ranks][f"adapters, ZeRO {stage}, static"] for stage in (2, 3))
    for found in (whole, sharded):
        assert all(".lora_" in name and change.any() for name, change in found["change"].items())
    for name, plain in whole["merged"].items():
        assert torch.allclose(sharded["merged"][name], plain, rtol=0.02, atol=1e-3), name
    assert whole["merged"].keys() == sharded["merged"].keys()
    start = dict(AutoModelForCausalLM.from_pretrained(trained[ranks]["policy"]).named_parameters())
    apart = {name for name, plain in whole["merged"].items() if not torch.equal(plain, start[name].float())}
    assert apart == {name for name in start if "proj" in name}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", [2, 3])
def test_the_engine_gets_what_is_saved_of_a_policy_with_adapters(trained, stage: int, ranks: int) -> None:
    found = trained[ranks][f"sent from ZeRO {stage}"]
    start, saved = (
        dict(AutoModelForCausalLM.from_pretrained(each).named_parameters())
        for each in (trained[ranks]["policy"], found["saved"])
    )
    assert list(found["sent"]) == list(start) and found["resets"] == 1
    for name, weight in saved.items():
        assert torch.equal(found["sent"][name], weight), name
        assert torch.equal(weight, start[name]) == ("proj" not in name), name


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("level", ["token", "step"])
def test_a_batch_is_given_up_by_all_ranks_and_the_schedule_goes_on(trained, level: str, cut: str, ranks: int) -> None:
    """The second batch: 0.2 * (1 - 7/10) is the learning rate behind its first update, the seventh of ten."""
    status = trained[ranks][f"stopped by {level}, {cut}"]["status"]
    assert (status["updates"], status["kl_stopped_updates"], status["skipped_updates"]) == (1, 5, 0)
    assert status["actor_lr"] == pytest.approx(0.2 * 0.3)
    assert status["approx_kl_last"] == pytest.approx(status["approx_kl"], rel=1e-3)  # of the one step that was trained


@pytest.mark.parametrize("level", ["token", "step"])
def test_the_kl_that_ends_a_batch_is_that_of_all_ranks(trained, level: str) -> None:
    """Dynamic batches keep the order of the rows: the first four are on one rank, or two on each."""
    one, two = (trained[ranks][f"stopped by {level}, dynamic"] for ranks in (1, 2))
    assert two["status"]["approx_kl_last"] == pytest.approx(one["status"]["approx_kl_last"], rel=0.02)
    _assert_same(two, one)
