"""The processes of the grading pool: ``python -m oger_recipe.rewards.grading.worker``, started by the pool alone.

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
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oger_recipe.rewards.verdict import Graded, NoVerdict, UnreadableAnswer, as_verdict
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
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_END_LIMIT_S = 5.0  # a process that does not die of SIGKILL hangs in the kernel


def send_message(connection: socket.socket, message: Any) -> None:
    """One JSON document. ASCII only, so that every text survives, broken Unicode included."""
    body = json.dumps(message).encode("ascii")
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive_message(connection: socket.socket, deadline: float | None = None, largest: int | None = None) -> Any:
    """The next JSON document. Raises EOFError when the other side is gone, TimeoutError at the deadline (as by
    time.monotonic) or by the socket's own timeout, ValueError for more than the largest number of bytes or no JSON."""
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline))
    if largest is not None and length > largest:
        raise ValueError(f"{length} bytes are more than {largest}")
    return json.loads(_receive(connection, length, deadline))


def _receive(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            connection.settimeout(seconds_until(deadline))
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def seconds_until(deadline: float) -> float:
    """For a socket's timeout, which has to be more than 0. Raises TimeoutError when there is no time left."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def grade(task: str, response: str, answer: str, options: dict[str, Any]) -> Graded:
    """The verdict, or what kept it from being one."""
    try:
        return Graded(as_verdict(verify(task, response, answer, **options)))
    except UnreadableAnswer as error:
        return Graded.failed(str(error)[:1000], unreadable=True)
    except NoVerdict as error:
        return Graded.failed(str(error)[:1000])
    except MemoryError:
        return Graded.failed("MemoryError: grading took more memory than its limit")
    except Exception as error:
        return Graded.failed(f"{type(error).__name__}: {error}"[:1000])
    except BaseException as error:
        if task in VERIFIERS or isinstance(error, KeyboardInterrupt):  # a signal's, to the process that grades
            raise
        what = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {error!r}"
        return Graded.failed(f"the verifier {what}"[:1000])


def _serve(connection: socket.socket, memory_limit: int) -> None:
    """A worker's life: answers until the pool hangs up. Its group is its own, for the pool to kill as a whole."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for ignored in (signal.SIGCHLD, signal.SIGTERM):  # by the nursery; verifiers read what their children exit with
        signal.signal(ignored, signal.SIG_DFL)
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + memory_limit,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    worker = os.getpid()
    while True:
        try:
            number, *answer = receive_message(connection)
        except (EOFError, OSError):
            return
        reply = grade(*answer)
        if os.getpid() != worker:  # a child that the verifier forked came back from it, too
            os._exit(0)
        send_message(connection, {"number": number, "graded": asdict(reply)})


def _fork_workers(control: socket.socket, memory_limit: int) -> None:
    """Forks a worker for every socket that arrives, and answers with its process id; ends with the pool's process."""
    parent = os.getppid()
    known = _children()  # beside workers: what verifiers' modules started when they were imported
    while os.getppid() == parent:
        ready = select.select([control], [], [], 1.0)[0]
        _kill(_children() - known)  # what a verifier had started in a worker that is no more
        if not ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            try:
                control.close()
                _serve(socket.socket(fileno=descriptors[0]), memory_limit)
            finally:
                os._exit(0)
        known.add(pid)
        os.close(descriptors[0])
        send_message(control, pid)


def _children() -> set[int]:
    """This process's children, with those of its workers' descendants that lost their parents."""
    me = os.getpid()
    try:
        return {int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()}
    except FileNotFoundError:  # a kernel without it
        return set()


def _kill(pids: set[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


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
    memory_limit, preload = json.loads(sys.argv[2])
    for task in preload:
        try:
            verifier = resolve(task)
        except (Exception, SystemExit):  # every answer of the task will say so
            continue
        for response, answer in _WARM_UP if task in VERIFIERS else []:  # a user's own may do anything with these
            try:
                verifier(response, answer)  # the outcome does not matter here
            except Exception:
                continue
    # From the pool, which hangs up as well: an exception would break off the end that has begun.
    signal.signal(signal.SIGTERM, lambda *_: _end())
    try:
        _fork_workers(control, memory_limit)
    finally:
        _end()


if __name__ == "__main__":
    main()
