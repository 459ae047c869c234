"""Embeddings on disk, addressed by content: the text's hash under everything else that decides the vector.

One folder per encoder fingerprint: ``manifest.json``, ``keys.bin`` (SHA-256 of each text, 32 bytes) and
``vectors.bin`` (float32 rows). Both only grow; a run that was killed while appending loses at most its last batch.
"""

import fcntl
import hashlib
import json
from pathlib import Path

import numpy as np
import torch

from oger_recipe.base.files import atomic_write
from oger_recipe.base.progress import Progress
from oger_recipe.embedding.base import Encoder, stop_on_failures

SLICE = 1024  # texts; a process that is killed loses at most so many
_KEY_BYTES = 32


def _text_key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class EmbeddingCache:
    """The vectors that an encoder has given; only new texts are encoded."""

    def __init__(self, encoder: Encoder, root: Path) -> None:
        self._encoder = encoder
        manifest = json.dumps(encoder.settings.fingerprint() | {"dimension": encoder.dimension}, sort_keys=True)
        self._folder = root.expanduser() / hashlib.sha256(manifest.encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_manifest(manifest)
        self._rows: dict[bytes, int] = {}
        self._refresh()

    def encode(self, texts: list[str], max_error_rate: float = 0.0) -> torch.Tensor:
        """Return [len(texts), d] float32 unit rows; encode and keep new texts, ``SLICE`` at a time.

        Texts without an embedding are not kept; their rows are nan, if they are few enough.

        Raises:
            EmbeddingError: a larger share of the texts than max_error_rate has no embedding.
        """
        failed: dict[str, str] = {}
        new = [text for text in dict.fromkeys(texts) if _text_key(text) not in self._rows]
        with Progress("embedding", "texts", len(new)) as progress:
            for start in range(0, len(new), SLICE):
                part = new[start : start + SLICE]
                vectors, reasons = self._encoder.encode_each(part)
                self.put(part, vectors)
                failed |= reasons
                progress.add(len(part))
        stop_on_failures(texts, failed, max_error_rate)
        rows = np.array([self._rows.get(_text_key(text), -1) for text in texts], int)
        result = np.full((len(texts), self._encoder.dimension), np.nan, np.float32)
        result[rows >= 0] = self._vectors[rows[rows >= 0]]
        return torch.from_numpy(result)

    def put(self, texts: list[str], vectors: torch.Tensor) -> None:
        """Keep the rows [len(texts), d] that this cache's encoder gave for the texts, except those of nan.

        Raises:
            ValueError: vectors has another shape.
        """
        shape = (len(texts), self._encoder.dimension)
        if tuple(vectors.shape) != shape:
            raise ValueError(f"{len(texts)} texts need vectors of the shape {list(shape)}, not {list(vectors.shape)}")
        finite = vectors.isfinite().all(dim=1).tolist()
        known = {_text_key(text): row for row, text in enumerate(texts) if finite[row]}
        if any(key not in self._rows for key in known):
            self._append(known, vectors.float().numpy())

    def __len__(self) -> int:
        return len(self._rows)

    def _check_manifest(self, manifest: str) -> None:
        path = self._folder / "manifest.json"
        if not path.exists():
            with atomic_write(path) as partial:
                partial.write_text(manifest)
        elif path.read_text() != manifest:
            raise ValueError(f"{path} does not describe this encoder ({manifest}); remove the folder to rebuild it")

    def _refresh(self) -> None:
        """Map what is on disk; rows without their key, or keys without their row, do not count."""
        row_bytes = 4 * self._encoder.dimension
        count = min(_size(self._folder / "keys.bin") // _KEY_BYTES, _size(self._folder / "vectors.bin") // row_bytes)
        if not count:
            self._vectors = np.empty((0, self._encoder.dimension), np.float32)
            return
        known = len(self._rows)
        with (self._folder / "keys.bin").open("rb") as file:
            file.seek(known * _KEY_BYTES)
            for row in range(known, count):
                self._rows[file.read(_KEY_BYTES)] = row
        self._vectors = np.memmap(
            self._folder / "vectors.bin", np.float32, mode="r", shape=(count, self._encoder.dimension)
        )

    def _append(self, known: dict[bytes, int], vectors: np.ndarray) -> None:
        """Write the keys of ``known`` that are still new; its values are rows of ``vectors``."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two runs may share the cache
            self._refresh()
            count = len(self._vectors)
            new = {key: row for key, row in known.items() if key not in self._rows}
            for name, width, data in (
                ("vectors.bin", 4 * self._encoder.dimension, vectors[list(new.values())].tobytes()),
                ("keys.bin", _KEY_BYTES, b"".join(new)),
            ):
                with (self._folder / name).open("ab") as file:
                    file.truncate(count * width)
                    file.write(data)
            self._refresh()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
