"""``oger serve-reward``: grade answers over HTTP, for training runs with ``--reward.remote_url http://host:port/get_reward``.

SIGTERM and SIGINT end it: requests in flight are finished first, new ones are answered 503.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from oger_recipe.base.cpu import CORES
from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.shared import CommandParser, is_loopback, listen
from oger_recipe.grading.pool import ENVIRONMENT, GradingSettings, shared_pool
from oger_recipe.grading.samples import grade_samples
from oger_recipe.grading.service import GRADE_PATH, RewardService, ServiceLimits, access_log, build_app
from oger_recipe.grading.verifiers import VERIFIERS, allow, look_in, resolve

TOKEN_ENVIRONMENT = "OGER_REWARD_TOKEN"
_WILDCARDS = ("0.0.0.0", "::")
# After the drain only responses on their way are left, some to clients that do not read.
_CLOSE_TIMEOUT_S = 2
HEADER_TIMEOUT_S = 10.0


def main(argv: list[str] | None = None) -> None:
    try:
        args = _parser().parse_args(argv)
        listener = _checked(args)
        ungraded = _serve(args, listener)
    except RecipeError as error:
        sys.exit(f"oger serve-reward: {error}")
    if ungraded:
        # Threads that still grade would keep the interpreter alive; the workers end when it does.
        print(f"oger serve-reward: stopped with {ungraded} requests ungraded", file=sys.stderr, flush=True)
        os._exit(1)
    shared_pool().close()


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser("oger serve-reward", description=__doc__, allow_abbrev=False)
    defaults = GradingSettings()
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=_whole(0, 65535), default=5000, help="port to listen on; 0 picks a free one (%(default)s)"
    )
    parser.add_argument(
        "--token",
        default=os.environ.get(TOKEN_ENVIRONMENT),
        help=f"secret that requests must carry, as bearer token or as ?token=; set {TOKEN_ENVIRONMENT} instead where "
        "other users can read command lines",
    )
    cores = min(CORES, 8)
    parser.add_argument("--workers", type=_whole(1), default=cores, help="grading processes (%(default)s)")
    parser.add_argument(
        "--time_limit",
        type=_seconds,
        default=defaults.time_limit_s,
        help="time limit for grading an answer, in seconds (%(default)s)",
    )
    parser.add_argument(
        "--memory_limit",
        type=_whole(1),
        default=defaults.memory_limit_mb,
        help="memory limit for grading an answer, in MiB (%(default)s)",
    )
    parser.add_argument("--max_request_mb", type=_whole(1), default=16, help="largest request, in MiB (%(default)s)")
    parser.add_argument(
        "--max_concurrency",
        type=_whole(1),
        default=1024,
        help="most concurrent requests; further ones get 503 (%(default)s)",
    )
    parser.add_argument(
        "--drain_timeout",
        type=_seconds,
        default=30.0,
        help="seconds that open requests get to finish at shutdown (%(default)s)",
    )
    parser.add_argument(
        "--allow_task",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help=f"let labels name this verifier of yours, beside {', '.join(VERIFIERS)}; may be repeated",
    )
    parser.add_argument("--verbose", action="store_true", help="print one line of JSON per request to stderr")
    return parser


def _whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not in [{least}, {most}]")
        return value

    return number


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def _checked(args: argparse.Namespace) -> socket.socket:
    """Open the listening socket. Raises RecipeError for everything that cannot work."""
    look_in([os.getcwd()])
    allow(args.allow_task)
    for task in args.allow_task:
        try:
            resolve(task)
        except ValueError as error:
            raise RecipeError(f"--allow_task: {error}") from error
    if not args.token and not is_loopback(args.host):
        raise RecipeError(
            f"--host {args.host} lets other machines reach the service, which needs a token: set {TOKEN_ENVIRONMENT}"
        )
    return listen(args.host, args.port, args.max_concurrency)


def _serve(args: argparse.Namespace, listener: socket.socket) -> int:
    """Serve until a signal. Return how many requests were left ungraded."""
    _set_up_logging(verbose=args.verbose)
    _raise_file_limit(args.max_concurrency)
    settings = GradingSettings(
        workers=args.workers,
        time_limit_s=args.time_limit,
        memory_limit_mb=args.memory_limit,
        allowed=tuple(args.allow_task),
        path=(os.getcwd(),),
    ).for_tasks([*VERIFIERS, *args.allow_task])
    os.environ[ENVIRONMENT] = settings.to_json()
    limits = ServiceLimits(
        token=args.token or None,
        max_request_bytes=args.max_request_mb * 2**20,
        max_concurrency=args.max_concurrency,
        workers=args.workers,
        tasks=frozenset(args.allow_task),
        bounded=frozenset(task for task in [*VERIFIERS, *args.allow_task] if settings.limits(task).bounded),
    )
    service = RewardService(grade_samples, limits)
    config = uvicorn.Config(
        build_app(service, verbose=args.verbose),
        http=_HeadersInTime,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=args.max_concurrency,
        timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
    )
    server = _Server(config, service, args.drain_timeout)
    _warm_up()
    print(_start_line(args, settings, listener), flush=True)
    server.run(sockets=[listener])
    service.close()
    return service.ungraded


def _set_up_logging(*, verbose: bool) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        access_log.addHandler(handler)
        access_log.setLevel(logging.INFO)
        access_log.propagate = False


def _raise_file_limit(max_concurrency: int) -> None:
    """Allow as many open files as connections: those held, those to be answered 503, and the pool's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * max_concurrency + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _warm_up() -> None:
    """Start the pool before the first request waits for it, and print at once an error that every answer would hit."""
    graded = shared_pool().grade("math", "\\boxed{1}", "1")
    if graded.error is not None:
        print(f"oger serve-reward: answers of task 'math' cannot be graded here: {graded.error}", file=sys.stderr)


def _start_line(args: argparse.Namespace, settings: GradingSettings, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    host = socket.gethostname() if args.host in _WILDCARDS else args.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{GRADE_PATH}"
    token = f"?token=${TOKEN_ENVIRONMENT}" if args.token else ""
    return (
        f"grading on {args.host} port {port}: --reward.remote_url {url}{token} | {settings.workers} workers; "
        f"{settings.time_limit_s:g} s and {settings.memory_limit_mb} MiB per answer; {args.max_request_mb} MiB per "
        f"request; at most {args.max_concurrency} requests at a time"
    )


class _HeadersInTime(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Uvicorn's connection, closed when a request's headers are not complete in time after its first byte (of the
    first request: after the connection was made). Uvicorn itself limits only how long no byte arrives, between
    requests."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        request = self.cycle
        if self._timer is None and request.response_complete:
            self._start_timer()
        super().data_received(data)
        if self.cycle is not request:  # headers were complete
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """Uvicorn that goes on answering while it drains, so that new requests get a 503 and can go elsewhere."""

    def __init__(self, config: uvicorn.Config, service: RewardService, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._service, self._drain_timeout_s = service, drain_timeout_s
        self._deadline = math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; at a second signal end at once. The base class would raise the signal again at the end."""
        if self._service.draining:
            self.should_exit = self.force_exit = True
            return
        self._deadline = time.monotonic() + self._drain_timeout_s
        self._service.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Say, ten times a second, whether the server ends."""
        if self._service.draining and (self._service.in_flight == 0 or time.monotonic() > self._deadline):
            self.should_exit = True
        return await super().on_tick(counter)


if __name__ == "__main__":
    main()
