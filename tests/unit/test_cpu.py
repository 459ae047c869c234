"""Threads of a process on a machine without CUDA."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CORES = str(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("given", "threads"), [(None, CORES), ("", CORES), ("3", "3"), ("4,2", "4"), ("0", CORES), ("many", CORES)]
)
def test_what_omp_num_threads_says_holds_for_every_process_of_a_run(given: str | None, threads: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    said = subprocess.run(
        [sys.executable, "-c", "from oger_recipe.cpu import *; print(THREADS, CPU_ENVIRONMENT['OMP_NUM_THREADS'])"],
        env=environment | ({} if given is None else {"OMP_NUM_THREADS": given}),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.split() == [threads, threads]
