"""Embeddings on disk, addressed by content: the text's hash under everything else that decides the vector.

One folder per encoder fingerprint: ``manifest.json``, ``keys.bin`` (SHA-256 of each text, 32 bytes) and
``vectors.bin`` (float32 rows). Both only grow; a run that was killed while appending loses at most its last batch.
"""

import fcntl
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch

from oger_recipe.embedding.encoder import TrajectoryEncoder

_KEY_BYTES = 32


def _text_key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class EmbeddingCache:
    """Looks texts up and encodes only those that are new."""

    def __init__(self, encoder: TrajectoryEncoder, root: Path) -> None:
        self._encoder = encoder
        manifest = json.dumps(encoder.settings.fingerprint() | {"dimension": encoder.dimension}, sort_keys=True)
        self._folder = root.expanduser() / hashlib.sha256(manifest.encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_manifest(manifest)
        self._rows: dict[bytes, int] = {}
        self._refresh()

    def encode(self, texts: list[str]) -> torch.Tensor:
        """[len(texts), d] float32 unit rows; new texts are encoded together and kept."""
        new = [text for text in dict.fromkeys(texts) if _text_key(text) not in self._rows]
        if new:
            self._append(new, self._encoder.encode(new))
        rows = [self._rows[_text_key(text)] for text in texts]
        return torch.from_numpy(np.array(self._vectors[rows]))

    def __len__(self) -> int:
        return len(self._rows)

    def _check_manifest(self, manifest: str) -> None:
        path = self._folder / "manifest.json"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(manifest)
            os.replace(partial, path)
        elif path.read_text() != manifest:
            raise ValueError(f"{path} does not describe this encoder ({manifest}); remove the folder to rebuild it")

    def _refresh(self) -> None:
        """Maps what is on disk; rows without their key, or keys without their row, do not count."""
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

    def _append(self, texts: list[str], vectors: torch.Tensor) -> None:
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two runs may share the cache
            self._refresh()
            count = len(self._vectors)
            for name, width, data in (
                ("vectors.bin", 4 * self._encoder.dimension, vectors.numpy().tobytes()),
                ("keys.bin", _KEY_BYTES, b"".join(map(_text_key, texts))),
            ):
                with (self._folder / name).open("ab") as file:
                    file.truncate(count * width)
                    file.write(data)
            self._refresh()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
