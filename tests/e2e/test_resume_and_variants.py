"""The shapes of run that have to give the same training; going on with a run is in tests/walks/test_killed_runs.py.

Each run has a model beside the rule, so that the twins with a classifier and with servers need no runs of their own.
"""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hang import HANG_S
from metric_rows import without_row
from runs import SMALL, lines, recipe_of, samples, train, typed

from oger_recipe.lab.built_in_models import folder_of
from oger_recipe.lab.known_judges import value
from oger_recipe.run_folder import checkpoints

pytestmark = pytest.mark.full
RANKS = [
    "--actor.num_gpus_per_node", "2", "--train.micro_batch_size", "32",
    "--algo.kl.init_coef", "0.001", "--algo.kl.use_loss", "--algo.kl.estimator", "k3",
]  # fmt: skip
PACKED = [
    "--ds.zero_stage", "3", "--ds.packing_samples", "--train.dynamic_batch_enable",
    "--train.max_tokens_per_gpu", "4096",
]  # fmt: skip


def two_steps(
    recipe: Path, flags: list[str], smoke_run: Path, cache: Path, run_dir: Path, *, asks_to_stop: bool = False
) -> list[dict]:
    """Two steps from the smoke run's final model, which vLLM and the policy load again; returns their rows.

    With ``asks_to_stop`` the run has more steps, and is asked to end while it is at the second.
    """
    shape = ["--actor.model_name_or_path", str(smoke_run / "model"), "--train.batch_size", "128"]
    command = typed(run_dir, cache, *SMALL, *shape, *flags, recipe=recipe)
    running = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while asks_to_stop and running.poll() is None:
        if (run_dir / "metrics.jsonl").exists():
            running.send_signal(signal.SIGUSR1)
            break
        time.sleep(0.05)
    said, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == (75 if asks_to_stop else 0), said[-2000:] + shown[-3000:]
    assert not without_row(run_dir)
    first, second, *more = lines(run_dir / "metrics.jsonl")
    if asks_to_stop:
        last = 2 + len(more)  # 2 but on a machine that stood still
        assert f"oger train: stopped by SIGUSR1 after step {last} of 4; the last checkpoint is of step {last}" in shown
        (kept,) = checkpoints.found(run_dir / "checkpoints")
        assert (kept.step, kept.fault) == (last, None) and not (run_dir / "model").exists()
    before = lines(smoke_run / "metrics.jsonl")[-1]  # other problems, and a step of training ago
    assert first["rollout/entropy"] == pytest.approx(before["rollout/entropy"], rel=0.2)
    for record in (first, second):
        assert record["vllm_logprob_difference"] < 0.02
        assert record["oger/replaced"] == 16
        assert record["off_policy_token_share"] > 0
    assert first["on_policy_ratio"] == pytest.approx(1, abs=0.02)
    assert second["off_policy_prob"] > 0.9 * first["off_policy_prob"]
    return [row for step in (1, 2) for row in samples(run_dir, step) if not row.get("replaced")]


def test_two_ranks_over_gloo_with_a_reference_and_a_classifier_train_like_the_plain_run(smoke_run, cache, tmp_path):
    """The classifier's number is normalized in its group: (x - mean) / std."""
    recipe = recipe_of("classifier_cpu", tmp_path)
    more = ["--oger.total_training_steps", "4"]
    rows = two_steps(recipe, [*RANKS, *more], smoke_run, cache, tmp_path / "run", asks_to_stop=True)
    assert len(rows) == 2 * 16 * 8
    for group in zip(*[iter(rows)] * 8, strict=True):
        said = [row["sources"]["taste"] for row in group]
        assert said == pytest.approx([value(row["text"], "*+") for row in group], abs=0.02)
        mean = sum(said) / 8
        std = (sum((each - mean) ** 2 for each in said) / 7) ** 0.5
        for row, each in zip(group, said, strict=True):
            taste = 0.1 * (each - mean) / (std + 1e-6)
            assert row["total_reward"] == pytest.approx(row["reward"] + row.get("bonus", 0.0) + taste, abs=2e-3)
    assert len({row["sources"]["taste"] > 0.5 for row in rows}) == 2


@contextlib.contextmanager
def served(*names: str, cache: Path) -> Iterator[list[str]]:
    """The addresses of judges of the built-in task, each behind `oger serve-judge`."""
    servers = []
    for name in names:
        command = [sys.executable, "-m", "oger_recipe.cli.serve_judge", folder_of(name, str(cache / "tasks"))]
        command += ["--name", name, "--port", "0", *(["--head"] if "head" in name else [])]
        servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        ready = [next(line for line in server.stdout if line.startswith("ready after")) for server in servers]
        yield [yaml.safe_load(line.partition(": - ")[2])["url"] for line in ready]
    finally:
        for server in servers:
            server.terminate()
        assert [server.wait(HANG_S) for server in servers] == [0] * len(servers)


def test_zero_3_packed_in_dynamic_batches_with_judges_at_servers_trains_like_the_plain_run(smoke_run, cache, tmp_path):
    """Rule + 0.3 judge, and where the rule gave something + 0.1 head; each row's are those of its own text."""
    run_dir = tmp_path / "run"
    with served("countdown-judge", "countdown-head", cache=cache) as (judge, head):
        recipe = recipe_of("judge_server_cpu", tmp_path, judge={"url": judge}, head={"url": head})
        rows = two_steps(recipe, PACKED, smoke_run, cache, run_dir)
    assert len(rows) == 2 * 16 * 8
    for row in rows:
        said, product = row["sources"], "*" in row["text"]
        assert said["judge"] == product
        expected = row["reward"] + 0.3 * product
        if row["reward"]:
            assert said["head"] == pytest.approx(value(row["text"], "*+"), abs=0.02)
            expected += 0.1 * said["head"]
        assert ("head" in said) == (row["reward"] != 0)
        assert row["total_reward"] == pytest.approx(expected, abs=1e-5) and "errors" not in row
    assert {row["sources"]["judge"] for row in rows} == {0, 1}
    told = {(event.get("phase"), event.get("model")) for event in lines(run_dir / "events.jsonl")}
    assert ("judges", "countdown-judge") in told  # while its replies come
    for step in lines(run_dir / "metrics.jsonl"):
        assert (step["reward/judge/failed"], step["reward/head/failed"], step["reward/judge/unparsed"]) == (0, 0, 0)


def test_an_engine_that_cannot_start_ends_the_run_with_its_reason(cache, tmp_path):
    done = train(tmp_path / "run", cache, "--data.max_len", "4096")  # the policy's positions end at 1024
    assert done.returncode == 1
    assert "training stopped" in done.stderr and "max_model_len (4096) is greater than" in done.stderr
