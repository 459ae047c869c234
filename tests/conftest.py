"""What whole runs share, wherever their tests are."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from forks import Forks


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The caches of runs: the built-in task's data and policy are built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Starts Python programs, in processes of their own, from one that has imported everything."""
    modules = tmp_path_factory.mktemp("modules")  # of models' own code, by transformers
    forks = Forks(os.environ | {"HF_MODULES_CACHE": str(modules), "OMP_NUM_THREADS": "1"})  # threads are not forked
    yield forks
    forks.end()
