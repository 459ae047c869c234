"""Python programs in processes of their own, without the seconds of their imports.

``python forks.py SOCKET``, started by `Forks` alone, imports what the package's commands import, and forks for each
program: with its words, folder, environment, files and exit status, as ``python WORDS`` has them. Modules and the seed
of hash() are the server's; a test that needs them fresh, or of which imports are the subject, starts Python itself.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping
from typing import Any

_LARGEST = 2**17  # bytes of a program's words and environment
_ABOVE = 500  # descriptors of a server are below
_READS_VARIABLES = ("huggingface_hub.constants", "datasets.config")  # once, at import; other modules ask these


class Forks:
    """The server, which begins to import at once; ``start`` and ``run`` are as subprocess's Popen and run."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile("w+")
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        theirs.close()

    def start(self, *words: str, **how: Any) -> Forked:
        return Forked(self, [*words], **how)

    def run(self, *words: str, timeout: float | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "stdin": subprocess.DEVNULL} | how
        with self.start(*words, **how) as process:
            try:
                printed = process.communicate(timeout=timeout)
            finally:
                process.kill()
        return subprocess.CompletedProcess(words, process.returncode, *printed)

    def fork(self, request: Mapping[str, Any], descriptors: list[int]) -> socket.socket:
        """Return the connection that says the process's id, and then how it ended."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], [*descriptors, theirs.fileno()])
        except OSError:
            self._log.seek(0)
            raise AssertionError(f"the server of forks is no more: {self._log.read()[-3000:]}") from None
        finally:
            theirs.close()
        return ours

    def end(self) -> None:
        self._control.close()
        self._server.wait()


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process that the server has forked; it says how the process ends."""

    def __init__(self, forks: Forks, words: list[str], **how: Any) -> None:
        self._forks = forks
        super().__init__(words, **how)

    def _execute_child(
        self, words: Any, _executable: Any, _before: Any, _close: Any, passed: Any, cwd: Any, env: Any, _info: Any,
        _flags: Any, _shell: Any, stdin: int, to_it: int, of_it: int, stdout: int, of_errors: int, stderr: int,
        _restore: Any, _gid: Any, _gids: Any, _uid: Any, _umask: Any, in_session: bool, _group: Any,
    ) -> None:  # fmt: skip
        """Let the server fork, with the descriptors that subprocess has made ready."""
        request = {
            "words": list(map(str, words)), "cwd": str(cwd or os.getcwd()), "in_session": in_session,
            "env": dict(os.environ if env is None else env), "passed": list(passed),
        }  # fmt: skip
        files = [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))]
        self._told = self._forks.fork(request, [*files, *passed])
        self._close_pipe_fds(stdin, to_it, of_it, stdout, of_errors, stderr)  # type: ignore[attr-defined]
        self._child_created = True
        self.pid = int(self._told.recv(64) or 0)
        assert self.pid, "the server of forks is no more"

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Return what os.waitpid would."""
        try:
            said = self._told.recv(64, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        return self.pid, int(said or 1)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return None at the end, and in a forked process its request."""
    asking: dict[int, socket.socket] = {}

    def ended(*_: Any) -> None:
        while asking:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if connection := asking.pop(pid, None):
                _send(connection, status)
                connection.close()

    signal.signal(signal.SIGCHLD, ended)
    while True:
        said, descriptors, _, _ = socket.recv_fds(control, _LARGEST, 64)
        if not said:
            return None
        connection = socket.socket(fileno=descriptors.pop())
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            for each in (control, connection, *asking.values()):
                each.close()
            return json.loads(said) | {"descriptors": descriptors}
        asking[pid] = connection
        _send(connection, pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for each in descriptors:
            os.close(each)


def _send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits any more
        connection.send(str(number).encode())


def _become(program: dict[str, Any]) -> None:
    """Run a program as Python would; it ends as this process does."""
    if program["in_session"]:
        os.setsid()
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for each in program["descriptors"]]
    for each in program["descriptors"]:
        os.close(each)
    for each, number in zip(moved, (0, 1, 2, *program["passed"]), strict=True):
        os.dup2(each, number, inheritable=True)
        os.close(each)
    os.chdir(program["cwd"])
    os.environ.clear()
    os.environ.update(program["env"])
    for name in _READS_VARIABLES:
        importlib.reload(sys.modules[name])
    first, *words = program["words"]
    path = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path[1:]]
    if first == "-m":
        sys.path[:] = [os.getcwd(), *path]
        sys.argv = words
        sys.modules.pop(words[0], None)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path[:] = ["", *path]
        sys.argv = ["-c", *words[1:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), vars(main))
    else:
        sys.path[:] = [os.path.dirname(first), *path]
        sys.argv = [first, *words]
        runpy.run_path(first, run_name="__main__")


def _import_all() -> None:
    """Apply no patches but those that say how a library is imported: the others are for the program to apply."""
    from oger_recipe.patches import (
        flash_attn_padding,
        torch_compile,
        transformers_optional_imports,
        vllm_audio,
        vllm_env_override,
    )

    for patch in (torch_compile, vllm_env_override, transformers_optional_imports, vllm_audio, flash_attn_padding):
        patch.apply()
    import oger_recipe.cli
    from oger_recipe.grading.verifiers import VERIFIERS

    for name in ("datasets", "deepspeed", "openrlhf.trainer.ppo_trainer", "ray", "vllm.entrypoints.llm"):
        importlib.import_module(name)
    for each in pkgutil.iter_modules(oger_recipe.cli.__path__, "oger_recipe.cli."):
        importlib.import_module(each.name)
    for verifier in VERIFIERS.values():
        if verifier.warm_up is not None:
            verifier.warm_up()


def _status_of(program: dict[str, Any]) -> int:
    """Run a program to its end, and that of its threads; return its exit status."""
    try:
        _become(program)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            file.flush()
    return status & 0xFF


if __name__ == "__main__":
    _import_all()
    assert threading.active_count() == 1
    gc.freeze()
    if (asked := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        os._exit(_status_of(asked))  # the end of Python takes half a second to forget all that is imported
