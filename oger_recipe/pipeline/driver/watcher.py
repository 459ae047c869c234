"""Clears up after a run, however it ended.

``python -m oger_recipe.pipeline.driver.watcher FOLDER [LOGS]``, by start_ray.py.

FOLDER is the run's own temporary folder. Ray, vLLM and their like keep logs and sockets there, and whatever process
writes to a file in it belongs to the run. Standard input is a pipe whose other end the driver alone holds, so that it
closes when the driver has done its part, which it says before, or was killed. Then the processes that are left end,
their logs are kept where there is a place for them, and the folder goes. Where Ray's C++ ended the driver, for want
of a part of Ray, that is said here.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from oger_recipe.pipeline.driver.ray_parts import dead_part
from oger_recipe.run_folder.records import progress
from oger_recipe.run_folder.worker_logs import keep

_GRACE_S, _LIMIT_S = 2.0, 15.0
_LOOK_S = 2.0


def main() -> None:
    folder, logs = Path(sys.argv[1]), list(map(Path, sys.argv[2:]))
    driver, dead = os.getppid(), None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    has_said = False
    while True:
        if not select.select([0], [], [], _LOOK_S if logs else None)[0]:
            dead = dead or dead_part(driver)
        elif os.read(0, 4096):
            has_said = True
        else:
            break
    _end_writers(folder, spared={driver, os.getpid()})
    for session in folder.glob("session_2*"):  # beside a link, session_latest
        with contextlib.suppress(OSError):  # a full disk, say: what follows frees some of it
            for target in logs:
                keep(session / "logs", target)
    shutil.rmtree(folder, ignore_errors=True)
    for target in logs:
        if dead and not has_said:
            print(f"oger train: training stopped {progress(target.parent)}: {dead.sentence(target)}", flush=True)


def _end_writers(folder: Path, spared: set[int]) -> None:
    """Kill processes that write there after a grace, in which most end by themselves once Ray is shut down."""
    started = time.monotonic()
    while (left := writers(folder) - spared) and time.monotonic() - started < _LIMIT_S:
        if time.monotonic() - started > _GRACE_S:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def writers(folder: Path) -> set[int]:
    """Find the processes with a file below the folder open for writing. One that only reads a log is not the run's."""
    return {int(process.name) for process in Path("/proc").glob("[0-9]*") if _writes(process, f"{folder}/")}


def _writes(process: Path, beginning: str) -> bool:
    with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
        for descriptor in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "fd" / descriptor).startswith(beginning):
                    flags = (process / "fdinfo" / descriptor).read_text().split("flags:")[1].split()[0]
                    if int(flags, 8) & (os.O_WRONLY | os.O_RDWR):
                        return True
    return False


if __name__ == "__main__":
    main()
