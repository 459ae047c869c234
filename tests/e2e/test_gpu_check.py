"""The user's command on a CPU: what of `oger doctor --gpu` needs no GPU, but for the runs, which other tests make."""

import json
import subprocess
import sys
from pathlib import Path

from hang import HANG_S

from oger_recipe.run.gpu_checks import CHECKS


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
