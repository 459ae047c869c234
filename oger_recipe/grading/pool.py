"""Grading in worker processes, with a time and a memory limit for every answer.

Symbolic mathematics can take for ever on a few characters, its libraries' own timeouts are signals that do not work in
threads, and OpenRLHF grades in threads. A process can be killed: its answer then counts as not graded, no other answer
notices, and the next one finds a new worker. Where a process died by itself, a new one grades its answer once more.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from oger_recipe.base.cpu import CORES
from oger_recipe.base.progress import Progress
from oger_recipe.grading.processes import Answer, ForkServer, Worker
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.grading.verifiers import VERIFIERS, TaskSpec, allow, look_in, resolved
from oger_recipe.grading.worker import grade

ENVIRONMENT = "OGER_GRADING"
_BATCH = 16  # answers that a caller of grade_many asks of a worker before it makes room for other callers
_ANSWERS_PER_WORKER = 5000  # then it is replaced: what libraries keep in memory ends with it
_LONGEST_REMEMBERED = 2000  # characters of a verdict's texts, with which a full cache stays below 1 GB


@dataclass(frozen=True)
class Limits:
    """Limits of one answer. bounded: it needs neither limits nor a process around it."""

    time_s: float
    memory_mb: int
    bounded: bool = False


@dataclass(frozen=True)
class GradingSettings:
    """workers: processes (None: one a core, at most 8); time_limit_s and memory_limit_mb: of one answer, where its
    task has none of its own; preload: tasks whose verifiers are imported at the start; own: limits of tasks that are
    import paths; allowed: the import paths that tasks may be; path: folders where the modules of the user's verifiers
    lie, besides the installed packages."""

    workers: int | None = None
    time_limit_s: float = 5.0
    memory_limit_mb: int = 2048
    cache_size: int = 100_000
    preload: tuple[str, ...] = ()
    own: Mapping[str, Limits] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    path: tuple[str, ...] = ()

    def for_tasks(self, tasks: Iterable[str]) -> GradingSettings:
        """Set limits and preload of these tasks. Imports the user's modules, so that a run's processes need not."""
        limits = {task: self._limits(resolved(task)) for task in sorted(set(tasks))}
        preload = tuple(task for task, each in limits.items() if not each.bounded)
        own = {task: each for task, each in limits.items() if task not in VERIFIERS}
        return replace(self, preload=preload, own=own)

    def limits(self, task: str) -> Limits:
        return self.own.get(task) or self._limits(VERIFIERS.get(task))

    def _limits(self, spec: TaskSpec | None) -> Limits:
        if spec is None:
            return Limits(self.time_limit_s, self.memory_limit_mb)
        time_s, memory_mb = spec.time_limit_s or self.time_limit_s, spec.memory_limit_mb or self.memory_limit_mb
        return Limits(time_s, memory_mb, spec.bounded)

    @classmethod
    def from_environment(cls) -> GradingSettings:
        """Read what the run has set for its processes; elsewhere the defaults hold."""
        values = json.loads(os.environ.get(ENVIRONMENT, "{}"))
        own = {task: Limits(**each) for task, each in values.pop("own", {}).items()}
        return cls(**values | {name: tuple(values.get(name, ())) for name in ("preload", "allowed", "path")}, own=own)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class GradingPool:
    """Grades answers; safe to call from many threads. Processes start with the first answer that needs one."""

    def __init__(self, settings: GradingSettings) -> None:
        self.settings = settings
        count = settings.workers or min(CORES, 8)
        self._free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)
        self._count = count
        self._fork_server = ForkServer(settings.preload, settings.allowed, settings.path)
        self._cache: OrderedDict[bytes, Verdict] = OrderedDict()
        self._cache_lock = threading.Lock()

    def grade(self, task: str, response: str, answer: str, options: Mapping[str, Any] | None = None) -> Graded:
        """Grade one answer, within the time limit once a worker is free."""
        return self.grade_many([(task, response, answer, options)])[0]

    def grade_many(self, answers: Sequence[Answer], progress: bool = False) -> list[Graded]:
        """Grade many answers and keep their order; ``progress`` draws a bar on the terminal."""
        results: list[Graded | None] = [self._at_once(answer) for answer in answers]
        waiting = [position for position, result in enumerate(results) if result is None]
        waiting.sort(key=lambda position: self.settings.limits(answers[position][0]).memory_mb)  # as workers have it
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
        """End all processes after the answers that are being graded."""
        for _ in range(self._count):
            worker = self._free.get()
            if worker is not None:
                worker.close()
        for _ in range(self._count):
            self._free.put(None)
        self._fork_server.close()

    def __enter__(self) -> GradingPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _at_once(self, answer: Answer) -> Graded | None:
        """Return the result where no worker is needed: a cached one, or a bounded task's."""
        task, response, reference, options = answer
        if self.settings.limits(task).bounded:
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
        """Grade one worker's share, one after the other. A lost worker costs at most one answer."""
        results: list[Graded] = []
        worker = self._free.get()
        try:
            for answer in answers:
                limits = self.settings.limits(answer[0])
                if worker is not None and worker.memory_limit_mb != limits.memory_mb:
                    worker.close()
                    worker = None
                if worker is None:
                    worker = self._fork_server.worker(limits.memory_mb)
                graded = worker.grade(answer, limits.time_s)
                if worker.died:  # perhaps through no fault of this answer: once more, in the time that it has left
                    worker.close()
                    worker = None
                    worker = self._fork_server.worker(limits.memory_mb)
                    graded = worker.grade(answer, limits.time_s, graded.seconds)
                results.append(graded)
                if worker.lost or worker.answered >= _ANSWERS_PER_WORKER:
                    worker.close()
                    worker = None
        except OSError as error:
            reason = f"could not start a grading process: {error}"
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


def _key(answer: Answer) -> bytes:
    """Return a key of one size, however long the answer is."""
    task, response, reference, options = answer
    return hashlib.sha256(
        json.dumps([task, response, reference, dict(options or {})], sort_keys=True).encode()
    ).digest()


def _text_length(verdict: Verdict) -> int:
    return sum(map(len, (verdict.reason, verdict.extracted or "", verdict.solution or "", *verdict.components)))


_shared: GradingPool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> GradingPool:
    """Return the pool of this process, with the settings of its run."""
    global _shared
    with _shared_lock:
        if _shared is None:
            settings = GradingSettings.from_environment()
            allow(settings.allowed)
            if any(limits.bounded for limits in settings.own.values()):  # these are graded in this process
                look_in(settings.path)
            _shared = GradingPool(settings)
            atexit.register(_shared._fork_server.close)
        return _shared
