"""scripts/slurm/train_oger.sbatch in a real SLURM: one machine as two nodes, whose GPUs are only numbers."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import slurm
from runs import ROOT, caches_in, lines

from oger_recipe.run_folder import checkpoints

pytestmark = pytest.mark.full
STEPS = 4
SHORT = [
    *("--oger.total_training_steps", str(STEPS), "--ckpt.save_steps", "100"),  # at its end, or where it is asked to
    *("--no-oger.val_before_train", "--no-oger.val_after_train"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Slurm]:
    missing = [name for name in slurm.PROGRAMS if shutil.which(name, path=slurm.PATH) is None]
    if missing or os.geteuid():
        needs = f"SLURM is started as root, by slurm-wlm and munge of Debian (missing: {', '.join(missing) or 'root'})"
        pytest.fail(needs) if os.environ.get("CI") else pytest.skip(needs)
    folder = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))  # the paths of sockets have to be short
    with slurm.started(folder) as started:
        yield started
    shutil.rmtree(folder)


class Job:
    """The batch file with the smoke recipe on both nodes, with one GPU each."""

    def __init__(
        self, cluster: slurm.Slurm, run_dir: Path, cache: Path, partition: str, *flags: str, **more: str
    ) -> None:
        self.cluster, self.run_dir = cluster, run_dir
        self.temporary = Path(tempfile.mkdtemp(dir=cluster.folder))  # where the nodes keep Ray's files
        sizes = [f"--partition={partition}", "--nodes=2", "--gres=gpu:1", "--cpus-per-task=4"]
        command = [str(ROOT / "scripts" / "slurm" / "train_oger.sbatch"), "configs/countdown_cpu_smoke.yaml"]
        self.number = cluster.submit(
            *sizes, *command, *caches_in(cache), *SHORT, *flags,
            CHECKOUT=str(ROOT), OGER_VENV=sys.prefix, RUN_DIR=str(run_dir), GPUS_PER_NODE="1",
            HEAD_ADDRESS="127.0.0.1", RAY_PORT=str(slurm.free_ports(1)[0]), RAY_TMPDIR=str(self.temporary),
            POLL_SECONDS="1", **more,
        )  # fmt: skip

    def is_now(self, state: str) -> bool:
        return self.cluster.of(self.number, "JobState") == state

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that happens while the job runs."""
        over = ("FAILED", "CANCELLED", "COMPLETED")
        self.cluster.until(lambda: condition() or self.cluster.of(self.number, "JobState") in over)
        assert condition(), self.log()

    def trains(self) -> bool:
        metrics = self.run_dir / "metrics.jsonl"
        return metrics.exists() and bool(lines(metrics))

    def saved(self) -> list[int]:
        """The steps of whole checkpoints."""
        there = checkpoints.found(self.run_dir / "checkpoints")
        return [each.step for each in there if each.fault is None]

    def log(self) -> str:
        path = self.cluster.folder / f"oger-{self.number}.log"
        return path.read_text() if path.exists() else ""

    def preempt(self) -> None:
        """Have a job that wants all of both nodes end it; return when that one is done."""
        other = self.cluster.submit("--nodes=2", "--exclusive", "--partition=high", "--wrap", "true")
        self.cluster.until(lambda: self.cluster.of(other, "JobState") == "COMPLETED")
        assert self.cluster.of(self.number, "Restarts") == "1", self.log()

    def start_soon(self) -> None:
        """SLURM waits two minutes otherwise; a node refuses a job's steps in the second in which it ended the job."""
        self.cluster.call("scontrol", "update", f"JobId={self.number}", "StartTime=now+5seconds")

    def left(self) -> list[str]:
        """What of it is still there: files of Ray, and processes that have its folder in their environment."""
        found = [str(path) for path in self.temporary.iterdir()]
        for process in psutil.process_iter():
            try:
                if process.environ().get("RAY_TMPDIR") == str(self.temporary):
                    found.append(str(process))
            except psutil.Error:  # it has ended
                continue
        return found


def test_a_preempted_job_is_queued_again_and_resumes_until_every_step_is_there_once(cluster, cache, tmp_path):
    job = Job(cluster, tmp_path / "run", cache, "low")
    job.until(job.trains)
    assert not job.saved()
    job.preempt()
    [saved] = job.saved()
    assert 1 <= saved < STEPS
    assert "oger train: stopped by SIGTERM" in job.log(), job.log()
    assert not job.left()
    job.start_soon()
    job.until(lambda: job.is_now("COMPLETED"))
    assert [record["step"] for record in lines(job.run_dir / "metrics.jsonl")] == list(range(1, STEPS + 1))
    events = lines(job.run_dir / "events.jsonl")
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(1, STEPS + 1))
    starts = [event["resumed_at"] for event in events if event["event"] == "ready"]
    assert starts == [0, saved]
    assert not job.left()


def test_a_job_is_queued_again_without_a_grace_period_and_before_its_time_limit_but_not_when_it_is_cancelled(
    cluster, cache, tmp_path
):
    job = Job(cluster, tmp_path / "run", cache, "cheap", REQUEUE="yes")
    job.until(lambda: "2 nodes joined" in job.log())
    job.preempt()
    assert not job.left()
    job.start_soon()
    job.until(job.trains)
    assert not job.saved()
    cluster.call("scancel", "--signal=USR1", "--batch", job.number)  # as SLURM does at --signal's seconds before it
    job.until(lambda: cluster.of(job.number, "Restarts") == "2")
    assert len(job.saved()) == 1 and not job.left()
    job.start_soon()
    job.until(lambda: job.log().count("2 nodes joined") == 3)
    cluster.call("scancel", job.number)
    job.until(lambda: job.is_now("CANCELLED"))
    assert cluster.of(job.number, "Restarts") == "2" and not job.left()


def test_a_job_that_fails_is_not_queued_again(cluster, cache, tmp_path):
    job = Job(cluster, tmp_path / "run", cache, "low", "--actor.adam.lr", "much")
    job.until(lambda: job.is_now("FAILED"))
    assert cluster.of(job.number, "Restarts") == "0" and not job.left()
    assert "argument --actor.adam.lr: invalid float value: 'much'" in job.log()
