"""What the commands that train nothing share: reading an entry, rows and responses; asking reward models."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.progress import ShownReplies
from oger_recipe.base.remote_code import policy_models
from oger_recipe.checks.settings import models_of_run, out_of_range, require_loadable
from oger_recipe.data.responses import Response, read_responses
from oger_recipe.data.rows import Row
from oger_recipe.lab.built_in_models import PRMS
from oger_recipe.models.keys import ModelKeys
from oger_recipe.models.tokens import load_tokenizer, plain_tokens
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.place import Place, Reply, Sampling, StepPrompt, Told
from oger_recipe.rewards.spec import SourceSpec, Surroundings
from oger_recipe.run.inputs import with_judges
from oger_recipe.run.rows import DATA, EVAL, training_rows
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.settings.own_functions import register

Settings = Mapping[str, Any]
_ENTRY = "oger.reward.sources, entry 1: "  # the user has not written it there


def spec_of(entry: Mapping[str, Any], value: Settings, what: str) -> SourceSpec:
    """Read an entry of oger.reward.sources. Raises RecipeError for one that is wrong; what: its name there."""
    (entry,) = with_judges({**value, "oger.reward.sources": (entry,)})["oger.reward.sources"]
    if problems := [each.removeprefix(_ENTRY) for each in entry_problems([entry])]:
        raise RecipeError("\n  - ".join([f"this {what} cannot be asked:", *problems]))
    (spec,) = sources_of([entry])
    return spec


def checked(value: Settings) -> Settings:
    """Return the settings with no other rows to evaluate on than the prompts. Raises RecipeError for what keeps the
    rewards of a recipe from being computed, before anything is loaded."""
    settings = OgerSettings.of(value)
    problems = [*out_of_range(value), *register(value["algo.advantage.estimator"], settings)]
    problems += entry_problems(settings.reward.sources)
    if not value[DATA] and value["oger.task.name"] is None:
        problems.append("no rows: give --rows FILE, or set data.prompt_dataset")
    if problems:
        raise RecipeError("\n  - ".join(["the rewards of this recipe cannot be computed:", *problems]))
    # Neither the policy, which few commands load, nor PRMs that are still to be trained.
    policy = {*policy_models(value)}
    require_loadable(value, (each for each in models_of_run(value) if each not in policy and each.model not in PRMS))
    return {**value, EVAL: value[EVAL] or value[DATA]}


def rows_and_responses(value: Settings, file: Path) -> tuple[dict[str, Row], list[Response]]:
    """Read the prompts' rows by uid, and the responses to them in a file."""
    rows = {row["uid"]: row for row in training_rows(value)}
    return rows, read_responses(file, rows, value[DATA])


@contextlib.contextmanager
def asking(
    value: Settings, models: Iterable[ModelKeys], meters: list[Metered] | None = None
) -> Iterator[Surroundings]:
    """Yield the surroundings of sources that ask these models, whose engines run inside the context.

    meters: gets a meter for each place that is asked.
    """

    def metered(keys: ModelKeys, place: Place) -> Place:
        if meters is None:
            return place
        meters.append(Metered(keys, place))
        return meters[-1]

    settings, told = OgerSettings.of(value), ShownReplies().told
    with _engines(models, settings.reward.engine_memory_gb, told) as engine:
        surroundings = Surroundings.of(settings, engine, value["train.seed"])
        yield replace(surroundings, told=told, around=metered)


def _engines(
    models: Iterable[ModelKeys], memory_gb: float | None, told: Told
) -> contextlib.AbstractContextManager[Callable[[ModelKeys], Place]]:
    """Return a context with a function that starts a model's engine. If none runs in one, Ray and vLLM stay away."""
    if all(keys.runs_on != "engine" for keys in models):
        return contextlib.nullcontext(_no_engine)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from oger_recipe.pipeline.driver.local_engines import local_engines

    return local_engines(memory_gb, told)


def _no_engine(keys: ModelKeys) -> Place:
    raise AssertionError(f"{keys.model} was not among the models")


@dataclass
class Metered:
    """A place whose work is recorded."""

    keys: ModelKeys
    place: Place
    loading_s: float = 0.0
    seconds: float = 0.0
    prompts: list[str | StepPrompt] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)

    def open(self) -> None:
        started = time.monotonic()
        self.place.open()
        self.loading_s += time.monotonic() - started

    def close(self) -> None:
        self.place.close()

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        return self._asked(prompts, lambda: self.place.generate(prompts, sampling))

    def classify(self, prompts: Sequence[str]) -> list[Reply]:
        return self._asked(prompts, lambda: self.place.classify(prompts))

    def classify_steps(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        return self._asked(prompts, lambda: self.place.classify_steps(prompts))

    def _asked(self, prompts: Sequence[str | StepPrompt], ask: Callable[[], list[Reply]]) -> list[Reply]:
        started = time.monotonic()
        replies = ask()
        self.seconds += time.monotonic() - started
        self.prompts += prompts
        self.replies += replies
        return replies

    def tokens(self) -> tuple[int, int]:
        """Count the tokens read and written."""
        tokenizer = load_tokenizer(self.keys)
        read, written = (
            sum(len(plain_tokens(tokenizer, text) if isinstance(text, str) else text.tokens) for text in texts)
            for texts in (self.prompts, [reply.text for reply in self.replies])
        )
        return read, written
