"""OAT's two examples on one CPU machine: the shipped twins, a few steps from the smoke run's policy."""

import json
from pathlib import Path

import pytest
from runs import lines, samples, train

pytestmark = pytest.mark.full
# The smoke recipe's sizes: its data and its warm start are in the cache already.
SMALL = [
    "--oger.task.train_problems", "64", "--oger.task.eval_problems", "16",
    "--rollout.batch_size", "16", "--train.batch_size", "64", "--oger.total_training_steps", "3",
    "--eval.n_samples_per_prompt", "4", "--eval.temperature", "0.7",
]  # fmt: skip
GROUP = 8


@pytest.fixture(scope="module")
def ppo_run(smoke_run, cache, tmp_path_factory) -> Path:
    """PPO with a critic, two epochs, both KLs, fined truncation, an evaluation in between."""
    run_dir = tmp_path_factory.mktemp("runs") / "ppo"
    flags = ["--eval.steps", "2", "--oger.kl_penalty_coef", "0.001", "--oger.non_stop_penalty", "-0.5"]
    done = train(run_dir, cache, *SMALL, *flags, "--rollout.max_new_tokens", "40", recipe="oat_gsm8k_ppo_cpu")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (run_dir / "stdout.txt").write_text(done.stdout)
    return run_dir


@pytest.fixture(scope="module")
def grpo_run(smoke_run, cache, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "grpo"
    quick = ["--no-oger.val_before_train", "--no-oger.val_after_train"]
    done = train(run_dir, cache, *SMALL, *quick, "--oger.stop", "found", recipe="oat_countdown_grpo_cpu")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (run_dir / "stdout.txt").write_text(done.stdout)
    return run_dir


def test_ppo_trains_policy_and_critic_under_polynomial_schedules(ppo_run):
    steps = lines(ppo_run / "metrics.jsonl")
    assert [record["step"] for record in steps] == [1, 2, 3]
    # Predicting the mean return lowers the loss already; that a critic learns more is in test_critic_actor.py.
    for record in steps:
        assert record["critic_loss"] > 0 and record["critic_grad_norm"] > 0
        assert record["explained_variance"] < 1 and 0 <= record["value_clip_share"] < 1
    assert steps[0]["explained_variance"] < 0.1  # its values before the first update: any head knows nothing
    for key in ("actor_lr", "critic_lr"):
        first, second, third = (record[key] for record in steps)
        assert first > second > third > 0
    # 16 x 8 rollouts, 64 a step, twice: 4 optimizer steps; within an epoch the policy has left the one that sampled.
    assert all(record["on_policy_ratio"] != 1 and record["clip_fraction"] >= 0 for record in steps)
    assert all(record["vllm_logprob_difference"] < 0.02 for record in steps)  # under a nucleus of 0.9
    assert all(record["oger/replaced"] == 0 for record in steps)


def test_the_line_of_a_step_has_what_its_method_has(ppo_run, grpo_run):
    for run_dir, of_critic in ((ppo_run, True), (grpo_run, False)):
        (line,) = (
            line for line in (run_dir / "stdout.txt").read_text().splitlines() if line.startswith("step    3/3")
        )
        assert all((name in line) == of_critic for name in ("critic loss", "explained variance"))
        assert "length" in line and not any(name in line for name in ("bonus", "divergence", "replaced"))


def test_ppo_fines_truncated_rollouts_and_leaves_their_verdict_alone(ppo_run):
    rows = [row for step in (1, 2, 3) for row in samples(ppo_run, step)]
    truncated = [row for row in rows if row["truncated"]]
    assert truncated and len(truncated) < len(rows)
    assert {round(row["reward"], 6) for row in rows} <= {0.0, 0.1, 1.0}
    steps = lines(ppo_run / "metrics.jsonl")
    for record in steps:
        group = samples(ppo_run, record["step"])
        fined = sum(row["reward"] - 0.5 * row["truncated"] for row in group) / len(group)
        assert record["hybrid_batch/reward"] == pytest.approx(fined, abs=1e-4)


def test_evaluations_before_during_and_after_have_answers_figures_and_tables(ppo_run):
    summary = json.loads((ppo_run / "summary.json").read_text())
    assert [evaluation["step"] for evaluation in summary["evaluations"]] == [0, 2, 3]
    for step in (0, 2, 3):
        answers = lines(ppo_run / "eval" / f"step_{step:05d}.jsonl")
        assert len(answers) == 16 * 4
        result = json.loads((ppo_run / "eval" / f"step_{step:05d}.json").read_text())
        figures = result["benchmarks"]["countdown"]
        assert figures["avg_at_4"] == pytest.approx(sum(answer["score"] for answer in answers) / 64)
        assert figures["problems"] == 16 and figures["ungraded"] == 0
        assert "countdown" in (ppo_run / "eval" / f"step_{step:05d}.md").read_text()
        assert {"uid", "sample", "text", "extracted", "reason", "response_length"} <= answers[0].keys()
    assert "after step 2: avg_at_4" in (ppo_run / "stdout.txt").read_text()


def test_the_best_checkpoint_follows_the_average_over_benchmarks(ppo_run):
    summary = json.loads((ppo_run / "summary.json").read_text())
    best = [path.name for path in (ppo_run / "checkpoints" / "best" / "_actor").glob("global_step*")]
    later = {evaluation["step"]: evaluation["avg_at_4"] for evaluation in summary["evaluations"] if evaluation["step"]}
    expected = max(later, key=lambda step: (later[step], -step))
    assert best == [f"global_step{expected}"]


def test_grpo_normalises_by_the_groups_std_and_stops_where_it_is_told(grpo_run):
    steps = lines(grpo_run / "metrics.jsonl")
    assert [record["step"] for record in steps] == [1, 2, 3]
    for group in zip(*[iter(samples(grpo_run, 1))] * GROUP, strict=True):
        rewards = [row["reward"] for row in group]
        mean = sum(rewards) / GROUP
        std = (sum((reward - mean) ** 2 for reward in rewards) / (GROUP - 1)) ** 0.5
        expected = [(reward - mean) / (std + 1e-6) if std else 0.0 for reward in rewards]
        assert [row["advantage"] for row in group] == pytest.approx(expected, abs=1e-3)
        assert all("found" not in row["text"].removesuffix("found") for row in group)
    assert any(row["text"].endswith("found") for row in samples(grpo_run, 1))  # and others end at their answer
    # The policy leaves its reference with its updates; k3 is never negative, but for float32's rounding. It is over
    # other rollouts in each step, and need not grow.
    first, *later = (record["hybrid_batch/kl"] for record in steps)
    assert -1e-6 < first < 1e-6 and min(later) > 1e-4
