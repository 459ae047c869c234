"""Plugins: files with the two functions between policy and judge, each run in a process of its own.

    rm_preprocess(text_prompts, text_responses, tgt_tokenizer) -> list[str]     what the judge is asked
    rm_postprocess(results) -> list[float]                                       what it said, as numbers

The process can be killed: what a plugin does to it, never returning included, costs the rows of a step at most.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.secrets import redacted, redactor, without_keys
from oger_recipe.grading.messages import ask
from oger_recipe.grading.processes import end
from oger_recipe.grading.verifiers import looked_in
from oger_recipe.models.plugin_process import LOAD, READ_OF, SIGNALLED, Unfit
from oger_recipe.rewards.place import Reply
from oger_recipe.rewards.sources import ANSWER

READY_MADE = Path(__file__).parent / "plugins"
BOTH: Mapping[str, int] = {"rm_preprocess": 3, "rm_postprocess": 1}  # function -> arguments
OF_STEPS = ("first_wrong_step",)  # ready-made ones that judge steps of reasoning
OF_RUBRICS = ("rubric", "rubric_grade")  # that hold a response against the criteria of a rubric
FIRST: Mapping[str, int] = {"rm_preprocess": 3}
Example = tuple[str, str | tuple[str, ...]]
EXAMPLE: Example = ("What is 1 + 1?", "2")
OF_SEVERAL: Example = ("What is 1 + 1?", ("2", "3"))  # two answers, or steps

_LARGEST_REPLY = 2**30  # bytes: the prompts of a step have less
_LOGGED = 2**16  # bytes of what it prints about the rows of a step
_START_LIMIT_S = 300.0  # importing libraries and reading a tokenizer on a busy machine


class _Raised(Exception):
    """The plugin did not give what it should; its process goes on."""


class _Lost(Exception):
    """The plugin's process is no more; cause: ANSWER where it was at work on rows."""

    cause: str | None = None


class _LostAtWork(_Lost):
    cause = ANSWER


def ready_made() -> list[str]:
    """Return the names of the plugins that come with the recipe."""
    return sorted(path.stem for path in READY_MADE.glob("*.py") if not path.name.startswith("_"))


def find_plugin(name: str) -> Path:
    """Return the file of a plugin: a ready-made one's, or that of a name in .py in the folders of the user's modules.

    Raises RecipeError where there is none.
    """
    if not name.endswith(".py"):
        if name in ready_made():
            return READY_MADE / f"{name}.py"
        raise RecipeError(
            f"plugin {name!r} is not a ready-made one ({', '.join(ready_made())}); the name of a file ends in .py"
        )
    folders = looked_in() or [str(Path.cwd())]
    for folder in folders:
        if (path := Path(folder) / name).is_file():
            return path.resolve()
    raise RecipeError(f"plugin {name!r}: no such file in {', '.join(folders)}")


def plugin_problem(name: str, needed: Mapping[str, int] = BOTH, example: Example | None = None) -> str | None:
    """Say what keeps a plugin from being called; imports it, in a process of its own. example: see `Plugin`."""
    try:
        path = find_plugin(name)
    except RecipeError as error:
        return str(error)
    return _problem(path, path.stat().st_mtime_ns, tuple(needed.items()), example)


@functools.cache
def _problem(path: Path, changed: int, needed: tuple[tuple[str, int], ...], example: Example | None) -> str | None:
    plugin = Plugin(path, needed=dict(needed), example=example)
    try:
        plugin.start()
    except RecipeError as error:
        return str(error)
    finally:
        plugin.close()
    return None


class Plugin:
    """A plugin, whose process starts with the first call.

    tokenizer: folder or hub name of the judge's (None: the plugin gets None); limit_s: seconds that each of the two
    functions may take for all that it is given at a time; memory_limit_mb: MiB beside what it has when it is loaded;
    needed: the functions that it has to have; judges: what it gets in place of responses and gives values of, a name
    of plugin_process.READ_OF; chat: system prompt and further arguments of the tokenizer's chat template; example: a
    prompt and what is judged, with which the start tries whether the plugin asks as the entry says.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: str | None = None,
        revision: str | None = None,
        limit_s: float = 60.0,
        needed: Mapping[str, int] = BOTH,
        *,
        memory_limit_mb: int = 8192,
        judges: str = "responses",
        chat: tuple[str | None, Mapping[str, Any]] | None = None,
        example: Example | None = None,
    ) -> None:
        self.path, self._limit_s = path, limit_s
        self._order = {
            "path": str(path), "tokenizer": tokenizer, "revision": revision, "needed": dict(needed),
            "memory_limit_mb": memory_limit_mb, "judges": judges, "chat": chat, "example": example,
        }  # fmt: skip
        self._read = READ_OF[judges]
        self._process: _Process | None = None
        self._has_started = False

    def preprocess(self, prompts: Sequence[Any], responses: Sequence[Any]) -> list[str | Reply]:
        """Give the judge's prompt for each response, or a Reply with an error."""
        return self._each("rm_preprocess", [list(prompts), list(responses)])

    def postprocess(self, results: Sequence[str]) -> list[Any]:
        """Give the value of each reply, None (no verdict), or a Reply with an error."""
        return self._each("rm_postprocess", [list(results)])

    def start(self) -> None:
        """Start the process where none runs. Raises RecipeError where plugin or tokenizer cannot be loaded."""
        try:
            self._running()
        except _Lost as error:
            raise RecipeError(f"plugin {self.path}: {error}") from None

    def close(self) -> None:
        """End the process; the next call starts another."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def _each(self, function: str, columns: list[list[Any]]) -> list[Any]:
        """Ask about all rows together; where that fails about each alone, so that only those at fault fail."""
        size, found = len(columns[0]), []
        if not size:
            return []
        if not self._has_started:
            self.start()
        if self._process is not None:
            self._process.log.left = _LOGGED
        try:
            deadline = time.monotonic() + self._limit_s
            with contextlib.suppress(_Raised):
                return self._asked(function, columns, deadline)
            for row in zip(*columns, strict=True):
                try:
                    found += self._asked(function, [[value] for value in row], deadline)
                except _Raised as error:
                    found.append(Reply(error=str(error), cause=ANSWER))
        except _Lost as error:
            found += [Reply(error=str(error), cause=error.cause)] * (size - len(found))
        return found

    def _asked(self, function: str, columns: list[list[Any]], deadline: float) -> list[Any]:
        late, ended = f"took more than {self._limit_s:g} s for the rows of a step", "ended the plugin's process"
        told = self._told(self._running(), function, columns, deadline, f"{function} {late}", f"{function} {ended}")
        return told  # type: ignore[no-any-return]

    def _running(self) -> _Process:
        if self._process is not None and self._process.has_ended():
            self.close()  # it ended between two calls: no row is at fault
        if self._process is None:
            self._process = _Process(self.path.name)
            deadline = time.monotonic() + _START_LIMIT_S
            late = f"it did not load within {_START_LIMIT_S:g} s"
            try:
                self._told(self._process, LOAD, self._order, deadline, late, "loading it ended its process")
            except _Raised as error:
                self.close()
                raise _Lost(str(error)) from None
            self._has_started = True
        return self._process

    def _told(self, process: _Process, what: str, argument: Any, deadline: float, late: str, ended: str) -> Any:
        """Return the reply. Without one, close the process and raise _Lost, saying it was `late`, or `ended`."""
        try:
            value = process.ask(what, argument, deadline)
            return value if what == LOAD else self._read[what](value, len(argument[0]))
        except TimeoutError:
            why = late
        except (OSError, EOFError):
            why = f"{ended} ({process.code()})"
        except (Unfit, ValueError, KeyError, TypeError, RecursionError) as error:  # written by whoever can write to it
            why = f"the reply of the plugin's process cannot be trusted: {error}"
        self.close()
        raise _Lost(why) if what == LOAD else _LostAtWork(why)


class _Process:
    """A child process, which ends with this object, and all that it has started with it."""

    def __init__(self, name: str) -> None:
        self._connection, theirs = socket.socketpair()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "oger_recipe.models.plugin_process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pipesize=4096,  # little of a step is left in it when the next begins
            env=without_keys(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        theirs.close()
        self._asked = 0
        assert self._child.stdout is not None, "a pipe"
        self.log = _Log(self._child.stdout, name)
        self.end = weakref.finalize(self, _end, self._connection, self._child, self.log)

    def ask(self, what: str, argument: Any, deadline: float) -> Any:
        """Return the reply. Raises as messages.ask, and _Raised for a reported error."""
        self._asked += 1
        reply = ask(self._connection, self._asked, [what, argument], deadline, _LARGEST_REPLY)
        if "error" in reply:
            raise _Raised(redacted(str(reply["error"])))  # it may have found a key that it was not given
        return reply["value"]

    def has_ended(self) -> bool:
        return self._child.poll() is not None

    def code(self) -> str:
        """Tell how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._child.wait(5.0)
            number = -code if code < 0 else code - SIGNALLED
            return f"signal {signal.Signals(number).name}" if number > 0 else f"exit code {code}"
        return "its connection is closed"


class _Log(threading.Thread):
    """Copies what a process prints to the errors of this one, never between a command's lines, and without keys.

    left: bytes until the rest is left out, which is said once.
    """

    def __init__(self, printed: IO[bytes], name: str) -> None:
        super().__init__(daemon=True)
        self.left = _LOGGED
        self._printed, self._name = printed, name
        self.start()

    def run(self) -> None:
        cleaned, note = redactor(), f"note: plugin {self._name} prints more than {_LOGGED} bytes about a step"
        note += "; the rest, of this step and of others, is left out\n"
        while line := self._printed.readline(_LOGGED):
            said = cleaned(line.decode(errors="replace"))
            if len(line) > self.left:
                said, note, self.left = note, "", 0
            else:
                self.left -= len(line)
            with contextlib.suppress(OSError):  # read on: who prints into a full pipe waits
                os.write(2, said.encode())


def _end(connection: socket.socket, child: subprocess.Popen[bytes], log: _Log) -> None:
    connection.close()
    end(child)
    log.join(5.0)  # until its last words are read; what has fled from `end` may still print
