"""Engines of reward models for a command that trains nothing."""

import contextlib
import os
from collections.abc import Callable, Iterator

import ray

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.machine import machine
from oger_recipe.models.keys import ModelKeys
from oger_recipe.pipeline.driver.start_ray import cleared_up, run_environment, start_ray
from oger_recipe.pipeline.judges.engines import RunEngines
from oger_recipe.rewards.place import Place, Told


@contextlib.contextmanager
def local_engines(memory_gb: float | None = None, told: Told | None = None) -> Iterator[Callable[[ModelKeys], Place]]:
    """Yield a function from keys to places. Ray starts with the first of them, on loopback where there is no CUDA, or
    the cluster at RAY_ADDRESS is joined; afterwards Ray is shut down.

    memory_gb: oger.reward.engine_memory_gb; told: of replies, as they come.
    """
    with contextlib.ExitStack() as stack:
        started: list[RunEngines] = []

        def place(keys: ModelKeys) -> Place:
            if not started:
                cpu = stack.enter_context(ray_here())
                started.append(RunEngines(cpu=cpu, memory_gb=memory_gb))
                started[0].told = told
                stack.callback(started[0].end)
            return started[0].place(keys)

        yield place


@contextlib.contextmanager
def ray_here(verbose: bool = False) -> Iterator[bool]:
    """Start or join Ray for the block; yield whether it is without CUDA. ``verbose``: print what workers print.

    Raises RecipeError for a silent cluster.
    """
    here = machine()
    if here.silent:
        raise RecipeError(here.no_answer)
    cpu = here.cpu
    environment = run_environment(cpu) | {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")}
    with cleared_up() if here.cluster is None else contextlib.nullcontext() as folder:
        start_ray(environment, cpu, 1 if cpu else 0, verbose, folder)
        try:
            yield cpu
        finally:
            ray.shutdown()
