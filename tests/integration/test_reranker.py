"""Scores of a cross-encoder: a tiny random one, beside the logits that transformers computes for the same pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

from oger_recipe.embedding.encoder import PACKAGED_MODEL, model_location
from oger_recipe.embedding.reranker import Reranker

PAIRS = [("3 * 4 is twelve", "take four threes"), ("a", "b"), ("", "b"), ("é漢🎉", "wait, " * 30), ("b", "a")]


def _save(folder: Path, num_labels: int, activation: str | None) -> str:
    """A random model, wide enough spread that pairs differ, with MiniLM's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(model_location(PACKAGED_MODEL))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=num_labels,
        initializer_range=0.3,
    )
    if activation:
        config.sentence_transformers = {"activation_fn": activation}
    model = BertForSequenceClassification(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _expected(folder: str, pairs: list[tuple[str, str]], max_tokens: int) -> torch.Tensor:
    """[n]: sigmoids of the logits, each pair on its own."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = [
            model(**tokenizer(*pair, truncation=True, max_length=max_tokens, return_tensors="pt")).logits.item()
            for pair in pairs
        ]
    return torch.tensor(logits).sigmoid()


@pytest.mark.parametrize(
    "activation", [None, "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"]
)
def test_scores_are_the_sigmoid_of_the_logits_taken_once(tmp_path: Path, activation: str | None) -> None:
    folder = _save(tmp_path, 1, activation)
    scores = Reranker(folder, max_tokens=64, batch_size=2).similarity(PAIRS)
    assert scores.shape == (5,) and scores.dtype == torch.float32
    assert scores.min() >= 0 and scores.max() <= 1
    assert scores.min() < 0.3, "no sigmoid of a sigmoid is below a half"
    torch.testing.assert_close(scores, _expected(folder, PAIRS, 64), atol=0.02, rtol=0)  # products may be bfloat16


def test_long_pairs_are_cut_to_the_limit(tmp_path: Path) -> None:
    folder = _save(tmp_path, 1, None)
    scores = Reranker(folder, max_tokens=8, batch_size=2).similarity(PAIRS)
    torch.testing.assert_close(scores, _expected(folder, PAIRS, 8), atol=0.02, rtol=0)
    assert (scores - _expected(folder, PAIRS, 64)).abs().max() > 0.05
    scores.add_(1)  # an ordinary tensor: results of inference mode could not be written to


def test_equal_pairs_are_scored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = Reranker(_save(tmp_path, 1, None), max_tokens=64, batch_size=2)
    predict, seen = reranker._model.predict, []

    def watched(pairs, **kwargs):
        seen.append(list(pairs))
        return predict(pairs, **kwargs)

    monkeypatch.setattr(reranker._model, "predict", watched)
    scores = reranker.similarity([("a", "b"), ("b", "a"), ("a", "b"), ("a", "b")])
    assert seen == [[("a", "b"), ("b", "a")]]
    assert scores[0] == scores[2] == scores[3] != scores[1]
    assert reranker.similarity([]).shape == (0,)


def test_a_score_that_is_no_number_is_not_returned(tmp_path: Path) -> None:
    reranker = Reranker(_save(tmp_path, 1, None), max_tokens=64, batch_size=2)
    reranker._model[0].model.classifier.bias.data.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"no score for 2 of 2 pairs, e\.g\. \('a', 'b'\)"):
        reranker.similarity([("a", "b"), ("b", "a"), ("a", "b")])


def test_classifiers_of_several_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 3 outputs; a reranker has one"):
        Reranker(_save(tmp_path, 3, None), max_tokens=64, batch_size=2)
