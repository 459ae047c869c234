"""Scores pairs of texts with a cross-encoder, which reads both together."""

import numpy as np
import torch

from oger_recipe.base.arithmetic import fast_products
from oger_recipe.base.remote_code import loading


class Reranker:
    """A sentence-transformers CrossEncoder with a single output; the score is the sigmoid of that.

    It reads at most min(max_tokens, the model's own limit) tokens of a pair, special tokens included; the longer text
    of a pair is cut first, at its end.

    Raises:
        ValueError: the model has another number of outputs.
    """

    def __init__(self, model: str, max_tokens: int, batch_size: int, trust_remote_code: bool = False) -> None:
        from sentence_transformers import CrossEncoder

        self.batch_size = batch_size
        with loading(allowed=trust_remote_code):
            self._model = CrossEncoder(model, trust_remote_code=trust_remote_code)
        if self._model.num_labels != 1:
            raise ValueError(f"{model} has {self._model.num_labels} outputs; a reranker has one, the pair's score")
        self._model.max_seq_length = min(max_tokens, self._model.max_seq_length or max_tokens)

    def similarity(self, pairs: list[tuple[str, str]]) -> torch.Tensor:
        """Return [len(pairs)] float32 in [0, 1], on the CPU; score equal pairs once.

        Raises:
            ValueError: a score is not a number (with the count and the beginning of the first such pair).
        """
        if not pairs:
            return torch.empty(0)
        distinct = list(dict.fromkeys(pairs))
        with fast_products(self._model.device.type):
            # The model's own activation may be a sigmoid or nothing; none is asked for, so that there is just one.
            logits = self._model.predict(
                distinct, batch_size=self.batch_size, activation_fn=torch.nn.Identity(), show_progress_bar=False
            )
        scores = torch.from_numpy(np.asarray(logits, np.float32)).sigmoid()
        _stop_on_nan(distinct, scores)
        position = {pair: row for row, pair in enumerate(distinct)}
        return scores[[position[pair] for pair in pairs]]


def _stop_on_nan(pairs: list[tuple[str, str]], scores: torch.Tensor) -> None:
    bad = scores.isnan().nonzero().flatten().tolist()
    if bad:
        start = tuple(text[:100] for text in pairs[bad[0]])
        raise ValueError(f"the reranker has no score for {len(bad)} of {len(pairs)} pairs, e.g. {start!r}")
