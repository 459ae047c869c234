"""What ended a run, in a sentence: which of its processes died and of what, or what one of them raised."""

import contextlib
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.secrets import redacted
from oger_recipe.base.stacks import state_and_parent
from oger_recipe.pipeline.driver.ray_parts import dead_part
from oger_recipe.run_folder.worker_logs import JUDGE, ROLES, outputs, workers

_INTERVAL_S = 1.0
_INTERRUPT = signal.SIGRTMIN  # within this process; nothing else uses it
_FULL = 16 * 2**20  # bytes: a disk with less left is full
_NO_SPACE = ("No space left on device", "PytorchStreamWriter failed writing")
_NO_START = ("The current node timed out during startup", "Timed out waiting for file")
_ENGINE = "the engine"
_NO_ENGINE = "Engine core initialization failed"
_OF_ENGINE = re.compile(r"^\(EngineCore[^)]*\) ERROR .*?\] ([\w.]*(?:Error|Exception)\b.*)$", re.MULTILINE)
_ROOM = "make room, or send files elsewhere (ckpt.path, RAY_TMPDIR)"
_PARTS = ROLES | {"OgerRolloutActor": "rollout actor"}  # the engine is the process that it starts


@dataclass
class _Process:
    group: int  # of processes: an actor's engine is in the actor's, whoever has forked it
    role: str
    title: str
    peak: int  # bytes


class Processes(threading.Thread):
    """Follows what the driver has started while it runs: roles and peaks of memory."""

    def __init__(self, driver: int) -> None:
        super().__init__(daemon=True)
        self._driver = driver
        self._ended, self._interrupts = threading.Event(), threading.Event()
        self._seen: dict[int, _Process] = {}
        self._kills = _kills_for_want_of_memory()

    def __enter__(self) -> "Processes":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self.look()
            if self._interrupts.is_set() and dead_part(self._driver):
                self._interrupts.clear()
                signal.pthread_kill(threading.main_thread().ident or 0, _INTERRUPT)

    @contextlib.contextmanager
    def needing_ray(self) -> Iterator[None]:
        """Raise ConnectionError in the block, in the main thread, once a part of Ray that the driver started has died:
        without its GCS, a run continues for a minute and then aborts without a word. Its actors end before."""
        lost = threading.Event()

        def interrupt(*_: object) -> None:
            lost.set()
            raise KeyboardInterrupt  # the one that Ray lets through

        before = signal.signal(_INTERRUPT, interrupt)
        self._interrupts.set()
        try:
            yield
        except KeyboardInterrupt:
            if lost.is_set():
                self._end()
                raise ConnectionError("Ray itself died") from None
            raise
        finally:
            self._interrupts.clear()
            signal.signal(_INTERRUPT, signal.SIG_IGN)  # it may be on its way
            signal.signal(_INTERRUPT, before)

    def _end(self) -> None:
        """Kill the actors. What is left of Ray takes seconds to end, in which they would train further steps."""
        for pid in list(self._seen):
            if _role(_title(pid)):  # the number is not another process's by now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def look(self) -> None:
        parents = {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
        for pid, parent in parents.items():
            if parent is not None and self._driver in _ancestors(pid, parents):
                self._note(pid)

    def _note(self, pid: int) -> None:
        try:
            status, group = Path(f"/proc/{pid}/status").read_text(), os.getpgid(pid)
        except OSError:  # it ended meanwhile
            return
        title = _title(pid)
        role = _role(title)
        if role and (peak := re.search(r"VmHWM:\s+(\d+) kB", status)):
            self._seen[pid] = _Process(group, role, title, int(peak[1]) * 1024)

    def gone(self) -> list[int]:
        """Return the processes that died by themselves; leave out engines that ended with their actor, and judges."""
        ended = {pid for pid in self._seen if _parent(Path(f"/proc/{pid}")) is None}
        return [
            pid
            for pid in sorted(ended)
            if self.actor(pid) not in ended - {pid} and self._seen[pid].role != f"the {JUDGE}"
        ]

    def actor(self, pid: int) -> int:
        """Return the actor whose engine a process is; the process itself where it is none."""
        of_process = self._seen[pid]
        if of_process.role != _ENGINE:
            return pid
        in_group = (other for other, each in self._seen.items() if each.group == of_process.group)
        return next((other for other in in_group if self._seen[other].role != _ENGINE), pid)

    def role(self, pid: int) -> str | None:
        """Return what the process is in the run; None for one that is none of its actors."""
        return self._seen[pid].role if pid in self._seen else None

    def sentence(self, pid: int) -> str:
        process = self._seen[pid]
        cause = "was killed or crashed without a word (SIGKILL leaves none)"
        if _kills_for_want_of_memory() > self._kills:
            cause = "was killed by the kernel, which was out of memory"
        return f"{process.role} died ({process.title}, pid {pid}): it {cause}{self.peak(pid)}"

    def peak(self, pid: int) -> str:
        known = self._seen.get(pid)
        return f"; its memory had peaked at {known.peak / 2**30:.1f} GiB" if known else ""


def _parent(process: Path) -> int | None:
    """Return the parent of a process, None where it has ended, reaped or not."""
    state, parent = state_and_parent(int(process.name)) or ("X", 0)
    return None if state in "ZX" else parent


def _title(pid: int) -> str:
    """Return what a process calls itself; an empty text where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").strip()
    except OSError:
        return ""


def _ancestors(pid: int | None, parents: dict[int, int | None]) -> Iterator[int]:
    while pid and (pid := parents.get(pid)):
        yield pid


def _role(title: str) -> str | None:
    if title.startswith("VLLM::"):
        return _ENGINE
    role = _PARTS.get(title.removeprefix("ray::").split(".")[0]) if title.startswith("ray::") else None
    return f"the {role}".replace("-", " ") if role else None


def _kills_for_want_of_memory() -> int:
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def why(error: BaseException, processes: Processes, session_logs: Path, run_dir: Path) -> str:
    """Say in a sentence why the run ended: what went wrong first, of all that may stand behind ``error``."""
    raised, origin = _unwrapped(error)
    if sentence := _full_disk(error, (run_dir, session_logs)):
        return sentence
    if dead := dead_part(os.getpid()):
        return dead.sentence(run_dir / "logs")
    if isinstance(raised, RecipeError):  # the controller's own decision
        return str(raised)
    if any(words in str(raised) for words in _NO_START):
        logs_of_ray = ", ".join(str(run_dir / "logs" / f"{part}.log") for part in ("raylet", "gcs"))
        return f"Ray itself did not start in time: this machine is busy; its log: {logs_of_ray}"
    logs = {pid: run_dir / "logs" / f"{name}.log" for pid, name in workers(session_logs).items()}
    if "in its creation task" in str(raised):
        return _not_started(str(raised), logs, session_logs)
    if isinstance(raised, OutOfMemoryError):
        return _out_of_memory(str(raised))
    if sentence := _gone(processes, logs):
        return sentence
    if isinstance(raised, ActorDiedError):
        return _of_actor(str(raised), logs)
    return _raised(raised, origin, processes, logs)


def _full_disk(error: BaseException, folders: tuple[Path, ...]) -> str | None:
    for folder in folders:
        if shutil.disk_usage(folder).free < _FULL:
            return f"no space is left on the disk of {folder}; {_ROOM}"
    if any(words in str(error) for words in _NO_SPACE):
        return f"no space is left on a disk: {str(error).splitlines()[-1]}; {_ROOM}"
    return None


def _gone(processes: Processes, logs: dict[int, Path]) -> str:
    """Say which processes ended by themselves; an empty text where none did."""
    gone = processes.gone()
    known = [logs.get(pid) or logs.get(processes.actor(pid)) for pid in gone]  # the engine writes to its actor's
    where = sorted({str(log) for log in known if log})
    return "; ".join(map(processes.sentence, gone)) + (f"; its log: {', '.join(where)}" if where else "")


def _raised(raised: BaseException, origin: tuple[str, int] | None, processes: Processes, logs: dict[int, Path]) -> str:
    if origin is None:
        return f"{type(raised).__name__}: {raised}"
    title, pid = origin
    peak = processes.peak(pid) if "OutOfMemory" in type(raised).__name__ or isinstance(raised, MemoryError) else ""
    log = f"; its log: {logs[pid]}" if pid in logs else ""
    return f"{_role(title) or title} (pid {pid}) stopped with {type(raised).__name__}: {raised}{peak}{log}"


def _unwrapped(error: BaseException) -> tuple[BaseException, tuple[str, int] | None]:
    """Return what was raised first, under Ray's wrapping, and title and pid of the process that raised it."""
    processes = re.findall(r"(ray::[\w.]+)\(\)\S* \(pid=(\d+)", str(error))  # the wrapping's own text has all of them
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error, (processes[-1][0], int(processes[-1][1])) if processes else None


def _not_started(text: str, logs: dict[int, Path], session_logs: Path) -> str:
    """Say why an actor could not start. The error of vLLM's engine process is only in the log of its worker."""
    if _NO_ENGINE not in text:
        return _last_error(text)
    engines = {pid: log for pid, log in logs.items() if log.name.startswith("engine")}
    files = [file for pid in engines for file in outputs(session_logs, pid)]
    causes = [cause for file in files for cause in _OF_ENGINE.findall(file.read_text(errors="replace"))]
    said = f" ({redacted(causes[-1])})" if causes else ""
    where = f"; its log: {', '.join(sorted(map(str, engines.values())))}" if engines else ""
    return f"the engine died while it started, or failed to{said}{where}"


def _last_error(text: str) -> str:
    """Return the error under a printed traceback."""
    starts = [found.start() for found in re.finditer(r"^[\w.]*(Error|Exception)\b", text, re.MULTILINE)]
    return text[starts[-1] :].strip() if starts else text


def _out_of_memory(text: str) -> str:
    """Shorten Ray's page on the workers that it ended before the kernel would."""
    memory = re.search(r"was ([\d.]+)GB / ([\d.]+)GB", text)
    ended = re.findall(r"task name=(\w+)[^\]]*?pid=(\d+), actual memory used=([\d.]+)GB", text)
    if not memory or not ended:
        return f"OutOfMemoryError: {text}"
    named = " and ".join(f"the {_PARTS.get(name, name)} (pid {pid}, {used} GB)" for name, pid, used in ended)
    return (
        f"the machine's memory was full ({memory[1]} of {memory[2]} GB), and Ray ended {named}; lower "
        "train.micro_batch_size, rollout.micro_batch_size or vllm.num_engines, or end what else runs there"
    )


def _of_actor(text: str, logs: dict[int, Path]) -> str:
    """Shorten Ray's page on an actor whose process was not seen: it was on another node, or lived for a moment."""
    facts = {key: found[1] for key in ("class_name", "pid", "ip") if (found := re.search(rf"{key}: (\S+)", text))}
    role = _PARTS.get(facts.get("class_name", ""), facts.get("class_name", "an actor"))
    detail = text[at:] if (at := text.find("The actor is dead")) >= 0 else text
    log = logs.get(int(facts.get("pid", 0)))
    where = f"; its log: {log}" if log else "; it had no log yet"
    return f"the {role} died (pid {facts.get('pid')} on {facts.get('ip')}): {detail.rstrip()}{where}"
