"""Embeds trajectories by a server with OpenAI's interface: POST {url}/embeddings."""

import asyncio
import math
from typing import Any

import httpx
import torch

from oger_recipe.base.endpoint import Endpoint, Failed, api_key, checked_address
from oger_recipe.embedding import LONG_TEXTS
from oger_recipe.embedding.base import Encoder, mean_direction, unit_rows
from oger_recipe.embedding.settings import CHARACTERS_PER_TOKEN, EncoderSettings

API_KEY = "OGER_EMBEDDING_API_KEY"
_PATH = "/embeddings"

_CONCURRENT_REQUESTS = 4
_ATTEMPTS = 6  # of a request, 15.5 s of pauses at least
_FIRST_PAUSE_S = 0.5  # doubled after every attempt
_LIMIT_S = 60.0  # of an attempt
_QUESTION = "What is the length of a vector?"


class RemoteEncoder(Encoder):
    """A model behind an endpoint. Texts are cut by characters, CHARACTERS_PER_TOKEN of them counting as a token.

    The environment's OGER_EMBEDDING_API_KEY, where it is set, is the requests' bearer token.

    Raises:
        ValueError: the url is not one; the API key does not fit into a header; the server does not embed.
    """

    def __init__(self, settings: EncoderSettings, batch_size: int) -> None:
        super().__init__(settings, batch_size)
        self._endpoint = _endpoint(settings, _ATTEMPTS, _LIMIT_S)
        self._dimension = asyncio.run(_asked_for_length(self._endpoint, settings.model))

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
        answers = asyncio.run(self._endpoint.each(_CONCURRENT_REQUESTS, self._vectors_or_reasons, batches))
        vectors = torch.cat([rows for rows, _ in answers])
        reasons = [reason for _, batch_reasons in answers for reason in batch_reasons]
        why = {owner: reason for owner, reason in zip(owners, reasons, strict=True) if reason}
        return mean_direction(unit_rows(vectors), torch.tensor(owners), len(texts)), why

    async def _vectors_or_reasons(
        self, client: httpx.AsyncClient, pieces: list[str]
    ) -> tuple[torch.Tensor, list[str]]:
        """Return [n, d], nan where a piece failed, and n reasons, empty where none did."""
        try:
            vectors = await _vectors(self._endpoint, client, self.settings.model, pieces)
            if vectors.shape[1] != self.dimension:
                raise Failed(f"its vector has {vectors.shape[1]} numbers, the first one had {self.dimension}")
            return vectors, [""] * len(pieces)
        except Failed as error:
            if len(pieces) == 1 or not error.of_input:
                return torch.full((len(pieces), self.dimension), torch.nan), [str(error)] * len(pieces)
        middle = len(pieces) // 2  # one text that the server refuses must not cost its batch
        halves = [await self._vectors_or_reasons(client, half) for half in (pieces[:middle], pieces[middle:])]
        return torch.cat([rows for rows, _ in halves]), halves[0][1] + halves[1][1]


def probe(settings: EncoderSettings, limit_s: float = 30) -> int:
    """Ask the server once for the length of a vector.

    Raises:
        ValueError: as RemoteEncoder does, but without its repeated requests.
    """
    return asyncio.run(_asked_for_length(_endpoint(settings, 1, limit_s), settings.model))


async def _asked_for_length(endpoint: Endpoint, model: str) -> int:
    async with endpoint.client(1) as client:
        try:
            return (await _vectors(endpoint, client, model, [_QUESTION])).shape[1]
        except Failed as error:
            raise ValueError(f"{endpoint.url}{_PATH} does not embed with {model}: {error}") from None


async def _vectors(endpoint: Endpoint, client: httpx.AsyncClient, model: str, pieces: list[str]) -> torch.Tensor:
    """Return [n, d] float32 as the server answers, in the order of the pieces. Raise Failed otherwise."""
    return _in_order(await endpoint.post(client, _PATH, {"model": model, "input": pieces}), len(pieces))


def _endpoint(settings: EncoderSettings, attempts: int, limit_s: float) -> Endpoint:
    address = checked_address(settings.url or "", API_KEY)
    return Endpoint(address, api_key(API_KEY), attempts, limit_s, _FIRST_PAUSE_S)


def _pieces(text: str, settings: EncoderSettings) -> list[str]:
    """Cut a text into the pieces that are sent; an empty one is its own piece."""
    return LONG_TEXTS[settings.long_texts].pieces(text, CHARACTERS_PER_TOKEN * settings.max_tokens)


def _in_order(answer: Any, count: int) -> torch.Tensor:
    """Return the answer's embeddings by their index, [count, d]. Raise Failed when it does not have just these."""
    try:
        items: list[dict[str, Any]] = sorted(answer["data"], key=lambda item: item["index"])
        vectors = torch.tensor([item["embedding"] for item in items], dtype=torch.float32)
        indices = [item["index"] for item in items]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Failed(f"the answer is not a list of embeddings ({type(error).__name__}: {error})") from None
    if indices != list(range(count)) or vectors.ndim != 2:
        raise Failed(
            f"the answer to {count} texts has embeddings of shape {list(vectors.shape)} and indices {indices[:20]}"
        )
    return vectors
