"""The Python stacks of a run's processes, which tell where a run stands still.

Each process answers SIGUSR2 by writing the stacks of its threads into a file in memory. That works while it waits in C
code, and in containers that forbid one process to trace another. The file's name says which run it belongs to: who
looks for a run's processes on a node finds all that answer, whatever started them.
"""

import contextlib
import faulthandler
import hashlib
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

_ANSWER = signal.SIGUSR2
_LONGEST_WAIT_S = 5.0  # without a further byte
_STATES = {"R": "running", "S": "waiting", "D": "waiting in the kernel", "T": "stopped", "t": "stopped by a tracer",
           "Z": "ended", "I": "idle"}  # fmt: skip
_answers: list[int] = []  # this process's file


@dataclass(frozen=True)
class ProcessStacks:
    """A process and the stacks of its threads. ``state``: its letter in /proc; ``stacks``: empty where it did not
    answer."""

    pid: int
    parent: int
    title: str
    state: str
    stacks: str

    @property
    def is_stopped(self) -> bool:
        return self.state in ("T", "t")

    @property
    def text(self) -> str:
        why_none = "a stopped process cannot answer" if self.is_stopped else "none of the recipe's, or stuck in C code"
        state = _STATES.get(self.state, self.state)
        stacks = self.stacks or f"  no stacks: {why_none}\n"
        return f"== {self.title}, pid {self.pid}, parent {self.parent}, {state}\n{stacks}"


def answer(run_dir: str | None = None) -> None:
    """Let this process answer with its stacks, if it is a run's. One that it forks answers into the same file, until
    it calls this, too.

    run_dir: the run's folder, if OGER_RUN_DIR does not say it.
    """
    run_dir = run_dir or os.environ.get("OGER_RUN_DIR")
    if run_dir is None:
        return
    file = os.memfd_create(_name(run_dir))
    faulthandler.register(_ANSWER, file=file, all_threads=True, chain=False)
    while _answers:
        os.close(_answers.pop())
    _answers.append(file)


def path(run_dir: Path) -> Path:
    """Return a file for the stacks of a run that stands still."""
    return run_dir / "logs" / f"stacks-{time.strftime('%Y%m%d-%H%M%S')}.txt"


def is_stopped(pid: int) -> bool:
    """Say whether a signal has stopped the process."""
    stat = state_and_parent(pid)
    return stat is not None and stat[0] == "T"


def ask(run_dir: str, above: int | None = None) -> list[ProcessStacks]:
    """Return the stacks of the run's processes on this node. ``above``: a process that is listed as well, with all
    its descendants, whether they answer or not."""
    there = {int(path.name) for path in Path("/proc").glob("[0-9]*")}
    files = {pid: file for pid in there if (file := _file(pid, _name(run_dir)))}
    below = set() if above is None else _below(above, there)
    return [found for pid in sorted({*files, *below}) if (found := _asked(pid, files.get(pid)))]


def _name(run_dir: str) -> str:
    return f"oger-stacks-{hashlib.sha256(run_dir.encode()).hexdigest()[:16]}"


def _below(root: int, pids: set[int]) -> set[int]:
    parents = {pid: stat[1] for pid in pids if (stat := state_and_parent(pid))}
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the second one, the program's name, on; None if the process is gone."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return None
    return [name, *rest.split()]


def state_and_parent(pid: int) -> tuple[str, int] | None:
    """Return a process's state, a letter of /proc, and its parent; None if it is gone."""
    fields = stat_of(pid)
    return (fields[1], int(fields[2])) if fields else None


def _file(pid: int, name: str) -> Path | None:
    """Find the file in memory into which a process answers."""
    with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor).startswith(f"/memfd:{name}"):
                    return descriptor
    return None


def _asked(pid: int, file: Path | None) -> ProcessStacks | None:
    stat = state_and_parent(pid)
    if stat is None:
        return None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        title = words[0].decode(errors="replace").strip() or Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None
    state, parent = stat
    found = ProcessStacks(pid, parent, title, state, "")
    with contextlib.suppress(OSError):
        if file is not None and not found.is_stopped:
            return replace(found, stacks=_answered(pid, file))
    return found


def _answered(pid: int, file: Path) -> str:
    """Ask a process, and return what it has written once its handler has returned."""
    if not _has_signal(f"/proc/{pid}/status", "SigCgt"):  # the signal ends a process that has no handler
        return ""
    with file.open("rb") as answers:
        size = before = answers.seek(0, os.SEEK_END)
        at_rest = _blocking(pid)
        os.kill(pid, _ANSWER)
        deadline = time.monotonic() + _LONGEST_WAIT_S
        # While the handler runs, its thread blocks the signal: a pause between two threads' stacks is not their end.
        while time.monotonic() < deadline and (size == before or _blocking(pid) > at_rest):
            time.sleep(0.05)
            last, size = size, answers.seek(0, os.SEEK_END)
            if size > last:
                deadline = time.monotonic() + _LONGEST_WAIT_S
        answers.seek(before)
        return answers.read().decode(errors="replace")


def _blocking(pid: int) -> int:
    """Count the threads that block the signal."""
    count = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            count += _has_signal(f"{thread}/status", "SigBlk")
    return count


def _has_signal(status: str, mask: str) -> bool:
    for line in Path(status).read_text().splitlines():
        if line.startswith(f"{mask}:"):
            return bool(int(line.split()[1], 16) >> (_ANSWER - 1) & 1)
    return False
