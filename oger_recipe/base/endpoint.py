"""A server with OpenAI's interface as its clients see it: address, API key, and requests that are tried again."""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

_T = TypeVar("_T")
_R = TypeVar("_R")

_CONNECT_S = 10.0
_LONGEST_PAUSE_S = 60.0
_LONGEST_WISH_S = 600.0  # the longest wait that a server may ask for (Retry-After)
_SHOWN_CHARACTERS = 200
_REFUSES_AN_INPUT = (400, 413, 422)  # HTTP status: it is about this input, another one may be answered
_PASSES = (408, 425, 429)  # HTTP status: worth another attempt, as every one from 500 on
_BREAKS_DOWN = 500  # HTTP status: this very request may be what breaks the server

_chance = random.Random()  # not the one whose seed a run sets


class Failed(Exception):
    """A request that got no answer.

    status: the HTTP status, where another attempt cannot help; lasts: a failure that may pass did not pass in time;
    is_refused: nobody listens there; is_stuck: the server took the request and did not get through with it.
    """

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        lasts: bool = False,
        is_refused: bool = False,
        is_stuck: bool = False,
    ) -> None:
        super().__init__(reason)
        self.status, self.lasts, self.is_refused, self.is_stuck = status, lasts, is_refused, is_stuck

    @property
    def of_input(self) -> bool:
        """Whether another input may get an answer."""
        return self.status in _REFUSES_AN_INPUT


def checked_address(url: str, key_variable: str) -> str:
    """Return the address without slashes at its end. Raises ValueError for none, or one with an API key in it."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ValueError(f"{url!r} is not the http(s) address of an endpoint, e.g. http://localhost:8000/v1")
    if parts.userinfo or parts.query or parts.fragment:  # not shown: it may be a secret
        raise ValueError(f"the address of {parts.host} must end with its path; put an API key into ${key_variable}")
    return url.rstrip("/")


def api_key(variable: str) -> str:
    """Return the environment's API key, empty where there is none. Raises ValueError where it fits no header."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):  # httpx would show it in its error
        raise ValueError(f"${variable} has characters that an HTTP header cannot carry")
    return key


@dataclass(frozen=True)
class Endpoint:
    """One server. attempts: for a request; limit_s: seconds for each; first_pause_s: doubled after every attempt."""

    url: str
    key: str = field(repr=False)
    attempts: int
    limit_s: float
    first_pause_s: float

    def client(self, connections: int) -> httpx.AsyncClient:
        """Return the client for the requests of one event loop; the caller closes it."""
        return httpx.AsyncClient(
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {self.key}"} if self.key else {}),
            verify=self.url.startswith("https"),  # certificates take a while to load
            timeout=httpx.Timeout(None, connect=min(_CONNECT_S, self.limit_s)),  # the rest is limited as a whole
            limits=httpx.Limits(max_connections=connections),
        )

    async def each(
        self, connections: int, ask: Callable[[httpx.AsyncClient, _T], Awaitable[_R]], items: Sequence[_T]
    ) -> list[_R]:
        """Ask about each item, ``connections`` at a time; return the answers in the items' order."""
        slots = asyncio.Semaphore(connections)

        async def answer(item: _T) -> _R:
            async with slots:
                return await ask(client, item)

        async with self.client(connections) as client:
            return await asyncio.gather(*map(answer, items))

    async def post(
        self, client: httpx.AsyncClient, path: str, body: Any, turn: Callable[[], Awaitable[None]] | None = None
    ) -> Any:
        """Return the JSON that a request is answered with; ``turn`` waits until the next attempt may go.

        Raises:
            Failed: there is no answer.
        """
        return await self._send(client, "POST", path, json.dumps(body), turn)

    async def get(self, client: httpx.AsyncClient, path: str) -> Any:
        """Return the JSON that a request without a body is answered with."""
        return await self._send(client, "GET", path, None, None)

    async def _send(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        content: str | None,
        turn: Callable[[], Awaitable[None]] | None,
    ) -> Any:
        why, pause, is_refused, is_stuck = "", 0.0, False, False
        for attempt in range(self.attempts):
            await asyncio.sleep(pause)
            if turn:
                await turn()
            pause = min(self.first_pause_s * 2 ** min(attempt, 20), _LONGEST_PAUSE_S) * (1 + _chance.random() / 2)
            try:
                async with asyncio.timeout(self.limit_s):
                    answer = await client.request(method, self.url + path, content=content)
            except TimeoutError:
                why, is_refused, is_stuck = f"no answer within {self.limit_s:g} s", False, True
                continue
            except httpx.RequestError as error:
                why = self._without_key(f"{type(error).__name__}: {error}")
                is_refused, is_stuck = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout), False
                continue
            if answer.is_success:
                return _json(answer)
            text = self._without_key(answer.text)[:_SHOWN_CHARACTERS]
            why, is_refused = f"HTTP status {answer.status_code}: {text}", False
            is_stuck = answer.status_code == _BREAKS_DOWN
            if answer.status_code < 500 and answer.status_code not in _PASSES:
                raise Failed(why, status=answer.status_code)
            wish = _retry_after(answer)
            if wish > _LONGEST_WISH_S:
                raise Failed(f"{why} (it asks to retry after {wish:.0f} s)", lasts=True, is_stuck=is_stuck)
            pause = max(pause, wish)
        attempts = f" (after {self.attempts} attempts)" if self.attempts > 1 else ""
        raise Failed(why + attempts, lasts=True, is_refused=is_refused, is_stuck=is_stuck)

    def _without_key(self, text: str) -> str:
        for shown in (self.key, json.dumps(self.key)[1:-1]) if self.key else ():
            text = text.replace(shown, "***")
        return text


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except (ValueError, RecursionError) as error:
        raise Failed(f"the answer is not JSON ({type(error).__name__})") from None


def _retry_after(answer: httpx.Response) -> float:
    """Return the seconds in the header Retry-After, or those until its date; 0 where it has neither."""
    text = answer.headers.get("Retry-After", "")
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return 0.0
