"""The processes below one that runs code of others: it adopts what loses its parent, and ends it all before itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from oger_recipe.base.signals import end_with

_PR_SET_CHILD_SUBREAPER = 36
_END_LIMIT_S = 5.0  # a process that does not die of SIGKILL hangs in the kernel


def adopt() -> None:
    """Make this process the parent of all below it that lose theirs, whatever session they have begun."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def begin_below() -> None:
    """Give a forked process a session of its own, and let it end with its parent."""
    os.setsid()
    end_with(os.getppid())


def limit_memory(more: int) -> None:
    """Limit this process to so many bytes beyond those in use; leave no core file at a crash."""
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + more,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def children() -> set[int]:
    """Return the ids of this process's children, adopted ones included."""
    me = os.getpid()
    try:
        return {int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()}
    except FileNotFoundError:  # a kernel without it
        return set()


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_all() -> None:
    """Kill every descendant. Children of those that are killed become this process's own."""
    deadline = time.monotonic() + _END_LIMIT_S
    while (left := children()) and time.monotonic() < deadline:
        kill(left)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)
