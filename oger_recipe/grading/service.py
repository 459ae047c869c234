"""The reward function behind HTTP, for `--reward.remote_url http://host:port/get_reward`.

POST /get_reward takes OpenRLHF's JSON ``{"query": [...], "prompts": [...], "labels": [...]}`` and answers what
`reward_func` returns: plain numbers for one query, because OpenRLHF makes a tensor of each, and lists for several. Two
further keys that OpenRLHF does not read list for every query "errors", why it was not graded, or null, and "graded",
the whole verdict (verdict.py), which this recipe's runs keep.
Every refusal is JSON ``{"error": "<one sentence>"}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import prometheus_client
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oger_recipe.base.files import to_json
from oger_recipe.grading.samples import answer_of
from oger_recipe.grading.verdict import Graded
from oger_recipe.grading.verifiers import VERIFIERS

GRADE_PATH = "/get_reward"
BODY_TIMEOUT_S = 60.0
RETRY_AFTER_S = 1
_QUICK_THREADS = 4

_PATHS = frozenset({GRADE_PATH, "/health", "/metrics"})
_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0)

access_log = logging.getLogger("oger_recipe.grading.service.access")

Samples = tuple[list[str], list[str], list[str]]  # queries, prompts, labels
# As `grade_samples`: of (query, prompt, label).
Grade = Callable[[list[tuple[str, str, str]]], list[Graded]]


@dataclass(frozen=True)
class ServiceLimits:
    """token: what a request must present, None for no token; max_request_bytes: of one body; max_concurrency: requests
    that are read, queued or graded at a time; workers: of the grading pool; tasks: the import paths that labels may
    name beside VERIFIERS; bounded: tasks that need no worker."""

    token: str | None
    max_request_bytes: int
    max_concurrency: int
    workers: int
    tasks: frozenset[str] = frozenset()
    bounded: frozenset[str] = frozenset()


class RewardService:
    """Counts, refuses and grades requests. Public attributes belong to the event loop's thread."""

    def __init__(self, grade: Grade, limits: ServiceLimits) -> None:
        self.limits = limits
        self.draining = False
        self.in_flight = 0
        self.ungraded = 0  # requests given up at the end: they got 503
        self._grade = grade
        # As many threads for the pool as it has workers: requests then wait in the executor's queue, in their order,
        # where threads that wait for a worker overtake each other. What needs no worker does not wait for one.
        self._pooled = ThreadPoolExecutor(limits.workers, thread_name_prefix="pooled")
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="quick")
        self.registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "oger_reward_requests", "HTTP requests", ("path", "status"), registry=self.registry
        )
        self._answers = prometheus_client.Counter(
            "oger_reward_answers", "answers graded", ("task", "verdict"), registry=self.registry
        )
        self._latency = prometheus_client.Histogram(
            "oger_reward_request_seconds",
            "seconds from request to answer of graded requests",
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        in_flight = prometheus_client.Gauge(
            "oger_reward_in_flight", "requests being read, queued or graded", registry=self.registry
        )
        in_flight.set_function(lambda: self.in_flight)

    async def answer(self, request: Request) -> Response:
        """Read, grade and answer one request. Raises HTTPException with a sentence for every refusal."""
        with self._slot():
            body = await _read_body(request, self.limits.max_request_bytes)
            loop = asyncio.get_running_loop()
            samples, tasks = await loop.run_in_executor(self._quick, self._parsed, body)
            threads = self._quick if self.limits.bounded.issuperset(tasks) else self._pooled
            content = await loop.run_in_executor(threads, self._graded, samples, tasks)
        return Response(content, media_type="application/json")

    def authorize(self, request: Request) -> None:
        """Raise HTTPException 401 unless the request carries the token as bearer or as ?token=."""
        if self.limits.token is None:
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else request.query_params.get("token", "")
        if not hmac.compare_digest(_bytes(given), _bytes(self.limits.token)):
            raise HTTPException(
                401,
                "the token is missing or wrong; send it as bearer token or as ?token=",
                {"WWW-Authenticate": "Bearer"},
            )

    def count(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        if path == GRADE_PATH and status == 200:
            self._latency.observe(seconds)

    def close(self) -> None:
        """Drop queued requests; do not wait for threads that grade."""
        for threads in (self._quick, self._pooled):
            threads.shutdown(wait=False, cancel_futures=True)

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        if self.draining:
            raise _busy("the service is shutting down")
        if self.in_flight >= self.limits.max_concurrency:
            raise _busy(f"{self.in_flight} requests are waiting already (--max_concurrency)")
        self.in_flight += 1
        try:
            yield
        except asyncio.CancelledError:  # by the server, which ends
            self.ungraded += 1
            raise _busy("the service ended before this request was graded") from None
        finally:
            self.in_flight -= 1

    def _parsed(self, body: bytes) -> tuple[Samples, list[str]]:
        samples = parse_request(body)
        tasks = [_task_of(label) for label in samples[2]]
        self._check_tasks(tasks)
        return samples, tasks

    def _graded(self, samples: Samples, tasks: list[str]) -> bytes:
        graded = self._grade(list(zip(*samples, strict=True)))
        for task, each in zip(tasks, graded, strict=True):
            self._answers.labels(task if self._known(task) else "other", _outcome(each)).inc()
        more = {"errors": [each.error for each in graded], "graded": [asdict(each) for each in graded]}
        return to_json(answer_of(graded) | more, ensure_ascii=True).encode()

    def _known(self, task: str) -> bool:
        return task in VERIFIERS or task in self.limits.tasks

    def _check_tasks(self, tasks: list[str]) -> None:
        # An import path is any function of any module, called with texts of the request's choice.
        for task in tasks:
            if ":" in task and not self._known(task):
                raise HTTPException(
                    403, f"task {task[:80]!r} is not allowed here; start the service with --allow_task for it"
                )


def build_app(service: RewardService, *, verbose: bool = False) -> FastAPI:
    """Build the HTTP application; ``verbose`` writes one line of JSON per request to the access log."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_middleware(_Observed, service=service, verbose=verbose)
    app.add_exception_handler(HTTPException, _refusal)

    @app.post(GRADE_PATH)
    async def get_reward(request: Request) -> Response:
        service.authorize(request)
        return await service.answer(request)

    @app.get("/health")
    async def health() -> Response:
        if service.draining:
            return JSONResponse({"status": "draining"}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        service.authorize(request)
        text = prometheus_client.generate_latest(service.registry)
        return Response(text, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    return app


def parse_request(body: bytes) -> Samples:
    """Read queries, prompts and labels from a body. Raises HTTPException 400 (no JSON) or 422 (not these lists)."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise HTTPException(422, f"the body is of type {type(document).__name__}, not a JSON object")
    if "query" in document and "queries" in document:
        raise HTTPException(422, "the body has both 'query' and 'queries'; one of them is enough")
    names = ("queries" if "queries" in document else "query", "prompts", "labels")
    queries, prompts, labels = (_texts(document, name) for name in names)
    if not len(queries) == len(prompts) == len(labels):
        counts = ", ".join(f"{len(document[name])} {name}" for name in names)
        raise HTTPException(422, f"the lists differ in length: {counts}")
    return queries, prompts, labels


def _outcome(graded: Graded) -> str:
    if graded.error is not None:
        return "timeout" if graded.timed_out else "error"
    return "right" if graded.verdict.score == 1.0 else "wrong"


def _texts(document: dict[str, Any], name: str) -> list[str]:
    values = document.get(name)
    if not isinstance(values, list):
        problem = "is missing" if name not in document else "is no list"
        raise HTTPException(422, f"'{name}' {problem}; it must be a list of texts")
    for index, value in enumerate(values):
        if not isinstance(value, str):
            kind = type(value).__name__
            raise HTTPException(422, f"'{name}' must be a list of texts; item {index} is of type {kind}")
    return values


def _task_of(label: str) -> str:
    try:
        task = json.loads(label)["task"]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError):
        return ""
    return task if isinstance(task, str) else ""


async def _read_body(request: Request, limit: int) -> bytes:
    too_large = HTTPException(413, f"the request is larger than {limit} bytes (--max_request_mb)")
    if int(request.headers.get("content-length", 0)) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit:
                    raise too_large
                body += chunk
    except TimeoutError as error:
        raise HTTPException(408, f"the request did not arrive within {BODY_TIMEOUT_S:g} s") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the connection was closed before the request was complete") from error
    return bytes(body)


def _busy(reason: str) -> HTTPException:
    return HTTPException(503, reason, {"Retry-After": str(RETRY_AFTER_S)})


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = error.detail
    if error.status_code == 404:
        reason = f"not found; grade answers by POST {GRADE_PATH}"
    if error.status_code == 405:
        reason = f"this path takes {(error.headers or {}).get('Allow')} only"
    kind = _RefusalOfBody if error.status_code == 413 else JSONResponse
    return kind({"error": reason}, error.status_code, error.headers)


class _RefusalOfBody(JSONResponse):
    """A refusal sent before the rest of the body is read and dropped: a client that is still sending when its
    connection is closed would see a broken pipe in place of the reason."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Observed:
    """Counts every request and, if verbose, logs it. Paths are named only if known, and queries never: a token or
    anything else that a client sends must end neither in the metrics' labels nor in the log."""

    def __init__(self, app: ASGIApp, service: RewardService, verbose: bool) -> None:
        self._app, self._service, self._verbose = app, service, verbose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observed_send)
        finally:
            self._record(scope, status, time.perf_counter() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in _PATHS else "other"
        self._service.count(path, status, seconds)
        if self._verbose:
            line = {"method": scope["method"], "path": path, "status": status, "seconds": round(seconds, 4)}
            access_log.info(to_json({"time": round(time.time(), 3), **line}))
