"""Ray on this machine, with a folder that goes when the driver has ended, or the cluster at RAY_ADDRESS.

``python -m oger_recipe.pipeline.driver.start_ray`` prints that cluster's resources as JSON, for base/machine.py: a
process of its own, as Ray ends the one in which it cannot join.
"""

import contextlib
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import ray

from oger_recipe.base.cpu import CPU_ENVIRONMENT, ON_GPUS, ON_LOOPBACK
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import ray_folder
from oger_recipe.base.fork_request import PYTHON
from oger_recipe.base.machine import cluster_address, is_on_loopback
from oger_recipe.base.signals import HEEDED, let_second_kill
from oger_recipe.pipeline.driver.ray_parts import dead_part

_CLEAR_UP_S = 30  # what the watcher may take
_START_S = 300  # what Ray's node may take
_LOOK_S = 0.5  # from one look at Ray's parts to the next, while it starts
_PORT_MS = 1000  # what one look for the GCS's port may take
_PREFIX, _HELD = "oger-", ".held"  # of a run's folder; the file in it whose lock a live run or its watcher holds


def run_environment(cpu: bool) -> dict[str, str]:
    """Set this process's environment for Ray and return its workers'; of defaults, what the user has set stays."""
    of_machine = dict(CPU_ENVIRONMENT) if cpu else {ON_GPUS: "1"}
    if cpu and (address := cluster_address()) and not is_on_loopback(address):
        # Its hosts reach nothing on each other's loopback. Each has an address, and all may have an interface for it.
        for name in ON_LOOPBACK:
            del of_machine[name]
        if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
            of_machine["GLOO_SOCKET_IFNAME"] = interface
    os.environ.update(of_machine)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    defaults = {"TOKENIZERS_PARALLELISM": "false", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | of_machine


@contextlib.contextmanager
def cleared_up(logs: Path | None = None, held: Sequence[int] = ()) -> Iterator[Path]:
    """Yield a folder for what the run's processes keep for the while; afterwards it is gone, and all of them with it.

    Also when this process is killed: see watcher.py. Workers' logs end up in ``logs``; the descriptors ``held`` stay
    open until then.
    """
    parent = ray_folder()
    parent.mkdir(parents=True, exist_ok=True)
    _clear_up_after_killed(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    ended, alive = os.pipe()
    with (folder / "mark").open("w") as mark:
        with contextlib.suppress(OSError):  # some file systems have none: what a kill leaves there stays
            fcntl.flock(mark, fcntl.LOCK_EX)
        mark.write(str(logs or ""))
        mark.flush()
        (folder / "mark").rename(folder / _HELD)  # another start, which looks for it, must not lock it first
        watcher = _watcher(folder, logs, ended, (*held, mark.fileno()))
        os.close(ended)
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(folder)  # vLLM's sockets, by every worker's environment
        try:
            yield folder
        finally:
            os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
            with contextlib.suppress(OSError):  # the watcher was killed
                os.write(alive, b"it says itself why it ends")
            os.close(alive)
            with contextlib.suppress(subprocess.TimeoutExpired):
                watcher.wait(_CLEAR_UP_S)


def _watcher(folder: Path, logs: Path | None, ended: int, held: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the process that clears up once ``ended`` is at its end; until it has, it holds the descriptors."""
    command = [
        sys.executable,
        "-m",
        "oger_recipe.pipeline.driver.watcher",
        str(folder),
        *([str(logs)] if logs else []),
    ]
    # In a session of its own: Ctrl-C in the terminal does not reach it.
    stdout = None if logs else subprocess.DEVNULL
    return subprocess.Popen(command, stdin=ended, pass_fds=held, start_new_session=True, stdout=stdout)


def _clear_up_after_killed(parent: Path) -> None:
    """Clear up after runs of this user whose watchers were killed too, as when a container is stopped."""
    for mark in parent.glob(f"{_PREFIX}*/{_HELD}"):
        with contextlib.suppress(OSError), mark.open("r+") as file:  # a live run holds it, or it is another user's
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            logs = file.read()
            _watcher(mark.parent, Path(logs) if logs else None, subprocess.DEVNULL, (file.fileno(),))


def start_ray(environment: dict[str, str], cpu: bool, logical_gpus: int, verbose: bool, folder: Path | None) -> Any:
    """Start Ray with its files in ``folder``, or join the cluster at RAY_ADDRESS without one; return its context.

    What Ray starts in Python's place is ``environment``'s PYTHON, if it has one.
    Raises:
        ConnectionError: a part of a Ray that is starting has died.
    """
    # In a thread, which can be left behind: where its GCS has died, ray.init stands in C++, which ends this process
    # after a minute without a word. The thread stays: the kernel ends Ray's parts with the thread that started them.
    context: Future[Any] = Future()
    logging.getLogger("ray._private.worker").addFilter(_is_news)

    def start() -> None:
        try:
            context.set_result(_started(environment, cpu, logical_gpus, verbose, folder))
        except BaseException as error:
            context.set_exception(error)
        threading.Event().wait()

    with _signals_wait(), _while_its_parts_live(), _as_python(environment.get(PYTHON, sys.executable)):
        threading.Thread(target=start, daemon=True).start()
        while not wait([context], _LOOK_S).done:
            if dead_part(os.getpid()) and not wait([context], _LOOK_S).done:  # it may know more of it
                raise ConnectionError("a part of Ray died while it started")
    return context.result()


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for Ray's warning that it cannot set its handler of SIGTERM in a thread: it is to set none."""
    return "SIGTERM handler is not set" not in record.msg


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Hold back the first signal that comes while Ray starts, and raise it once Ray has; a second one kills at once.

    Handlers of signals raise. Where that left half a Ray to ray.shutdown(), the process aborted without a word.
    """
    received: list[int] = []

    def hold(number: int, _: object) -> None:
        received.append(number)
        let_second_kill(number)

    before = {each: signal.signal(each, hold) for each in HEEDED}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if received:
            signal.raise_signal(received[0])


@contextlib.contextmanager
def _as_python(path: str) -> Iterator[None]:
    """Let Ray start this file in Python's place: it starts its workers by sys.executable."""
    before, sys.executable = sys.executable, path
    try:
        yield
    finally:
        sys.executable = before


@contextlib.contextmanager
def _while_its_parts_live() -> Iterator[None]:
    """While Ray starts, give its GCS minutes to open its port and its node minutes to register, unless GCS or raylet
    has ended. Ray gives each 30 seconds, too few on a busy machine, and does not look whether the two live."""
    services, node, until = ray._private.services, ray._private.node, time.monotonic() + _START_S
    get_node, port = services.get_node, node.wait_for_persisted_port

    def patient(of_ray: Callable[..., Any], *args: Any, **options: Any) -> Any:
        while True:
            try:
                return of_ray(*args, **options)
            except RuntimeError:  # it is not known yet
                if dead_part(os.getpid()) or time.monotonic() > until:
                    raise
                time.sleep(_LOOK_S)

    services.get_node = partial(patient, get_node)
    # Short, as no other thread of this process runs meanwhile: Ray waits in C++ with Python's lock.
    node.wait_for_persisted_port = partial(patient, port, timeout_ms=_PORT_MS)
    try:
        yield
    finally:
        services.get_node, node.wait_for_persisted_port = get_node, port


def _started(environment: dict[str, str], cpu: bool, logical_gpus: int, verbose: bool, folder: Path | None) -> Any:
    shared: dict[str, Any] = {"log_to_driver": verbose, "logging_level": "warning"}
    if folder is None:
        context = ray.init(runtime_env={"env_vars": environment} | _shipped(), **shared)
        _check_cluster(logical_gpus)
        return context
    # What a worker has started ends with it. A killed rollout actor left its engine alive, and where that was waited
    # for (a broadcast of weights) the run hung.
    os.environ.setdefault("RAY_process_group_cleanup_enabled", "true")
    shared |= {"_temp_dir": str(folder), "_node_ip_address": "127.0.0.1"}
    # Ray's switch for machines outside any cluster: what it starts then listens on loopback only. The constant was
    # read from the variable when ray was imported; the processes that Ray starts read the variable.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    if not cpu:  # vLLM and gloo would take the machine's own address; CPU_ENVIRONMENT has them
        return ray.init(runtime_env={"env_vars": environment | ON_LOOPBACK}, **shared)
    os.environ.update(environment)  # Ray hands it to the workers that it starts, those in advance too
    # Nobody asks its autoscaler and its dashboard's server, and nobody reads what its log monitor sends.
    for unused in ("start_monitor", "start_api_server", *(() if verbose else ("start_log_monitor",))):
        setattr(ray._private.node.Node, unused, lambda *_, **__: None)
    # Logical resources: Ray only counts them, and OpenRLHF asks for GPUs by number.
    return ray.init(
        num_cpus=logical_gpus + 2,
        num_gpus=logical_gpus,
        include_dashboard=False,
        object_store_memory=512 * 1024**2,
        **shared,
    )


def _shipped() -> dict[str, Any]:
    """Return the part of a runtime environment that has Ray copy a folder to nodes that do not see it."""
    folder, excludes = os.environ.get("OGER_WORKING_DIR"), os.environ.get("OGER_EXCLUDES", "")
    return {"working_dir": folder, "excludes": excludes.split(",") if excludes else []} if folder else {}


def _check_cluster(gpus: int) -> None:
    """Raise RecipeError for too few GPUs: the run would wait for ever."""
    there = int(ray.cluster_resources().get("GPU", 0))
    if there < gpus:
        ray.shutdown()
        raise RecipeError(
            f"the Ray cluster at RAY_ADDRESS={os.environ['RAY_ADDRESS']} has {there} GPUs and the run needs {gpus}; "
            "`oger train --dry-run` shows the parts"
        )


if __name__ == "__main__":
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    print(json.dumps(ray.cluster_resources()))
