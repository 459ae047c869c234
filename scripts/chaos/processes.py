"""The processes of a run and what they leave behind on this machine."""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
from plan import DRIVER, TREE, Victim

from oger_recipe.base.stacks import state_and_parent

MARK = "OGER_CHAOS"  # environment variable that the processes of an attempt inherit
_SHARED = Path("/dev/shm")


class Tree:
    """Every process that an attempt has started, however it was started: children of children, and whoever inherited
    the mark. Some titles overwrite the environment, and some processes leave their parents: neither finds all."""

    def __init__(self, driver: int, mark: str) -> None:
        self.driver, self._mark = psutil.Process(driver), f"{MARK}={mark}".encode()
        self._seen: set[psutil.Process] = {self.driver}

    def look(self) -> None:
        found, pids = set(self._seen), {each.pid for each in self.alive()}
        # Not psutil's children: where the clock was set back, a child seems to be older than its parent, and is none.
        parents = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                parents[process.pid] = process.ppid()
        for pid in parents:
            above = pid
            while (above := parents.get(above, 0)) and above not in pids:
                pass
            if above:
                with contextlib.suppress(psutil.Error):
                    found.add(psutil.Process(pid))
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, psutil.Error):
                if self._mark in (folder / "environ").read_bytes():
                    found.add(psutil.Process(int(folder.name)))
        self._seen = found

    def alive(self) -> list[psutil.Process]:
        return [each for each in self._seen if _is_alive(each)]

    def find(self, victim: Victim) -> list[psutil.Process]:
        """Return the processes to strike; none while the victim is not there."""
        if victim.process == DRIVER:
            return [self.driver]
        self.look()
        if victim.process == TREE:
            return self.alive()
        found = [each for each in self.alive() if victim.process in _command(each)]
        below = [each for each in found if _parent(each) in found]  # a worker has its server's command line
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


def _is_alive(process: psutil.Process) -> bool:
    # Not psutil's is_running: where the clock is moved, it takes a process for another one of that number.
    state, _ = state_and_parent(process.pid) or ("X", 0)
    return state not in "ZX"


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _parent(process: psutil.Process) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        return process.parent()
    return None


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
