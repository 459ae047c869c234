"""Start Python programs without waiting for their imports: a server imports once, and forks a process for each.

A program has words, folder, environment, files and exit status as ``python WORDS`` would give it. Its modules and the
seed of hash() are the server's. What imports have made is in memory once, until a process writes there.
"""

import atexit
import contextlib
import fcntl
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

from oger_recipe.base.fork_request import LARGEST, MOST_FILES
from oger_recipe.base.signals import end_with

_ABOVE = 500  # descriptors of a server, and numbers of a program's files, are below


class Server:
    """Forks a process for every program that it is asked for (fork_request.py). Forks end with the server.

    Whoever can connect to its socket runs code as its user: the socket belongs into a folder that others cannot enter.
    ``before``: called with the environment of the first program, before anything is forked.
    """

    def __init__(self, listening: socket.socket, until: int, before: Callable[[Mapping[str, str]], None]) -> None:
        self._listening, self._until, self._before = listening, until, before
        self._askers: dict[int, socket.socket] = {}  # by the process id of the fork
        self._woken, self._wakes = os.pipe()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> dict[str, Any] | None:
        """Return None once the descriptor ``until`` is at its end, and in a forked process its program, for `run`."""
        os.set_blocking(self._wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes)
        for each in (self._listening, self._until, self._woken):
            self._selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._until:
                    return None
                if key.fileobj == self._woken:
                    os.read(self._woken, 64)
                    self._tell_ends()
                elif key.fileobj is self._listening:
                    self._selector.register(self._listening.accept()[0], selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket) and (program := self._answer(key.fileobj)) is not None:
                    return program

    def _answer(self, connection: socket.socket) -> dict[str, Any] | None:
        """Fork the program that a connection asks for, or kill the fork of a connection that was closed.

        Return the program in the forked process, and None in the server.
        """
        said, descriptors, _, _ = socket.recv_fds(connection, LARGEST, MOST_FILES)
        if not said:
            for pid in [pid for pid, asker in self._askers.items() if asker is connection]:
                os.kill(pid, signal.SIGKILL)
                del self._askers[pid]
            self._forget(connection)
            return None
        program: dict[str, Any] = json.loads(said)
        self._before(program["environment"])
        self._before = lambda _: None
        server = os.getpid()
        gc.freeze()
        if pid := os.fork():
            self._askers[pid] = connection
            _send(connection, pid)
            for number in descriptors:
                os.close(number)
            return None
        end_with(server)
        self._leave()
        return program | {"descriptors": descriptors}

    def _tell_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if connection := self._askers.pop(pid, None):
                    _send(connection, status)
                    self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()

    def _leave(self) -> None:
        """Close the server's sockets and pipes in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in [key.fileobj for key in self._selector.get_map().values()]:
            os.close(each) if isinstance(each, int) else cast(socket.socket, each).close()
        os.close(self._wakes)
        self._selector.close()


def _send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits any more
        connection.send(str(number).encode())


def run(program: Mapping[str, Any], prepared: Callable[[], None] = lambda: None) -> int:
    """Run a program to its end, and that of its threads; return its exit status. ``prepared``: called once folder,
    environment and files are its own."""
    status = 0
    try:
        _become(program)
        prepared()
        _execute(program["words"])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            file.flush()
    return status & 0xFF


def _become(program: Mapping[str, Any]) -> None:
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for each in program["descriptors"]]
    for each in program["descriptors"]:
        os.close(each)
    for each, number in zip(moved, program["numbers"], strict=True):
        os.dup2(each, number, inheritable=True)
        os.close(each)
    if program["in_session"]:
        os.setsid()
    elif program["group"] is not None:
        os.setpgid(0, program["group"])
    if program["niceness"] is not None:
        os.setpriority(os.PRIO_PROCESS, 0, program["niceness"])
    os.chdir(program["cwd"])
    os.environ.clear()
    os.environ.update(program["environment"])
    tempfile.tempdir = None  # as TMPDIR says it now


def _execute(words: list[str]) -> None:
    first, *words = words
    path = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path[1:]]
    if first == "-m":
        sys.path[:] = [os.getcwd(), *path]
        sys.argv = words
        sys.modules.pop(words[0], None)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path[:] = ["", *path]
        sys.argv = ["-c", *words[1:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), vars(main))
    else:
        sys.path[:] = [os.path.dirname(first), *path]
        sys.argv = [first, *words]
        runpy.run_path(first, run_name="__main__")
