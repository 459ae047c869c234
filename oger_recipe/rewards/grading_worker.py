"""The processes of the grading pool: ``python -m oger_recipe.rewards.grading_worker``, started by the pool alone.

One process imports the verifiers once and then only forks: a worker for each socket that it is sent. So a worker that
had to be killed is replaced in milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from typing import Any

from oger_recipe.rewards.verifiers import VERIFIERS, resolve, verify

_LENGTH = struct.Struct("!Q")
# Graded before anything is forked: verifiers import more when they are called, and what their parsers and SymPy have
# learnt, every worker then begins with. The texts differ, so that mathematics is needed to compare them.
_WARM_UP = [
    (f"so \\boxed{{{text}}}", answer)
    for text, answer in (
        (r"\frac{x}{2}+x", r"\frac{3x}{2}"),
        ("12+0", "12"),
        ("-0.50", r"-\frac{1}{2}"),
        (r"2\sqrt{3}+1", r"1+\sqrt{12}"),
        ("(1, 2+1)", "(1,3)"),
        (r"[0,1)\cup(2,\infty)", r"(2,\infty)\cup[0,1)"),
        (r"\{1,2,3\}", r"\{3,2,1\}"),
        ("x = 5+1", "6"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4+0\end{pmatrix}"),
        (r"\frac{\pi}{4}", r"0.25\pi"),
        (r"50\%", "0.5"),
        (r"60^\circ", "60+0"),
        (r"\text{east}", r"\text{(B)}"),
        ("3+4i", "4i+3"),
        (r"\sin(x)+\log_2 8", r"3+\sin x"),
        ("2^{10}", "1024+0"),
        ("1,000", "1000+0"),
    )
]
_PR_SET_PDEATHSIG = 1


def send_message(connection: socket.socket, message: Any) -> None:
    """One JSON document. ASCII only, so that every text survives, broken Unicode included."""
    body = json.dumps(message).encode("ascii")
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive_message(connection: socket.socket) -> Any:
    """The next JSON document. Raises EOFError when the other side is gone, TimeoutError by the socket's timeout."""
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    return json.loads(_receive(connection, length))


def _receive(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def grade(task: str, response: str, answer: str, options: dict[str, Any]) -> dict[str, Any]:
    """The verdict's fields, or what the verifier raised."""
    try:
        verdict = verify(task, response, answer, **options)
        components = {name: float(value) for name, value in verdict.components.items()}
        numbers = {"reward": float(verdict.reward), "score": float(verdict.score), "components": components}
        return {"verdict": numbers | {"reason": str(verdict.reason), "extracted": verdict.extracted}}
    except MemoryError:
        return {"error": "MemoryError: grading took more memory than its limit"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:1000]}


def _serve(connection: socket.socket, memory_limit: int) -> None:
    """A worker's life: answers until the pool hangs up."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + memory_limit,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            request = receive_message(connection)
        except (EOFError, OSError):
            return
        send_message(connection, grade(*request))


def _fork_workers(control: socket.socket, memory_limit: int) -> None:
    """Forks a worker for every socket that arrives, and answers with its process id; ends with the pool's process."""
    parent = os.getppid()
    while os.getppid() == parent:
        if not select.select([control], [], [], 1.0)[0]:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _serve(socket.socket(fileno=descriptors[0]), memory_limit)
            os._exit(0)
        os.close(descriptors[0])
        send_message(control, pid)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed workers leave no zombies
    control = socket.socket(fileno=int(sys.argv[1]))
    memory_limit, preload = json.loads(sys.argv[2])
    for task in preload:
        for response, answer in _WARM_UP if task in VERIFIERS else _WARM_UP[:1]:  # a user's own may be slow
            try:
                resolve(task)(response, answer)  # the outcome does not matter here
            except Exception:
                continue
    _fork_workers(control, memory_limit)


if __name__ == "__main__":
    main()
