"""Ends a run in which nothing happens any more, as if a process had died, and leaves the stacks of its processes.

The events of the run say how far it is. How long it may be silent depends on the phase that it is in: a multiple of
the longest silence in that phase so far.
"""

import contextlib
import os
import signal
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from oger_recipe.base import stacks
from oger_recipe.base.errors import RunDied
from oger_recipe.base.files import parse_record
from oger_recipe.base.secrets import redacted
from oger_recipe.pipeline.driver.deaths import Processes
from oger_recipe.run_folder.records import ENDED, SAID, event

_INTERVAL_S = 1.0
_LONGEST_TICK_S = 5.0
# How long a phase may be silent. The first time it may load and compile: minutes, or hours for steps of large models.
_FIRST_S = defaultdict(lambda: 3600.0, training=3 * 3600.0)
_TIMES_LONGEST = 10
_LEAST_S = defaultdict(lambda: 600.0, rollouts=1800.0, answers=1800.0, judges=1800.0)  # servers may be asked again
_NODES_ANSWER_WITHIN_S = 30.0
_ENDS_WITHIN_S = 60.0
_INTERRUPT = signal.SIGALRM
Answers = dict[str, list[stacks.ProcessStacks] | None]  # of nodes; None: of one that does not answer


class Silence:
    """How long the run has been silent in its phase, and how long it may be. ``limit_s``: the user's, if any."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._longest: dict[str, float] = {}  # of phases that have ended
        self._here = self.seconds = 0.0
        self.phase = "start"

    def heard(self, record: dict[str, Any]) -> None:
        """Take in an event. A phase is one of the controller's, or what comes after another event."""
        name = record.get("event", "")
        self._here, self.seconds = max(self._here, self.seconds), 0.0
        phase = self.phase if name in SAID else record.get("phase") or f"after {name}"
        if phase != self.phase:
            self._longest[self.phase] = max(self._longest.get(self.phase, 0.0), self._here)
            self.phase, self._here = phase, 0.0

    @property
    def limit(self) -> float:
        """Return the seconds that the present phase may be silent."""
        longest = self._longest.get(self.phase)
        if longest is None:
            return max(_FIRST_S[self.phase], self._limit_s or 0.0)
        if self._limit_s is not None:
            return self._limit_s
        return max(_LEAST_S[self.phase], _TIMES_LONGEST * max(longest, self._here))


class StallWatch(threading.Thread):
    """Ends its block after too long a silence: interrupts the main thread, and raises RunDied in place of its error.

    minutes: oger.stall_minutes; joins: a cluster, whose other nodes are asked, too.
    """

    def __init__(self, run_dir: Path, minutes: float | None, processes: Processes, *, joins: bool) -> None:
        super().__init__(daemon=True)
        self._run_dir, self._processes, self._joins = run_dir, processes, joins
        self._watches = minutes != 0
        self._silence = Silence(None if minutes is None else 60 * minutes)
        self._events = run_dir / "events.jsonl"
        self._position = self._events.stat().st_size if self._events.exists() else 0
        self._ended = threading.Event()
        self._sentence = ""
        self._before: Any = None

    def __enter__(self) -> "StallWatch":
        stacks.answer(str(self._run_dir))
        if self._watches:
            self._before = signal.signal(_INTERRUPT, self._interrupt)
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._watches:
            self.join()
            signal.signal(_INTERRUPT, self._before)
        if self._sentence and error is not None:
            raise RunDied(self._sentence) from error

    def _interrupt(self, *_: object) -> None:
        signal.signal(_INTERRUPT, signal.SIG_IGN)
        raise KeyboardInterrupt  # the one that Ray lets through

    def run(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(_INTERVAL_S):
            self._read()
            now = time.monotonic()
            # While the whole run is suspended, this thread is, too: such time does not count.
            self._silence.seconds += min(now - last, _LONGEST_TICK_S)
            last = now
            if self._silence.seconds > self._silence.limit:
                self._end()
                return

    def _read(self) -> None:
        if not self._events.exists():
            return
        with self._events.open("rb") as file:
            file.seek(self._position)
            while (line := file.readline()).endswith(b"\n"):
                self._position = file.tell()
                if record := parse_record(line):
                    self._silence.heard(record)

    def _end(self) -> None:
        """Write the stacks, and let the main thread end the run; end it here if that does not get on."""
        what = f"nothing happened for {self._silence.seconds / 60:.1f} minutes in phase {self._silence.phase}"
        path = stacks.path(self._run_dir)
        here = []
        try:
            here = self._ask_here()
            nodes: Answers = {"this node": here}
            stopped, text = _told(nodes | (self._ask_others() if self._joins else {}))
            path.write_text(redacted(f"{what}\n\n{text}"))
            self._sentence = f"{what}; {stopped}the stacks of its processes are in {path}"
        except Exception as error:  # the disk may be full; the run ends all the same
            self._sentence = f"{what}; the stacks of its processes could not be written: {error}"
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, _INTERRUPT)
        for each in here:  # it could not end with the others, and they would wait for it
            if each.is_stopped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(each.pid, signal.SIGKILL)
        if not self._ended.wait(_ENDS_WITHIN_S):  # it waits for something else that stands still
            why = f"training stopped: {self._sentence}"
            with contextlib.suppress(OSError):
                event(self._run_dir, ENDED, why=why)
            os.write(1, f"oger train: {why}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)  # the watcher clears up

    def _ask_here(self) -> list[stacks.ProcessStacks]:
        return [
            replace(each, title=f"{each.title} ({role})") if (role := self._processes.role(each.pid)) else each
            for each in stacks.ask(str(self._run_dir), above=os.getpid())
        ]

    def _ask_others(self) -> Answers:
        """Ask the other nodes of the cluster. A thread may hang with Ray itself."""
        answers: Answers = {}
        asking = threading.Thread(target=_ask_nodes, args=(str(self._run_dir), answers), daemon=True)
        asking.start()
        asking.join(2 * _NODES_ANSWER_WITHIN_S)
        return answers if not asking.is_alive() else {**answers, "some other nodes": None}


def _told(nodes: Answers) -> tuple[str, str]:
    """Return a sentence on processes that are stopped, and the stacks of all."""
    stopped, parts = "", []
    for node, found in nodes.items():
        parts.append(f"# {node}" + ("" if found is not None else ": no answer, nothing is known of its processes"))
        for process in found or ():
            parts.append(process.text)
            if process.is_stopped:
                stopped += f"{process.title}, pid {process.pid} on {node}, is stopped (SIGSTOP); "
    return stopped, "\n".join(parts)


def _ask_nodes(run_dir: str, answers: Answers) -> None:
    here = ray.get_runtime_context().get_node_id()
    asked = {}
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] != here:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(_of_node).options(num_cpus=0, scheduling_strategy=there)
            asked[task.remote(run_dir)] = f"node {node['NodeManagerAddress']}"
    answers |= dict.fromkeys(asked.values())
    answered, _ = ray.wait([*asked], num_returns=len(asked), timeout=_NODES_ANSWER_WITHIN_S) if asked else ([], [])
    for each in answered:
        with contextlib.suppress(Exception):  # the node died meanwhile
            answers[asked[each]] = ray.get(each)


def _of_node(run_dir: str) -> list[stacks.ProcessStacks]:
    return [each for each in stacks.ask(run_dir) if each.pid != os.getpid()]
