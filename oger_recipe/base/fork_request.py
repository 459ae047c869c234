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
_RAYS_WORKER, _OF_MULTIPROCESSING = "default_worker.py", "--multiprocessing-fork"


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
    """Ask the server at ``address`` for a program, and return the connection to it.

    The server sends the program's process id, and at its end the status that os.wait would give; if the connection
    ends without an id, the server has ended. Closing the connection kills the program.
    ``descriptors``: the program's file numbers, each with the open file here; ``group``: the process group that the
    program joins, unless it begins a session.
    Raises:
        OSError: there is no server, or it could not read so large an environment or so many files.
    """
    program = {
        "words": [*words], "cwd": cwd, "environment": dict(environment), "numbers": [*descriptors],
        "in_session": in_session, "group": group, "niceness": niceness,
    }  # fmt: skip
    message = json.dumps(program).encode()
    if len(message) > LARGEST or len(descriptors) > MOST_FILES:
        raise OSError(f"{len(message)} bytes and {len(descriptors)} files: at most {LARGEST} and {MOST_FILES}")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
        socket.send_fds(connection, [message], [*descriptors.values()])
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
    if words and words[0].endswith(_RAYS_WORKER):
        return words
    return words[words.index("-c") :] if {"-c", _OF_MULTIPROCESSING} <= {*words} else []


def _forked(address: str, words: list[str]) -> int | None:
    """Wait for the end of a fork and return its status; None where there is none."""
    numbers = map(int, os.listdir("/proc/self/fd"))
    files = {number: number for number in numbers if _is_open(number)}  # without the one that has listed them
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
