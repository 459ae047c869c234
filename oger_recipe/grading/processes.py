"""The processes that grade, seen from the pool's side: workers, and the fork server that they come from."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oger_recipe.base.secrets import without_keys
from oger_recipe.grading.messages import ask, receive_message
from oger_recipe.grading.verdict import Graded

_START_LIMIT_S = 120.0  # importing verifiers on a busy machine
_END_LIMIT_S = 10.0  # for a process to kill what is below it
_LARGEST_REPLY = 16 * 2**20  # bytes; more is no verdict, whatever wrote it


Answer = tuple[str, str, str, "Mapping[str, Any] | None"]  # task, response, reference answer, options


class Worker:
    """A process that grades. answered: how often it was asked; lost: its last answer was its end; died: it ended by
    itself, perhaps before it was asked."""

    def __init__(self, connection: socket.socket, pid: int, memory_limit_mb: int) -> None:
        self._connection, self._pid = connection, pid
        self.memory_limit_mb = memory_limit_mb
        self.answered, self.lost, self.died = 0, False, False

    def grade(self, answer: Answer, limit_s: float, spent_s: float = 0.0) -> Graded:
        """Grade an answer, which may end this worker. ``limit_s`` holds for all of it, however slow the reply is, and
        what another worker has spent on it counts."""
        started = time.monotonic() - spent_s
        self.answered += 1
        graded = self._asked(answer, limit_s, started + limit_s)
        return replace(graded, seconds=time.monotonic() - started)

    def _asked(self, answer: Answer, limit_s: float, deadline: float) -> Graded:
        task, response, reference, options = answer
        try:
            message = [task, response, reference, dict(options or {})]
            reply = ask(self._connection, self.answered, message, deadline, _LARGEST_REPLY)
            return Graded.from_json(reply["graded"])
        except TimeoutError:
            return self._give_up(f"grading took more than {limit_s} s", timed_out=True)
        except (OSError, EOFError):
            self.died = True
            return self._give_up("the grading process died (memory, or a crash of its libraries)")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            # Another process than the worker, or the verifier itself, wrote to its connection.
            return self._give_up(f"the grading process's reply cannot be trusted: {error}")

    def _give_up(self, reason: str, timed_out: bool = False) -> Graded:
        self.lost = True
        return Graded.failed(reason, timed_out=timed_out)

    def close(self) -> None:
        """End the process at once, and with it those that its verifiers have started."""
        self._connection.close()
        for kill in (os.killpg, os.kill):  # a worker that has not begun has no group yet, and no children
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that first ends all below it (descendants.py)."""
    process.terminate()
    try:
        process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # and those that it has forked with it
        process.wait()


class ForkServer:
    """A process that loads the verifiers of ``preload`` and forks the workers. It starts when it is first needed.

    ``allowed``: the import paths that tasks may be; ``path``: folders where modules are looked for besides those of
    this process.
    """

    def __init__(self, preload: Sequence[str], allowed: Sequence[str], path: Iterable[str]) -> None:
        self._preload, self._allowed, self._path = preload, allowed, path
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def worker(self, memory_limit_mb: int) -> Worker:
        """Fork a worker. Raises OSError when none can be had."""
        with self._lock:
            try:
                return self._forked(memory_limit_mb)
            except (OSError, EOFError):
                self._end()  # it died: once more with a new one
            try:
                return self._forked(memory_limit_mb)
            except (OSError, EOFError) as error:
                self._end()
                raise OSError(str(error) or "it ended at once") from None

    def close(self) -> None:
        with self._lock:
            self._end()

    def _forked(self, memory_limit_mb: int) -> Worker:
        ours, theirs = socket.socketpair()
        try:
            control = self._running()
            socket.send_fds(control, [str(memory_limit_mb * 2**20).encode()], [theirs.fileno()])
            return Worker(ours, int(receive_message(control)), memory_limit_mb)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def _running(self) -> socket.socket:
        if self._control is None:
            control, theirs = socket.socketpair()
            module = "oger_recipe.grading.fork_server"
            path = os.pathsep.join(filter(None, [*sys.path, *self._path]))
            # In a session of its own: an interrupt from the terminal is the pool's to handle.
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), json.dumps([*self._allowed]), *self._preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=without_keys(os.environ) | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            theirs.close()
            control.settimeout(_START_LIMIT_S)
            self._control = control
        return self._control

    def _end(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            end(self._process)
        self._control, self._process = None, None
