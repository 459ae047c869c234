"""``oger train --max-restarts N``: a small process that starts the run again when something of it died.

The supervisor forks a process for each attempt, before anything large is imported. It keeps the run folder's lock from
the first attempt on, so no other command gets into the folder between two attempts, and it waits until nothing of an
attempt is left. An attempt has a session of its own: Ctrl-C in a terminal reaches the supervisor alone, which passes
every signal on once. If the supervisor is killed, the attempt gets SIGTERM.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from oger_recipe.base import stacks
from oger_recipe.base.errors import RecipeError, RunFailed, kind_of
from oger_recipe.base.files import read_jsonl
from oger_recipe.base.secrets import redacted
from oger_recipe.base.signals import HEEDED, end_with
from oger_recipe.run.ends import CAN_RESUME, resume_command
from oger_recipe.run_folder import checkpoints
from oger_recipe.run_folder.attempt import saved_something
from oger_recipe.run_folder.records import BEGAN, ENDED, RESTARTING, STOPPED_BY_ALARM, event, progress

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10, 300
_ALIKE = 3  # failures of one kind at one step
_LISTENS_S = 0.5
_STOPPED_MINUTES = 30.0  # for which a stopped attempt may be silent, where oger.stall_minutes is not set
_LONGEST_TICK_S = 5.0  # the supervisor was stopped, too: such time does not count
_CLEARED_WITHIN_S = 60.0  # what the watcher of an attempt may take
_LONGEST = 4_000  # characters of a failure's message
_SHORT = 1_000  # where a long one cannot be sent
_LONGEST_TOLD = 12 * _LONGEST + 1000  # bytes: JSON may write twelve for a character; few enough for one send


@dataclass
class Supervised:
    """What an attempt knows of its supervisor, and tells it.

    restarts: so far; run_dir: of the attempts before this one; resumes: from a checkpoint, else a restart begins
    again; lock: the run folder's, once the supervisor has it.
    """

    pid: int
    restarts: int
    run_dir: str | None
    resumes: bool
    lock: int | None
    _line: socket.socket

    @property
    def begins_again(self) -> bool:
        return self.restarts > 0 and not self.resumes

    @property
    def flags(self) -> list[str]:
        """Return what a restart adds to the flags as typed."""
        if self.run_dir is None:
            return []
        return ["--oger.run_dir", self.run_dir, *(["--ckpt.load_enable"] if self.resumes else [])]

    @property
    def line(self) -> int:
        """Return a descriptor; while any process has it, the supervisor starts no other attempt."""
        return self._line.fileno()

    def keep(self, lock: int, run_dir: Path, checkpoint_folder: Path, stall_minutes: float | None) -> None:
        """Let the supervisor keep the run folder's lock from now on. ``stall_minutes``: the setting."""
        self.lock = lock
        facts = {"run_dir": str(run_dir), "checkpoints": str(checkpoint_folder), "stall_minutes": stall_minutes}
        socket.send_fds(self._line, [json.dumps(facts).encode()], [lock])

    def began(self, resumed_at: int) -> None:
        """Say that the attempt has begun in the folder: a death from now on is followed by a restart."""
        self._tell({"began": resumed_at})

    def takes(self, error: RecipeError) -> bool:
        """Leave it to the supervisor to print why the attempt ended, unless the run was refused at its first start."""
        if not (isinstance(error, RunFailed) or self.restarts):
            return False
        return any(self._tell({"failed": str(error)[:longest]}) for longest in (_LONGEST, _SHORT))

    def _tell(self, facts: dict[str, Any]) -> bool:
        with contextlib.suppress(OSError):  # the supervisor was killed, or the kernel has no room for so much
            self._line.send(json.dumps(facts).encode())
            return True
        return False


def supervised(most: int) -> Supervised:
    """Return in the process of each attempt; exit in the supervisor, with the last attempt's exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*HEEDED, signal.SIGCHLD})
    supervisor = _Supervisor(most)
    while True:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        parent, pid = os.getpid(), os.fork()
        if not pid:
            ours.close()
            _begin_below(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return supervisor.attempt(parent, theirs)
        theirs.close()
        with ours:
            code = supervisor.follow(pid, ours)
            supervisor.pause(code, ours, pid)


def _begin_below(parent: int) -> None:
    """Give the process a session of its own, and SIGTERM when its parent is killed."""
    os.setsid()
    end_with(parent, signal.SIGTERM)


class _Supervisor:
    def __init__(self, most: int) -> None:
        self._most, self._made, self._pause_s = most, 0, _FIRST_PAUSE_S
        self._lock: int | None = None
        self._run_dir, self._checkpoints = Path(), Path()
        self._stall_s = 60 * _STOPPED_MINUTES  # 0: for ever
        self._told: dict[str, Any] = {}  # by the present attempt
        self._start: int | None = None  # the step that the first attempt began after
        self._saved = 0  # the step of the newest checkpoint at the last failure
        self._stopped = False  # a signal was passed on
        self._failures = Counter[tuple[str, int]]()

    def attempt(self, parent: int, line: socket.socket) -> Supervised:
        run_dir = str(self._run_dir) if self._made else None
        return Supervised(parent, self._made, run_dir, self._newest() > 0, self._lock, line)

    def follow(self, pid: int, line: socket.socket) -> int:
        """Pass signals on until the attempt ends; return its exit code, negative after a signal."""
        self._told = {}
        line.setblocking(False)
        last, events, stopped_s = time.monotonic(), 0, 0.0
        while True:
            received = signal.sigtimedwait({*HEEDED, signal.SIGCHLD}, _LISTENS_S)
            self._listen(line)
            if received is not None and received.si_signo in HEEDED:
                self._stopped = True
                os.kill(pid, received.si_signo)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._listen(line)
                return os.waitstatus_to_exitcode(status)
            now, written = time.monotonic(), self._events_written()
            stops = self._start is not None and stacks.is_stopped(pid) and written == events
            stopped_s = stopped_s + min(now - last, _LONGEST_TICK_S) if stops else 0.0
            last, events = now, written
            if self._stall_s and stopped_s > self._stall_s:
                self._end_stopped(pid, stopped_s)
                stopped_s = 0.0

    def _events_written(self) -> int:
        """Return when: while only the driver is stopped, the controller may still train."""
        with contextlib.suppress(OSError):
            return (self._run_dir / "events.jsonl").stat().st_mtime_ns
        return 0

    def _end_stopped(self, pid: int, seconds: float) -> None:
        """Write the stacks of the attempt's processes, and kill it: the others end with it."""
        what = f"nothing happened for {seconds / 60:.1f} minutes; the driver (pid {pid}) is stopped (SIGSTOP)"
        path = stacks.path(self._run_dir)
        try:
            found = stacks.ask(str(self._run_dir), above=pid)
            path.write_text(redacted("\n".join([what, "", *(each.text for each in found)])))
            what += f"; the stacks of its processes are in {path}"
        except OSError as error:  # the disk may be full
            what += f"; the stacks of its processes could not be written: {error}"
        self._told["failed"] = f"training stopped {progress(self._run_dir)}: {what}"
        os.kill(pid, signal.SIGKILL)
        self._record(ENDED, why=self._told["failed"])

    def _listen(self, line: socket.socket) -> bool:
        """Take in what the attempt has told; say whether a process still has its end of the line."""
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(line, _LONGEST_TOLD, 1)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not message:
                return False
            if descriptors:
                os.set_inheritable(descriptors[0], False)
                self._lock = descriptors[0]
            self._told |= json.loads(message)
            if "run_dir" in self._told:
                self._run_dir, self._checkpoints = Path(self._told["run_dir"]), Path(self._told["checkpoints"])
                minutes = self._told["stall_minutes"]
                self._stall_s = 60 * (_STOPPED_MINUTES if minutes is None else minutes)
            if self._start is None:
                self._start = self._told.get("began")

    def pause(self, code: int, line: socket.socket, pid: int) -> None:
        """Return when the next attempt is due; exit where there is none."""
        began = self._start is not None
        was_killed = code < 0 and -code not in HEEDED
        if self._stopped or not began or not (was_killed or "failed" in self._told or (self._made and code == 1)):
            if "failed" in self._told:
                _say(self._told["failed"])
            sys.exit(self._exit_code(code))
        text = self._told.get("failed") or self._why_killed(pid, code)
        if self._run_dir_is_busy(line):
            self._give_up(text, code, "its processes have not ended")
        if reason := self._against(text):
            self._give_up(text, code, reason)
        self._wait(text.partition("\n")[0])

    def _why_killed(self, pid: int, code: int) -> str:
        """Say why an attempt ended that could not say it; record it, unless a thread of it did before."""
        last = (read_jsonl(self._run_dir / "events.jsonl") or [{}])[-1]
        if last.get("event") == ENDED:
            return str(last["why"])
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        why = f"training stopped {progress(self._run_dir)}: the driver (pid {pid}) {how}"
        self._record(ENDED, why=why)
        return why

    def _run_dir_is_busy(self, line: socket.socket) -> bool:
        """Wait until nothing of the attempt is left."""
        deadline = time.monotonic() + _CLEARED_WITHIN_S
        while (busy := self._listen(line)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return busy

    def _against(self, text: str) -> str:
        """Return why the run is not started again; an empty text: it is."""
        events = read_jsonl(self._run_dir / "events.jsonl")
        of_attempt = itertools.takewhile(lambda each: each.get("event") != BEGAN, reversed(events))
        if any(each.get("event") == STOPPED_BY_ALARM for each in of_attempt):
            return "a restart would train on"
        step = 1 + max((each["step"] for each in events if each.get("event") == "step"), default=0)
        failure = kind_of(text.partition("\n")[0]), step
        self._failures[failure] += 1
        if self._failures[failure] >= _ALIKE:
            return f"it failed {_ALIKE} times in this way at step {step}"
        if self._made >= self._most:
            return f"--max-restarts {self._most} is used up"
        if not self._newest() and saved_something(self._run_dir, self._checkpoints):
            return "no run can resume from what was saved, and a restart from the beginning would remove it"
        return ""

    def _wait(self, why: str) -> None:
        newest = self._newest()
        if newest > self._saved:
            self._pause_s = _FIRST_PAUSE_S
        self._saved, self._made, seconds = newest, self._made + 1, self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        where = f"from the checkpoint of step {newest}" if newest else "from the beginning: there is no checkpoint"
        self._record(RESTARTING, why=why, restart=self._made, of=self._most, seconds=seconds)
        _say(f"{why}; restart {self._made} of {self._most} in {seconds} s {where}")
        received = signal.sigtimedwait(HEEDED, seconds)
        if received is not None:
            number = received.si_signo
            ended = f"stopped by {signal.Signals(number).name} before restart {self._made} of {self._most}"
            self._record(ENDED, why=ended)
            _say(f"{ended}; resume with: {resume_command(sys.argv, self._run_dir)}" if newest else ended)
            sys.exit(self._exit_code(128 + number))

    def _give_up(self, text: str, code: int, reason: str) -> NoReturn:
        _say(f"{text}\n  not restarted: {reason}")
        sys.exit(self._exit_code(code))

    def _exit_code(self, code: int) -> int:
        """Return the exit code of the whole command: 75 after SIGTERM or SIGUSR1 if any attempt saved a checkpoint."""
        code = code if code >= 0 else 128 - code
        asked = code in (128 + signal.SIGTERM, 128 + signal.SIGUSR1)
        return CAN_RESUME if asked and self._start is not None and self._newest() > self._start else code

    def _newest(self) -> int:
        """Return the step of the newest checkpoint that is whole, or may be once it can be read; 0 without one."""
        there = checkpoints.found(self._checkpoints) if self._start is not None else []
        return max((one.step for one in there if one.fault is None or one.unread), default=0)

    def _record(self, name: str, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # the disk may be full
            event(self._run_dir, name, **facts)


def _say(text: str) -> None:
    print(f"oger train: {text}", file=sys.stderr, flush=True)
