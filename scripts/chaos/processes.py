"""The processes of a run and what they leave behind on this machine."""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import psutil
from plan import DRIVER, TREE, Victim

from oger_recipe.base.stacks import stat_of, state_and_parent

MARK = "OGER_CHAOS"  # environment variable that the processes of an attempt inherit
_SHARED = Path("/dev/shm")
_Identity: TypeAlias = tuple[int, str]


class Tree:
    """Every process that an attempt has started, however it was started: children of children, and whoever inherited
    the mark. Some titles overwrite the environment, and some processes leave their parents: neither finds all."""

    def __init__(self, driver: int, mark: str) -> None:
        self.driver, self._mark = psutil.Process(driver), f"{MARK}={mark}".encode()
        self._seen: dict[_Identity, psutil.Process] = {}
        self._add(driver)

    def _add(self, pid: int) -> None:
        if identity := _identity(pid):
            with contextlib.suppress(psutil.Error):
                self._seen.setdefault(identity, psutil.Process(pid))

    def look(self) -> None:
        ours = {each.pid for each in self.alive()}
        parents = {int(folder.name): _parent(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")}
        for pid in parents:
            if not ours.isdisjoint(_ancestors(pid, parents)) or self._is_marked(pid):
                self._add(pid)

    def _is_marked(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def alive(self) -> list[psutil.Process]:
        return [each for identity, each in self._seen.items() if _identity(each.pid) == identity]

    def find(self, victim: Victim) -> list[psutil.Process]:
        """Return the processes to strike; none while the victim is not there."""
        if victim.process == DRIVER:
            return [self.driver]
        self.look()
        if victim.process == TREE:
            return self.alive()
        found = [each for each in self.alive() if victim.process in _command(each)]
        pids = {each.pid for each in found}
        below = [each for each in found if _parent(each.pid) in pids]  # a worker has its server's command line
        return (below or found)[:1]


def send(processes: Iterable[psutil.Process], signals: Iterable[signal.Signals]) -> None:
    """Send the signals, one shortly after the other."""
    for number, each in enumerate(signals):
        if number:
            time.sleep(0.6)  # the same signal within 0.3 s does not count
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, each)


def shared_files() -> set[str]:
    """List files of shared memory, named semaphores among them, and System V's."""
    names = {str(path) for path in _SHARED.iterdir()}
    for kind in ("sem", "shm", "msg"):
        rows = Path("/proc/sysvipc", kind).read_text().splitlines()[1:]
        names |= {f"System V {kind} {row.split()[1]}" for row in rows}
    return names


def left_over(tree: Tree, shared_before: set[str], temporary: Path, run_dir: Path) -> list[str]:
    """Say what an attempt that has ended has left: nothing is what it should be."""
    tree.look()
    left = [f"process {each.pid} {_command(each)[:60]}" for each in tree.alive()]
    left += [f"port {port} of process {pid}" for pid, port in _ports(tree.alive())]
    new = shared_files() - shared_before
    left += sorted(new - _mapped_by_others(tree)) if new else []
    left += [f"temporary {path.name}" for path in temporary.iterdir()]
    if _is_locked(run_dir / ".oger-lock"):
        left.append("the lock of the run folder")
    return left


def wait(condition: Callable[[], object], limit_s: float, every_s: float = 0.02) -> bool:
    """Wait until the condition holds; say whether it did within the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def _identity(pid: int) -> _Identity | None:
    """Return a living process's number and when it began, in ticks since the machine did; None if it has ended.

    psutil has the time of the clock: where that is moved, it takes a process for another one, and no child for one.
    """
    fields = stat_of(pid)
    return (pid, fields[20]) if fields and fields[1] not in "ZX" else None


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _parent(pid: int) -> int:
    return (state_and_parent(pid) or ("", 0))[1]


def _ports(processes: Iterable[psutil.Process]) -> list[tuple[int, int]]:
    ports = []
    for each in processes:
        with contextlib.suppress(psutil.Error):
            ports += [(each.pid, c.laddr.port) for c in each.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    return ports


def _mapped_by_others(tree: Tree) -> set[str]:
    """List files of shared memory that processes outside the tree use: they are not the attempt's."""
    ours, mapped = {each.pid for each in tree.alive()}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) not in ours:
            with contextlib.suppress(OSError):
                lines = (folder / "maps").read_text().splitlines()
                mapped |= {line[line.index(str(_SHARED)) :] for line in lines if str(_SHARED) in line}
    return mapped


def _is_locked(path: Path) -> bool:
    with contextlib.suppress(OSError):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False
