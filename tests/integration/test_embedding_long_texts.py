"""Texts longer than the encoder reads, with the real packaged model and with vectors of hand-cut pieces beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from oger_recipe.embedding import LONG_TEXTS, PARTS
from oger_recipe.embedding.base import EmbeddingError, part_of, stop_on_failures
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import PACKAGED_MODEL, EncoderSettings, TrajectoryEncoder, make_encoder
from oger_recipe.embedding.encoder import model_location as location

MAX_TOKENS = 12  # ten words of one token each, and two tokens that mark start and end
WORDS = (
    "the first number is three and we need more than that so we take eight times twelve which is close "
    "but not yet right we add another four to get what was asked for"
).split()
LONG = " ".join(WORDS)  # 34 words: three full windows and four words more


def _encoder(long_texts: str, model: str = PACKAGED_MODEL, max_tokens: int = MAX_TOKENS) -> TrajectoryEncoder:
    return TrajectoryEncoder(EncoderSettings(model, None, max_tokens, long_texts), batch_size=3)


@pytest.fixture(scope="module")
def encoders() -> dict[str, TrajectoryEncoder]:
    return {name: _encoder(name) for name in LONG_TEXTS}


def _expected(*pieces: str) -> torch.Tensor:
    """[d]: the renormalised mean of the unit vectors that plain sentence-transformers gives for each piece."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(location(PACKAGED_MODEL))
    vectors = np.stack([model.encode(piece, normalize_embeddings=True) for piece in pieces])
    return torch.nn.functional.normalize(torch.from_numpy(vectors.mean(axis=0)), dim=0)


def test_every_word_here_is_one_token() -> None:
    from transformers import AutoTokenizer

    assert len(WORDS) == 34
    assert len(AutoTokenizer.from_pretrained(location(PACKAGED_MODEL)).tokenize(LONG)) == 34


@pytest.mark.parametrize("long_texts", LONG_TEXTS)
def test_a_vector_depends_on_its_own_text_alone(long_texts: str) -> None:
    """To the last bit: not on the texts that it is encoded with, nor on their order."""
    encoder = _encoder(long_texts, max_tokens=40)
    texts = [
        " ".join(WORDS[first:last]) for first, last in ((0, 1), (0, 4), (3, 9), (0, 17), (1, 22), (0, 34), (5, 6))
    ]
    together = encoder.encode(texts)
    assert torch.equal(encoder.encode(texts[::-1]).flip(0), together)
    for text, vector in zip(texts, together, strict=True):
        assert torch.equal(encoder.encode([text])[0], vector), text


def test_head_is_the_start_of_the_text(encoders: dict[str, TrajectoryEncoder]) -> None:
    (vector,) = encoders["head"].encode([LONG])
    assert torch.dot(vector, _expected(" ".join(WORDS[:10]))) > 0.9995


def test_tail_is_the_end_of_the_text(encoders: dict[str, TrajectoryEncoder]) -> None:
    (vector,) = encoders["tail"].encode([LONG])
    assert torch.dot(vector, _expected(" ".join(WORDS[-10:]))) > 0.9995
    assert torch.dot(vector, _expected(" ".join(WORDS[-11:]))) < 0.999, "the test could not see one word more"


def test_chunks_are_averaged_over_the_whole_text(encoders: dict[str, TrajectoryEncoder]) -> None:
    (vector,) = encoders["chunks"].encode([LONG])
    pieces = [" ".join(WORDS[start : start + 10]) for start in (0, 10, 20, 30)]
    torch.testing.assert_close(vector.norm(), torch.tensor(1.0))
    assert torch.dot(vector, _expected(*pieces)) > 0.9995
    assert torch.dot(vector, _expected(*pieces[:3])) < 0.999, "the test could not see that the last chunk is lost"


def test_chunks_of_many_texts_stay_with_their_text(encoders: dict[str, TrajectoryEncoder]) -> None:
    texts = [LONG, "", "so we take eight", " ".join(WORDS[::-1]), LONG, " ".join(WORDS[5:20])]
    together = encoders["chunks"].encode(texts)
    alone = torch.cat([encoders["chunks"].encode([text]) for text in texts])
    assert (together * alone).sum(dim=1).min() > 0.9999
    assert torch.equal(together[0], together[4])


def test_a_text_that_fits_is_the_same_however_long_ones_are_cut(encoders: dict[str, TrajectoryEncoder]) -> None:
    fits = " ".join(WORDS[:10])
    head, tail, chunks = (encoders[name].encode([fits])[0] for name in LONG_TEXTS)
    assert torch.dot(head, tail) > 0.9999 and torch.dot(head, chunks) > 0.9999


def test_the_models_own_limit_is_not_exceeded() -> None:
    chunks = _encoder("chunks", max_tokens=100_000)  # all-MiniLM-L6-v2 reads 256 tokens
    assert chunks.encode([" ".join(WORDS * 40)]).isfinite().all()


@pytest.mark.parametrize("layers", [0, 2, 6])
def test_the_first_layers_alone_are_the_hidden_states_behind_them(layers: int) -> None:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = (each.from_pretrained(location(PACKAGED_MODEL)) for each in (AutoTokenizer, AutoModel))
    with torch.no_grad():
        states = model(**tokenizer(" ".join(WORDS[:10]), return_tensors="pt"), output_hidden_states=True).hidden_states
    expected = torch.nn.functional.normalize(states[layers][0].mean(dim=0), dim=0)
    encoder = TrajectoryEncoder(EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, layers=layers), batch_size=3)
    (vector,) = encoder.encode([" ".join(WORDS[:10])])
    assert torch.dot(vector, expected) > 0.9999


def test_more_layers_than_the_encoder_has_are_refused() -> None:
    with pytest.raises(ValueError, match="oger.embedding_layers is 7, and it has 6"):
        TrajectoryEncoder(EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, layers=7), batch_size=3)


def test_what_decides_a_vector_is_in_the_fingerprint(
    encoders: dict[str, TrajectoryEncoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        *(EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, name) for name in LONG_TEXTS),
        EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, trust_remote_code=True),
        EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, layers=0),
        EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, url="http://localhost:8000/v1"),
        EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, url="http://localhost:8001/v1"),
    ]
    assert len({json.dumps(each.fingerprint()) for each in settings}) == 7
    for each in settings:
        monkeypatch.setattr(encoders["head"], "settings", each)
        EmbeddingCache(encoders["head"], tmp_path)
    assert len(list(tmp_path.iterdir())) == 7


def test_unknown_ways_to_cut_are_refused() -> None:
    with pytest.raises(ValueError, match="long_texts='middle' is unknown; valid values: head, tail, chunks"):
        EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, "middle")


@pytest.mark.parametrize("long_texts", LONG_TEXTS)
def test_a_limit_without_room_for_a_text_is_refused(long_texts: str) -> None:
    with pytest.raises(ValueError, match="2 tokens leave no room for a text"):
        _encoder(long_texts, max_tokens=2)


def test_prompts_of_a_model_are_never_cut_off(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = str(tmp_path / "prompted")
    SentenceTransformer(location(PACKAGED_MODEL), prompts={"q": "query: "}, default_prompt_name="q").save_pretrained(
        folder
    )
    assert _encoder("head", folder).encode(["a"]).isfinite().all()
    for name in ("tail", "chunks"):
        with pytest.raises(ValueError, match=f"can only be cut at their end: set head, not {name}"):
            _encoder(name, folder)


def test_code_of_a_model_runs_only_where_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    import sentence_transformers

    seen = []
    load = sentence_transformers.SentenceTransformer

    def watched(*args, trust_remote_code: bool, **kwargs):
        seen.append(trust_remote_code)
        return load(*args, trust_remote_code=trust_remote_code, **kwargs)

    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", watched)
    make_encoder(EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS), 2)
    make_encoder(EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, trust_remote_code=True), 2)
    assert seen == [False, True]


def test_the_settings_load_no_model_library() -> None:
    code = "import oger_recipe.embedding.settings, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture()
def broken(monkeypatch: pytest.MonkeyPatch) -> TrajectoryEncoder:
    """An encoder whose model gives no finite vector for texts that begin with "bad"."""
    encoder = _encoder("head")
    encode = encoder._model.encode

    def with_nan(texts: list[str], **kwargs) -> np.ndarray:
        vectors = encode(texts, **kwargs)
        vectors[[text.startswith("bad") for text in texts], 5] = np.inf
        return vectors

    monkeypatch.setattr(encoder._model, "encode", with_nan)
    return encoder


def test_a_text_without_a_vector_stops_the_run_unless_it_may_fail(
    broken: TrajectoryEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["a", "bad b", "c", "bad b"]
    with pytest.raises(EmbeddingError, match=r"2 of 4 texts .* e\.g\. 'bad b'") as caught:
        broken.encode(texts, max_error_rate=0.49)
    assert (caught.value.count, caught.value.total, caught.value.text) == (2, 4, "bad b")
    vectors = broken.encode(texts, max_error_rate=0.5)
    assert vectors.isnan().all(dim=1).tolist() == [False, True, False, True]
    torch.testing.assert_close(vectors[[0, 2]].norm(dim=1), torch.ones(2))
    assert "2 of 4 texts could not be embedded" in caplog.text, "what is tolerated is still said"


def test_the_share_that_may_fail_is_as_it_is_written() -> None:
    """29 of 100 are not more than 0.29, though 0.29 * 100 is 28.999999999999996."""
    texts, failed = [str(number) for number in range(100)], {str(number): "why" for number in range(29)}
    stop_on_failures(texts, failed, 0.29)
    with pytest.raises(EmbeddingError, match="29 of 100"):
        stop_on_failures(texts, failed, 0.28)


def test_an_error_survives_the_way_between_processes() -> None:
    import pickle

    error = EmbeddingError(2, 4, "bad", "why", 0.25)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.count, copy.reason) == (str(error), 2, "why")


def test_nothing_is_cached_of_a_text_without_a_vector(broken: TrajectoryEncoder, tmp_path: Path) -> None:
    cache = EmbeddingCache(broken, tmp_path)
    texts = ["a", "bad b", "c", "a"]
    with pytest.raises(EmbeddingError, match="1 of 4 texts"):
        cache.encode(texts)
    first = cache.encode(texts, max_error_rate=0.25)
    assert first.isnan().all(dim=1).tolist() == [False, True, False, False]
    assert len(cache) == len(EmbeddingCache(broken, tmp_path)) == 2
    (keys,) = tmp_path.rglob("keys.bin")
    assert keys.stat().st_size == 2 * 32
    assert np.isfinite(np.fromfile(keys.with_name("vectors.bin"), np.float32)).all()
    torch.testing.assert_close(cache.encode(texts, 0.25), first, equal_nan=True)
    with pytest.raises(EmbeddingError, match="1 of 4 texts"):
        cache.encode(texts, max_error_rate=0.2)


def test_vectors_that_are_known_can_be_put_into_the_cache(broken: TrajectoryEncoder, tmp_path: Path) -> None:
    one, other = EmbeddingCache(broken, tmp_path), EmbeddingCache(broken, tmp_path)
    vectors = torch.nn.functional.normalize(torch.randn(4, broken.dimension), dim=1)
    vectors[2] = torch.nan
    one.put(["x", "y", "bad z", "x"], vectors)
    assert len(one) == 2
    assert torch.equal(one.encode(["y", "x", "y"]), vectors[[1, 3, 1]]), "they are not encoded"
    other.put(["y", "w"], vectors[[0, 3]])
    assert torch.equal(other.encode(["y", "w", "x"]), vectors[[1, 3, 3]]), "what another run kept stays as it is"
    assert len(EmbeddingCache(broken, tmp_path)) == 3
    with pytest.raises(ValueError, match=r"2 texts need vectors of the shape \[2, 384\], not \[3, 384\]"):
        one.put(["x", "y"], vectors[:3])


THOUGHT = "<think> " + LONG + " </think> so we add four"


@pytest.mark.parametrize(
    ("part", "read"),
    [
        ("all", THOUGHT),
        ("thought", "<think> " + LONG + " "),  # before the last </think>
        ("answer", " so we add four"),
    ],
)
def test_a_part_of_a_trajectory_is_what_is_before_or_after_its_thoughts_end(part: str, read: str) -> None:
    assert part_of(THOUGHT, part) == read
    assert part_of("one </think> two </think> three", part) == {
        "all": "one </think> two </think> three", "thought": "one </think> two ", "answer": " three"
    }[part]  # fmt: skip
    assert part_of(LONG, part) == LONG  # without the tag there is one part


def test_the_part_is_what_is_embedded_and_belongs_to_the_vectors_identity() -> None:
    plain = _encoder("chunks")
    for part in PARTS:
        settings = EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, "chunks", part)
        (vector,) = TrajectoryEncoder(settings, batch_size=3).encode([THOUGHT])
        assert torch.dot(vector, plain.encode([part_of(THOUGHT, part)])[0]) > 0.9999
    assert len({str(EncoderSettings(PACKAGED_MODEL, None, 8, "chunks", part).fingerprint()) for part in PARTS}) == 3
    with pytest.raises(ValueError, match="part='end' is unknown; valid values: all, thought, answer"):
        EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, "head", "end")


def test_the_share_that_is_read_is_counted_in_tokens(encoders: dict[str, TrajectoryEncoder]) -> None:
    short = " ".join(WORDS[:6])
    for name in ("head", "tail"):  # ten of 34 words, six of six
        assert encoders[name].share_read([LONG, short]) == pytest.approx(16 / 40)
        assert encoders[name].share_read([short]) == encoders[name].share_read([]) == 1.0
    assert encoders["chunks"].share_read([LONG, short]) == 1.0
    answers = TrajectoryEncoder(EncoderSettings(PACKAGED_MODEL, None, MAX_TOKENS, "head", "answer"), batch_size=3)
    assert answers.share_read([THOUGHT]) == 1.0  # of the answer, which is short
