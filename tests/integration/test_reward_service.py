"""The reward service as a process: OpenRLHF's own client, bad clients, many clients, and its end."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from forks import Forks
from hang import HANG_S

from oger_recipe.cli.serve_reward import HEADER_TIMEOUT_S, main
from oger_recipe.grading.verdict import Graded

ROOT = Path(__file__).parents[2]
PROMPT = "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"
# answer: a folder. `gated` says there that it has started, and is right once the file `open` is there too.
VERIFIERS = """
import time
from pathlib import Path
from oger_recipe.grading.verifiers import Verdict

def gated(response, answer):
    Path(answer, "started").touch()
    while not Path(answer, "open").exists():
        time.sleep(0.02)
    return Verdict(1.0, 1.0, "open", {"format": 1.0})

def touch(response, answer):
    Path(answer, "touched").touch()
    return Verdict(1.0, 1.0, "touched", {})
"""


@dataclass
class Service:
    """A running service, its address without path, and the file that receives what it prints."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
        """Status, JSON and headers of the answer. A body that is no bytes is sent as JSON; None makes a GET."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as response:
                text, status, received = response.read().decode(), response.status, response.headers
        except urllib.error.HTTPError as error:
            text, status, received = error.read().decode(), error.code, error.headers
        return status, json.loads(text) if text.startswith("{") else text, received

    def grade(self, *samples: tuple[str, str]) -> tuple[int, Any, Any]:
        return self.ask("/get_reward", request_of(*samples))

    def counters(self) -> dict[str, float]:
        """The metrics by name and labels."""
        lines = [line for line in self.ask("/metrics")[1].splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


Start = Callable[..., Service]


def label(task: str, answer: str) -> str:
    return json.dumps({"uid": "u-1", "task": task, "answer": answer})


def request_of(*samples: tuple[str, str]) -> dict[str, list[str]]:
    """The request for pairs of response and label."""
    return {
        "query": [PROMPT + response for response, _ in samples],
        "prompts": [PROMPT] * len(samples),
        "labels": [text for _, text in samples],
    }


RIGHT = ("It is 18", label("gsm8k", "18"))
WRONG = ("It is 17", label("gsm8k", "18"))
MATH = (r"It is \boxed{\frac{3}{6}}", label("math", r"\frac12"))
BROKEN = ("It is 17", label("gsm8k", "no number"))
UNKNOWN = ("e4", label("chess", "e4"))
NONE = ("It is 17", "no JSON")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[Start]:
    """Starts services with the flags it is called with; ends those that are left."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "own_service.py").write_text(VERIFIERS)
    services: list[Service] = []

    def started(*flags: str, **environment: str) -> Service:
        log = folder / f"log_{len(services)}"
        search = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        words = ["-m", "oger_recipe.cli.serve_reward", "--port", "0", "--workers", "2", *flags]
        with log.open("wb") as file:
            process = forks.start(
                *words,
                cwd=ROOT,
                stdout=file,
                stderr=file,
                env=os.environ | {"PYTHONPATH": search} | environment,
                start_new_session=True,
            )
        services.append(Service(process, "", log))
        wait_for(lambda: "remote_url" in log.read_text() or process.poll() is not None)
        found = re.search(r"--reward\.remote_url (http://\S+)/get_reward", log.read_text())
        assert found, log.read_text()
        services[-1].url = found[1]
        return services[-1]

    yield started
    for service in services:
        service.process.kill()
        service.process.wait()


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    return start("--max_request_mb", "1", "--time_limit", "10", "--allow_task", "own_service:gated")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


class Background(threading.Thread):
    """A gated answer that is being graded in the folder."""

    def __init__(self, service: Service, folder: Path) -> None:
        super().__init__(daemon=True)
        self.service, self.folder, self.reply = service, folder, (0, None, None)
        self.start()
        wait_for((folder / "started").exists)

    def run(self) -> None:
        self.reply = self.service.grade(("x", label("own_service:gated", str(self.folder))))

    def finish(self) -> tuple[int, Any]:
        (self.folder / "open").touch()
        self.join(HANG_S)
        return self.reply[0], self.reply[1]


def fetch(url: str, *samples: tuple[str, str]) -> Any:
    """What OpenRLHF's own client gets."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    executor = SingleTurnAgentExecutor(url)
    request = request_of(*samples)
    return asyncio.run(executor._fetch_rewards_via_http(request["query"], request["prompts"], request["labels"]))


def test_openrlhfs_client_gets_numbers_for_one_query(service: Service) -> None:
    for sample, reward in ((RIGHT, 1.0), (WRONG, 0.0), (MATH, 1.0)):
        (result,) = fetch(f"{service.url}/get_reward", sample)
        logs = {"reward_format": 1.0, "reward_error": 0.0, "reward_timeout": 0.0}
        (graded,) = result.pop("graded")
        assert result == {"rewards": reward, "scores": reward, "extra_logs": logs, "errors": [None]}
        assert Graded.from_json(graded).verdict.components == {"format": 1.0, "correct": reward}  # the whole verdict
        values = [result["rewards"], result["scores"], *result["extra_logs"].values()]
        assert [torch.tensor([value]).shape for value in values] == [(1,)] * 5


def test_several_queries_give_lists_in_their_order(service: Service) -> None:
    (result,) = fetch(f"{service.url}/get_reward", RIGHT, WRONG, MATH, BROKEN, RIGHT)
    assert result["rewards"] == result["scores"] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert result["extra_logs"]["reward_error"] == [0.0, 0.0, 0.0, 1.0, 0.0]
    body = request_of(WRONG, RIGHT)
    body["queries"] = body.pop("query")
    assert service.ask("/get_reward", body)[1]["scores"] == [0.0, 1.0]
    assert service.ask("/get_reward", request_of())[1]["scores"] == []


def test_the_answer_says_why_a_query_was_not_graded(service: Service, tmp_path: Path) -> None:
    hanging = ("x", label("own_service:gated", str(tmp_path)))
    status, result, _ = service.grade(RIGHT, BROKEN, WRONG, UNKNOWN, hanging, NONE)
    assert status == 200 and result["extra_logs"]["reward_error"] == [0.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    right, broken, wrong, unknown, slow, unread = result["errors"]
    assert right is None and wrong is None
    assert "a GSM8K answer must have a number: 'no number'" in broken
    assert "no verifier for task 'chess'" in unknown
    assert slow == "grading took more than 10.0 s"
    assert unread.startswith("JSONDecodeError: ")
    assert service.grade(BROKEN)[1]["errors"] == [broken]


def test_broken_text_is_graded(service: Service) -> None:
    for noise in ("\ud800", "\udfff\ud800", "\x00", "\x1b[2J\u202e"):
        status, result, _ = service.grade(
            (f"{noise} It is 18", RIGHT[1]), (rf"{noise} \boxed{{7}}", label("math", "7"))
        )
        assert (status, result["scores"]) == (200, [1.0, 1.0])


MALFORMED = [
    (b"", 400, "not JSON"),
    (b"query=1", 400, "not JSON"),
    (b"\xff\xfe{", 400, "not JSON"),
    (b"[" * 100_000, 400, "not JSON"),
    (b"9" * 100_000, 400, "not JSON"),
    (b"null", 422, "JSON object"),
    ([request_of(RIGHT)], 422, "JSON object"),
    ({}, 422, "'query' is missing"),
    ({"query": ["a"]}, 422, "'prompts' is missing"),
    ({"query": ["a"], "prompts": ["a"]}, 422, "'labels' is missing"),
    ({"query": "a", "prompts": ["a"], "labels": ["a"]}, 422, "'query' is no list"),
    ({"query": ["a"], "prompts": {"0": "a"}, "labels": ["a"]}, 422, "'prompts' is no list"),
    ({"query": ["a", 7], "prompts": ["a", "a"], "labels": ["a", "a"]}, 422, "item 1 is of type int"),
    ({"query": ["a"], "prompts": ["a"], "labels": [None]}, 422, "item 0 is of type NoneType"),
    ({"query": ["a", "b"], "prompts": ["a"], "labels": ["a"]}, 422, "2 query, 1 prompts, 1 labels"),
    ({"query": ["a"], "queries": ["a"], "prompts": ["a"], "labels": ["a"]}, 422, "both"),
]


@pytest.mark.parametrize(
    ("body", "status", "reason"), MALFORMED, ids=[str(number) for number in range(len(MALFORMED))]
)
def test_malformed_requests_are_refused_with_a_sentence(service: Service, body: Any, status: int, reason: str) -> None:
    got, answer, _ = service.ask("/get_reward", body)
    assert got == status
    assert list(answer) == ["error"] and reason in answer["error"] and "\n" not in answer["error"]


def test_unknown_paths_and_wrong_methods(service: Service) -> None:
    assert service.ask("/", request_of(RIGHT))[0] == 404
    assert service.ask("/docs")[0] == 404
    assert service.ask("/get_reward/", request_of(RIGHT))[0] == 404
    status, answer, headers = service.ask("/get_reward")
    assert (status, headers["Allow"], list(answer)) == (405, "POST", ["error"])
    assert service.ask("/health", b"")[0] == 405


def test_labels_name_no_functions_but_the_allowed_ones(service: Service, tmp_path: Path) -> None:
    status, answer, _ = service.grade(RIGHT, ("x", label("own_service:touch", str(tmp_path))))
    assert status == 403 and "own_service:touch" in answer["error"]
    assert not list(tmp_path.iterdir())
    (tmp_path / "open").touch()
    assert service.grade(("x", label("own_service:gated", str(tmp_path))))[1]["scores"] == 1.0


def test_a_large_request_is_refused_with_the_limit(service: Service) -> None:
    almost = request_of(("x" * (2**20 - 1000) + " 18", RIGHT[1]))
    assert service.ask("/get_reward", almost)[1]["scores"] == 1.0
    status, answer, _ = service.ask("/get_reward", request_of(("x" * 2**20 + " 18", RIGHT[1])))
    assert status == 413 and str(2**20) in answer["error"]


def test_the_size_limit_holds_while_a_request_arrives(service: Service) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        connection.sendall(b"POST /get_reward HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(17):  # and no last chunk
            connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        connection.sendall(b"POST /get_reward HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_headers_that_do_not_arrive_in_time_end_their_connection(service: Service) -> None:
    host, port = service.url.removeprefix("http://").split(":")

    def seconds_until_closed(complete: bytes) -> float:
        """Of a connection on which one byte of a header is sent every half second, after a complete request."""
        with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
            if complete:
                connection.sendall(complete)
                assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
            started = time.monotonic()
            for byte in b"GET /health HTTP/1.1\r\nX-Slow: " + b"x" * 1000:
                try:
                    connection.sendall(bytes([byte]))
                    connection.settimeout(0.5)
                    if connection.recv(1) == b"":
                        return time.monotonic() - started
                except TimeoutError:
                    continue
                except ConnectionError:
                    return time.monotonic() - started
            return math.inf

    with ThreadPoolExecutor(2) as threads:
        requests = (b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        for seconds in threads.map(seconds_until_closed, requests):
            assert HEADER_TIMEOUT_S - 0.1 <= seconds < math.inf  # the bytes of the header take fifty times as long


def test_a_connection_is_kept_for_requests_beyond_the_time_for_one_header(service: Service) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        end = time.monotonic() + HEADER_TIMEOUT_S + 2
        while time.monotonic() < end:
            for part in (b"GET /health HTTP/1.1\r\n", b"Host: x\r\n\r\n"):
                connection.sendall(part)
                time.sleep(0.5)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_slow_answer_is_not_cut_off_by_the_time_for_headers(start: Start, tmp_path: Path) -> None:
    service = start("--time_limit", "100", "--allow_task", "own_service:gated")
    slow = Background(service, tmp_path)
    time.sleep(HEADER_TIMEOUT_S + 1)
    status, result = slow.finish()
    assert (status, result["scores"]) == (200, 1.0)


def test_metrics_count_answers_by_task_and_verdict(service: Service, tmp_path: Path) -> None:
    before = service.counters()
    samples = [RIGHT, RIGHT, WRONG, MATH, BROKEN, UNKNOWN, NONE, ("x", label("own_service:gated", str(tmp_path)))]
    assert service.grade(*samples)[0] == 200
    assert service.ask("/get_reward", b"?")[0] == 400
    assert service.ask("/" + "x" * 100)[0] == 404
    after = service.counters()
    grown = {name: after[name] - before.get(name, 0.0) for name in after if after[name] != before.get(name)}
    expected = {
        'oger_reward_answers_total{task="gsm8k",verdict="right"}': 2.0,
        'oger_reward_answers_total{task="gsm8k",verdict="wrong"}': 1.0,
        'oger_reward_answers_total{task="gsm8k",verdict="error"}': 1.0,
        'oger_reward_answers_total{task="math",verdict="right"}': 1.0,
        'oger_reward_answers_total{task="other",verdict="error"}': 2.0,
        'oger_reward_answers_total{task="own_service:gated",verdict="timeout"}': 1.0,
        'oger_reward_requests_total{path="/get_reward",status="200"}': 1.0,
        'oger_reward_requests_total{path="/get_reward",status="400"}': 1.0,
        'oger_reward_requests_total{path="other",status="404"}': 1.0,
        "oger_reward_request_seconds_count": 1.0,
    }
    assert {name: grown.get(name) for name in expected} == expected
    assert not [name for name in after if "chess" in name or "xxx" in name]
    assert after["oger_reward_in_flight"] == 0.0


def test_a_token_is_asked_for_and_never_printed(start: Start) -> None:
    token = "s3cret-&é"
    service = start("--verbose", OGER_REWARD_TOKEN=token)
    quoted = urllib.request.quote(token)
    body = request_of(RIGHT)
    for path, headers in (
        ("/get_reward", {}),
        ("/get_reward?token=", {}),
        ("/get_reward?token=s3cret", {}),
        (f"/get_reward?tokens={quoted}", {}),
        ("/get_reward", {"Authorization": "Bearer s3cret"}),
        ("/get_reward", {"Authorization": "Basic s3cret"}),
    ):
        status, answer, _ = service.ask(path, body, headers)
        assert (status, list(answer)) == (401, ["error"])
    assert service.ask("/metrics")[0] == 401
    assert service.ask("/health")[0] == 200
    assert service.ask(f"/get_reward?token={quoted}", body)[1]["scores"] == 1.0
    assert fetch(f"{service.url}/get_reward?token={quoted}", RIGHT)[0]["scores"] == 1.0
    assert service.ask(f"/metrics?token={quoted}")[0] == 200
    assert service.ask(f"/{quoted}")[0] == 404
    text = service.log.read_text()
    assert text.count('"status": 401') == 7 and "s3cret" not in text


def test_a_bearer_token_is_taken_from_the_header(start: Start) -> None:
    service = start("--token", "abc")
    assert service.ask("/get_reward", request_of(RIGHT), {"Authorization": "Bearer abc"})[0] == 200
    assert service.ask("/get_reward", request_of(RIGHT), {"Authorization": "bearer abcd"})[0] == 401


def test_overload_is_answered_503(start: Start, tmp_path: Path) -> None:
    service = start("--max_concurrency", "1", "--time_limit", "100", "--allow_task", "own_service:gated")
    slow = Background(service, tmp_path)
    status, answer, headers = service.grade(RIGHT)
    assert status == 503 and int(headers["Retry-After"]) >= 1 and "max_concurrency" in answer["error"]
    assert service.counters()["oger_reward_in_flight"] == 1.0
    assert slow.finish()[0] == 200
    assert service.grade(RIGHT)[0] == 200


def test_what_needs_no_worker_does_not_wait_for_one(start: Start, tmp_path: Path) -> None:
    service = start("--workers", "1", "--time_limit", "100", "--allow_task", "own_service:gated")
    slow = Background(service, tmp_path)
    assert service.grade(RIGHT, WRONG)[1]["scores"] == [1.0, 0.0]
    assert slow.is_alive()
    assert slow.finish()[0] == 200


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_service_after_its_requests(start: Start, tmp_path: Path, name: str) -> None:
    service = start("--time_limit", "100", "--allow_task", "own_service:gated")
    slow = Background(service, tmp_path)
    processes = service.processes()
    assert len(processes) >= 2
    # As from a terminal: to every process of the group.
    os.killpg(service.process.pid, getattr(signal, name))
    wait_for(lambda: service.ask("/health")[0] == 503)
    time.sleep(1)  # time to end too early in
    status, answer, headers = service.grade(RIGHT)
    assert status == 503 and "Retry-After" in headers and "shutting down" in answer["error"]
    assert service.process.poll() is None
    status, result = slow.finish()
    assert (status, result["scores"]) == (200, 1.0)
    assert service.process.wait(HANG_S) == 0
    assert not psutil.wait_procs(processes, timeout=HANG_S)[1]
    with pytest.raises(urllib.error.URLError):
        service.ask("/health")


def test_the_drain_ends_in_time(start: Start, tmp_path: Path) -> None:
    flags = ("--drain_timeout", "0.5", "--time_limit", "100", "--allow_task", "own_service:gated")
    service = start(*flags)
    slow = Background(service, tmp_path)
    processes = service.processes()
    service.process.terminate()
    assert service.process.wait(HANG_S) == 1
    slow.join(HANG_S)
    assert slow.reply[0] == 503
    assert "stopped with 1 requests ungraded" in service.log.read_text()
    assert "Traceback" not in service.log.read_text()
    assert not psutil.wait_procs(processes, timeout=HANG_S)[1]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--host", "0.0.0.0"], "token"),
        (["--host", "0.0.0.0", "--token", ""], "token"),
        (["--host", "no.such.host.invalid", "--token", "x"], "cannot listen"),
        (["--port", "70000"], "not in [0, 65535]"),
        (["--workers", "0"], "not in [1, inf]"),
        (["--time_limit", "nan"], "not a positive number"),
        (["--allow_task", "no_such_module:verify"], "no_such_module"),
        (["--allow_task", "chess"], "chess"),
        (["--prot", "1"], "--prot"),
    ],
)
def test_impossible_settings_end_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], reason: str
) -> None:
    monkeypatch.delenv("OGER_REWARD_TOKEN", raising=False)
    with pytest.raises(SystemExit) as refused:
        main(flags)
    message = str(refused.value)
    assert message.startswith("oger serve-reward: ") and reason in message and "\n" not in message


def test_a_port_in_use_is_refused_by_both_names_of_the_command(forks: Forks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for module in (["serve_reward"], ["main", "serve-reward"]):
            words = ["-m", f"oger_recipe.cli.{module[0]}", *module[1:], "--port", port]
            ended = forks.run(*words, cwd=ROOT, timeout=HANG_S)
            assert ended.returncode == 1
            assert ended.stderr.startswith("oger serve-reward: ") and f"port {port}" in ended.stderr
            assert ended.stderr.count("\n") == 1


def test_no_answer_is_lost_or_mixed_up_under_load(tmp_path: Path, forks: Forks) -> None:
    out = tmp_path / "load.json"
    script = ROOT / "scripts" / "bench" / "reward_service.py"
    flags = ["--seconds", "5", "--clients", "50", "--out", str(out), "--time_limit", "1"]
    ended = forks.run(str(script), *flags, cwd=ROOT, timeout=HANG_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads(out.read_text())
    assert result["requests"] >= 50 and result["hostile"] >= 1
    failures = ("lost", "mixed_up", "graded_twice_or_never", "exit_code", "processes_left")
    assert [result[name] for name in failures] == [0, 0, 0, 0, 0]
