"""Embeds trajectories with a sentence-transformers model, and chooses the encoder of a run."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from oger_recipe.base.arithmetic import fast_products
from oger_recipe.base.remote_code import loading
from oger_recipe.embedding import LONG_TEXTS
from oger_recipe.embedding.base import Encoder, mean_direction, unit_rows
from oger_recipe.embedding.remote import RemoteEncoder
from oger_recipe.embedding.settings import PACKAGED_MODEL, EncoderSettings

# Of a batch. Few, since the last batch of a length is filled with repeats; more of them are hardly faster.
_TOKENS_ON_CPU = 512
MakeEncoder = Callable[[EncoderSettings, int], Encoder]  # of settings, for batches of so many texts


def make_encoder(settings: EncoderSettings, batch_size: int) -> Encoder:
    """Make the encoder of the settings: a server's where they have a url, else one that is loaded here."""
    return (RemoteEncoder if settings.url else TrajectoryEncoder)(settings, batch_size)


def model_location(model: str) -> str:
    """Return the packaged model's folder, or the name as it is (a folder or a hub name).

    Raises ValueError where the package is not installed.
    """
    if model != PACKAGED_MODEL:
        return model
    spec = importlib.util.find_spec(PACKAGED_MODEL.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"the package {PACKAGED_MODEL} is not installed; pip install {PACKAGED_MODEL}")
    return str(Path(spec.submodule_search_locations[0]) / "model")


class TrajectoryEncoder(Encoder):
    """A sentence-transformers model in this process.

    How far a text is padded changes its vector's last bits, and so does the number of rows of its batch, by which
    libraries choose how to multiply. So texts of one padded length share a batch, and every batch of a length has
    equally many rows. A vector is then the same whatever it is encoded with, and in which order texts come.

    It reads at most min(settings.max_tokens, the model's own limit) tokens at a time, special tokens included.

    Raises:
        ValueError: the model has fewer layers than settings.layers, or they cannot be told from the rest of it; no
            room is left beside the special tokens; or the model reads more than the text's tokens (a
            prompt, a chat template), which tails and chunks would cut in the wrong place.
    """

    def __init__(self, settings: EncoderSettings, batch_size: int) -> None:
        from sentence_transformers import SentenceTransformer

        super().__init__(settings, batch_size)
        trusted = settings.trust_remote_code
        with loading(allowed=trusted):
            self._model = SentenceTransformer(
                model_location(settings.model), revision=settings.revision, trust_remote_code=trusted
            )
        if settings.layers is not None:
            keep_layers(self._model, settings.layers)
        self._model.max_seq_length = min(settings.max_tokens, self._model.max_seq_length or settings.max_tokens)
        self._check_room()
        self._cut_from = LONG_TEXTS[settings.long_texts].cut_from
        if self._cut_from != "right":
            self._check_plain_input()
        self._model.tokenizer.truncation_side = self._cut_from or "right"

    @property
    def dimension(self) -> int:
        dimension = self._model.get_embedding_dimension()
        assert dimension is not None, f"{self.settings.model} has no pooling layer"
        return int(dimension)

    @property
    def _longest(self) -> int:
        return int(self._model.max_seq_length - self._model.tokenizer.num_special_tokens_to_add())

    def _lengths(self, texts: list[str]) -> list[int]:
        tokens = self._model.tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return [len(row) for row in tokens]

    def _embed(self, texts: list[str]) -> tuple[torch.Tensor, dict[int, str]]:
        with torch.no_grad(), fast_products(self._model.device.type):
            if self._cut_from is None:
                vectors, owners = self._embed_chunks(texts)
            else:
                vectors, owners = self._embed_cut(texts), torch.arange(len(texts))
        return mean_direction(unit_rows(vectors), owners, len(texts)), {}

    def _embed_cut(self, texts: list[str]) -> torch.Tensor:
        """Embed what the tokenizer leaves of each text at its truncation side, [n, d], without any padding."""
        vectors = torch.empty(len(texts), self.dimension)
        for rows in self._batches([min(length, self._longest) for length in self._lengths(texts)]):
            members = [texts[row] for row in rows]
            of_rows = self._model.encode(members, batch_size=len(rows), show_progress_bar=False)
            vectors[rows] = torch.from_numpy(of_rows).float()
        return vectors

    def _embed_chunks(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Embed consecutive windows of the texts' tokens: [P, d], and [P] with the text of each.

        Windows are of token ids: the text of a window may have other tokens than it had within the whole.
        """
        tokenizer = self._model.tokenizer
        limit = self._longest + tokenizer.num_special_tokens_to_add()
        windows = dict(tokenizer(texts, truncation=True, max_length=limit, return_overflowing_tokens=True))
        owners = windows.pop("overflow_to_sample_mapping")
        vectors = torch.empty(len(owners), self.dimension)
        lengths = [min(_padded(len(tokens)), limit) for tokens in windows["input_ids"]]
        for rows in self._batches(lengths):
            batch = {name: [values[row] for row in rows] for name, values in windows.items()}
            length = lengths[rows[0]]
            features = tokenizer.pad(batch, padding="max_length", max_length=length, return_tensors="pt")
            output = self._model(dict(features.to(self._model.device)))
            vectors[rows] = output["sentence_embedding"].float().cpu()
        return vectors, torch.tensor(owners)

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        """Cut positions into batches of one length, longest first: what needs most memory comes first.

        The last batch of a length repeats its last position until it is as large as the others.
        """
        on_cpu = self._model.device.type == "cpu"
        of_length: dict[int, list[int]] = {length: [] for length in sorted(set(lengths), reverse=True)}
        for row, length in enumerate(lengths):
            of_length[length].append(row)
        for length, rows in of_length.items():
            size = min(self.batch_size, max(_TOKENS_ON_CPU // max(length, 1), 1)) if on_cpu else self.batch_size
            for start in range(0, len(rows), size):
                batch = rows[start : start + size]
                yield batch + batch[-1:] * (size - len(batch))

    def _check_room(self) -> None:
        limit, special = self._model.max_seq_length, self._model.tokenizer.num_special_tokens_to_add()
        if limit <= special:
            raise ValueError(
                f"{limit} tokens leave no room for a text beside the {special} special tokens of {self.settings.model}"
            )

    def _check_plain_input(self) -> None:
        model, sample = self._model, "A text."
        plain = model.tokenizer(sample)["input_ids"]
        if model.default_prompt_name is not None or model.preprocess([sample])["input_ids"][0].tolist() != plain:
            raise ValueError(
                f"{self.settings.model} puts more than its special tokens around a text, so that long texts can only "
                f"be cut at their end: set head, not {self.settings.long_texts}"
            )


def keep_layers(model: Any, layers: int) -> None:
    """Take from a sentence-transformers model all but its first layers.

    Raises ValueError where it has fewer, or where they cannot be told from the rest of it.
    """
    transformer = model[0].auto_model
    total = transformer.config.num_hidden_layers
    stacks = [each for each in transformer.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == total]
    if len(stacks) != 1:
        raise ValueError(f"its {total} layers are not one list: leave oger.embedding_layers out")
    if layers > total:
        raise ValueError(f"oger.embedding_layers is {layers}, and it has {total}")
    del stacks[0][layers:]


def _padded(tokens: int) -> int:
    """Round a length up to one of four in each doubling, and a multiple of 8: few lengths, little padding."""
    step = 1 << max(tokens.bit_length() - 3, 3)
    return -(-tokens // step) * step
