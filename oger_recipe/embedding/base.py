"""The base of all encoders: each distinct text is embedded once, and no vector stands in for one that failed."""

import logging
from abc import ABC, abstractmethod

import torch

from oger_recipe.embedding import LONG_TEXTS, PARTS
from oger_recipe.embedding.settings import EncoderSettings

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS = 200


class EmbeddingError(ValueError):
    """``count`` of ``total`` texts have no embedding; ``text`` is the beginning of the first, ``reason`` says why.

    ``limit`` is the share that may fail.
    """

    def __init__(self, count: int, total: int, text: str, reason: str, limit: float) -> None:
        super().__init__(count, total, text, reason, limit)  # an actor's exceptions are pickled by their args
        self.count, self.total, self.text, self.reason, self.limit = count, total, text, reason, limit

    def __str__(self) -> str:
        return (
            f"{self.count} of {self.total} texts could not be embedded (limit: {self.limit:.0%}, "
            f"oger.max_embedding_error_rate), e.g. {self.text!r}: {self.reason}"
        )


def part_of(text: str, part: str) -> str:
    """Return the ``part`` (see EncoderSettings) of a text."""
    thought, tag, answer = text.rpartition("</think>")
    return PARTS[part](thought, answer) if tag else text


class Encoder(ABC):
    """Unit-norm embeddings of texts."""

    def __init__(self, settings: EncoderSettings, batch_size: int) -> None:
        self.settings = settings
        self.batch_size = batch_size

    @property
    @abstractmethod
    def dimension(self) -> int:
        """d, the length of a vector."""

    @property
    @abstractmethod
    def _longest(self) -> int:
        """The number of tokens that are read at a time, without special ones."""

    @abstractmethod
    def _lengths(self, texts: list[str]) -> list[int]:
        """Count the tokens of each text, without special ones."""

    @abstractmethod
    def _embed(self, texts: list[str]) -> tuple[torch.Tensor, dict[int, str]]:
        """Return [n, d] float32 unit rows of distinct texts, on the CPU; the row of a failed text is not finite.

        The second result gives, by the text's position, the reasons that are known.
        """

    def share_read(self, texts: list[str]) -> float:
        """Return the share of these texts' tokens (of their ``part``) that decides their vectors."""
        if LONG_TEXTS[self.settings.long_texts].cut_from is None:
            return 1.0
        lengths = self._lengths([part_of(text, self.settings.part) for text in texts]) if texts else []
        return sum(min(length, self._longest) for length in lengths) / sum(lengths) if any(lengths) else 1.0

    def encode(self, texts: list[str], max_error_rate: float = 0.0) -> torch.Tensor:
        """Return [len(texts), d] float32 unit rows, on the CPU, of nan for failed texts, if they are few enough.

        Raises:
            EmbeddingError: a larger share of the texts than max_error_rate has no embedding.
        """
        rows, failed = self.encode_each(texts)
        stop_on_failures(texts, failed, max_error_rate)
        return rows

    def encode_each(self, texts: list[str]) -> tuple[torch.Tensor, dict[str, str]]:
        """Return the rows of `encode`, however many are nan, and for each failed text the reason."""
        if not texts:
            return torch.empty(0, self.dimension), {}
        distinct = list(dict.fromkeys(texts))
        rows, reasons = self._embed([part_of(text, self.settings.part) for text in distinct])
        bad = ~rows.isfinite().all(dim=1)
        rows[bad] = torch.nan
        failed = {
            distinct[row]: reasons.get(row, "its vector is not finite") for row in bad.nonzero().flatten().tolist()
        }
        position = {text: row for row, text in enumerate(distinct)}
        return rows[[position[text] for text in texts]], failed


def stop_on_failures(texts: list[str], failed: dict[str, str], max_error_rate: float) -> None:
    """Raise EmbeddingError when more than max_error_rate of the texts are in ``failed``; warn of fewer."""
    without = [text for text in texts if text in failed]
    if not without:
        return
    first = without[0]
    error = EmbeddingError(len(without), len(texts), first[:_SHOWN_CHARACTERS], failed[first], max_error_rate)
    if len(without) / len(texts) > max_error_rate:
        raise error
    logger.warning("%s", error)


def unit_rows(vectors: torch.Tensor) -> torch.Tensor:
    """Normalise rows [n, d]; a row of zeros has no direction and becomes nan."""
    return vectors / vectors.norm(dim=1, keepdim=True)


def mean_direction(vectors: torch.Tensor, owners: torch.Tensor, count: int) -> torch.Tensor:
    """Average the unit vectors [P, d] of each text's pieces to unit rows [count, d]; owners [P] has the texts."""
    total = torch.zeros(count, vectors.shape[1]).index_add_(0, owners, vectors)
    return unit_rows(total)  # dividing by the number of pieces first would change nothing
