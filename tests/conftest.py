"""What whole runs share, wherever their tests are."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from forks import Forks
from runs import SCHEDULE, train

from oger_recipe.pipeline.driver import template

# Whoever runs the tests behind nohup or a shell's "&" has these ignored, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def without_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that a test calls in its own process begins no imports for a run: most are refused."""
    monkeypatch.setattr(template, "_OF_CUDA", Path("/"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The caches of runs. What the built-in task builds in minutes stays for the next tests, as it does for a user:
    the name of its folder says what it is made of, the code included."""
    folder, kept = tmp_path_factory.mktemp("cache"), Path(__file__).parents[1] / ".cache" / "tests" / "tasks"
    kept.mkdir(parents=True, exist_ok=True)
    (folder / "tasks").symlink_to(kept)
    return folder


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The smoke recipe: data, warm start, evaluation, four steps, evaluation; with a learning rate that decays."""
    run_dir = tmp_path_factory.mktemp("runs") / "smoke"
    done = train(run_dir, cache, *SCHEDULE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (run_dir / "stdout.txt").write_text(done.stdout)
    return run_dir


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Starts Python programs, in processes of their own, from one that has imported everything."""
    modules = tmp_path_factory.mktemp("modules")  # of models' own code, by transformers
    forks = Forks(os.environ | {"HF_MODULES_CACHE": str(modules), "OMP_NUM_THREADS": "1"})  # threads are not forked
    yield forks
    forks.end()
