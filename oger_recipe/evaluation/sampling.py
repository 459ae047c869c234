"""What an evaluation asks of a model, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass

from oger_recipe.base.cutting import StepSampling


@dataclass(frozen=True)
class Model:
    """What to load: folder or hub name, a hub revision; and how: batch_size is the number of requests in flight."""

    name: str
    revision: str | None = None
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    batch_size: int = 256
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Sampling:
    """n samples a problem. max_new_tokens is bounded by what the prompt leaves of the model's context; stop and
    stop_token_ids end a response as end-of-sequence does; steps: how steps of reasoning enter, None where they do
    not."""

    n: int = 4
    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 2048
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    steps: StepSampling | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether all samples of a problem are the same."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True)
class Request:
    """One sample to draw: the prompt's tokens, the longest response in tokens, and the sample's own seed."""

    tokens: list[int]
    max_new_tokens: int
    seed: int


@dataclass(frozen=True)
class Response:
    """text: without special tokens; tokens: their number, the end-of-sequence token included; truncated: by length."""

    text: str
    tokens: int
    truncated: bool
