"""The encoder of trajectories and its cache on disk, with the real packaged model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import PACKAGED_MODEL, EncoderSettings, TrajectoryEncoder, model_location

SETTINGS = EncoderSettings(PACKAGED_MODEL, None, max_tokens=256, long_texts="head")
TEXTS = ["need 96=8*12, found.", "<answer>(3+5)*12</answer>", "é漢🎉", " ", "wait, " * 400]
ROW_BYTES = 4 * 384

Calls = list[list[str]]


@pytest.fixture(scope="module")
def encoder() -> TrajectoryEncoder:
    return TrajectoryEncoder(SETTINGS, batch_size=2)


@pytest.fixture()
def calls(encoder: TrajectoryEncoder, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The texts of every call of the encoder, which goes on working."""
    seen: Calls = []
    encode = encoder.encode_each

    def counted(texts: list[str]) -> tuple[torch.Tensor, dict[str, str]]:
        seen.append(list(texts))
        return encode(texts)

    monkeypatch.setattr(encoder, "encode_each", counted)
    return seen


@pytest.fixture()
def opened(encoder: TrajectoryEncoder, tmp_path: Path) -> Callable[[], EmbeddingCache]:
    """Opens the cache in this test's folder, as another run would."""
    return lambda: EmbeddingCache(encoder, tmp_path)


def _folder(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


def _cut(path: Path, bytes_left: int) -> None:
    with path.open("rb+") as file:
        file.truncate(bytes_left)


def _same(vectors: torch.Tensor, others: torch.Tensor) -> bool:
    """Equal up to the rounding of other batches."""
    return bool((vectors * others).sum(dim=1).min() > 0.9999)


def test_embeddings_are_unit_rows_in_the_order_of_the_texts(encoder: TrajectoryEncoder) -> None:
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (5, 384)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(5))
    assert _same(encoder.encode(TEXTS[::-1]).flip(0), vectors)
    assert (vectors @ vectors.T - torch.eye(5)).max() < 0.9


def test_a_text_given_twice_has_one_embedding(encoder: TrajectoryEncoder) -> None:
    vectors = encoder.encode(["a", "b", "a", "a"])
    assert vectors.shape == (4, 384)
    assert torch.equal(vectors[0], vectors[2]) and torch.equal(vectors[0], vectors[3])
    assert not torch.equal(vectors[0], vectors[1])


def test_no_texts_have_no_embeddings(encoder: TrajectoryEncoder, opened: Callable[[], EmbeddingCache]) -> None:
    assert encoder.encode([]).shape == (0, 384)
    assert opened().encode([]).shape == (0, 384)


def test_embeddings_are_those_of_sentence_transformers(opened: Callable[[], EmbeddingCache]) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(model_location(PACKAGED_MODEL))
    assert model.max_seq_length == 256
    expected = torch.from_numpy(np.stack([model.encode(text) for text in TEXTS]))
    cosine = torch.nn.functional.cosine_similarity(opened().encode(TEXTS), expected)
    assert cosine.min() > 0.9999


def test_only_the_first_tokens_of_a_trajectory_are_read() -> None:
    short = TrajectoryEncoder(EncoderSettings(PACKAGED_MODEL, None, max_tokens=8, long_texts="head"), batch_size=2)
    start = "one two three four five six"  # six tokens, two more mark start and end
    first, second, other = short.encode([start + " seven", start + " eight nine", "zero " + start])
    assert torch.dot(first, second) > 0.9999
    assert torch.dot(first, other) < 0.999


def test_what_is_cached_is_not_encoded_again(opened: Callable[[], EmbeddingCache], calls: Calls) -> None:
    cache = opened()
    first = cache.encode(TEXTS[:3])
    assert torch.equal(cache.encode(TEXTS[:3]), first)
    assert torch.equal(opened().encode(TEXTS[2::-1]), first.flip(0)), "another run finds it"
    assert calls == [TEXTS[:3]]


def test_only_what_is_new_is_encoded(opened: Callable[[], EmbeddingCache], calls: Calls) -> None:
    cache = opened()
    known = cache.encode(["a", "b"])
    mixed = cache.encode(["c", "a", "d", "b"])
    assert calls == [["a", "b"], ["c", "d"]]
    assert torch.equal(mixed[[1, 3]], known)
    assert len(cache) == 4


def test_a_cache_whose_making_was_stopped_goes_on_where_it_was(
    opened: Callable[[], EmbeddingCache], encoder: TrajectoryEncoder, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oger_recipe.embedding.cache.SLICE", 2)
    working = encoder.encode_each

    def stopped_at_third(texts: list[str]) -> tuple[torch.Tensor, dict[str, str]]:
        if "c" in texts:
            raise KeyboardInterrupt
        return working(texts)

    monkeypatch.setattr(encoder, "encode_each", stopped_at_third)
    with pytest.raises(KeyboardInterrupt):
        opened().encode(["a", "b", "c", "d", "e"])
    monkeypatch.setattr(encoder, "encode_each", working)
    assert _same(opened().encode(["a", "b", "c", "d", "e"]), encoder.encode(["a", "b", "c", "d", "e"]))
    assert calls[:3] == [["a", "b"], ["c", "d"], ["e"]]


def test_duplicates_in_one_call_are_encoded_and_kept_once(opened: Callable[[], EmbeddingCache], calls: Calls) -> None:
    cache = opened()
    vectors = cache.encode(["a", "b", "a", "b", "a"])
    assert calls == [["a", "b"]]
    assert torch.equal(vectors[0], vectors[4])
    assert len(cache) == 2


def test_two_runs_share_one_cache(opened: Callable[[], EmbeddingCache], encoder: TrajectoryEncoder) -> None:
    one, other = opened(), opened()
    one.encode(["a", "b"])
    other.encode(["c"])
    both = other.encode(["c", "b", "a"])
    assert _same(both, encoder.encode(["c", "b", "a"]))
    assert torch.equal(one.encode(["d", "c"])[1], both[0])
    assert len(opened()) == 4


def test_the_cache_is_plain_numbers_and_nothing_that_runs_when_read(
    opened: Callable[[], EmbeddingCache], tmp_path: Path
) -> None:
    vectors = opened().encode(TEXTS[:3])
    folder = _folder(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "keys.bin", "vectors.bin", "lock"}
    assert (folder / "keys.bin").read_bytes() == b"".join(hashlib.sha256(t.encode()).digest() for t in TEXTS[:3])
    assert (folder / "vectors.bin").read_bytes() == vectors.numpy().tobytes()
    assert json.loads((folder / "manifest.json").read_text())["dimension"] == 384


@pytest.mark.parametrize(
    ("name", "bytes_left", "rows_left"),
    [
        ("vectors.bin", 3 * ROW_BYTES - 10, 2),  # killed within the row of the third text
        ("vectors.bin", 2 * ROW_BYTES, 2),
        ("vectors.bin", 0, 0),
        ("keys.bin", 2 * 32, 2),  # killed after the vectors, before the keys
        ("keys.bin", 2 * 32 + 5, 2),
    ],
)
def test_a_run_that_was_killed_while_appending_costs_its_last_batch(
    opened: Callable[[], EmbeddingCache], calls: Calls, tmp_path: Path, name: str, bytes_left: int, rows_left: int
) -> None:
    before = opened().encode(TEXTS[:3])
    folder = _folder(tmp_path)
    _cut(folder / name, bytes_left)
    cache = opened()
    assert len(cache) == rows_left
    after = cache.encode(TEXTS[:3])
    assert calls == [TEXTS[:3], TEXTS[rows_left:3]]
    assert _same(after, before)
    assert (folder / "vectors.bin").stat().st_size == 3 * ROW_BYTES
    assert (folder / "keys.bin").stat().st_size == 3 * 32
    assert torch.equal(opened().encode(TEXTS[:3]), after)


def test_a_manifest_of_another_encoder_is_refused(opened: Callable[[], EmbeddingCache], tmp_path: Path) -> None:
    opened().encode(["a"])
    manifest = _folder(tmp_path) / "manifest.json"
    manifest.write_text(manifest.read_text().replace("256", "128"))
    with pytest.raises(ValueError, match=r"manifest.json does not describe this encoder .* remove the folder"):
        opened()


def test_other_settings_have_another_folder(
    encoder: TrajectoryEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        EncoderSettings(PACKAGED_MODEL, None, max_tokens=256),
        EncoderSettings(PACKAGED_MODEL, None, max_tokens=128),
        EncoderSettings(PACKAGED_MODEL, "main", max_tokens=256),
        EncoderSettings("sentence-transformers/all-MiniLM-L6-v2", None, max_tokens=256),
    ]
    for count, one in enumerate(settings, start=1):
        monkeypatch.setattr(encoder, "settings", one)
        EmbeddingCache(encoder, tmp_path)
        assert len(list(tmp_path.iterdir())) == count
    monkeypatch.setattr(encoder, "settings", EncoderSettings(PACKAGED_MODEL, None, 256))
    EmbeddingCache(encoder, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_another_model_under_the_same_path_is_another_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "model" / "nested" / "weights.bin"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"1234")
    settings = EncoderSettings("model", None, 256)
    first = settings.fingerprint()
    assert settings.fingerprint() == first
    os.utime(weights, ns=(0, 0))
    second = settings.fingerprint()
    weights.write_bytes(b"12345")
    os.utime(weights, ns=(0, 0))
    third = settings.fingerprint()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where the same name is no folder, hence a hub name
    distinct = {json.dumps(mark) for mark in (first, second, third, settings.fingerprint())}
    assert len(distinct) == 4
