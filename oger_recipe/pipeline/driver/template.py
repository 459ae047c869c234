"""The process from which Ray's workers and vLLM's engines are forked, where a run has no CUDA and a Ray of its own.

All of them import torch, transformers, vllm and OpenRLHF, five seconds of a core each. This one imports once, beside
the command, which checks settings and prepares data meanwhile. A fork of a process that has begun CUDA is no use, and
Ray on other hosts knows nothing of it.
"""

import contextlib
import importlib
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oger_recipe.base import fork_request, forks, stacks
from oger_recipe.base.cpu import CPU_ENVIRONMENT
from oger_recipe.base.imports import in_place_of, without_garbage_collection
from oger_recipe.base.machine import cluster_address
from oger_recipe.base.signals import end_with

_OF_CUDA = Path("/dev/nvidiactl")  # there with NVIDIA's driver; asking torch would import it
_OF_ENGINE = ("vllm.v1.engine.async_llm", "vllm.v1.worker.cpu_worker")
_WITH_RAY = tuple(
    f"oger_recipe.pipeline.{module}"
    for module in ("policy.policy_actor", "controller.trainer", "engine.rollout_engine", "engine.engine_worker")
)
_begun: list[tuple["subprocess.Popen[bytes]", socket.socket]] = []


@contextlib.contextmanager
def begun() -> Iterator[None]:
    """Start the process before it is known whether a run will need it, and where; it ends with the block."""
    if cluster_address() is None and not _OF_CUDA.exists():
        _begun.append(_start())
    try:
        yield
    finally:
        while _begun:  # no run has taken it
            _end(*_begun.pop())


@contextlib.contextmanager
def template(folder: Path) -> Iterator[Path]:
    """Yield what takes Python's place: it has the process fork. Forks end with the block, and write to its stderr.

    ``folder``: for script and socket; its path has to be short.
    """
    process, control = _begun.pop() if _begun else _start()
    address, python = str(folder / "forks"), folder / "python"
    words = [sys.executable, "-IS", fork_request.__file__, sys.executable, address]
    python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    python.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(16)
        with contextlib.suppress(OSError):  # it has ended; without it Python is started
            socket.send_fds(control, [b"files"], [listening.fileno(), 2])
    try:
        yield python
    finally:
        _end(process, control)


def _end(process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    process.kill()  # it may be in the midst of its imports
    process.wait()
    control.close()


def _start() -> tuple["subprocess.Popen[bytes]", socket.socket]:
    ours, its = socket.socketpair()
    with its:
        command = [sys.executable, "-m", __spec__.name, str(its.fileno()), str(os.getpid())]
        # In a group of its own: Ctrl-C in the terminal does not reach it. In the session, as groups of its forks are.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[its.fileno()], process_group=0, env=os.environ | CPU_ENVIRONMENT,
        )  # fmt: skip
    return process, ours


def _serve(control: socket.socket) -> None:
    try:
        _import_before_ray()
    finally:  # after an error as well, which is then in the run's log
        _, (listening, log), _, _ = socket.recv_fds(control, 8, 2)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    program = forks.Server(socket.socket(fileno=listening), control.fileno(), _import_with_ray).serve()
    if program is not None:
        os._exit(forks.run(program, stacks.answer))  # the end of Python takes half a second to forget all of it


def _import_before_ray() -> None:
    import setproctitle

    # It finds the place of titles when it is first used, and not beside a new environment. Ray has a copy of its own,
    # which would not find the place any more.
    setproctitle.setproctitle("oger template")
    from oger_recipe.patches import apply_vllm_import_patches, deepspeed_compile, sentence_transformers_sklearn

    apply_vllm_import_patches()
    with without_garbage_collection(), in_place_of(ray=None):  # vLLM would import it, to ask whether it is there
        deepspeed_compile.apply()
        sentence_transformers_sklearn.apply()
        for module in _OF_ENGINE:
            importlib.import_module(module)


def _import_with_ray(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)  # Ray reads its variables, of job and raylet too, once, when it is imported
    ray: Any = importlib.import_module("ray")
    # OpenRLHF's actor classes get ids by Ray's own generator. Forks of a process that has begun it would draw one
    # another's ids, for objects too.
    ids = ray._raylet.ActorClassID
    ray.actor.ActorClassID = SimpleNamespace(from_random=lambda: ids(os.urandom(ids.size())))
    with without_garbage_collection():
        for module in _WITH_RAY:
            importlib.import_module(module)
    ray.actor.ActorClassID = ids
    titles = sys.modules["setproctitle"]
    ray._raylet.setproctitle, ray._raylet.getproctitle = titles.setproctitle, titles.getproctitle
    assert threading.active_count() == 1


if __name__ == "__main__":
    control, command = map(int, sys.argv[1:])
    end_with(command)
    _serve(socket.socket(fileno=control))
