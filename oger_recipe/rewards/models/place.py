"""Where reward models run, as the sources see it: a place is opened, asked about many prompts at once, and closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from oger_recipe.seeds import stable_seed


@dataclass(frozen=True)
class Sampling:
    """How a judge writes. With a seed, a reply depends on nothing but its prompt, which has its own `seed_of`."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 1024
    seed: int | None = None

    def seed_of(self, prompt: str) -> int | None:
        """Return the seed that a place samples this prompt's reply with, whatever is asked beside it."""
        return None if self.seed is None else stable_seed(self.seed, prompt)


@dataclass(frozen=True)
class Reply:
    """What a model says to one prompt: a text, the number of its head, a number for each step of reasoning in it, or
    how likely it finds each token of a response; ``error`` says why there is none of these.

    cut: the text ended at its longest; cached: it was not asked again; cause: OVERFLOW or ANSWER of sources.py where
    the prompt may have brought the error about.
    """

    text: str = ""
    value: float = float("nan")
    error: str | None = None
    steps: tuple[float, ...] = ()
    log_probs: tuple[float, ...] = ()
    cut: bool = False
    cached: bool = False
    cause: str | None = None


@dataclass(frozen=True)
class StepPrompt:
    """A text as tokens, and the positions among them where a model says how good the steps of reasoning are."""

    tokens: tuple[int, ...]
    ends: tuple[int, ...]


Told = Callable[[str, int, int], None]  # model, replies so far, prompts; 0 prompts: the model is being loaded


class Place(Protocol):
    """A model in its place. Replies come in the order of the prompts, one for each; a prompt that fails, or a model
    that died, is a reply with an error: only a configuration that cannot work raises (RecipeError, from `open`)."""

    def open(self) -> None:
        """Load the model, wake it up, or look whether its server is there."""

    def close(self) -> None:
        """Give its memory back until it is opened again."""

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        """Write a text for each prompt, which is complete as it is: chat templates are the plugin's."""

    def classify(self, prompts: Sequence[str]) -> list[Reply]:
        """Give the head's number for each prompt: raw, before any sigmoid."""

    def classify_steps(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        """Give the probability that a step is good for each position that a prompt names, as the model's ProcessKeys
        say."""


@runtime_checkable
class Likelihoods(Protocol):
    """A place of a model that writes, which says how likely it finds a text: this process, or an engine."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def log_probs(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        """Give the log-probability of each token behind the first of a prompt's ends, in float32."""
