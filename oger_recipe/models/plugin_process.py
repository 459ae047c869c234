"""The process of a plugin: ``python -m oger_recipe.models.plugin_process SOCKET``, started by `Plugin` alone.

It forks the process that has the plugin, and ends with it all that the plugin has started. That one answers one call
after the other, within a limit of memory, until the other side hangs up. It loads neither torch nor, without a
tokenizer, transformers: looking whether a plugin can be called is quick.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import math
import os
import re
import signal
import socket
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oger_recipe.base import stacks
from oger_recipe.base.remote_code import may_run
from oger_recipe.base.secrets import redacted, said_by
from oger_recipe.grading.descendants import adopt, begin_below, end_all, limit_memory
from oger_recipe.grading.messages import answer_all
from oger_recipe.grading.verdict import is_list

LOAD = "load"
SIGNALLED = 128  # as shells say that a process died of a signal
_WATCHED = (signal.SIGTERM, signal.SIGCHLD)
_PACKAGE = "verl.workers.reward_function"  # of the plugin and of what lies beside it: its folder in VeRL-with-RMs


class Unfit(Exception):
    """What a plugin has, or gives, is not what it has to be."""


def load(path: Path, needed: Mapping[str, int]) -> dict[str, Callable[..., Any]]:
    """Import a plugin; return its functions by name, each of which takes so many arguments.

    What lies beside it can be imported from now on. Raises Unfit for a function that is missing or has other
    arguments, and whatever the plugin raises.
    """
    sys.path.insert(0, str(path.parent))
    _offer(path.parent)
    name = f"{_PACKAGE}.{path.stem.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "its name ends in .py"
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {function: _callable(module, function, count) for function, count in needed.items()}


def _offer(folder: Path) -> None:
    """Make a folder the package _PACKAGE. An installed verl stays, and adds to it what does not lie in the folder."""
    verl = importlib.util.find_spec("verl")
    if verl is None:
        _package("verl", [])
        _package("verl.workers", [])
    installed = (verl and verl.submodule_search_locations) or []
    _package(_PACKAGE, [str(folder), *(os.path.join(each, "workers", "reward_function") for each in installed)])


def _package(name: str, folders: list[str]) -> None:
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = folders


def _callable(module: types.ModuleType, name: str, arguments: int) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise Unfit(f"it has no function {name}")
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        raise Unfit(f"{name} cannot be called with {arguments} arguments: {error}") from None
    return function  # type: ignore[no-any-return]


def texts_of(values: Any, size: int) -> list[str]:
    """Read what rm_preprocess gave for so many responses. Raises Unfit for anything but as many texts."""
    listed = _listed(values, size, "rm_preprocess")
    for value in listed:
        if not isinstance(value, str):
            raise Unfit(f"rm_preprocess gave {_shown(value)}, which is not a text")
    return listed


def numbers_of(values: Any, size: int) -> list[float | None]:
    """Read what rm_postprocess gave for so many replies; None and nan are no verdict, None.

    Raises Unfit for anything but as many finite numbers.
    """
    return [_number(value) for value in _listed(values, size, "rm_postprocess")]


def step_values_of(values: Any, size: int) -> list[int | list[float] | None]:
    """Read what rm_postprocess gave for so many replies about steps: the number of the first wrong step, -1 for none,
    or a list with a number for each step; None and nan are no verdict, None.

    Raises Unfit for anything else.
    """
    return [_step_value(value) for value in _listed(values, size, "rm_postprocess")]


def _step_value(value: Any) -> int | list[float] | None:
    if not is_list(value):
        number = _number(value)
        if number is not None and (number < -1 or number != int(number)):
            raise Unfit(f"rm_postprocess gave {_shown(value)}, which is no number of a step; -1 is for none")
        return None if number is None else int(number)
    numbers = [_number(each) for each in value]
    if None in numbers:
        raise Unfit(f"rm_postprocess gave {_shown(value)}, with no number for some steps")
    return [number for number in numbers if number is not None]


def rubric_values_of(values: Any, size: int) -> list[float | list[float | None] | None]:
    """Read what rm_postprocess gave for so many replies about rubrics: a list with a verdict from 0 to 1 for each
    criterion, None and nan for none, or one such number.

    Raises Unfit for anything else.
    """
    return [
        [_share(each) for each in value] if is_list(value) else _share(value)
        for value in _listed(values, size, "rm_postprocess")
    ]


def _share(value: Any) -> float | None:
    number = _number(value)
    if number is not None and not 0 <= number <= 1:
        raise Unfit(f"rm_postprocess gave {_shown(value)}, which is not from 0 to 1")
    return number


def _listed(values: Any, size: int, function: str) -> list[Any]:
    if not is_list(values):
        raise Unfit(f"{function} gave {_shown(values)}, which is not a list")
    listed = list(values)
    if len(listed) != size:
        raise Unfit(f"{function} gave {len(listed)} values for {size}")
    return listed


def _number(value: Any) -> float | None:
    try:
        number = math.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if isinstance(value, str) or math.isinf(number):
        raise Unfit(f"rm_postprocess gave {_shown(value)}, which is not a finite number")
    return None if math.isnan(number) else number


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {redacted(repr(value))[:80]}"


READ: dict[str, Callable[[Any, int], list[Any]]] = {"rm_preprocess": texts_of, "rm_postprocess": numbers_of}
READ_OF = {  # by what a plugin judges
    "responses": READ,
    "steps": READ | {"rm_postprocess": step_values_of},
    "rubrics": READ | {"rm_postprocess": rubric_values_of},
}


def _said(act: Callable[[], Any]) -> dict[str, Any]:
    """Act; return a message with the value, or with why there is none."""
    try:
        return {"value": act()}
    except (Unfit, AskedOtherwise) as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "it took more memory than plugin_memory_limit_mb allows"}
    except SystemExit as error:
        return {"error": redacted(f"it called sys.exit({error.code!r})")}
    except BaseException as error:
        return {"error": _reason(error)}


def _reason(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return said_by(error)[:1000] + f" ({place.filename}:{place.lineno})"


class AskedOtherwise(Exception):
    """A plugin does not ask its judge as the entry says."""


class ChatTemplate:
    """In the place of a tokenizer's apply_chat_template: conversations begin with the system prompt, and the template
    gets the further arguments. is_used: it was called.

    Raises:
        AskedOtherwise: the template does not read an argument.
    """

    def __init__(self, tokenizer: Any, system_prompt: str | None, arguments: Mapping[str, Any]) -> None:
        self._write, self._system, self._arguments = tokenizer.apply_chat_template, system_prompt, arguments
        self.is_used = False
        for name in arguments:
            if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
                raise AskedOtherwise(
                    f"chat_template_kwargs: the chat template of {tokenizer.name_or_path} does not read {name}; leave "
                    "it out"
                )

    def __call__(self, conversation: Any, *args: Any, **kwargs: Any) -> Any:
        from jinja2 import TemplateError

        self.is_used = True
        try:
            return self._write(self._begun(conversation), *args, **{**kwargs, **self._arguments})
        except TemplateError as error:
            raise AskedOtherwise(f"system_prompt, chat_template_kwargs: the chat template says: {error}") from None

    def _begun(self, conversation: Sequence[Any]) -> Sequence[Any]:
        if self._system is None or not conversation:
            return conversation
        if not isinstance(conversation[0], Mapping):  # several conversations
            return [self._begun(each) for each in conversation]
        if any(message["role"] == "system" for message in conversation):
            raise AskedOtherwise(
                "system_prompt is set, and rm_preprocess writes a system message of its own: leave one of them out"
            )
        return [{"role": "system", "content": self._system}, *conversation]

    def require_use(self) -> None:
        """Raise AskedOtherwise where it was not called since the last time."""
        is_used, self.is_used = self.is_used, False
        if not is_used:
            raise AskedOtherwise(
                "rm_preprocess does not call tgt_tokenizer.apply_chat_template, so that system_prompt and "
                "chat_template_kwargs would have no effect: leave them out, or write the prompt by it"
            )


def needs_tokenizer(error: Exception) -> bool:
    """Tell whether an error came of using a tokenizer that is None."""
    name = error.name if isinstance(error, AttributeError) and error.obj is None else None
    of_tokenizers = name is not None and re.search("token|template|code|_ids?$", name) is not None
    return of_tokenizers or str(error) == "'NoneType' object is not callable"


NO_TOKENIZER = (
    "tgt_tokenizer is None where a server puts the chat template around the prompt (api chat): name the judge's "
    "tokenizer by the key tokenizer, or return the text alone"
)


def _tokenizer(name: str, revision: str | None) -> Any:
    from oger_recipe.patches import transformers_optional_imports

    transformers_optional_imports.apply()  # spares the start of every plugin two seconds of five
    from transformers import AutoTokenizer

    from oger_recipe.base import hub

    said = hub.out_of_reach(name, revision)
    try:
        if said is None:
            return AutoTokenizer.from_pretrained(name, revision=revision, use_fast=True, trust_remote_code=may_run())
    except Exception as error:  # whatever can be wrong with its files
        said = " ".join(said_by(error).split())[:300]
    raise Unfit(
        f"its tokenizer {name} cannot be loaded ({said}); name another one by the key tokenizer, or ask a server by "
        "api chat, for which there is none"
    )


def _texts(preprocess: Callable[..., Any], columns: Sequence[list[Any]], tokenizer: Any) -> Any:
    """Call rm_preprocess. Raises AskedOtherwise where it does not ask its judge as the entry says."""
    try:
        texts = preprocess(*columns, tokenizer)
    except Exception as error:
        if tokenizer is None and needs_tokenizer(error):
            raise AskedOtherwise(f"{_reason(error)}: {NO_TOKENIZER}") from None
        raise
    template = getattr(tokenizer, "apply_chat_template", None)
    if isinstance(template, ChatTemplate):
        template.require_use()
    return texts


def _try_out(preprocess: Callable[..., Any], example: Sequence[Any], tokenizer: Any) -> None:
    """Try rm_preprocess on the example. Raises AskedOtherwise alone: the plugin's data may be of another kind."""
    try:
        _texts(preprocess, [[each] for each in example], tokenizer)
    except AskedOtherwise:
        raise
    except Exception:
        return


def serve(connection: socket.socket) -> None:
    """Answer ``[LOAD, order]`` first, and then ``[function, columns]``."""
    tokenizer: Any = None
    functions: dict[str, Callable[..., Any]] = {}
    read = READ

    def loaded(order: Mapping[str, Any]) -> None:
        nonlocal tokenizer, functions, read
        read = READ_OF[order["judges"]]
        if order["tokenizer"] is not None:  # first: what lies beside the plugin may bear the names of libraries
            tokenizer = _tokenizer(order["tokenizer"], order["revision"])
        if order["chat"] is not None:
            tokenizer.apply_chat_template = ChatTemplate(tokenizer, *order["chat"])
        functions = load(Path(order["path"]), order["needed"])
        limit_memory(order["memory_limit_mb"] * 2**20)  # of what responses make of it, not of the libraries
        if order["example"] is not None:
            _try_out(functions["rm_preprocess"], order["example"], tokenizer)

    def called(function: str, columns: Sequence[list[Any]]) -> list[Any]:
        call = functions[function]
        values = _texts(call, columns, tokenizer) if function == "rm_preprocess" else call(*columns)
        return read[function](values, len(columns[0]))

    def answer(function: str, argument: Any) -> dict[str, Any]:
        said = _said(lambda: loaded(argument) if function == LOAD else called(function, argument))
        with contextlib.suppress(Exception):  # whatever the plugin has made of it
            sys.stdout.flush()
        return said

    answer_all(connection, answer)


def _keep(worker: int, parent: int) -> int:
    """Wait until the plugin's process has ended, or the one that asks is gone or ends it; end what is left.

    Return an exit status: the plugin's process's own, or the number of the signal that it died of on top of SIGNALLED.
    """
    ended, status = 0, 0
    while os.getppid() == parent and not ended:
        ended, status = os.waitpid(worker, os.WNOHANG)
        told = None if ended else signal.sigtimedwait(_WATCHED, 1.0)
        if told is not None and told.si_signo == signal.SIGTERM:
            break
    end_all()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else SIGNALLED - code


def main() -> None:
    adopt()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    connection, parent = socket.socket(fileno=int(sys.argv[1])), os.getppid()
    if worker := os.fork():
        connection.close()
        os._exit(_keep(worker, parent))
    begin_below()
    stacks.answer()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    with contextlib.suppress(OSError):  # nobody waits for the answer any more
        serve(connection)


if __name__ == "__main__":
    main()
