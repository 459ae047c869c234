"""What whole runs share, wherever their tests are."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from forks import Forks


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The caches of runs. What the built-in task builds in minutes stays for the next tests, as it does for a user:
    the name of its folder says what it is made of, the code included."""
    folder, kept = tmp_path_factory.mktemp("cache"), Path(__file__).parents[1] / ".cache" / "tests" / "tasks"
    kept.mkdir(parents=True, exist_ok=True)
    (folder / "tasks").symlink_to(kept)
    return folder


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Starts Python programs, in processes of their own, from one that has imported everything."""
    modules = tmp_path_factory.mktemp("modules")  # of models' own code, by transformers
    forks = Forks(os.environ | {"HF_MODULES_CACHE": str(modules), "OMP_NUM_THREADS": "1"})  # threads are not forked
    yield forks
    forks.end()
