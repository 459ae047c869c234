"""The package's trial of a training, as a script for ranks without CUDA; some cases send and save as well."""

from __future__ import annotations

import os

from oger_recipe.base.cpu import CPU_ENVIRONMENT

os.environ.update(CPU_ENVIRONMENT | {"OMP_NUM_THREADS": "1"})

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from transformers import AutoTokenizer

from oger_recipe.pipeline.policy.trial import _train, main, rows_of_step, trained_actor

__all__ = ["main", "rows_of_step"]


class Engine:
    """What a rank sends its weights to: keeps each by its name, and counts how often its caches are emptied."""

    def __init__(self) -> None:
        self.received: dict[str, torch.Tensor] = {}
        self.resets = 0
        self.update_weight = SimpleNamespace(remote=self._announced)
        self.reset_prefix_cache = SimpleNamespace(remote=self._reset)

    def _announced(self, name: str, dtype: torch.dtype, shape: torch.Size, empty_cache: bool) -> None:
        assert name not in self.received
        self.next = (name, dtype, tuple(shape))

    def broadcast(self, weight: torch.Tensor, src: int, stream: Any) -> None:
        name, dtype, shape = self.next
        assert (weight.dtype, tuple(weight.shape)) == (dtype, shape)
        self.received[name] = weight.clone()

    def _reset(self) -> None:
        self.resets += 1


def send_and_save(case: dict[str, Any], rank: int, ranks: int, port: int, folder: Path) -> dict[str, Any]:
    """Train for a step, then send the weights to an Engine and save them; return what came, and where they lie."""
    actor, _ = trained_actor(case, rank, ranks, port, folder)
    for row in rows_of_step(0)[rank::ranks]:
        actor.append(row)
    actor.fit()
    trainer, engine, saved = actor.trainer, Engine(), folder / case["name"]
    trainer.vllm_engines, trainer._model_update_group, trainer.use_cuda_ipc = [engine], engine, False
    vllm = actor.strategy.args.vllm
    vllm.enable_prefix_caching, vllm.sync_with_ray = True, False
    with mock.patch("ray.get", lambda found: found):
        trainer.broadcast_to_vllm()
    actor.strategy.save_model(actor.actor, AutoTokenizer.from_pretrained(folder / "policy"), str(saved))
    return {"sent": engine.received, "resets": engine.resets, "saved": str(saved)}


def train(case: dict[str, Any], *place: Any) -> dict[str, Any]:
    return send_and_save(case, *place) if case.get("sends") else _train(case, *place)


if __name__ == "__main__":
    main(train)
