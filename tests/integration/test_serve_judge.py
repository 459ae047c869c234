"""`oger serve-judge`: what it starts vLLM with, the line it prints, and that no process of the server outlives it.

The server is a stand-in, a process of the same shape as vLLM's: one that answers /health, with a child of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from forks import Forks
from hang import HANG_S

from oger_recipe.cli import serve_judge
from oger_recipe.lab.known_judges import save_prm
from oger_recipe.models.server import KeyForEveryPath
from oger_recipe.rewards.kinds.classifier import ClassifierKeys
from oger_recipe.rewards.kinds.entries import entry_problems
from oger_recipe.rewards.kinds.judge import JudgeKeys

KEY = "k3y-of-the-judge"

STAND_IN = """
import http.server, os, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
with open(sys.argv[2], "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
if sys.argv[3] == "fails":
    sys.exit(7)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SERVE = """
import argparse, os, sys
from oger_recipe.cli.serve_judge import _parser, serve
from oger_recipe.base.errors import RecipeError
port, *words = sys.argv[1:]
args = _parser().parse_args(["me/judge", "--port", port])
try:
    sys.exit(serve([sys.executable, *words], os.environ, args))
except RecipeError as error:
    sys.exit(str(error))
"""


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OGER_JUDGE_API_KEY", raising=False)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Served:
    """A running command, and the process ids of its server and the server's child."""

    def __init__(self, forks: Forks, folder: Path, how: str = "works") -> None:
        (folder / "stand_in.py").write_text(STAND_IN)
        self.port, self.ids = _free_port(), folder / "ids"
        words = [str(self.port), str(folder / "stand_in.py"), str(self.port), str(self.ids), how]
        self.process = forks.start("-c", SERVE, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ready_line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def left(self) -> list[int]:
        """Those that still run a while later."""
        ids = [int(each) for each in self.ids.read_text().split()]
        end = time.monotonic() + HANG_S
        while any(map(_runs, ids)) and time.monotonic() < end:
            time.sleep(0.05)
        return [each for each in ids if _runs(each)]


def _runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture()
def served(tmp_path: Path, forks: Forks) -> Iterator[Served]:
    served = Served(forks, tmp_path)
    yield served
    served.process.kill()
    served.process.communicate()
    assert served.left() == []


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_the_server_outlives_the_command(served: Served, end: signal.Signals) -> None:
    line = served.ready_line()
    assert line.startswith("ready after ")
    (entry,) = yaml.safe_load(line.partition(": ")[2])
    assert entry["url"] == f"http://127.0.0.1:{served.port}/v1"
    assert httpx.get(f"http://127.0.0.1:{served.port}/health").status_code == 200
    served.process.send_signal(end)
    assert served.process.wait(HANG_S) == (-9 if end == signal.SIGKILL else 0)
    assert served.left() == []


def test_a_server_that_fails_is_said_and_leaves_nothing(tmp_path: Path, forks: Forks) -> None:
    served = Served(forks, tmp_path, "fails")
    out, errors = served.process.communicate(timeout=HANG_S)
    assert (out, served.process.returncode) == ("", 1)
    starts, ended = errors.splitlines()
    assert starts.startswith(f"starting vLLM's server of me/judge on 127.0.0.1:{served.port}")
    assert ended == "vLLM's server ended with exit status 7 before it was ready; its messages are above"
    assert served.left() == []


def test_a_server_that_is_killed_is_said_and_its_children_go_with_it(served: Served) -> None:
    served.ready_line()
    psutil.Process(int(served.ids.read_text().split()[0])).kill()
    _, errors = served.process.communicate(timeout=HANG_S)
    assert errors.splitlines()[1:] == ["vLLM's server ended with exit status -9; its messages are above"]
    assert served.left() == []


# ---- what vLLM is started with


def _args(*words: str) -> argparse.Namespace:
    return serve_judge._parser().parse_args(["me/judge", *words])


def _settings(command: list[str]) -> dict[str, str]:
    pairs = zip(command, [*command[1:], ""], strict=True)
    return {name.removeprefix("--"): value for name, value in pairs if name.startswith("--")}


def test_vllm_gets_the_settings_and_never_the_key_on_its_command_line() -> None:
    args = _args("--revision", "v2", "--tensor-parallel-size", "4", "--max-model-len", "512", "--name", "big")
    command = serve_judge._command(args, cpu=False, key=KEY)
    assert _settings(command) == {
        "model": "me/judge", "revision": "v2", "tokenizer-revision": "v2", "served-model-name": "big",
        "host": "127.0.0.1", "port": "8000", "tensor-parallel-size": "4", "gpu-memory-utilization": "0.9",
        "max-model-len": "512", "dtype": "auto", "middleware": "oger_recipe.models.server.KeyForEveryPath",
        "uvicorn-log-level": "warning",
    }  # fmt: skip
    assert KEY not in " ".join(command)
    assert serve_judge._environment(cpu=False, key=KEY)["VLLM_API_KEY"] == KEY
    assert "middleware" not in _settings(serve_judge._command(args, cpu=False, key=""))


def test_a_head_is_served_by_vllms_pooling_and_a_cpu_has_its_own_settings() -> None:
    settings = _settings(serve_judge._command(_args("--head"), cpu=True, key=""))
    assert (settings["runner"], settings["dtype"], "enforce-eager" in settings) == ("pooling", "float32", True)
    assert "gpu-memory-utilization" not in settings
    assert _settings(serve_judge._command(_args("--dtype", "bfloat16"), cpu=True, key=""))["dtype"] == "bfloat16"
    assert serve_judge._environment(cpu=True, key="")["VLLM_HOST_IP"] == "127.0.0.1"


def test_a_prm_is_served_with_what_makes_vllm_say_its_scores(tmp_path: Path) -> None:
    written = save_prm(tmp_path / "written", tag="ки", good="Y", bad="<no>")
    args = serve_judge._parser().parse_args(
        [str(written), "--format", "math_shepherd", "--good", "Y", "--bad", "<no>"]
    )
    settings = _settings(serve_judge._command(args, cpu=True, key="", prm=serve_judge._prm(args)))
    assert (settings["model"], settings["runner"], settings["convert"]) == (str(written), "pooling", "classify")
    overrides = {"classifier_from_token": ["<no>", "Y"], "method": "no_post_processing"}
    assert json.loads(settings["hf-overrides"]) == overrides
    entry = yaml.safe_load(serve_judge._entry(args))
    assert entry == {
        "name": "prm", "kind": "process", "url": "http://127.0.0.1:8000/v1", "model": str(written),
        "format": "math_shepherd", "good": "Y", "bad": "<no>",
    }  # fmt: skip
    assert list(entry_problems([entry])) == []
    args = _args("--format", "qwen_prm", "--name", "prm")
    settings = _settings(serve_judge._command(args, cpu=True, key="", prm=serve_judge._prm(args)))
    assert settings["runner"] == "pooling" and "convert" not in settings
    assert json.loads(settings["pooler-config"]) == {"task": "token_classify", "tok_pooling_type": "ALL"}
    assert yaml.safe_load(serve_judge._entry(args))["tokenizer"] == "me/judge"


def test_the_entry_that_is_printed_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = yaml.safe_load(serve_judge._entry(_args("--name", "big, #1: 'x'")))
    assert entry == {
        "name": "judge", "kind": "judge", "url": "http://127.0.0.1:8000/v1", "model": "big, #1: 'x'",
        "tokenizer": "me/judge", "plugin": "PLUGIN",
    }  # fmt: skip
    monkeypatch.setenv("MY_KEY", KEY)
    line = serve_judge._entry(_args("--head", "--host", "0.0.0.0", "--api-key-env", "MY_KEY"))
    assert KEY not in line and "\n" not in line
    entry = yaml.safe_load(line)
    assert entry["url"] == f"http://{socket.gethostname()}:8000/v1" and entry["api_key_env"] == "MY_KEY"
    keys: dict[str, Any] = {name: value for name, value in entry.items() if name not in ("name", "kind")}
    assert list(ClassifierKeys.problems(keys)) == []
    judge = yaml.safe_load(serve_judge._entry(_args()))
    assert JudgeKeys.of(judge | {"plugin": "binary"}).runs_on == "server"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--host", "0.0.0.0"],
            "lets other machines reach the server, which needs an API key: set OGER_JUDGE_API_KEY",
        ),
        (["--hosts", "x"], "unrecognized arguments: --hosts x"),
        (["--dtype", "int3"], "invalid choice: 'int3'"),
        (["--good", "+"], "--good needs --format, which says how the PRM reads text: one of math_shepherd, "),
        (["--format", "trl", "--head"], "leave out --head: --format says that this is a PRM"),
        (["--format", "math_shepherd", "--tensor-parallel-size", "2"], "a PRM of scorer step_tag has one GPU"),
        (["--format", "math_shepherd", "--good", "-"], "good and bad are both '-'"),
        (["--port", "{taken}"], "cannot listen on 127.0.0.1 port {taken}: Address already in use; --port 0 picks"),
    ],
)
def test_what_cannot_work_is_refused_before_vllm_starts(words: list[str], reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        with pytest.raises(SystemExit) as stop:
            serve_judge.main(["me/judge", *(word.replace("{taken}", taken) for word in words)])
    assert str(stop.value.code).startswith("oger serve-judge: ")
    assert reason.replace("{taken}", taken) in str(stop.value.code)


# ---- the key


def test_a_key_is_asked_for_on_every_path_but_that_of_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def status(path: str, *authorization: str) -> int:
        transport = httpx.ASGITransport(app=KeyForEveryPath(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://judge") as client:
            answer = await client.post(path, headers=[("Authorization", each) for each in authorization])
            return answer.status_code

    def asked(path: str, *authorization: str) -> int:
        return asyncio.run(status(path, *authorization))

    for path in ("/classify", "/pooling", "/v1/completions", "/tokenize", "/health/"):
        assert asked(path) == asked(path, KEY) == asked(path, f"Bearer {KEY}x") == asked(path, "Bearer ") == 401
        assert asked(path, f"Bearer {KEY}") == 200
    assert asked("/health") == 200
