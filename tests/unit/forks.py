"""Python programs in processes of their own, without the seconds of their imports.

``python forks.py SOCKET UNTIL``, started by `Forks` alone, imports what the package's commands import, and forks for
each program (oger_recipe/base/forks.py). A test that needs modules or the seed of hash() fresh, or of which imports
are the subject, starts Python itself.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oger_recipe.base.fork_request import ask
from oger_recipe.base.forks import Server, run

_READS_VARIABLES = ("huggingface_hub.constants", "datasets.config")  # once, at import; other modules ask these


class Forks:
    """The server, which begins to import at once; ``start`` and ``run`` are as subprocess's Popen and run."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="f", dir="/tmp")  # the path of a socket has to be short
        self.address = str(Path(self._folder.name, "forks"))
        until, self._until = os.pipe()
        self._log = tempfile.TemporaryFile("w+")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self.address)
            listening.listen(16)
            given = (listening.fileno(), until)
            self._server = subprocess.Popen(
                [sys.executable, __file__, *map(str, given)], pass_fds=given, env=environment,
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        os.close(until)

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

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-3000:]

    def end(self) -> None:
        os.close(self._until)
        self._server.wait()
        self._folder.cleanup()


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
        files = {own: own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))}
        environment, cwd = os.environ if env is None else env, str(cwd or os.getcwd())
        try:
            self._told = ask(
                self._forks.address, list(map(str, words)), files | {each: each for each in passed}, cwd=cwd,
                environment=environment, in_session=in_session,
            )  # fmt: skip
        except OSError:
            raise AssertionError(f"the server of forks is no more: {self._forks.said()}") from None
        self._close_pipe_fds(stdin, to_it, of_it, stdout, of_errors, stderr)  # type: ignore[attr-defined]
        self._child_created = True
        self.pid = int(self._told.recv(64) or 0)
        assert self.pid, f"the server of forks is no more: {self._forks.said()}"

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


def _reload() -> None:
    for name in _READS_VARIABLES:
        importlib.reload(sys.modules[name])


if __name__ == "__main__":
    _import_all()
    assert threading.active_count() == 1
    listening, until = map(int, sys.argv[1:])
    program = Server(socket.socket(fileno=listening), until, lambda _: None).serve()
    if program is not None:
        os._exit(run(program, _reload))  # the end of Python takes half a second to forget all that is imported
