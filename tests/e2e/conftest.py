"""Runs that several tests look at."""

from pathlib import Path

import pytest
from runs import train


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The smoke recipe as shipped: data, warm start, evaluation, four steps, evaluation."""
    run_dir = tmp_path_factory.mktemp("runs") / "smoke"
    done = train(run_dir, cache)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (run_dir / "stdout.txt").write_text(done.stdout)
    return run_dir
