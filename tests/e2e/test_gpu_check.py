"""The user's command on a CPU: what of `oger doctor --gpu` needs no GPU, but for the runs, which other tests make."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hang import HANG_S
from runs import lines

from oger_recipe.checks.gpu_checks import CHECKS, figures
from oger_recipe.checks.gpu_here import Here


@pytest.mark.full
def test_a_cpu_passes_every_check_that_needs_no_gpu(tmp_path: Path) -> None:
    chosen = [name for name in CHECKS if name not in ("Countdown run", "SmolLM2 run")]
    command = [sys.executable, "-m", "oger_recipe.cli.doctor", "--gpu", "--device", "cpu", "--only", *chosen]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "gpu_check.log").read_text()[-3000:]
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert list(report["checks"]) == chosen
    skipped = {name for name, check in CHECKS.items() if check.cuda_only} | {"tokens a second"}  # no run was made
    for name, each in report["checks"].items():
        assert each["verdict"] == ("skipped" if name in skipped else "ok"), (name, each)
    assert str(tmp_path) not in json.dumps(report)


def test_what_it_says_of_a_run_is_in_the_runs_metrics(smoke_run: Path, tmp_path: Path) -> None:
    (tmp_path / "countdown").symlink_to(smoke_run)
    steps = lines(smoke_run / "metrics.jsonl")
    assert figures(smoke_run) == {"steps": 4} | {
        name: round(steps[-1][name], 5) for name in ("vllm_kl", "rollout/solve_rate", "timing/step_total")
    }
    speeds = sorted(step["tokens_per_second"] for step in steps[1:])
    assert CHECKS["tokens a second"].find(Here("cpu", tmp_path, {}, "")) == {"countdown": round(speeds[1])}
