"""The process of the encoder."""

from dataclasses import replace
from functools import cached_property

import torch

from oger_recipe.embedding.encoder import TrajectoryEncoder
from oger_recipe.embedding.settings import EncoderSettings


class EncoderActor:
    """Makes vectors of texts. Its encoder loads when first asked, and again where Ray has started it anew."""

    def __init__(self, settings: EncoderSettings, batch_size: int) -> None:
        self._settings, self._batch_size = settings, batch_size

    @cached_property
    def _encoder(self) -> TrajectoryEncoder:
        return TrajectoryEncoder(replace(self._settings, arithmetic=""), self._batch_size)

    def facts(self) -> tuple[str, int, int]:
        """Return the arithmetic of the vectors, their length, and the tokens that are read at a time."""
        return self._encoder.settings.arithmetic, self._encoder.dimension, self._encoder._longest

    def lengths(self, texts: list[str]) -> list[int]:
        return self._encoder._lengths(texts)

    def embed(self, texts: list[str]) -> tuple[torch.Tensor, dict[int, str]]:
        return self._encoder._embed(texts)
