"""Embeds trajectories by a server with OpenAI's interface: POST {url}/embeddings."""

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import torch

from oger_recipe.embedding import LONG_TEXTS
from oger_recipe.embedding.base import Encoder, mean_direction, unit_rows
from oger_recipe.embedding.settings import CHARACTERS_PER_TOKEN, EncoderSettings

API_KEY = "OGER_EMBEDDING_API_KEY"

_CONCURRENT_REQUESTS = 4
_ATTEMPTS = 6  # of a request, 15.5 s of pauses in all
_FIRST_PAUSE_S = 0.5  # doubled after every attempt
_TIMEOUT = httpx.Timeout(60, connect=10)  # seconds
_REFUSES_AN_INPUT = (400, 413, 422)  # HTTP status that another input may not get


class _Failed(Exception):
    """The end of a request's attempts."""

    def __init__(self, reason: str, of_input: bool = False) -> None:
        super().__init__(reason)
        self.of_input = of_input  # fewer of its texts may have embeddings


class RemoteEncoder(Encoder):
    """A model behind an endpoint. Texts are cut by characters, CHARACTERS_PER_TOKEN of them counting as a token.

    The environment's OGER_EMBEDDING_API_KEY, where it is set, is the requests' bearer token.

    Raises:
        ValueError: the url is not one; the key does not fit into a header; the server does not embed.
    """

    def __init__(self, settings: EncoderSettings, batch_size: int) -> None:
        super().__init__(settings, batch_size)
        self._endpoint = _endpoint(settings.url or "")
        self._key = _api_key()
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(headers=headers, timeout=_TIMEOUT)
        try:
            self._dimension = self._post(["What is the length of a vector?"]).shape[1]
        except _Failed as error:
            raise ValueError(f"{self._endpoint} does not embed with {settings.model}: {error}") from None

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def _longest(self) -> int:
        return self.settings.max_tokens

    def _lengths(self, texts: list[str]) -> list[int]:
        return [math.ceil(len(text) / CHARACTERS_PER_TOKEN) for text in texts]

    def _embed(self, texts: list[str]) -> tuple[torch.Tensor, dict[int, str]]:
        cut = [_pieces(text, self.settings) for text in texts]
        owners = [text for text, pieces in enumerate(cut) for _ in pieces]
        flat = [piece for pieces in cut for piece in pieces]
        batches = [flat[start : start + self.batch_size] for start in range(0, len(flat), self.batch_size)]
        with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
            answers = list(pool.map(self._vectors_or_reasons, batches))
        vectors = torch.cat([rows for rows, _ in answers])
        reasons = [reason for _, batch_reasons in answers for reason in batch_reasons]
        why = {owner: reason for owner, reason in zip(owners, reasons, strict=True) if reason}
        return mean_direction(unit_rows(vectors), torch.tensor(owners), len(texts)), why

    def _vectors_or_reasons(self, pieces: list[str]) -> tuple[torch.Tensor, list[str]]:
        """Returns [n, d], nan where a piece failed, and n reasons, empty where none did."""
        try:
            vectors = self._post(pieces)
            if vectors.shape[1] != self.dimension:
                raise _Failed(f"its vector has {vectors.shape[1]} numbers, the first one had {self.dimension}")
            return vectors, [""] * len(pieces)
        except _Failed as error:
            if len(pieces) == 1 or not error.of_input:
                return torch.full((len(pieces), self.dimension), torch.nan), [str(error)] * len(pieces)
        middle = len(pieces) // 2  # one text that the server refuses must not cost its batch
        halves = [self._vectors_or_reasons(half) for half in (pieces[:middle], pieces[middle:])]
        return torch.cat([rows for rows, _ in halves]), halves[0][1] + halves[1][1]

    def _post(self, pieces: list[str]) -> torch.Tensor:
        """Returns [n, d] float32 as the server answers, in the order of the pieces. Raises _Failed."""
        reason = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                answer = self._client.post(self._endpoint, json={"model": self.settings.model, "input": pieces})
            except httpx.RequestError as error:
                reason = f"{type(error).__name__}: {error}"
                continue
            if answer.is_success:
                return _in_order(answer, len(pieces))
            reason = f"HTTP status {answer.status_code}: {self._without_key(answer.text)[:200]}"
            if answer.status_code != 429 and answer.status_code < 500:
                raise _Failed(reason, of_input=answer.status_code in _REFUSES_AN_INPUT)
        raise _Failed(f"{reason} (after {_ATTEMPTS} attempts)")

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def probe(settings: EncoderSettings, connect_s: float = 5, answer_s: float = 30) -> int:
    """Asks the server once for the length of a vector.

    Raises:
        ValueError: what RemoteEncoder raises it for, without its repetitions.
    """
    endpoint, key = _endpoint(settings.url or ""), _api_key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = {"model": settings.model, "input": ["What is the length of a vector?"]}
    try:
        timeout = httpx.Timeout(answer_s, connect=connect_s)
        answer = httpx.post(endpoint, json=request, headers=headers, timeout=timeout)
        if not answer.is_success:
            raise _Failed(f"HTTP status {answer.status_code}")
        return _in_order(answer, 1).shape[1]
    except (httpx.RequestError, _Failed) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{endpoint} does not embed with {settings.model}: {reason}") from None


def _endpoint(url: str) -> str:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ValueError(f"{url!r} is not the http(s) address of an endpoint, e.g. http://localhost:8000/v1")
    if parts.userinfo or parts.query or parts.fragment:  # not shown: it may be a secret
        raise ValueError(f"the address of {parts.host} must end with its path; a key belongs into ${API_KEY}")
    return f"{url.rstrip('/')}/embeddings"


def _api_key() -> str:
    key = os.environ.get(API_KEY, "").strip()
    if not (key.isascii() and key.isprintable()):  # httpx would show it in its error
        raise ValueError(f"${API_KEY} has characters that an HTTP header cannot carry")
    return key


def _pieces(text: str, settings: EncoderSettings) -> list[str]:
    """Cuts a text into the pieces that are sent; an empty one is its own piece."""
    return LONG_TEXTS[settings.long_texts].pieces(text, CHARACTERS_PER_TOKEN * settings.max_tokens)


def _in_order(answer: httpx.Response, count: int) -> torch.Tensor:
    """Returns the answer's embeddings by their index, [count, d]. Raises _Failed when it does not have just these."""
    try:
        items: list[dict[str, Any]] = sorted(answer.json()["data"], key=lambda item: item["index"])
        vectors = torch.tensor([item["embedding"] for item in items], dtype=torch.float32)
        indices = [item["index"] for item in items]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise _Failed(f"the answer is no list of embeddings ({type(error).__name__}: {error})") from None
    if indices != list(range(count)) or vectors.ndim != 2:
        raise _Failed(
            f"the answer to {count} texts has a tensor {list(vectors.shape)} with the indices {indices[:20]}"
        )
    return vectors
