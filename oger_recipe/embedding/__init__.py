"""Embeddings of trajectories, computed here or by a server, their cache, and a reranker in their place."""

from collections.abc import Callable
from dataclasses import dataclass

# The part of a trajectory that is embedded, made of the texts before and after its last </think>.
PARTS: dict[str, Callable[[str, str], str]] = {
    "all": lambda thought, answer: f"{thought}</think>{answer}",
    "thought": lambda thought, answer: thought,
    "answer": lambda thought, answer: answer,
}


@dataclass(frozen=True)
class LongText:
    """The part of a long text that is embedded. ``pieces``: cuts (text, characters), where a server embeds;
    ``cut_from``: the side that a tokenizer cuts where the encoder is loaded here; None: it reads all in windows."""

    pieces: Callable[[str, int], list[str]]
    cut_from: str | None


LONG_TEXTS: dict[str, LongText] = {
    "head": LongText(lambda text, size: [text[:size]], "right"),
    "tail": LongText(lambda text, size: [text[-size:]], "left"),
    "chunks": LongText(
        lambda text, size: [text[start : start + size] for start in range(0, max(len(text), 1), size)], None
    ),
}
