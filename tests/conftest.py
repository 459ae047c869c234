"""What whole runs share, wherever their tests are."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The caches of runs: the built-in task's data and policy are built once."""
    return tmp_path_factory.mktemp("cache")
