"""The pool's fork server: ``python -m oger_recipe.rewards.grading.fork_server``, started by the pool alone.

It imports the verifiers once and then only forks: a worker for each socket that it is sent. So a worker that had to be
killed is replaced in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from oger_recipe.rewards.grading.messages import send_message
from oger_recipe.rewards.grading.worker import serve
from oger_recipe.rewards.verifiers import allow, resolve

_PR_SET_CHILD_SUBREAPER = 36
_END_LIMIT_S = 5.0  # a process that does not die of SIGKILL hangs in the kernel


def _fork_workers(control: socket.socket) -> None:
    """Forks a worker for every socket that arrives with a memory limit (bytes), and answers with its process id; ends
    with the pool's process."""
    parent = os.getppid()
    known = _children()  # beside workers: what verifiers' modules started when they were imported
    while os.getppid() == parent:
        ready = select.select([control], [], [], 1.0)[0]
        _kill(_children() - known)  # what a verifier had started in a worker that is no more
        if not ready:
            continue
        limit, descriptors, _, _ = socket.recv_fds(control, 32, 1)
        if not limit:
            return
        pid = os.fork()
        if pid == 0:
            try:
                control.close()
                serve(socket.socket(fileno=descriptors[0]), int(limit))
            finally:
                os._exit(0)
        known.add(pid)
        os.close(descriptors[0])
        send_message(control, pid)


def _children() -> set[int]:
    """Returns this process's children, and its workers' descendants that lost their parents."""
    me = os.getpid()
    try:
        return {int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()}
    except FileNotFoundError:  # a kernel without it
        return set()


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _end() -> None:
    """Kills every descendant, and then ends this process. Children of those that are killed become its own."""
    deadline = time.monotonic() + _END_LIMIT_S
    while (children := _children()) and time.monotonic() < deadline:
        _kill(children)
        time.sleep(0.005)
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed workers leave no zombies
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control = socket.socket(fileno=int(sys.argv[1]))
    allow(json.loads(sys.argv[2]))
    for task in sys.argv[3:]:
        with contextlib.suppress(Exception, SystemExit):  # every answer of the task will say so
            spec = resolve(task)
            if spec.warm_up is not None:
                spec.warm_up()
    # From the pool, which hangs up as well: an exception would break off the end that has begun.
    signal.signal(signal.SIGTERM, lambda *_: _end())
    try:
        _fork_workers(control)
    finally:
        _end()


if __name__ == "__main__":
    main()
