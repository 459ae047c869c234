"""A server with OpenAI's interface on this machine, which says what a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any] | None  # status and body; None: the connection ends without an answer


class Server(ThreadingHTTPServer):
    """Answers each prompt with that prompt, or as `answer` says for the count of its requests so far, from 1."""

    daemon_threads = True
    request_queue_size = 64  # connections that come at a time

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.under_way = self.most_under_way = 0
        self.answer: Callable[[str, int], Answer] = lambda prompt, count: (200, said(prompt))
        self.more_headers: dict[str, str] = {}
        self.models: Answer = (200, {"object": "list", "data": [{"id": "judge"}, {"id": "other"}]})
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def prompts(self) -> list[str]:
        return [prompt_of(body) for _, body in self.asked]

    def end(self) -> None:
        self.shutdown()
        self.server_close()

    def reply(self, path: str, body: dict[str, Any]) -> Answer:
        with self.lock:
            self.asked.append((path, body))
            count = self.prompts.count(prompt_of(body))
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        answer = self.answer(prompt_of(body), count)
        with self.lock:
            self.under_way -= 1
        return answer


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.headers.append(dict(self.headers))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._send(self.server.reply(self.path, body))

    def do_GET(self) -> None:
        self._send(self.server.models if self.path == "/v1/models" else (404, {}))

    def _send(self, answer: Answer) -> None:
        if answer is None:
            self.close_connection = True
            return
        status, body = answer
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in self.server.more_headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # of a client that did not wait
            pass

    def log_message(self, *args: Any) -> None:
        pass


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"] if "messages" in body else body.get("prompt", body.get("input")))


def said(prompt: str, reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": f"of {prompt}", "finish_reason": reason}]}
