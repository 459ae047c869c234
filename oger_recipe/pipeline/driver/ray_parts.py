"""The processes of Ray without which a run cannot go on: which of them has died, in a sentence."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_NAMES = ("gcs_server", "raylet")


@dataclass(frozen=True)
class DeadPart:
    """code: its exit code, or minus the number of the signal that killed it."""

    name: str
    pid: int
    code: int

    def sentence(self, logs: Path) -> str:
        how = f"of {signal.Signals(-self.code).name}" if self.code < 0 else f"with exit code {self.code}"
        log = logs / f"{self.name.split('_')[0]}.log"
        return f"Ray itself died ({self.name}, pid {self.pid}) {how}; its log: {log}"


def dead_part(driver: int) -> DeadPart | None:
    """Return a part of the Ray that the driver has started that has died, the GCS before the raylet; None while both
    live."""
    dead = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):  # it is waited for meanwhile
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
            facts = rest.split()
            if name in _NAMES and facts[0] in "ZX" and int(facts[1]) == driver:
                status = int(facts[49])
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                dead[name] = DeadPart(name, int(process.name), code)
    return next((dead[name] for name in _NAMES if name in dead), None)
