"""Two runs of one command are one run, to the last bit, also where one of them is stopped and resumed.

In the default suite tests/walks/test_killed_runs.py compares the smoke run with one that was killed.
"""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hang import HANG_S
from runs import SCHEDULE, SMALL, differences, lines, train, typed

STEPS = 3
LEARNS = [
    {"name": "rule", "kind": "verifier"},
    {"name": "explore", "kind": "bonus"},
    {"name": "prime", "kind": "process", "scorer": "implicit", "learning_rate": 0.001, "normalize": "running"},
]
ADAPTIVE_KL = ["--algo.kl.init_coef", "0.01", "--algo.kl.target", "0.001", "--algo.kl.horizon", "1000"]
DYNAMIC = ["--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", "2048"]
RANKS = ["--actor.num_gpus_per_node", "2", "--critic.num_gpus_per_node", "2", "--ref.num_gpus_per_node", "2"]
ENGINES = ["--vllm.num_engines", "2", "--train.batch_size", "32", "--train.micro_batch_size", "16"]
EACH_STEP = ["--data.max_samples", "16", "--train.num_episodes", str(STEPS)]
SHAPES = {
    "a PRM that learns, history, a KL that adapts, dynamic batches": (
        "countdown_cpu_smoke",
        ["--oger.use_history_samples", "--oger.steps.delimiters", '[", "]', *SCHEDULE, *ADAPTIVE_KL, *DYNAMIC],
    ),
    "two ranks, two engines, a critic": ("oat_gsm8k_ppo_cpu", [*SCHEDULE, *RANKS, *ENGINES]),
    "adapters": ("countdown_cpu_smoke", [*SCHEDULE, "--ds.lora.rank", "8", "--ds.lora.dropout", "0.1"]),
    "the same prompts each step, earlier solutions that enter, grades by a policy that sees teachers": (
        "countdown_cpu_smoke",
        [*SCHEDULE, *EACH_STEP, "--oger.use_history_samples", "--oger.history_enters", "--oger.use_off_policy_probs"]
        + ["--oger.off_policy_reshape_ratio", "--oger.grader", "self", "--oger.grade_weight", "0.01"],
    ),
    "judges in engines": ("grm_multi_rm_cpu", [*SCHEDULE, "--oger.reward.engine_memory_gb", "1.7"]),
}


LONG = ("adapters", "the same prompts each step, earlier solutions that enter, grades by a policy that sees teachers")


# .ci/run has all but the long ones.
@pytest.mark.parametrize(
    ("recipe", "flags"),
    [
        pytest.param(*shape, id=name, marks=pytest.mark.long if name in LONG else pytest.mark.full)
        for name, shape in SHAPES.items()
    ],
)
def test_a_run_that_is_stopped_and_resumed_is_the_run_that_is_not(
    recipe: str, flags: list[str], smoke_run: Path, cache: Path, tmp_path: Path
) -> None:
    """Each has caches of embeddings and of verdicts of its own, so that neither reads what the other has computed."""
    if "--oger.steps.delimiters" in flags:
        sources = [source | ({"model": str(smoke_run / "model")} if "scorer" in source else {}) for source in LEARNS]
        flags = [*flags, "--oger.reward.sources", json.dumps(sources)]
    flags = [*SMALL, *flags, "--oger.total_training_steps", str(STEPS)]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    caches = {
        run_dir: ["--oger.embedding_cache", f"{run_dir}_embeddings", "--oger.reward.cache", f"{run_dir}_verdicts"]
        for run_dir in (whole, stopped)
    }
    done = train(whole, cache, *flags, *caches[whole], recipe=recipe)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    _stop_after_a_step(typed(stopped, cache, *flags, *caches[stopped], recipe=recipe), stopped)
    done = train(stopped, cache, *flags, *caches[stopped], "--ckpt.load_enable", recipe=recipe)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    resumed = [event["resumed_at"] for event in lines(stopped / "events.jsonl") if event["event"] == "ready"]
    assert resumed[0] == 0 < resumed[1] < STEPS
    assert differences(whole, stopped) == []
    steps = lines(whole / "metrics.jsonl")
    assert len(steps) == STEPS and steps[0]["rollout/solve_rate"] > 0
    assert len({step["actor_lr"] for step in steps}) == STEPS


def _stop_after_a_step(command: list[str], run_dir: Path) -> None:
    running = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (run_dir / "metrics.jsonl").exists() and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGUSR1)
    said, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == 75, said[-2000:] + shown[-3000:]
