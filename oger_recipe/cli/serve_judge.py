"""``oger serve-judge MODEL``: serve a judge, a head or a PRM to runs, by vLLM's server with OpenAI's interface.

It prints one line when the server is ready, with the entry for oger.reward.sources. Ctrl-C and SIGTERM end it and the
server; the server ends as well when this process is killed. What stands behind ``--`` goes to vLLM as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx
import yaml

from oger_recipe.base.cpu import CPU_ENVIRONMENT, is_without_cuda
from oger_recipe.base.endpoint import api_key
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.imports import not_installed
from oger_recipe.cli.shared import CommandParser, is_loopback, listen
from oger_recipe.models.keys import DTYPES, ProcessKeys
from oger_recipe.models.server import KEY_VARIABLE, KeyForEveryPath
from oger_recipe.models.step_formats import FORMATS
from oger_recipe.models.step_models import step_arguments, without_adapter
from oger_recipe.run.inputs import judge_folder

_VLLM = "vllm.entrypoints.openai.api_server"
_WILDCARDS = ("0.0.0.0", "::")
_OF_PRM = ("format", "good", "bad", "adapter")
_POLL_S = 0.5
_ENDS_WITHIN_S = 15.0
# Kills the server's process group when its own input ends, which it does however this process ends.
_KEEPER = 'read -r _; kill -9 "-$1"'  # dash's kill takes no --


def main(argv: list[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    own, further = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    try:
        args = _parser().parse_args(own)
        if (folder := judge_folder(args.model)) != args.model:  # a model of the built-in task
            args.model, args.name = folder, args.name or args.model
        key, cpu, prm = _checked(args), is_without_cuda(), _prm(args)
        with tempfile.TemporaryDirectory(prefix="oger-prm-") as merged:  # the PRM with its adapter, while it is served
            if prm is not None and prm.adapter is not None:
                args.name = args.name or args.model
                prm = without_adapter(prm, Path(merged))
            command = _command(args, cpu=cpu, key=key, prm=prm)
            status = serve([*command, *further], _environment(cpu=cpu, key=key), args)
    except (RecipeError, ValueError) as error:
        sys.exit(f"oger serve-judge: {error}")
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser("oger serve-judge", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", help="folder or hub name of the model")
    parser.add_argument("--revision", help="revision of a hub model")
    parser.add_argument("--name", help="name of the model in requests (default: MODEL)")
    parser.add_argument("--head", action="store_true", help="MODEL is a reward model whose head gives a number")
    parser.add_argument(
        "--format", choices=FORMATS, help="MODEL is a process reward model (PRM) that reads this format"
    )
    for name in ("good", "bad"):
        parser.add_argument(
            f"--{name}", help=f"for a PRM: text of the token that marks a {name} step (default: the format's)"
        )
    parser.add_argument("--adapter", help="for a PRM: folder or hub name of a LoRA adapter for MODEL")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 picks a free one (%(default)s)")
    parser.add_argument(
        "--api-key-env",
        default="OGER_JUDGE_API_KEY",
        metavar="NAME",
        help="environment variable with the API key that requests must carry; unset: none (%(default)s)",
    )
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs that share the model (%(default)s)")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="share of GPU memory (%(default)s)")
    parser.add_argument("--max-model-len", type=int, help="longest sequence, in tokens (default: the model's)")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="type of the weights; auto: the model's own, float32 on CPUs"
    )
    return parser


def _checked(args: argparse.Namespace) -> str:
    """Replace port 0 by a free one, and return the API key. Raises RecipeError for what cannot work."""
    if lacking := not_installed("vllm"):
        raise RecipeError(lacking)
    key = api_key(args.api_key_env)
    if not key and not is_loopback(args.host):
        raise RecipeError(
            f"--host {args.host} lets other machines reach the server, which needs an API key: set {args.api_key_env}"
        )
    with listen(args.host, args.port, backlog=1) as listener:
        args.port = listener.getsockname()[1]
    return key


def _prm(args: argparse.Namespace) -> ProcessKeys | None:
    """Return the keys of a PRM, where MODEL is one. Raises RecipeError for flags that do not go together."""
    of_prm = {name: value for name in _OF_PRM if (value := getattr(args, name)) is not None}
    if args.format is None:
        if of_prm:
            raise RecipeError(
                f"--{[*of_prm][0]} needs --format, which says how the PRM reads text: one of {', '.join(FORMATS)}"
            )
        return None
    if args.head:
        raise RecipeError(
            "leave out --head: --format says that this is a PRM, and --head is for a model that gives one number"
        )
    entry = of_prm | {
        "model": args.model,
        "revision": args.revision,
        "tensor_parallel_size": args.tensor_parallel_size,
    }
    if problems := [*ProcessKeys.problems(entry)]:
        raise RecipeError("; ".join(problems))
    return ProcessKeys.of(entry)


def _command(args: argparse.Namespace, *, cpu: bool, key: str, prm: ProcessKeys | None = None) -> list[str]:
    """Write vLLM's command without the API key: other users can read command lines."""
    of_prm = {} if prm is None else step_arguments(prm)
    settings: dict[str, Any] = {
        "model": args.model if prm is None else prm.model,
        "revision": args.revision if prm is None else prm.revision,
        "tokenizer-revision": args.revision if prm is None else prm.revision,
        "served-model-name": args.name or args.model,
        "host": args.host,
        "port": args.port,
        "tensor-parallel-size": args.tensor_parallel_size,
        "gpu-memory-utilization": None if cpu else args.gpu_memory_utilization,
        "max-model-len": args.max_model_len,
        "dtype": "float32" if cpu and args.dtype == "auto" else args.dtype,
        "runner": "pooling" if args.head else None,
        **{
            name.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
            for name, value in of_prm.items()
        },
        "middleware": f"{KeyForEveryPath.__module__}.{KeyForEveryPath.__name__}" if key else None,
        "uvicorn-log-level": "warning",
    }
    words = [word for name, value in settings.items() if value is not None for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", _VLLM, *words, *(["--enforce-eager"] if cpu else [])]


def _environment(*, cpu: bool, key: str) -> dict[str, str]:
    more = CPU_ENVIRONMENT if cpu else {}
    return {"VLLM_LOGGING_LEVEL": "WARNING"} | more | os.environ | ({KEY_VARIABLE: key} if key else {})


def serve(command: Sequence[str], environment: Mapping[str, str], args: argparse.Namespace) -> int:
    """Run the server's command until a signal; return 0. Raises RecipeError if it ends."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _stop)
    started, where = time.monotonic(), f"{args.host}:{args.port}"
    print(f"starting vLLM's server of {args.model} on {where}; its messages follow ...", file=sys.stderr, flush=True)
    with _Server(command, environment) as server:
        try:
            server.wait_until_ready(f"http://{_reached(args.host)}:{args.port}/health")
            seconds = time.monotonic() - started
            print(f"ready after {seconds:.0f} s: - {_entry(args)}", flush=True)
            status = server.process.wait()
        except KeyboardInterrupt:
            return 0
    raise RecipeError(f"vLLM's server ended with exit status {status}; its messages are above")


def _stop(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


class _Server:
    """The server's processes, a group of their own that ends with this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL)
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "sh", str(self.process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: Any) -> None:
        """End the server, with SIGTERM first, and all processes that it left behind."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_ENDS_WITHIN_S)
        self._keeper.communicate()  # ends its input, and with it the group

    def wait_until_ready(self, address: str) -> None:
        """Wait until the server answers. Raises RecipeError if it ends."""
        while True:
            status = self.process.poll()
            if status is not None:
                raise RecipeError(
                    f"vLLM's server ended with exit status {status} before it was ready; its messages are above"
                )
            with suppress(httpx.HTTPError):
                if httpx.get(address, trust_env=False).is_success:
                    return
            time.sleep(_POLL_S)


def _reached(host: str) -> str:
    """Return the server's host for a client on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _entry(args: argparse.Namespace) -> str:
    """Write an entry for oger.reward.sources, as YAML; a judge's plugin is to be filled in."""
    is_prm, is_judge = args.format is not None, not args.head and args.format is None
    host = socket.gethostname() if args.host in _WILDCARDS else _reached(args.host)
    entry = {
        "name": "prm" if is_prm else "judge" if is_judge else "head",
        "kind": "process" if is_prm else "judge" if is_judge else "classifier",
        "url": f"http://{host}:{args.port}/v1",
        "model": args.name or args.model,
    }
    if is_judge or args.name not in (None, args.model):
        entry["tokenizer"] = args.model
    if is_prm:
        entry |= {name: value for name in ("format", "good", "bad") if (value := getattr(args, name)) is not None}
    if os.environ.get(args.api_key_env) and args.api_key_env != "OGER_JUDGE_API_KEY":
        entry["api_key_env"] = args.api_key_env
    if is_judge:
        entry["plugin"] = "PLUGIN"
    return yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000).strip()


if __name__ == "__main__":
    main()
