"""Engines of a run's reward models: one is at work at a time. On GPUs the others sleep; on a CPU, where vLLM cannot,
they end, or stay where memory is left (oger.reward.engine_memory_gb)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.machine import JUDGES_SHARE
from oger_recipe.models.keys import ModelKeys
from oger_recipe.pipeline.judges.judge_actor import CannotLoad, JudgeActor, Memory, Numbered
from oger_recipe.rewards.place import Reply, Sampling, StepPrompt, Told

LOAD_LIMIT_S = 1800.0  # seconds for loading a model, and for the GPUs that it waits for
_WAKE_LIMIT_S = 120.0
_END_LIMIT_S = 10.0
_LEFT = 0.25  # of the memory: what is to be free for the rest of a run where engines stay
# An actor without a GPU of its own, whose workers have them, is to see all; one process where vLLM would have two.
_ON_GPUS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class RunEngines:
    """The engines, which share the GPUs of a placement group."""

    def __init__(
        self, *, cpu: bool, memory_gb: float | None = None, shared_gpus: Callable[[], PlacementGroup] | None = None
    ) -> None:
        """Begin without engines. memory_gb: what they may keep on a CPU between their turns, None: as much as the
        machine has left; shared_gpus: gives the policy's group, where the engines have none of their own."""
        self.told: Told | None = None  # while replies come
        self.says: Callable[[str], None] | None = None  # once, that engines stay
        self._cpu, self._shared_gpus = cpu, shared_gpus
        self._budget = None if memory_gb is None else memory_gb * 2**30
        self._group: PlacementGroup | None = None
        self._places: dict[ModelKeys, EnginePlace] = {}
        self._sizes: dict[EnginePlace, int] = {}  # bytes, after the latest turn
        self._kept: set[EnginePlace] = set()

    def place(self, keys: ModelKeys) -> EnginePlace:
        """Return the place of a model; entries that say the same of their engine share it."""
        if self._cpu and keys.tensor_parallel_size > 1:
            raise RecipeError(f"{keys.model}: tensor_parallel_size is for machines with CUDA; use 1")
        alike = keys.of_engine()
        return self._places.setdefault(alike, EnginePlace(alike, self))

    def start(self) -> None:
        """Load all on GPUs, one after the other, and put them to sleep; on a CPU each starts when it is opened.

        Raises RecipeError for one that cannot be loaded.
        """
        for place in () if self._cpu else self._places.values():
            place.open()
            place.close()

    def end(self) -> None:
        """End all, and give their GPUs back."""
        for place in self._places.values():
            place.end()
        if self._group is not None and self._shared_gpus is None:
            remove_placement_group(self._group)
        self._group = None

    # ---- for the places

    def actor(self, keys: ModelKeys) -> Any:
        """Start a process for the model; it has loaded nothing yet."""
        group, size = self._gpus(), keys.tensor_parallel_size
        if size > 1:
            nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
            bundles = sorted(nodes, key=lambda bundle: (nodes[bundle], bundle))[:size]
            share, first = 0.0, bundles[0]
        else:
            share, first = JUDGES_SHARE / len(self._places), list(self._places).index(keys) % group.bundle_count
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_capture_child_tasks=True, placement_group_bundle_index=first
        )
        options = {} if self._cpu else {"runtime_env": {"env_vars": _ON_GPUS}}
        made = ray.remote(JudgeActor).options(num_cpus=share, num_gpus=share, scheduling_strategy=strategy, **options)
        return made.remote(keys, share=JUDGES_SHARE / len(self._places), bundles=bundles if size > 1 else None)

    def _gpus(self) -> PlacementGroup:
        """Return the engines' group. Raises RecipeError where its own has too few GPUs, or they do not become free."""
        if self._group is not None:
            return self._group
        if self._shared_gpus is not None:
            self._group = self._shared_gpus()
            return self._group
        size = max(keys.tensor_parallel_size for keys in self._places)
        there = int(ray.cluster_resources().get("GPU", 0))
        if there < size:
            raise RecipeError(f"the engines of reward models need {size} GPUs, and there are {there}")
        self._group = placement_group([{"GPU": 1, "CPU": 1}] * size, strategy="PACK")
        if not self._group.wait(LOAD_LIMIT_S):
            raise RecipeError(f"{size} GPUs for engines of reward models did not become free in {LOAD_LIMIT_S:g} s")
        return self._group

    def keeps(self, place: EnginePlace, memory: Memory) -> bool:
        """Say whether the process of a place whose turn is over stays.

        Without a budget the first turn tells how much an engine takes, and its step what training does; then it stays
        where enough is free, also with the largest of those beside it that ended.
        """
        if not self._cpu:
            return True
        is_first, others = place not in self._sizes, self._kept - {place}
        self._sizes[place] = memory.taken
        if self._budget is None:
            ended = [size for other, size in self._sizes.items() if other is not place and other not in others]
            stays = not is_first and memory.free - max(ended, default=0) >= _LEFT * memory.there
        else:
            stays = memory.taken + sum(self._sizes[other] for other in others) <= self._budget
        if stays and self._budget is None and self.says is not None:
            self.says(_stay(memory))
            self.says = None
        self._kept = others | {place} if stays else others
        return stays

    def make_room(self) -> None:
        """End the others before a model is first loaded: without a budget nobody knows whether it fits beside them."""
        for place in [*self._kept] if self._budget is None else ():
            place.end()

    def ended(self, place: EnginePlace) -> None:
        self._kept.discard(place)


def _stay(memory: Memory) -> str:
    free, there = (f"{size / 2**30:.3g} GiB" for size in (memory.free, memory.there))
    return (
        "engines of reward models stay loaded between their turns from now on, while a quarter of the memory is left: "
        f"{free} of {there} are free (oger.reward.engine_memory_gb 0 ends each after its turn)"
    )


class _Lost(Exception):
    """An engine that cannot go on; the message says why."""


class EnginePlace:
    """A model in an engine of the run's own. Where its process is lost, the prompts that have no reply yet get one
    with the reason, and the next `open` starts it anew."""

    def __init__(self, keys: ModelKeys, engines: RunEngines) -> None:
        self._keys, self._engines = keys, engines
        self._actor: Any = None
        self._pid = 0
        self._has_worked = False
        self._why = "its engine is not open"

    def open(self) -> None:
        """Load the model, or wake it up. Raises RecipeError where it cannot be loaded and never was."""
        if self._actor is not None and not self._wakes_up():
            self.end()
        if self._actor is None:
            self._load()

    def close(self) -> None:
        if self._actor is None:
            return
        try:
            stays = self._engines.keeps(self, self._get(self._actor.rest.remote(), _WAKE_LIMIT_S))
        except _Lost:
            stays = False
        if not stays:
            self.end()

    def end(self) -> None:
        """End the process; returns when it has, so that its memory is free."""
        self._engines.ended(self)
        if self._actor is None:
            return
        ray.kill(self._actor)
        self._actor = None
        deadline = time.monotonic() + _END_LIMIT_S
        while self._pid and Path(f"/proc/{self._pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)  # where it runs on another node there is nothing to wait for

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        return self._replies(prompts, "generate", sampling)

    def classify(self, prompts: Sequence[str]) -> list[Reply]:
        return self._replies(prompts, "classify")

    def classify_steps(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        return self._replies(prompts, "classify_steps")

    def log_probs(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        return self._replies(prompts, "log_probs")

    def _replies(self, prompts: Sequence[Any], method: str, *settings: Any) -> list[Reply]:
        replies: dict[int, Reply] = {}
        try:
            for numbered in self._stream(method, list(prompts), *settings):
                replies |= dict(numbered)
                if self._engines.told is not None:
                    self._engines.told(self._keys.model, len(replies), len(prompts))
        except _Lost as lost:
            self._why = str(lost)
            self.end()
        missing = Reply(error=f"{self._keys.model}: {self._why}")
        return [replies.get(number, missing) for number in range(len(prompts))]

    def _stream(self, method: str, *arguments: Any) -> Iterator[Numbered]:
        if self._actor is None:
            raise _Lost(self._why)
        deadline = time.monotonic() + self._keys.step_limit_s
        stream = getattr(self._actor, method).options(num_returns="streaming").remote(*arguments)
        while True:
            limit = min(self._keys.request_limit_s, deadline - time.monotonic())
            ready = limit > 0 and ray.wait([stream], timeout=limit)[0]
            if not ready and time.monotonic() >= deadline:
                raise _Lost(f"no reply within the {self._keys.step_limit_s:g} s of a step (step_limit_s)")
            if not ready:
                raise _Lost(f"its engine made no progress for {limit:g} s (request_limit_s)")
            try:
                reference = next(stream)
            except StopIteration:
                return
            yield self._get(reference, self._keys.request_limit_s)

    def _wakes_up(self) -> bool:
        try:
            self._get(self._actor.wake_up.remote(), _WAKE_LIMIT_S)
        except _Lost:
            return False
        return True

    def _load(self) -> None:
        if not self._has_worked:
            self._engines.make_room()
        if self._engines.told is not None:
            self._engines.told(self._keys.model, 0, 0)
        self._actor, self._pid = self._engines.actor(self._keys), 0
        try:
            self._pid = self._get(self._actor.load.remote(), LOAD_LIMIT_S)
        except _Lost as lost:
            self._why = f"its engine does not start: {lost}"
            self.end()
            if not self._has_worked:
                raise RecipeError(f"{self._keys.model}: {self._why}") from None
        self._has_worked = True

    def _get(self, reference: Any, limit_s: float) -> Any:
        try:
            return ray.get(reference, timeout=limit_s)
        except GetTimeoutError:
            raise _Lost(f"its process does not answer within {limit_s:g} s") from None
        except OutOfMemoryError:
            raise _Lost("the machine's memory was full, and Ray ended its process") from None
        except RayTaskError as error:
            cause = error.cause
            raise _Lost(str(cause) if isinstance(cause, CannotLoad) else f"{type(cause).__name__}: {cause}") from None
        except RayActorError:
            pid = f" (pid {self._pid})" if self._pid else ""
            raise _Lost(f"its process{pid} died: it was killed, or the machine's memory was full") from None
