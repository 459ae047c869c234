"""Grading in worker processes, with a time and a memory limit for every answer.

Symbolic mathematics can take for ever on a few characters, its libraries' own timeouts are signals that do not work in
threads, and OpenRLHF grades in threads. A process can be killed: its answer then counts as not graded, no other answer
notices, and the next one finds a new worker.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from oger_recipe.cpu import CORES
from oger_recipe.progress import Progress
from oger_recipe.rewards.grading.worker import grade, receive_message, seconds_until, send_message
from oger_recipe.rewards.verdict import Graded, Verdict
from oger_recipe.rewards.verifiers import BOUNDED

ENVIRONMENT = "OGER_GRADING"
_START_LIMIT_S = 120.0  # importing verifiers on a busy machine
_BATCH = 16  # answers that a caller of grade_many asks of a worker before it makes room for other callers
_ANSWERS_PER_WORKER = 5000  # then it is replaced: what libraries keep in memory ends with it
_LARGEST_REPLY = 16 * 2**20  # bytes; more is no verdict, whatever wrote it
_LONGEST_REMEMBERED = 2000  # characters of a verdict's texts, with which a full cache stays below 1 GB
_END_LIMIT_S = 10.0  # for the nursery to kill what is below it

Answer = tuple[str, str, str, "Mapping[str, Any] | None"]  # task, response, reference answer, options


@dataclass(frozen=True)
class GradingSettings:
    """workers: processes (None: one a core, at most 8); preload: tasks whose verifiers are imported at the start;
    path: folders where the modules of the user's verifiers lie, besides the installed packages."""

    workers: int | None = None
    time_limit_s: float = 5.0
    memory_limit_mb: int = 2048
    cache_size: int = 100_000
    preload: tuple[str, ...] = ()
    path: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls) -> GradingSettings:
        """What the run has set for its processes; the defaults elsewhere."""
        values = json.loads(os.environ.get(ENVIRONMENT, "{}"))
        return cls(**(values | {name: tuple(values.get(name, ())) for name in ("preload", "path")}))

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class GradingPool:
    """Grades answers; safe to call from many threads. Processes start with the first answer that needs one."""

    def __init__(self, settings: GradingSettings) -> None:
        self.settings = settings
        count = settings.workers or min(CORES, 8)
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)
        self._count = count
        self._nursery = _Nursery(settings)
        self._cache: OrderedDict[bytes, Verdict] = OrderedDict()
        self._cache_lock = threading.Lock()

    def grade(self, task: str, response: str, answer: str, options: Mapping[str, Any] | None = None) -> Graded:
        """One answer; takes at most the time limit once a worker is free."""
        return self.grade_many([(task, response, answer, options)])[0]

    def grade_many(self, answers: Sequence[Answer], progress: bool = False) -> list[Graded]:
        """Many answers, in their order; with ``progress`` a bar on the terminal."""
        results: list[Graded | None] = [self._at_once(answer) for answer in answers]
        waiting = [position for position, result in enumerate(results) if result is None]
        batches = [waiting[start : start + _BATCH] for start in range(0, len(waiting), _BATCH)]
        with contextlib.ExitStack() as stack:
            bar = None
            if progress and waiting:
                done = len(answers) - len(waiting)
                bar = stack.enter_context(Progress("grading", "answers", len(answers), done=done))

            def run(batch: list[int]) -> None:
                for position, graded in zip(batch, self._by_worker([answers[p] for p in batch]), strict=True):
                    results[position] = graded
                    if bar is not None:
                        bar.add()

            if len(batches) == 1:
                run(batches[0])
            elif batches:
                with ThreadPoolExecutor(min(self._count, len(batches))) as threads:
                    list(threads.map(run, batches))
        return [result for result in results if result is not None]

    def close(self) -> None:
        """Ends all processes; answers that are being graded are finished first."""
        for _ in range(self._count):
            worker = self._free.get()
            if worker is not None:
                worker.close()
        for _ in range(self._count):
            self._free.put(None)
        self._nursery.close()

    def __enter__(self) -> GradingPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _at_once(self, answer: Answer) -> Graded | None:
        """The result where no worker is needed: from the cache, or by a verifier that is bounded by itself."""
        task, response, reference, options = answer
        if task in BOUNDED:
            started = time.monotonic()
            graded = grade(task, response, reference, dict(options or {}))
            return replace(graded, seconds=time.monotonic() - started)
        key = _key(answer)
        with self._cache_lock:
            verdict = self._cache.get(key)
            if verdict is None:
                return None
            self._cache.move_to_end(key)
        return Graded(verdict)

    def _by_worker(self, answers: list[Answer]) -> list[Graded]:
        """One worker's share, one after the other. A worker that is lost takes one answer with it."""
        results: list[Graded] = []
        worker = self._free.get()
        try:
            while len(results) < len(answers):
                if worker is None:
                    worker = self._nursery.worker()
                sent = answers[len(results) :]
                results += worker.grade(sent, self.settings.time_limit_s)
                if worker.lost or worker.answered >= _ANSWERS_PER_WORKER:
                    worker.close()
                    worker = None
        except OSError as error:
            reason = f"no grading process could be started: {error}"
            results += [Graded.failed(reason)] * (len(answers) - len(results))
        finally:
            self._free.put(worker)
        self._remember(answers, results)
        return results

    def _remember(self, answers: list[Answer], results: list[Graded]) -> None:
        with self._cache_lock:
            for answer, graded in zip(answers, results, strict=True):
                if graded.error is None and _text_length(graded.verdict) <= _LONGEST_REMEMBERED:
                    self._cache[_key(answer)] = graded.verdict
            while len(self._cache) > self.settings.cache_size:
                self._cache.popitem(last=False)


class _Worker:
    """A process that grades, seen from the pool's side."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self._pid = connection, pid
        self.answered, self.lost = 0, False

    def grade(self, answers: list[Answer], limit_s: float) -> list[Graded]:
        """The results of the first answers: all of them, or up to the one that cost the worker its life."""
        results: list[Graded] = []
        for task, response, reference, options in answers:
            started = time.monotonic()
            deadline = started + limit_s
            self.answered += 1
            try:
                self._connection.settimeout(seconds_until(deadline))  # of sending as a whole
                send_message(self._connection, [self.answered, task, response, reference, dict(options or {})])
                reply = receive_message(self._connection, deadline, _LARGEST_REPLY)
                if reply["number"] != self.answered:
                    raise ValueError("it is the reply to another answer")
                graded = Graded.from_json(reply["graded"])
                results.append(replace(graded, seconds=time.monotonic() - started))
            except TimeoutError:
                results.append(self._give_up(f"grading took more than {limit_s} s", True, started))
            except (OSError, EOFError):
                results.append(
                    self._give_up("the grading process died (memory, or a crash of its libraries)", False, started)
                )
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                # Another process than the worker, or the verifier itself, wrote to its connection.
                results.append(
                    self._give_up(f"the grading process's reply cannot be trusted: {error}", False, started)
                )
            if self.lost:
                break
        return results

    def _give_up(self, reason: str, timed_out: bool, started: float) -> Graded:
        self.lost = True
        return Graded.failed(reason, timed_out=timed_out, seconds=time.monotonic() - started)

    def close(self) -> None:
        """Ends the process at once, and with it those that its verifiers have started."""
        self._connection.close()
        for kill in (os.killpg, os.kill):  # a worker that has not begun has no group yet, and no children
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)


class _Nursery:
    """Where workers come from: a process with the verifiers loaded that forks them; started when first needed."""

    def __init__(self, settings: GradingSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def worker(self) -> _Worker:
        """A new worker. Raises OSError when none can be had."""
        with self._lock:
            for last in (False, True):
                ours, theirs = socket.socketpair()
                try:
                    control = self._running()
                    socket.send_fds(control, [b"f"], [theirs.fileno()])
                    return _Worker(ours, int(receive_message(control)))
                except (OSError, EOFError) as error:
                    ours.close()
                    self._end()  # it died: once more with a new one
                    if last:
                        raise OSError(str(error) or "it ended at once") from None
                finally:
                    theirs.close()
        raise AssertionError("unreachable")

    def close(self) -> None:
        with self._lock:
            self._end()

    def _running(self) -> socket.socket:
        if self._control is None:
            control, theirs = socket.socketpair()
            limits = json.dumps([self._settings.memory_limit_mb * 2**20, self._settings.preload])
            # In a session of its own: an interrupt from the terminal is the pool's to handle.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "oger_recipe.rewards.grading.worker", str(theirs.fileno()), limits],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": self._python_path(), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            theirs.close()
            control.settimeout(_START_LIMIT_S)
            self._control = control
        return self._control

    def _python_path(self) -> str:
        return os.pathsep.join(filter(None, [*sys.path, *self._settings.path]))

    def _end(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.terminate()  # it kills its workers first, and what they have started
            try:
                self._process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # and its workers with it
                self._process.wait()
        self._control, self._process = None, None


def _key(answer: Answer) -> bytes:
    """Of one size, whatever the answer's."""
    task, response, reference, options = answer
    return hashlib.sha256(
        json.dumps([task, response, reference, dict(options or {})], sort_keys=True).encode()
    ).digest()


def _text_length(verdict: Verdict) -> int:
    return sum(map(len, (verdict.reason, verdict.extracted or "", *verdict.components)))


_shared: GradingPool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> GradingPool:
    """The pool of this process, with the settings of its run."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = GradingPool(GradingSettings.from_environment())
            atexit.register(_shared._nursery.close)
        return _shared
