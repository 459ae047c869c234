"""A run that is preempted by SIGTERM while it samples, and is started again as its exit code asks for."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hang import HANG_S
from runs import lines, samples, typed

from oger_recipe.run_folder import checkpoints

pytestmark = pytest.mark.long
FLAGS = ("--no-oger.val_before_train", "--no-oger.val_after_train", "--ckpt.save_steps", "-1")


def test_a_run_that_is_preempted_while_it_samples_resumes_from_its_last_step(cache: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    def terminated(when: Callable[[list[dict]], bool], *flags: str) -> tuple[int, str]:
        running = subprocess.Popen(
            typed(run_dir, cache, *FLAGS, *flags), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        events = run_dir / "events.jsonl"
        while not (events.exists() and when(lines(events))):
            assert running.poll() is None, running.communicate()
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        _, shown = running.communicate(timeout=HANG_S)
        return running.returncode, shown

    def samples_step_3(events: list[dict]) -> bool:
        return (events[-1].get("phase"), events[-1].get("step")) == ("rollouts", 3)

    code, shown = terminated(samples_step_3)
    assert code == 75, shown
    last = shown.splitlines()[-1]
    assert last.startswith("oger train: stopped by SIGTERM after step 2 of 4; the last checkpoint is of step 2; ")
    assert [(one.step, one.fault) for one in checkpoints.found(run_dir / "checkpoints")] == [(2, None)]
    before = samples(run_dir, 2)

    # Not ready: at once, and nothing is lost.
    code, shown = terminated(lambda events: events[-1]["event"] == "began", "--ckpt.load_enable")
    assert code == 143 and "the last checkpoint is of step 2; resume with: " in shown

    done = subprocess.run(
        typed(run_dir, cache, *FLAGS, "--ckpt.load_enable"), capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    for name, kind in (("metrics.jsonl", None), ("events.jsonl", "step")):
        assert [row["step"] for row in lines(run_dir / name) if row.get("event") == kind] == [1, 2, 3, 4]
    assert samples(run_dir, 2) == before
    assert len({row["uid"] for step in (1, 2, 3, 4) for row in samples(run_dir, step)}) == 64  # each prompt once
