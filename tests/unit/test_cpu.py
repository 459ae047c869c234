"""Threads of a process, and memory, on a machine without CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oger_recipe.base.cpu import CPU_ENVIRONMENT, ON_GPUS, free_memory, is_without_cuda, main_memory

CORES = str(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("given", "threads"), [(None, CORES), ("", CORES), ("3", "3"), ("4,2", "4"), ("0", CORES), ("many", CORES)]
)
def test_what_omp_num_threads_says_holds_for_every_process_of_a_run(given: str | None, threads: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    said = subprocess.run(
        [sys.executable, "-c",
         "from oger_recipe.base import cpu as c; print(c.THREADS, c.CPU_ENVIRONMENT['OMP_NUM_THREADS'])"],
        env=environment | ({} if given is None else {"OMP_NUM_THREADS": given}),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.split() == [threads, threads]


MACHINE = {"proc/meminfo": "MemTotal:       16384 kB\nMemFree:         2048 kB\nMemAvailable:    8192 kB\n"}
NEW = {
    "sys/fs/cgroup/memory.max": "{limit}\n", "sys/fs/cgroup/memory.current": "5000000\n",
    "sys/fs/cgroup/memory.stat": "anon 3500000\nfile 1500000\ninactive_file 1000000\n",
}  # fmt: skip
OLD = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "{limit}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "5000000\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 7\ntotal_inactive_file 1000000\n",
}


@pytest.mark.parametrize(
    ("container", "limit", "there", "free"),
    [
        ({}, "", 16 * 2**20, 8 * 2**20),
        (NEW, "max", 16 * 2**20, 8 * 2**20),
        (NEW, "6000000", 6_000_000, 2_000_000),
        (OLD, "6000000", 6_000_000, 2_000_000),
        (OLD, str(2**63 - 4096), 16 * 2**20, 8 * 2**20),
        (NEW, "16000000", 16_000_000, 8 * 2**20),  # the machine has less left
    ],
)
def test_memory_is_the_machines_or_the_containers_where_it_has_less(
    container: dict[str, str], limit: str, there: int, free: int, tmp_path: Path
) -> None:
    """What a container keeps of files is free: whoever needs the room gets it."""
    for name, text in (MACHINE | container).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.format(limit=limit))
    assert (main_memory(tmp_path), free_memory(tmp_path)) == (there, free)


def test_this_machine_says_how_much_memory_it_has() -> None:
    assert 0 < free_memory() <= main_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("said", "cuda", "without"),
    [
        ("1", False, False),
        ("1", True, False),
        ("0", False, True),
        ("0", True, True),
        (None, False, True),
        (None, True, False),
    ],
)
def test_a_process_of_a_run_is_what_the_run_is_whatever_it_sees_itself(
    said: str | None, cuda: bool, without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of no run goes by what it sees."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setenv(ON_GPUS, said) if said else monkeypatch.delenv(ON_GPUS, raising=False)
    assert is_without_cuda() is without


def test_every_process_of_a_run_on_cpus_is_told() -> None:
    assert CPU_ENVIRONMENT[ON_GPUS] == "0"
