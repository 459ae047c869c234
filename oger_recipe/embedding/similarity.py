"""Measure how close the rollouts of each prompt are to its references: teachers, and the policy's own solutions."""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch

from oger_recipe.algorithm.exploration import REDUCTIONS, centred, mean_similarity
from oger_recipe.embedding.base import part_of, stop_on_failures
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import MakeEncoder, make_encoder
from oger_recipe.embedding.reranker import Reranker
from oger_recipe.embedding.settings import EncoderSettings


class MeasureSettings(Protocol):
    """What a run's settings say of the measure (settings/encoder.py)."""

    @property
    def encoder(self) -> EncoderSettings: ...

    @property
    def similarity_reranker(self) -> str | None: ...

    @property
    def similarity_centred(self) -> bool: ...

    @property
    def embedding_batch_size(self) -> int: ...

    @property
    def embedding_cache(self) -> str: ...

    @property
    def max_embedding_error_rate(self) -> float: ...


class EmbeddingSimilarity:
    """Cosine similarity of embeddings, ``centred`` in each group or as they are; references come from the cache,
    rollouts are encoded as they arrive."""

    def __init__(self, encoder, cache: EmbeddingCache, max_error_rate: float = 0.0, centred: bool = False) -> None:
        self._encoder, self._cache, self._max_error_rate, self._centred = encoder, cache, max_error_rate, centred
        self._latest: dict[str, torch.Tensor] = {}
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._arrived: list[str] = []  # not enough yet for a batch of the encoder
        self._ahead: list[tuple[list[str], Future]] = []
        self._references_ahead: list[Future] = []

    def prefetch_references(self, texts: list[str]) -> None:
        """Put into the cache, in a thread beside other work, references that `of_groups` will be asked about.

        What has no embedding then is asked for again, and counted, by `of_groups`.
        """
        self._references_ahead.append(self._worker.submit(self._cache.encode, texts, max_error_rate=1.0))

    def prefetch(self, text: str) -> None:
        """Encode, in a thread beside other work, a rollout that `of_groups` will be asked about."""
        self._arrived.append(text)
        if len(self._arrived) >= self._encoder.batch_size:
            part, self._arrived = self._arrived, []
            self._ahead.append((part, self._worker.submit(self._encoder.encode_each, part)))

    def of_groups(self, rollouts: list[list[str]], references: list[list[str]], reduce: str) -> torch.Tensor:
        """Measure groups of equal size n, [groups, n]; nan where a group has no references or a text no embedding."""
        ahead, self._references_ahead = self._references_ahead, []
        for future in ahead:
            future.result()
        taught = [group for group, texts in enumerate(references) if texts]
        similarity = torch.full((len(rollouts), len(rollouts[0])), torch.nan)
        if not taught:
            return similarity
        texts = [text for group in taught for text in rollouts[group]]
        vectors = self._encoded(texts)
        self._latest = dict(zip(texts, vectors, strict=True))
        theirs = self._cache.encode([text for group in taught for text in references[group]], self._max_error_rate)
        ours_by_group = vectors.split([len(rollouts[group]) for group in taught])
        theirs_by_group = theirs.split([len(references[group]) for group in taught])
        for group, ours, known in zip(taught, ours_by_group, theirs_by_group, strict=True):
            known = known[known.isfinite().all(dim=1)]
            if self._centred:
                ours, known = centred(ours, known)
            similarity[group] = mean_similarity(ours, known, reduce)
        return similarity

    def _encoded(self, texts: list[str]) -> torch.Tensor:
        """Encode what is not encoded yet, [len(texts), d]. Raises EmbeddingError as `Encoder.encode` does."""
        rows: dict[str, torch.Tensor] = {}
        failed: dict[str, str] = {}
        ahead, self._ahead, self._arrived = self._ahead, [], []  # also where one of them raises
        parts = [(part, future.result()) for part, future in ahead]
        known = {text for part, _ in parts for text in part}
        rest = [text for text in dict.fromkeys(texts) if text not in known]
        for part, (vectors, reasons) in [*parts, (rest, self._encoder.encode_each(rest))]:
            rows |= dict(zip(part, vectors, strict=True))
            failed |= reasons
        stop_on_failures(texts, failed, self._max_error_rate)
        return torch.stack([rows[text] for text in texts])

    def share_read(self, texts: list[str]) -> float:
        """Return the share of these texts' tokens that decides their similarities."""
        return self._encoder.share_read(texts)

    def remember(self, texts: list[str]) -> None:
        """Keep the vectors of rollouts of the last call that will be references later."""
        known = [text for text in texts if text in self._latest and self._latest[text].isfinite().all()]
        if known:
            self._cache.put(known, torch.stack([self._latest[text] for text in known]))


class RerankerSimilarity:
    """Scores in [0, 1] of a cross-encoder that reads rollout and reference together, or ``part`` of both."""

    def __init__(self, reranker: Reranker, part: str = "all") -> None:
        self._reranker, self._part = reranker, part

    def prefetch_references(self, texts: list[str]) -> None:
        """Do nothing: a score belongs to a pair."""

    def prefetch(self, text: str) -> None:
        """Do nothing: a score belongs to a pair."""

    def of_groups(self, rollouts: list[list[str]], references: list[list[str]], reduce: str) -> torch.Tensor:
        pairs = [
            (part_of(our, self._part), part_of(their, self._part))
            for ours, theirs in zip(rollouts, references, strict=True)
            for our in ours
            for their in theirs
        ]
        scores = self._reranker.similarity(pairs).split(
            [len(ours) * len(theirs) for ours, theirs in zip(rollouts, references, strict=True)]
        )
        similarity = torch.full((len(rollouts), len(rollouts[0])), torch.nan)
        for group, (ours, theirs) in enumerate(zip(rollouts, references, strict=True)):
            if theirs:
                similarity[group] = REDUCTIONS[reduce](scores[group].view(len(ours), len(theirs)))
        return similarity

    def share_read(self, texts: list[str]) -> float:
        """Return nan: how much of a text is cut depends on the other one of the pair."""
        return math.nan

    def remember(self, texts: list[str]) -> None:
        """Do nothing: a score belongs to a pair."""


Similarity = EmbeddingSimilarity | RerankerSimilarity


def make_similarity(settings: MeasureSettings, make: MakeEncoder = make_encoder) -> Similarity:
    """Load the measure that the settings ask for; `make` gives its encoder."""
    read, batch_size = settings.encoder, settings.embedding_batch_size
    if settings.similarity_reranker:
        reranker = Reranker(settings.similarity_reranker, read.max_tokens, batch_size, read.trust_remote_code)
        return RerankerSimilarity(reranker, read.part)
    encoder = make(read, batch_size)
    cache = EmbeddingCache(encoder, Path(settings.embedding_cache))
    return EmbeddingSimilarity(encoder, cache, settings.max_embedding_error_rate, settings.similarity_centred)
