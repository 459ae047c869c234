"""A reward model behind a server with OpenAI's interface: vLLM, SGLang and others.

Judges are asked by POST {url}/completions or {url}/chat/completions; vLLM's {url}/completions also says how likely the
model finds given tokens. Heads are asked by vLLM's /classify or /pooling, which lie beside /v1, or by SGLang's
{url}/embeddings, where a reward model answers with its number as the embedding.
Every prompt is a request of its own, so that an answer is that prompt's whatever order answers come in.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import torch

from oger_recipe.base.endpoint import Endpoint, Failed, api_key, checked_address
from oger_recipe.base.errors import RecipeError
from oger_recipe.models.keys import ModelKeys
from oger_recipe.models.likelihood import likelihood_reply
from oger_recipe.models.step_models import step_reply
from oger_recipe.rewards.place import Reply, Sampling, StepPrompt, Told
from oger_recipe.rewards.sources import ANSWER, OVERFLOW

FIRST_PAUSE_S = 2.0  # doubled after every attempt: six of them outlast a bad minute
_GIVES_UP_AFTER = 3  # requests in a row that failed in all their attempts; one refused connection alone is enough
_PROBE_S = 30.0  # of looking for a server before a run
# What tokenizers put before a text, and chat templates write there: vLLM would put it before these prompts again.
_BEGINNINGS = ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "<｜begin▁of▁sentence｜>", "[CLS]", "[BOS]")
_LISTS_NO_MODELS = (404, 405)  # HTTP status
_FORBIDDEN, _TOO_LARGE = 403, 413  # what filters of contents answer, too; a text that is too long
# How vLLM, SGLang, TGI, llama.cpp and OpenAI say that a text is longer than the model reads.
_TOO_LONG = re.compile(
    r"context[ _-]?(length|size|window)|max\w*[ _](model|sequence|input|context)|too long|longer than|must be <=", re.I
)
_PERHAPS = "perhaps"  # ANSWER, where the server still answers others


@dataclass(frozen=True)
class _Question:
    """A kind of request. path: below the server's address, or beside /v1 where `beside`; read: what it is answered."""

    path: str
    read: Callable[[Any], Reply]
    beside: bool = False


class ServerPlace:
    """A model at a server. A server that is gone costs a step one request's attempts, and not each request's: the
    others of the step fail with the same reason, and the next step (`open`) asks again.

    Raises:
        RecipeError: keys.url is no address; the API key does not fit into a header.
    """

    def __init__(self, keys: ModelKeys, *, told: Told | None = None, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._keys, self._told = keys, told
        try:
            address, key = checked_address(keys.url or "", keys.api_key_env), api_key(keys.api_key_env)
        except ValueError as error:
            raise RecipeError(str(error)) from None
        self._endpoint = Endpoint(address, key, keys.attempts, keys.request_limit_s, first_pause_s)
        self._beside = replace(self._endpoint, url=address.removesuffix("/v1"))
        per_minute = keys.requests_per_minute
        self._bucket = TokenBucket(per_minute) if per_minute else None
        self.open()

    def open(self) -> None:
        """Begin a step."""
        self._ends = time.monotonic() + self._keys.step_limit_s
        self._failures, self._reason = 0, ""

    def close(self) -> None:
        pass

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        settings: dict[str, Any] = {
            **self._keys.request,
            "model": self._keys.model,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if self._keys.chats:
            system, arguments = self._keys.of_chat_template or (None, {})
            before = [] if system is None else [{"role": "system", "content": system}]
            settings |= {"chat_template_kwargs": arguments} if arguments else {}
            asked: list[dict[str, Any]] = [
                {"messages": [*before, {"role": "user", "content": prompt}]} for prompt in prompts
            ]
        else:
            asked = [{"prompt": prompt, **_begun(prompt)} for prompt in prompts]
        seeds = [{} if sampling.seed is None else {"seed": sampling.seed_of(prompt)} for prompt in prompts]
        bodies = [settings | question | seed for question, seed in zip(asked, seeds, strict=True)]
        return self._answers([_CHAT if self._keys.chats else _COMPLETIONS] * len(bodies), bodies)

    def classify(self, prompts: Sequence[str]) -> list[Reply]:
        raw: dict[str, Any] = {} if self._keys.head == "embeddings" else {"use_activation": False}
        bodies = [{"model": self._keys.model, "input": prompt} | raw | _begun(prompt) for prompt in prompts]
        return self._answers([_HEADS[self._keys.head]] * len(bodies), bodies)

    def classify_steps(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        asked = {"model": self._keys.model, "task": "token_classify", "use_activation": False}
        bodies = [asked | {"input": list(prompt.tokens)} for prompt in prompts]
        return self._answers([_Question("/pooling", self._steps(prompt), beside=True) for prompt in prompts], bodies)

    def log_probs(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        """Ask for the log-probability of each token behind the first of a prompt's ends, which vLLM's server gives."""
        asked = {"model": self._keys.model, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        bodies = [asked | {"prompt": list(prompt.tokens)} for prompt in prompts]
        return self._answers([_Question("/completions", _log_probs(prompt)) for prompt in prompts], bodies)

    def _steps(self, prompt: StepPrompt) -> Callable[[Any], Reply]:
        """Return a reader of step scores."""
        keys = self._keys.prm

        def read(answer: Any) -> Reply:
            try:
                (item,) = answer["data"]
                numbers = item["data"]
                if len(numbers) != len(prompt.tokens):
                    raise ValueError(f"{len(numbers)} numbers or lists of them for {len(prompt.tokens)} tokens")
                chosen = [list(map(float, _list(numbers[end]))) for end in prompt.ends]
                return step_reply(keys, torch.tensor(chosen))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise Failed(f"the answer has no scores of tokens ({type(error).__name__}: {error})") from None

        return read

    async def models(self) -> dict[str, int | None]:
        """Return the server's models by name, with the tokens that they read where it says so (vLLM, SGLang); none
        where it does not list them. Raises ValueError where nobody answers."""
        async with self._endpoint.client(1) as client:
            try:
                answer = await self._endpoint.get(client, "/models")
                return {str(each["id"]): each.get("max_model_len") for each in answer["data"]}
            except Failed as error:
                if error.status in _LISTS_NO_MODELS:
                    return {}
                raise ValueError(f"{self._keys.url} does not answer: {error}") from None
            except (AttributeError, KeyError, TypeError):
                return {}

    def _answers(self, questions: Sequence[_Question], bodies: Sequence[Any]) -> list[Reply]:
        came = answered = 0

        async def answer(client: httpx.AsyncClient, asked: tuple[_Question, Any]) -> tuple[Reply, int]:
            nonlocal came, answered
            before = answered
            reply = await self._answer(client, *asked)
            came, answered = came + 1, answered + (reply.error is None)
            if self._told is not None:
                self._told(self._keys.model, came, len(bodies))
            return reply, before

        if self._told is not None and bodies:
            self._told(self._keys.model, 0, len(bodies))  # one that does not answer is tried again for long
        asked = list(zip(questions, bodies, strict=True))
        found = asyncio.run(self._endpoint.each(self._keys.concurrency, answer, asked))
        # A prompt may have broken a server only where that still answered another one.
        return [
            replace(reply, cause=None) if reply.cause == _PERHAPS and answered == before else _decided(reply)
            for reply, before in found
        ]

    async def _answer(self, client: httpx.AsyncClient, question: _Question, body: Any) -> Reply:
        if self._failures >= _GIVES_UP_AFTER:
            return Reply(error=self._reason)
        endpoint = self._beside if question.beside else self._endpoint
        try:
            async with asyncio.timeout(self._ends - time.monotonic()):
                answer = await endpoint.post(client, question.path, body, self._turn)
            self._failures = 0
            return question.read(answer)
        except TimeoutError:
            return Reply(error=f"no answer within the step's {self._keys.step_limit_s:g} s (step_limit_s)")
        except Failed as error:
            self._note(error)
            return Reply(error=str(error), cause=_cause(error))

    async def _turn(self) -> None:
        if self._bucket:
            await asyncio.sleep(self._bucket.take())

    def _note(self, error: Failed) -> None:
        """Count requests that failed for good; any other error came from a server that answers."""
        if not error.lasts:
            self._failures = 0
            return
        self._failures += _GIVES_UP_AFTER if error.is_refused else 1
        self._reason = str(error)


def _cause(error: Failed) -> str | None:
    """Return the error's cause where the prompt may be at fault, _PERHAPS where only other answers can tell."""
    if error.of_input:
        return OVERFLOW if error.status == _TOO_LARGE or _TOO_LONG.search(str(error)) else ANSWER
    is_no_answer = error.status is None and not error.lasts  # it came, and cannot be read
    return _PERHAPS if error.is_stuck or is_no_answer or error.status == _FORBIDDEN else None


def _decided(reply: Reply) -> Reply:
    return replace(reply, cause=ANSWER) if reply.cause == _PERHAPS else reply


def _begun(prompt: str) -> dict[str, bool]:
    return {"add_special_tokens": False} if prompt.startswith(_BEGINNINGS) else {}


def _text(choice: Callable[[Any], Any]) -> Callable[[Any], Reply]:
    """Return a reader of an answer's one choice; a reply that ended in its thoughts may have a null text."""

    def read(answer: Any) -> Reply:
        try:
            (only,) = answer["choices"]
            text = choice(only) or ""
            is_cut = only.get("finish_reason") == "length"
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Failed(f"the answer is not one text ({type(error).__name__}: {error})") from None
        if not isinstance(text, str):
            raise Failed(f"the answer has a text of type {type(text).__name__}")
        return Reply(text, cut=is_cut)

    return read


def _number(name: str) -> Callable[[Any], Reply]:
    """Return a reader of the number of an answer's one item; of a list for every token (/pooling), the last."""

    def read(answer: Any) -> Reply:
        try:
            (item,) = answer["data"]
            index, numbers = item.get("index"), item[name]
            if numbers and isinstance(numbers[-1], list):
                numbers = numbers[-1]
            (value,) = map(float, _list(numbers))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Failed(f"the answer is not one number ({type(error).__name__}: {error})") from None
        if index != 0 or not math.isfinite(value):
            raise Failed(f"the answer to input 0 is {value} for input {index}")
        return Reply(value=value)

    return read


def _log_probs(prompt: StepPrompt) -> Callable[[Any], Reply]:
    """Return a reader of the log-probabilities of a prompt's own tokens: a mapping from each token's number."""

    def read(answer: Any) -> Reply:
        try:
            (choice,) = answer["choices"]
            given = _list(choice["prompt_logprobs"])
            if len(given) != len(prompt.tokens):
                raise ValueError(f"{len(given)} of {len(prompt.tokens)} tokens")
            places = range(prompt.ends[0] + 1, prompt.ends[-1] + 1)
            found = [float(given[place][str(prompt.tokens[place])]["logprob"]) for place in places]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Failed(
                f"the answer has no log-probabilities of the prompt's tokens ({type(error).__name__}: {error}); "
                "vLLM's server gives them"
            ) from None
        return likelihood_reply(prompt, found)

    return read


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):  # of an object the names would be read, of a text the characters
        raise TypeError(f"a {type(value).__name__} is not a list")
    return value


_COMPLETIONS = _Question("/completions", _text(lambda choice: choice["text"]))
_CHAT = _Question("/chat/completions", _text(lambda choice: choice["message"]["content"]))
_HEADS = {
    "classify": _Question("/classify", _number("probs"), beside=True),
    "pooling": _Question("/pooling", _number("data"), beside=True),
    "embeddings": _Question("/embeddings", _number("embedding")),
}


def probe(keys: ModelKeys) -> str:
    """Look once, before a run, whether the server has the model and answers; return a sentence.

    Raises:
        ValueError: it does not; the message says why.
    """
    place = _asked_once(keys)
    names = asyncio.run(place.models())
    if names and keys.model not in names:
        raise ValueError(f"{keys.url} has no model {keys.model}; it has {', '.join(names)}")
    reply = keys.try_out(place)
    if reply.error is not None:
        raise ValueError(f"{keys.url} does not answer with {keys.model}: {reply.error}")
    return f"{keys.model} answers at {keys.url}"


def window_at(keys: ModelKeys) -> int | None:
    """Ask how many tokens the server's model reads; None where it does not say."""
    try:
        window = asyncio.run(_asked_once(keys).models()).get(keys.model)
    except (RecipeError, ValueError):  # said by the checks of servers
        return None
    return window if isinstance(window, int) else None


def _asked_once(keys: ModelKeys) -> ServerPlace:
    return ServerPlace(replace(keys, attempts=1, request_limit_s=min(keys.request_limit_s, _PROBE_S)))


class TokenBucket:
    """Gives `per_minute` tokens a minute, one at a time: no minute has more of them, wherever it begins."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._clock = 60 / per_minute, clock
        self._next = clock()

    def take(self) -> float:
        """Take the next token; return the seconds until it is there."""
        now = self._clock()
        at = max(now, self._next)
        self._next = at + self._interval_s
        return at - now


KEY_VARIABLE = "VLLM_API_KEY"
_WITHOUT_KEY = ("/health",)


class KeyForEveryPath:
    """Asks for the bearer token at every path: vLLM itself does so below /v1, and not at /classify and /pooling.

    `oger serve-judge` puts it before vLLM's server where an API key is set; vLLM imports it by its name.
    """

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._app, self._wanted = app, f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] not in _WITHOUT_KEY:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b'{"error": "the API key is missing or wrong"}'})
                return
        await self._app(scope, receive, send)
