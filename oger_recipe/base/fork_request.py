"""Ask a server of forks (forks.py) for a Python program. It needs no package: it is a script as well.

``python -IS fork_request.py PYTHON SOCKET WORDS...`` takes the place of ``PYTHON WORDS...``. Of workers of Ray and of
processes of multiprocessing, which import for seconds, it has the server fork one and ends as that ends; for anything
else, and where there is no server, it becomes PYTHON.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

PYTHON = "OGER_PYTHON"  # in the environment of a run's processes: what they start in Python's place
LARGEST = 2**17  # bytes of a program's words and environment
MOST_FILES = 64
_FORKED = ("default_worker.py", "--multiprocessing-fork")


def ask(
    address: str,
    words: Sequence[str],
    descriptors: Mapping[int, int],
    *,
    cwd: str,
    environment: Mapping[str, str],
    in_session: bool = False,
    group: int | None = None,
    niceness: int | None = None,
) -> socket.socket:
    """Return the connection that says the program's process id, and then the status of its end, as os.wait has it;
    whoever closes it kills the program. Without an id there is no server any more.

    ``descriptors``: numbers of files there, and here; ``group``: the process group that it joins, unless it is to
    begin a session.
    Raises:
        OSError: there is no server.
    """
    program = {
        "words": [*words], "cwd": cwd, "environment": dict(environment), "numbers": [*descriptors],
        "in_session": in_session, "group": group, "niceness": niceness,
    }  # fmt: skip
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(program).encode()], [*descriptors.values()])
    except OSError:
        connection.close()
        raise
    return connection


def _stand_in(python: str, address: str, words: list[str]) -> None:
    program = _to_fork(words)
    status = _forked(address, program) if program else None
    if status is None:
        os.execv(python, [python, *words])
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # of SIGKILL it is no other
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _to_fork(words: list[str]) -> list[str]:
    """Return the words without the interpreter's, which a fork has from the server; none of what is not forked."""
    if words and words[0].endswith(_FORKED[0]):
        return words
    return words[words.index("-c") :] if {"-c", _FORKED[1]} <= {*words} else []


def _forked(address: str, words: list[str]) -> int | None:
    """Wait for the end of a fork and return its status; None where there is none."""
    files = {int(number): int(number) for number in os.listdir("/proc/self/fd")}
    files = {number: number for number in files if _is_open(number)}  # without the one that has listed them
    facts: dict[str, Any] = {"group": os.getpgrp(), "niceness": os.getpriority(os.PRIO_PROCESS, 0)}
    try:
        connection = ask(address, words, files, cwd=os.getcwd(), environment=os.environ, **facts)
        if not connection.recv(64):
            return None
        return int(connection.recv(64) or signal.SIGKILL)  # it ends with its server
    except OSError:
        return None


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    _stand_in(sys.argv[1], sys.argv[2], sys.argv[3:])
