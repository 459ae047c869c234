"""Kind similarity: the cosine of a response's and the reference answer's embeddings, through a curve."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from oger_recipe.algorithm.exploration import similarity_reward
from oger_recipe.base.ranges import SHARE
from oger_recipe.embedding import PARTS
from oger_recipe.embedding.base import Encoder, part_of
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.sources import ANSWER, Group, Scores, Source
from oger_recipe.rewards.spec import Keys, SourceSpec, Surroundings

_NO_REFERENCE = "the row has no reference"


@dataclass(frozen=True, kw_only=True)
class SimilarityKeys(Keys):
    """Kind similarity: how close a response is to the reference answer, by the run's encoder, through a curve."""

    embeds: ClassVar[bool] = True

    reference: str | None = key(None, "column of the data with the reference (default: the answer)", column="anything")
    part: str = key(
        "answer", "part of a response to compare: all, its thought, or its answer (after </think>)", choices=PARTS
    )
    low: float = key(0.65, "cosine up to which the value is `floor`", range=SHARE)
    high: float = key(0.85, "cosine from which the value is 1", range=SHARE)
    floor: float = key(0.1, "value of low similarity", range=SHARE)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.floor, 1.0

    def combined(self) -> Iterator[str]:
        if self.low >= self.high:
            yield f"low {self.low} must be below high {self.high}"

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Source:
        """Load the run's encoder, which reads here all of the texts that it is given."""
        from oger_recipe.embedding.encoder import make_encoder  # with its libraries

        settings = surroundings.settings.embedding
        make = surroundings.encoder or make_encoder
        encoder = make(replace(settings.encoder, part="all"), settings.embedding_batch_size)
        return Similarity(self, encoder, EmbeddingCache(encoder, Path(settings.embedding_cache)))


@dataclass(frozen=True)
class Similarity:
    """Compares ``keys.part`` of each response with its reference; the vectors of references are kept in the cache."""

    keys: SimilarityKeys
    encoder: Encoder
    cache: EmbeddingCache

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        asked = [(group, row) for group, row in wanted.nonzero().tolist()]
        references = {group: _reference(groups[group], self.keys.reference) for group, _ in asked}
        errors = {(group, row): _NO_REFERENCE for group, row in asked if not references[group]}
        causes: dict[tuple[int, int], str] = {}
        asked = [place for place in asked if place not in errors]
        cosine = torch.full(wanted.shape, torch.nan)
        if asked:
            texts = [part_of(groups[group].responses[row], self.keys.part) for group, row in asked]
            ours, failed = self.encoder.encode_each(texts)
            theirs = self.cache.encode([references[group] for group, _ in asked], max_error_rate=1.0)
            found = (ours * theirs).sum(dim=1)
            for place, text, our, their, value in zip(asked, texts, ours, theirs, found, strict=True):
                cosine[place] = value
                if not our.isfinite().all():
                    errors[place] = f"the response cannot be embedded: {failed[text]}"
                    if ours.isfinite().any():  # where none can be, the encoder is at fault
                        causes[place] = ANSWER
                elif not their.isfinite().all():
                    errors[place] = "the reference cannot be embedded"
        keys = self.keys
        values = similarity_reward(cosine, low=keys.low, high=keys.high, floor=keys.floor)
        return Scores(torch.where(cosine.isfinite(), values, torch.nan), {"cosine": cosine}, errors, causes=causes)


def _reference(group: Group, column: str | None) -> str:
    value = group.answer if column is None else group.row.get(column)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
