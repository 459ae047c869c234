"""How close a response is to the reference answer: the cosine of their embeddings, through a curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oger_recipe.algorithm.similarity_curve import similarity_reward
from oger_recipe.embedding.base import Encoder, part_of
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import MakeEncoder, make_encoder
from oger_recipe.embedding.settings import EncoderSettings
from oger_recipe.rewards.models.keys import SimilarityKeys
from oger_recipe.rewards.sources import ANSWER, Group, Scores

if TYPE_CHECKING:
    from oger_recipe.settings.encoder import EmbeddingSettings

_NO_REFERENCE = "the row has no reference"


@dataclass(frozen=True)
class Similarity:
    """Compares ``keys.part`` of each response with its reference; the vectors of references are kept in the cache."""

    keys: SimilarityKeys
    encoder: Encoder
    cache: EmbeddingCache

    @classmethod
    def of(cls, keys: SimilarityKeys, settings: EmbeddingSettings, make: MakeEncoder | None) -> Similarity:
        """Load the run's encoder, which reads here all of the texts that it is given."""
        encoder = (make or make_encoder)(
            replace(EncoderSettings.of(settings), part="all"), settings.embedding_batch_size
        )
        return cls(keys, encoder, EmbeddingCache(encoder, Path(settings.embedding_cache)))

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
