"""The pool's fork server: ``python -m oger_recipe.grading.fork_server``, started by the pool alone.

It imports the verifiers once and then only forks: a worker for each socket that it is sent. So a worker that had to be
killed is replaced in milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys

from oger_recipe.grading.descendants import adopt, children, end_all, kill
from oger_recipe.grading.messages import send_message
from oger_recipe.grading.verifiers import allow, resolve
from oger_recipe.grading.worker import serve


def _fork_workers(control: socket.socket) -> None:
    """Fork a worker for every socket that arrives with a memory limit (bytes), and answer with its process id; end
    with the pool's process."""
    parent = os.getppid()
    known = children()  # beside workers: what verifiers' modules started when they were imported
    while os.getppid() == parent:
        ready = select.select([control], [], [], 1.0)[0]
        kill(children() - known)  # what a verifier had started in a worker that is no more
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


def _end() -> None:
    """End every descendant, and then this process."""
    end_all()
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed workers leave no zombies
    adopt()
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
