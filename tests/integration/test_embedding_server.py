"""Embeddings by an OpenAI-compatible server: a real one on this machine, which embeds with the real packaged model."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from oger_recipe.embedding import remote
from oger_recipe.embedding.base import EmbeddingError
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import PACKAGED_MODEL, EncoderSettings, TrajectoryEncoder, make_encoder

TEXTS = ["need 96=8*12, found.", "<answer>(3+5)*12</answer>", "é漢🎉", " ", "wait, no", "a", "b"]
LOST = 0  # in place of a status: the connection ends without an answer


class Server(ThreadingHTTPServer):
    """Answers with ``embed`` until a test gives it other statuses or another way to answer."""

    def __init__(self, embed: Callable[[list[str]], torch.Tensor]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.embed = embed
        self.lock = threading.Lock()
        self.inputs: list[list[str]] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []  # of the next requests
        self.refuses: Callable[[str], int] = lambda text: 200
        self.answer: Callable[[list[dict[str, Any]]], Any] = lambda items: {"object": "list", "data": items}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self.lock:
            self.inputs.append(body["input"])
            status = self.statuses.pop(0) if self.statuses else max(map(self.refuses, body["input"]))
            if status != 200:
                return status, {"error": {"message": "no vectors now, k3y"}}
            assert body["model"] == PACKAGED_MODEL
            # No unit vectors, and each of another length: to normalise them is the client's part.
            vectors = self.embed(body["input"]) * torch.arange(2, 2 + len(body["input"])).unsqueeze(1)
            items = [{"index": row, "embedding": each} for row, each in enumerate(vectors.tolist())]
            return 200, self.answer(items)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        assert self.path == "/v1/embeddings"
        self.server.headers.append(dict(self.headers))
        status, answer = self.server.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if status == LOST:
            self.close_connection = True
            return
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def local() -> TrajectoryEncoder:
    return TrajectoryEncoder(EncoderSettings(PACKAGED_MODEL, None, 256), batch_size=8)


@pytest.fixture()
def server(local: TrajectoryEncoder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(remote, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.delenv(remote.API_KEY, raising=False)
    server = Server(local.encode)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def _settings(server: Server, long_texts: str = "head", max_tokens: int = 256) -> EncoderSettings:
    return EncoderSettings(PACKAGED_MODEL, None, max_tokens, long_texts, url=server.url)


@pytest.fixture()
def encoder(server: Server) -> remote.RemoteEncoder:
    """Sends two texts to a request; what its construction sent is forgotten."""
    encoder = make_encoder(_settings(server), batch_size=2)
    assert isinstance(encoder, remote.RemoteEncoder)
    server.inputs.clear()
    return encoder


def _fails_on(word: str, status: int) -> Callable[[str], int]:
    return lambda text: status if word in text else 200


def test_vectors_of_a_server_are_those_of_the_model_here(
    encoder: remote.RemoteEncoder, server: Server, local: TrajectoryEncoder
) -> None:
    assert encoder.dimension == 384
    vectors = encoder.encode([*TEXTS, "a"])
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(8))
    assert vectors.dtype == torch.float32
    assert (vectors * local.encode([*TEXTS, "a"])).sum(dim=1).min() > 0.999
    assert sorted(map(len, server.inputs)) == [1, 2, 2, 2], "seven distinct texts, two to a request"
    assert encoder.encode([]).shape == (0, 384)


def test_answers_are_read_by_their_index(
    encoder: remote.RemoteEncoder, server: Server, local: TrajectoryEncoder
) -> None:
    server.answer = lambda items: {"data": items[::-1]}
    assert (encoder.encode(TEXTS) * local.encode(TEXTS)).sum(dim=1).min() > 0.999


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_asked_again(encoder: remote.RemoteEncoder, server: Server, status: int) -> None:
    server.statuses = [status, status]
    assert encoder.encode(["a", "b"]).isfinite().all()
    assert server.inputs == [["a", "b"]] * 3


def test_a_lost_connection_is_tried_again(encoder: remote.RemoteEncoder, server: Server) -> None:
    server.statuses = [LOST, LOST]
    assert encoder.encode(["a"]).isfinite().all()
    assert server.inputs == [["a"]] * 3


def test_a_server_that_stays_broken_stops_the_run(encoder: remote.RemoteEncoder, server: Server) -> None:
    server.refuses = _fails_on("a", 500)  # in three of the texts, but batches fail as a whole
    with pytest.raises(EmbeddingError, match=r"HTTP status 500: .* \(after 6 attempts\)") as caught:
        encoder.encode(["a", "b", "c", "d", "e a"])
    assert (caught.value.count, caught.value.total, caught.value.text) == (3, 5, "a")
    assert server.inputs.count(["a", "b"]) == 6


def test_one_text_that_is_refused_does_not_cost_its_batch(server: Server, local: TrajectoryEncoder) -> None:
    encoder = make_encoder(_settings(server), batch_size=8)
    server.refuses = _fails_on("too long", 400)
    texts = [*TEXTS[:3], "too long", *TEXTS[3:]]
    vectors = encoder.encode(texts, max_error_rate=1 / 8)
    assert vectors.isnan().all(dim=1).tolist() == [text == "too long" for text in texts]
    kept = [0, 1, 2, 4, 5, 6, 7]
    assert (vectors[kept] * local.encode(TEXTS)).sum(dim=1).min() > 0.999
    with pytest.raises(EmbeddingError, match="1 of 8 texts .* e.g. 'too long': HTTP status 400"):
        encoder.encode(texts, max_error_rate=0.1)


def test_a_key_that_is_refused_is_not_offered_again(encoder: remote.RemoteEncoder, server: Server) -> None:
    server.statuses = [401]
    with pytest.raises(EmbeddingError, match="2 of 2 texts .* HTTP status 401"):
        encoder.encode(["a", "b"])
    assert len(server.inputs) == 1


def test_a_failed_text_is_not_cached_and_asked_for_again(
    encoder: remote.RemoteEncoder, server: Server, tmp_path: Path
) -> None:
    cache = EmbeddingCache(encoder, tmp_path)
    server.refuses = _fails_on("bad", 422)
    assert cache.encode(["a", "bad", "b"], 0.5).isnan().any(dim=1).tolist() == [False, True, False]
    assert len(cache) == 2
    server.refuses, server.inputs = _fails_on("bad", 200), []
    assert cache.encode(["a", "bad", "b"]).isfinite().all()
    assert server.inputs == [["bad"]]
    manifest = next(tmp_path.rglob("manifest.json")).read_text()
    assert json.loads(manifest)["url"] == server.url and json.loads(manifest)["arithmetic"] == "of the server"


@pytest.mark.parametrize(
    "answer",
    [
        lambda items: items,
        lambda items: {"data": items[:-1]},
        lambda items: {"data": [item | {"index": 0} for item in items]},
        lambda items: {"data": [{"embedding": item["embedding"]} for item in items]},
        lambda items: {"data": [item | {"embedding": "AAAA"} for item in items]},
        lambda items: {"data": [item | {"embedding": item["embedding"][: 9 + item["index"]]} for item in items]},
        lambda items: {"data": [item | {"embedding": item["embedding"][:9]} for item in items]},
        lambda items: {"data": [item | {"embedding": [0.0] * 384} for item in items]},
        lambda items: {"data": [item | {"embedding": [float("nan")] * 384} for item in items]},
    ],
    ids="no-data missing one-index no-index text ragged short zeros nan".split(),
)
def test_an_answer_without_the_vectors_is_no_vector(
    encoder: remote.RemoteEncoder, server: Server, answer: Callable[[list[dict[str, Any]]], Any]
) -> None:
    server.answer = answer
    with pytest.raises(EmbeddingError, match="2 of 2 texts"):
        encoder.encode(["a", "b"])
    assert encoder.encode(["a", "b"], max_error_rate=1.0).isnan().all()


@pytest.mark.parametrize(
    ("long_texts", "sent"),
    [
        ("head", ["abcdefgh", "", "12345678"]),
        ("tail", ["mnopqrst", "", "12345678"]),
        ("chunks", ["abcdefgh", "ijklmnop", "qrst", "", "12345678"]),
    ],
)
def test_long_texts_are_cut_at_four_characters_a_token(
    server: Server, local: TrajectoryEncoder, long_texts: str, sent: list[str]
) -> None:
    encoder = make_encoder(_settings(server, long_texts, max_tokens=2), batch_size=8)
    server.inputs.clear()
    vectors = encoder.encode(["abcdefghijklmnopqrst", "", "12345678"])
    assert server.inputs == [sent]
    of_first = torch.nn.functional.normalize(local.encode(sent[:-2]).mean(dim=0), dim=0)
    assert torch.dot(vectors[0], of_first) > 0.999


def test_the_share_of_a_text_that_is_sent_is_counted_as_it_is_cut(server: Server) -> None:
    head = make_encoder(_settings(server, "head", max_tokens=2), batch_size=8)
    assert head.share_read(["abcdefghijklmnopqrst", "", "12345678"]) == pytest.approx((2 + 2) / (5 + 2))
    assert make_encoder(_settings(server, "chunks", max_tokens=2), batch_size=8).share_read(["a" * 99]) == 1.0


def test_a_chunk_that_fails_fails_its_text(server: Server) -> None:
    encoder = make_encoder(_settings(server, "chunks", max_tokens=2), batch_size=8)
    server.refuses = _fails_on("q", 400)
    with pytest.raises(EmbeddingError, match="1 of 2 texts .* 'abcdefghijklmnopqrst': HTTP status 400"):
        encoder.encode(["12345678", "abcdefghijklmnopqrst"])


def test_the_key_is_sent_and_never_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    make_encoder(_settings(server), 2)
    assert "Authorization" not in server.headers[-1]
    monkeypatch.setenv(remote.API_KEY, "k3y\n")
    encoder = make_encoder(_settings(server), 2)
    assert server.headers[-1]["Authorization"] == "Bearer k3y"
    server.statuses = [403]
    with pytest.raises(EmbeddingError, match=r"no vectors now, \*\*\*") as caught:
        encoder.encode(["a"])
    assert "k3y" not in str(caught.value) + caplog.text + json.dumps(encoder.settings.fingerprint())
    monkeypatch.setenv(remote.API_KEY, "k3y\nX: y")
    with pytest.raises(ValueError, match="characters that an HTTP header cannot carry") as refused:
        make_encoder(_settings(server), 2)
    assert "k3y" not in str(refused.value)


def test_a_server_that_is_not_there_is_found_out_at_once(server: Server) -> None:
    server.statuses = [404]
    with pytest.raises(ValueError, match=f"/v1/embeddings does not embed with {PACKAGED_MODEL}: HTTP status 404"):
        make_encoder(_settings(server), 2)
    with pytest.raises(ValueError, match="does not embed .* ConnectError: "):
        make_encoder(EncoderSettings(PACKAGED_MODEL, None, 256, url="http://127.0.0.1:9"), 2)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("localhost:8000/v1", "is not the http"),
        ("ftp://host/v1", "is not the http"),
        ("http://[::1/v1", "is not an address"),
        ("http://user:pa55@host/v1", "must end with its path"),
        ("http://host/v1?key=pa55", "must end with its path"),
    ],
)
def test_addresses_that_cannot_be_asked_are_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        make_encoder(EncoderSettings("model", None, 256, url=url), 2)
    assert "pa55" not in str(refused.value)
