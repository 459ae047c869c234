"""``oger train --dry-run``: what the recipe would do, and what this machine would make of it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from oger_recipe.algorithm.token_stats import CHUNK_LOGITS, CHUNK_LOGITS_ON_GPU
from oger_recipe.checks import model_files
from oger_recipe.checks.memory import (
    Memory,
    Shape,
    beside,
    estimate,
    in_main_memory,
    readable,
    room_for_tokens,
    shape_of,
    shared_gpu,
    surely_in_main_memory,
)
from oger_recipe.checks.plan import planned_steps
from oger_recipe.cli import train

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def _dry_run(capsys: pytest.CaptureFixture[str], recipe: Path, *flags: str) -> list[str]:
    train.main(["--recipe", str(recipe), "--dry-run", *flags])
    return capsys.readouterr().out.splitlines()


def test_rows_teachers_and_steps_are_counted(recipe: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = _dry_run(capsys, recipe)
    assert "data: 3 rows with 3 teachers" in lines
    assert "steps: 15 (5 passes over the prompts, 1 a step)" in lines
    assert lines[-2:] == ["on this machine:", "  the run can start"]
    for limit in (7, 0):  # 0: what the supervised stage makes is evaluated, and no more
        said = _dry_run(capsys, recipe, "--oger.total_training_steps", str(limit))
        assert f"steps: {limit} (oger.total_training_steps)" in said
    said = _dry_run(capsys, recipe, "--oger.total_training_steps", "16")
    assert "steps: 15 (5 passes over the prompts, 1 a step; oger.total_training_steps asks for 16)" in said
    assert {entry.name for entry in tmp_path.iterdir()} == {"recipe.yaml", "rows.jsonl"}  # nothing was made


def test_steps_of_reasoning_are_told_where_they_count(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "steps of reasoning:" not in _dry_run(capsys, recipe)
    flags = ["--algo.advantage.estimator", "appo", "--oger.ratio_level", "step", "--oger.steps.max_step_tokens", "96"]
    flags += ["--oger.steps.max_steps", "10", "--oger.steps.last_step_text", "answer", "--oger.steps.sample_by_step"]
    lines = _dry_run(capsys, recipe, *flags, "--oger.max_replace_num", "0", "--oger.bonus_weight", "0")
    first = lines.index("steps of reasoning:")
    assert lines[first + 1 : first + 6] == [
        "  a step ends after '\\n\\n' or 96 tokens",
        "  a response ends with step 10 or the step with 'answer'",
        "  each step is its own request",
        "  appo pays each step",
        "  the loss has one ratio for each step",
    ]


def test_what_will_be_rewarded_is_listed(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "reward:" not in _dry_run(capsys, recipe)  # the verifier and the bonus, as always
    sources = [
        {"name": "rule", "kind": "verifier"},
        {"name": "short", "kind": "test_plan:short", "weight": 0.25, "combine": "mul", "gate": "rule_equals_1"},
        {"name": "explore", "kind": "bonus"},
    ]
    monkeypatch.setitem(sys.modules, "test_plan", sys.modules[__name__])
    flags = ("--oger.reward.sources", json.dumps(sources), "--oger.bonus_weight", "0.5")
    lines = _dry_run(capsys, recipe, *flags, "--oger.reward.on_error", "neutral")
    first = lines.index("reward:")
    assert lines[first + 1 : first + 5] == [
        "    1 * rule: verifier",
        "  x 0.25 * short: test_plan:short, where rule_equals_1",
        "  + 0.5 * explore: bonus",
        "  if a source fails: neutral; if the answer causes the failure: the source's worst value",
    ]


def short(group: Any) -> list[float]:
    return [0.0] * len(group.responses)


@pytest.mark.parametrize(
    ("rows", "changes", "steps"),
    [
        (10, {}, 6),  # 3 whole steps of 3 prompts, twice
        (10, {"data.max_samples": 8}, 4),
        (10, {"oger.total_training_steps": 5}, 5),
        (2, {}, 0),
    ],
)
def test_steps_are_counted_as_the_loader_cuts_them(rows: int, changes: dict[str, Any], steps: int) -> None:
    value = {"rollout.batch_size": 3, "train.num_episodes": 2, "data.max_samples": 100} | changes
    assert planned_steps({"oger.total_training_steps": None} | value, rows) == steps


def test_the_built_in_task_is_counted_before_its_policy_is_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = _dry_run(capsys, ROOT / "configs" / "countdown_cpu_smoke.yaml", "--oger.task.cache", str(tmp_path))
    assert any(line.startswith("data: 64 rows with ") for line in lines)
    assert "steps: 4 (1 pass over the prompts, 16 a step; fewer if too long prompts are left out)" in lines


def test_evaluation_data_is_read_as_well(recipe: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    held_out = ["--eval.dataset", "held_out.jsonl", "--oger.eval.max_samples", "2"]
    (tmp_path / "held_out.jsonl").write_text((tmp_path / "rows.jsonl").read_text())
    assert "evaluation: 2 problems, 4 samples each" in _dry_run(capsys, recipe, *held_out)
    note = "note: evaluation is greedy (eval.temperature 0 or oger.eval.top_k 1)"
    for greedy in ("--eval.temperature=0", "--oger.eval.top_k=1"):
        lines = _dry_run(capsys, recipe, *held_out, greedy)
        assert "evaluation: 2 problems, one greedy sample each" in lines
        assert any(line.startswith(note) and "not eval.n_samples_per_prompt 4" in line for line in lines)
        lines = _dry_run(capsys, recipe, *held_out, greedy, "--eval.n_samples_per_prompt=1")
        assert not any(line.startswith(note) for line in lines)
    (tmp_path / "held_out.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit, match="held_out.jsonl:1: "):
        _dry_run(capsys, recipe, *held_out)


def test_a_dry_run_refuses_a_wrong_recipe_and_wrong_rows(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="rollout.temperature is 0.0: it must be above 0"):
        train.main(["--recipe", str(recipe), "--dry-run", "--rollout.temperature", "0"])
    more = ["--rollout.batch_size", "4", "--train.batch_size", "16"]
    with pytest.raises(SystemExit, match="3 prompts do not fill one step of rollout.batch_size 4"):
        train.main(["--recipe", str(recipe), "--dry-run", *more])
    (tmp_path / "rows.jsonl").write_text("no row\n")
    with pytest.raises(SystemExit, match="rows.jsonl:1: not valid JSON"):
        train.main(["--recipe", str(recipe), "--dry-run"])


def _refused(capsys: pytest.CaptureFixture[str], recipe: Path, *flags: str) -> tuple[str, str]:
    """What a dry run prints, and what it says at last of why the run would not start here."""
    with pytest.raises(SystemExit) as stop:
        train.main(["--recipe", str(recipe), "--dry-run", *flags])
    return capsys.readouterr().out, str(stop.value.code)


def test_what_this_machine_cannot_do_is_said_after_the_plan(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a login node: the plan is there all the same, and the exit status is that of the run."""
    gpus = ["--vllm.enable_sleep", "--oger.logical_gpus", "1"]
    printed, said = _refused(capsys, recipe, *gpus)
    assert "GPUs by role:" in printed and "steps: 15 " in printed and "the run can start" not in printed
    assert said.endswith("\n  The plan is above; the run would not start here.")
    with pytest.raises(SystemExit, match="this recipe cannot run:\n  - actor 1 .*\n  - vllm.enable_sleep True") as run:
        train.main(["--recipe", str(recipe), *gpus])
    assert said.startswith(str(run.value.code))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--train.colocate_all", "--vllm.num_engines", "2"],
            "train.colocate_all puts the engines on the policy's 1 GPUs, but vllm.num_engines x "
            "vllm.tensor_parallel_size is 2: make them equal",
        ),
        (
            ["--train.colocate_actor_ref", "--algo.kl.init_coef", "0.1", "--ref.num_gpus_per_node", "2"],
            "train.colocate_actor_ref puts the reference on the policy's GPUs, but actor.num_nodes and "
            ".num_gpus_per_node are 1 x 1, those of ref 1 x 2: make them equal",
        ),
    ],
)
def test_roles_that_share_gpus_have_as_many(
    recipe: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    assert f"  - {sentence}" in _refused(capsys, recipe, *flags)[1]


# ---- memory


def test_the_parameters_are_those_of_the_model(policy_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy_folder)
    shape = shape_of(str(policy_folder))
    assert shape is not None
    # The file of this tiny model has a header of a few kilobytes besides.
    assert shape.parameters == pytest.approx(model.num_parameters(), rel=0.05)
    assert (shape.hidden, shape.vocabulary) == (32, model.config.vocab_size)
    assert shape_of("me/policy") is None and shape_of(None) is None


SHAPE = Shape(parameters=1000, hidden=10, vocabulary=100, kv_bytes_per_token=80)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"weights": 2000, "gradients": 500, "Adam": 3000, "buffers": 2000}),
        (["--ds.zero_stage", "0"], {"weights": 2000, "gradients": 2000, "Adam": 12000, "buffers": 0}),
        (["--ds.zero_stage", "1"], {"weights": 2000, "gradients": 2000, "Adam": 3000, "buffers": 2000}),
        (["--ds.zero_stage", "3"], {"weights": 500, "gradients": 500, "Adam": 3000, "buffers": 4000}),
        (["--ds.zero_stage", "1", "--ds.overlap_comm"], {"buffers": 4000}),
        (["--ds.zero_stage", "1", "--ds.grad_accum_dtype", "fp32"], {"gradients": 6000}),
        (["--ds.zero_stage", "3", "--ds.grad_accum_dtype", "fp32"], {"gradients": 1000}),
        (["--ds.adam_offload"], {"Adam": 0}),
        (["--oger.grader", "initial"], {"weights": 2000, "grader": 2000}),
        (["--oger.grader", "initial", "--ds.zero_stage", "3"], {"weights": 500, "grader": 500}),
        (["--oger.grader", "average"], {"weights": 2000, "grader": 6000}),
        # Two rows of 8 tokens, or 40 tokens: their logits, of 8 bytes where they are made all at once
        (["--no-oger.chunked_token_stats"], {"backward": 8 * 16 * 100}),
        (
            ["--no-oger.chunked_token_stats", "--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", "40"],
            {"backward": 8 * 40 * 100},
        ),
    ],
)
def test_the_estimate_is_the_formula(
    parser: argparse.ArgumentParser, flags: list[str], expected: dict[str, float]
) -> None:
    common = ["--actor.num_gpus_per_node", "4", "--train.micro_batch_size", "2", "--data.max_len", "8"]
    value = vars(parser.parse_args([*common, *flags]))
    policy = estimate(value, SHAPE).policy
    assert {name: policy[name] for name in expected} == expected


def test_engines_and_main_memory(parser: argparse.ArgumentParser) -> None:
    flags = ["--train.micro_batch_size", "2", "--data.max_len", "8", "--no-oger.chunked_token_stats"]
    value = vars(parser.parse_args(flags))
    need = estimate(value | {"vllm.tensor_parallel_size": 2, "ds.adam_offload": True}, SHAPE)
    assert (need.engine_weights, need.kv_cache_per_token, need.offloaded) == (1000, 4 * 4 * 5 / 2, 16000)
    # Two ranks of 2000 + 2000 / 2 (ZeRO 2) + 12000 / 2 + 2000 of buffers + 12800 of logits; a reference; three engines
    two = value | {"actor.num_gpus_per_node": 2}
    gpus = {"actor": 2, "reference": 1, "vLLM engines": 3}
    assert in_main_memory(two, SHAPE, gpus) == 2 * (2000 + 1000 + 6000 + 2000 + 12800) + 2000 + 3 * 2000
    # Surely: weights and Adam's states of two ranks, one reference, three engines
    assert surely_in_main_memory(two, SHAPE, gpus) == 2 * (2000 + 6000) + 2000 + 3 * 2000
    assert surely_in_main_memory(two | {"actor.optim": "muon"}, SHAPE, gpus) == 2 * 2000 + 2000 + 3 * 2000
    # A copy of the initial policy in each rank, which stays there while the engine samples
    graded = two | {"oger.grader": "initial"}
    assert surely_in_main_memory(graded, SHAPE, gpus) == 2 * (4000 + 6000) + 2000 + 3 * 2000
    for sleeps in ({}, {"ds.enable_sleep": True}):
        with_it, without = (
            [size for size, _ in shared_gpu(each | sleeps, estimate(each, SHAPE)).values()] for each in (graded, two)
        )
        assert [one - other for one, other in zip(with_it, without, strict=True)] == [2000, 2000]


def test_a_critic_and_a_reference_take_their_own(parser: argparse.ArgumentParser) -> None:
    flags = ["--algo.advantage.estimator", "gae", "--algo.kl.init_coef", "0.1", "--actor.num_gpus_per_node", "4"]
    value = vars(parser.parse_args([*flags, "--critic.num_gpus_per_node", "2", "--ds.zero_stage", "3"]))
    smaller = Shape(parameters=100, hidden=10, vocabulary=100, kv_bytes_per_token=80)
    need = estimate(value, SHAPE, smaller)
    # There is no output layer: 200 are gradients of 32 bits, in the update.
    assert need.critic == {"weights": 100, "gradients": 100, "Adam": 600, "buffers": 400, "backward": 200}
    assert (need.reference, need.offloaded_reference) == (500, 0)
    offloaded = estimate(value | {"ref.offload": True}, SHAPE)
    assert (offloaded.reference, offloaded.offloaded_reference) == (0, 500)
    assert estimate(value | {"ref.offload": True, "ds.zero_stage": 2}, SHAPE).reference == 2000  # stage 3 alone can
    assert estimate(value | {"algo.kl.init_coef": 0.0}, SHAPE).reference == 0


def test_who_shares_a_gpu_is_there_in_turn(parser: argparse.ArgumentParser) -> None:
    value = vars(parser.parse_args(["--vllm.gpu_memory_utilization", "0.6", "--ds.zero_stage", "2"]))
    need = Memory(
        policy={"weights": 20, "gradients": 20, "Adam": 120, "buffers": 3, "activations": 50, "backward": 40},
        critic={"weights": 2, "gradients": 2, "Adam": 12, "buffers": 1, "activations": 5, "backward": 4},
        reference=7, offloaded_reference=0, offloaded=0, engine_weights=10, kv_cache_per_token=2,
    )  # fmt: skip
    assert shared_gpu(value, need) == {"training": (253 + 26 + 7, 0.6), "sampling": (163 + 17 + 7, 0.6)}
    asleep = value | {"vllm.enable_sleep": True}
    assert shared_gpu(asleep, need) == {"training": (253 + 26 + 7, 0), "sampling": (163 + 17 + 7, 0.6)}
    # Of DeepSpeed weights and buffers stay, and one is trained at a time.
    both = asleep | {"ds.enable_sleep": True}
    assert shared_gpu(both, need) == {"training": (253 + 3 + 7, 0), "sampling": (23 + 3 + 7, 0.6)}
    # 0.6 x 100 bytes without the weights, for 5 rollouts at each of two engines, of 2 bytes a token
    engines = {"rollout.batch_size": 2, "rollout.n_samples_per_prompt": 5, "vllm.num_engines": 2}
    assert room_for_tokens(value | engines, need, 100) == 5


def test_models_beside_the_policy_are_counted(
    parser: argparse.ArgumentParser, policy_folder: Path, capsys: pytest.CaptureFixture[str], recipe: Path
) -> None:
    count = model_files.parameters(policy_folder)
    assert count is not None
    judge = {"kind": "judge", "model": str(policy_folder), "plugin": "binary"}
    sources = [{"name": name, **judge, **more} for name, more in (("one", {}), ("two", {"dtype": "bfloat16"}))]
    sources = [{"name": "rule", "kind": "verifier"}, *sources]
    value = vars(parser.parse_args(["--oger.reward.sources", json.dumps(sources)]))
    value |= {"oger.embedding_model": str(policy_folder)}
    assert beside(value, cpu=True) == {"encoder": 4 * count, "one": 4 * count, "two": 2 * count}
    assert beside(value) == {"encoder": 4 * count, "one": 2 * count, "two": 2 * count}
    alone = in_main_memory(value | {"oger.reward.sources": sources[:1]}, SHAPE, {"actor": 1})
    gpus = {"actor": 1}
    # One engine is there at a time, but for what may be kept.
    assert in_main_memory(value, SHAPE, gpus) - alone == pytest.approx(4 * count)
    assert in_main_memory(value | {"oger.reward.engine_memory_gb": 1}, SHAPE, gpus) - alone == pytest.approx(6 * count)


def test_the_dry_run_says_what_memory_is_for(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _dry_run(capsys, recipe)
    (heading,) = [line for line in lines if line.startswith("memory, estimated for ")]
    assert heading.endswith("million parameters (without what libraries take):")
    rank, engine = lines[lines.index(heading) + 1 : lines.index(heading) + 3]
    parts = ("weights", "gradients", "Adam", "buffers", "activations", "backward")
    assert rank.startswith("  a policy rank: ") and all(f" {part} " in rank for part in parts)
    assert engine.startswith("  an engine: weights ") and "KV cache " in engine


def test_sizes_are_readable() -> None:
    assert [readable(size) for size in (0, 1023, 2048, 3.5 * 2**20, 150 * 2**30)] == [
        "0 bytes", "1023 bytes", "2 KiB", "3.5 MiB", "150 GiB",
    ]  # fmt: skip


def test_the_output_layer_is_made_in_larger_chunks_on_a_gpu(parser: argparse.ArgumentParser) -> None:
    """Of 2^26 logits, or 2^28: each logit more than fills its 8 bytes, and nothing else of this model is large."""
    wide = Shape(parameters=1, hidden=1, vocabulary=2**20, kv_bytes_per_token=4)
    value = vars(parser.parse_args(["--data.max_len", "4096"]))
    by_device = [estimate(value, wide, cpu=cpu).policy["backward"] for cpu in (True, False)]
    assert 8 * CHUNK_LOGITS < by_device[0] < 8 * CHUNK_LOGITS_ON_GPU < by_device[1] < 8 * 2**32
