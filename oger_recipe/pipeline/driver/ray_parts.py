"""The processes of Ray without which a run cannot go on: which of them has died, in a sentence."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from oger_recipe.base.stacks import stat_of

_NAMES = ("gcs_server", "raylet")


@dataclass(frozen=True)
class DeadPart:
    """A process of Ray that has died. code: its exit code, or minus the number of the signal that killed it."""

    name: str
    pid: int
    code: int

    def sentence(self, logs: Path) -> str:
        how = f"of {signal.Signals(-self.code).name}" if self.code < 0 else f"with exit code {self.code}"
        log = logs / f"{self.name.split('_')[0]}.log"
        return f"Ray itself died ({self.name}, pid {self.pid}) {how}; its log: {log}"


def dead_part(driver: int) -> DeadPart | None:
    """Return the GCS or the raylet that the process ``driver`` has started, if it has died; of both, the GCS."""
    dead = {}
    for pid in (int(process.name) for process in Path("/proc").glob("[0-9]*")):
        fields = stat_of(pid)
        if fields and fields[0] in _NAMES and fields[1] in "ZX" and int(fields[2]) == driver:
            status = int(fields[50])
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            dead[fields[0]] = DeadPart(fields[0], pid, code)
    return next((dead[name] for name in _NAMES if name in dead), None)
