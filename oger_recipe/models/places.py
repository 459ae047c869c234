"""Chooses the place of a source's model, behind the cache of replies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from oger_recipe.base.files import fingerprint
from oger_recipe.models.in_process import InProcess
from oger_recipe.models.keys import ModelKeys
from oger_recipe.models.server import ServerPlace
from oger_recipe.rewards.place import Likelihoods, Place, Reply, Sampling, StepPrompt, VerdictCache
from oger_recipe.rewards.spec import Surroundings

_P = TypeVar("_P", str, StepPrompt)

_OF_CHAT = ("system_prompt", "chat_template_kwargs", "extra_body")
_AT_A_TIME = 1024  # prompts, whose replies are then kept: a command that is killed loses at most so many


def place_of(keys: ModelKeys, surroundings: Surroundings) -> Place:
    """Make the place that an entry names, behind the cache of replies where there is one."""
    place = surroundings.around(keys, _opened_by(surroundings)[keys.runs_on](keys))
    return Cached(place, keys, surroundings.cache) if surroundings.cache is not None and keys.cache else place


def likelihoods_of(keys: ModelKeys, surroundings: Surroundings) -> Likelihoods:
    """Make the place that an entry names, of a model that says how likely it finds given texts."""
    place = _opened_by(surroundings)[keys.runs_on](keys)
    assert isinstance(place, Likelihoods)
    return place


def _opened_by(surroundings: Surroundings) -> dict[str, Callable[[ModelKeys], Place]]:
    return {
        "server": lambda keys: ServerPlace(keys, told=surroundings.told),
        "in_process": lambda keys: InProcess(keys, told=surroundings.told),
        "engine": surroundings.engine,
    }


@dataclass
class Cached:
    """A place whose replies are kept, but for errors. It is opened at the first unknown prompt, so that a step without
    one loads no model; equal prompts of a call are asked once."""

    place: Place
    keys: ModelKeys
    cache: VerdictCache
    _is_open: bool = field(default=False, init=False)

    def open(self) -> None:
        pass

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.place.close()

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        question = ("generate", "chat" if self.keys.chats else "completions", asdict(sampling))
        return self._replies(question, prompts, lambda new: self.place.generate(new, sampling))

    def classify(self, prompts: Sequence[str]) -> list[Reply]:
        return self._replies(("classify", self.keys.head), prompts, self.place.classify)

    def classify_steps(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        return self._replies(("classify_steps", self.keys.prm.read), prompts, self.place.classify_steps)

    def _replies(self, question: Any, prompts: Sequence[_P], ask: Callable[[list[_P]], list[Reply]]) -> list[Reply]:
        identity = json.dumps([_identity(self.keys), question], sort_keys=True)
        keys = {prompt: _hash(identity, prompt) for prompt in dict.fromkeys(prompts)}
        known = self.cache.get(keys.values())
        new = [prompt for prompt, key in keys.items() if key not in known]
        if new and not self._is_open:
            self.place.open()
            self._is_open = True
        for start in range(0, len(new), _AT_A_TIME):
            part = new[start : start + _AT_A_TIME]
            asked = dict(zip(map(keys.__getitem__, part), ask(part), strict=True))
            self.cache.put({key: reply for key, reply in asked.items() if reply.error is None})
            known |= asked
        replies = []
        for key in map(keys.__getitem__, prompts):
            replies.append(known[key])
            known[key] = replace(known[key], cached=known[key].error is None)
        return replies


def _identity(keys: ModelKeys) -> dict[str, Any]:
    """Return all of a model and its place that decides replies. What a server has behind a name is not known."""
    of_chat = {name: value for name in _OF_CHAT if (value := getattr(keys, name, None))}
    if keys.runs_on == "server":
        return {"url": keys.url, "model": keys.model, "revision": keys.revision} | of_chat
    names = ("model", "revision", "tokenizer", "runs_on", "dtype", "max_model_len")
    adapter = getattr(keys, "adapter", None)
    files = {"files": fingerprint(keys.model)} | ({"adapter": fingerprint(adapter)} if adapter else {})
    return {name: getattr(keys, name) for name in names} | files | of_chat


def _hash(identity: str, prompt: str | StepPrompt) -> str:
    asked = prompt if isinstance(prompt, str) else asdict(prompt)
    return hashlib.sha256(json.dumps([identity, asked]).encode()).hexdigest()
