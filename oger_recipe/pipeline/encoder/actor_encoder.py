"""An encoder whose work is done in a process with a share of a GPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import ray
import torch
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from oger_recipe.embedding.base import Encoder
from oger_recipe.embedding.encoder import MakeEncoder, TrajectoryEncoder, make_encoder
from oger_recipe.embedding.settings import EncoderSettings
from oger_recipe.pipeline import give_way_to_engine


class ActorEncoder(Encoder):
    """Asks the actor. Where its process dies, the texts that it had have no embedding, and Ray starts another one.

    Raises what TrajectoryEncoder raises.
    """

    def __init__(self, settings: EncoderSettings, batch_size: int, actor: Any) -> None:
        self._actor = actor
        try:
            arithmetic, self._dimension, self._read = ray.get(actor.facts.remote())
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        super().__init__(replace(settings, arithmetic=arithmetic), batch_size)

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def _longest(self) -> int:
        return self._read

    def _lengths(self, texts: list[str]) -> list[int]:
        # Counting kills no process: if it has died, Ray asks the next one, however often, until one has started.
        lengths: list[int] = ray.get(self._actor.lengths.options(max_task_retries=-1).remote(texts))
        return lengths

    def _embed(self, texts: list[str]) -> tuple[torch.Tensor, dict[int, str]]:
        try:
            rows, reasons = ray.get(self._actor.embed.remote(texts))
        except RayActorError as error:
            why = f"the encoder's process died ({type(error).__name__}): it was killed, or the memory was full"
            return torch.full((len(texts), self._dimension), torch.nan), dict.fromkeys(range(len(texts)), why)
        return rows.clone(), reasons  # what Ray hands out cannot be written to


def encoders_on(num_gpus: float, shared_gpus: Callable[[], PlacementGroup] | None) -> MakeEncoder:
    """Return the maker of a run's encoders: in this process without a GPU, else all in one that has a share of it.

    shared_gpus: gives the policy's, where the encoder has none of its own.
    """
    started: list[Any] = []

    def make(settings: EncoderSettings, batch_size: int) -> Encoder:
        if not num_gpus:
            return make_encoder(settings, batch_size)
        if not started:
            options: dict[str, Any] = {"num_cpus": 0, "num_gpus": num_gpus, "max_restarts": -1}
            if shared_gpus is not None:
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                    shared_gpus(), placement_group_bundle_index=0
                )
            started.append(ray.remote(EncoderActor).options(**options).remote(settings, batch_size))
        return ActorEncoder(settings, batch_size, started[0])

    return make


# The process of the encoder.


class EncoderActor:
    """Makes vectors of texts. Its encoder loads when first asked, and again where Ray has started it anew."""

    def __init__(self, settings: EncoderSettings, batch_size: int) -> None:
        give_way_to_engine()
        self._settings, self._batch_size = settings, batch_size

    @cached_property
    def _encoder(self) -> TrajectoryEncoder:
        return TrajectoryEncoder(replace(self._settings, arithmetic=""), self._batch_size)

    def facts(self) -> tuple[str, int, int]:
        """Return the arithmetic of the vectors, their length, and the tokens that are read at a time."""
        return self._encoder.settings.arithmetic, self._encoder.dimension, self._encoder._longest

    def lengths(self, texts: list[str]) -> list[int]:
        return self._encoder._lengths(texts)

    def embed(self, texts: list[str]) -> tuple[torch.Tensor, dict[int, str]]:
        return self._encoder._embed(texts)
